"""pynsq against a broker: publish, consume, requeue, timeouts, compression, TLS, authentication.

The addresses come from the environment: NSQ_TCP, NSQ_HTTP, NSQ_TLS_CA, and for authentication
NSQ_AUTH_TCP (a broker) and NSQ_AUTH_HTTP (where that broker asks; this program serves it).
Prints `ok NAME` or `not ok NAME: WHY` per check; the exit status is 1 when one failed.
"""

import asyncio
import itertools
import logging
import os
import ssl
import sys
import time
import traceback
import types
import urllib.request

import nsq
import nsq.deflate_socket
import tornado.web

try:
    import nsq.snappy_socket
except ImportError:
    compressed_sockets = [nsq.deflate_socket]
else:
    compressed_sockets = [nsq.deflate_socket, nsq.snappy_socket]
# A pynsq bug: when a read yields no whole chunk, it raises `socket.error(EWOULDBLOCK)` with that one
# argument, which Tornado before 6.1 took for "come again" and later ones take for a broken socket.
for module in compressed_sockets:
    module.socket = types.SimpleNamespace(
        error=lambda code: BlockingIOError(code, os.strerror(code)))

TCP = os.environ["NSQ_TCP"]
HTTP = os.environ["NSQ_HTTP"]
AUTH_TCP = os.environ["NSQ_AUTH_TCP"]
AUTH_HTTP = os.environ["NSQ_AUTH_HTTP"]
TLS = {
    "tls_v1": True,
    "tls_options": {"cert_reqs": ssl.CERT_REQUIRED, "ca_certs": os.environ["NSQ_TLS_CA"]},
}
# Only what hangs takes so long; a machine that is slow and busy does not decide.
CHECK_S_MAX = 1800
WAIT_S_MAX = 600
numbers = itertools.count()
checks = []


def check(function):
    checks.append(function)
    return function


def new_topic():
    return f"pynsq_{os.getpid()}_{next(numbers)}"


async def wait_for(condition, what):
    deadline = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        await asyncio.sleep(0.005)


async def connected_writer(**options):
    writer = nsq.Writer([options.pop("address", TCP)], **options)
    await wait_for(lambda: writer.conns, "the writer is connected")
    return writer


async def publish(writer, command, *arguments):
    """Returns the broker's answer; pynsq's own future is done once the command is written."""
    answer = asyncio.get_running_loop().create_future()
    getattr(writer, command)(*arguments, callback=lambda conn, data: answer.set_result(data))
    return await asyncio.wait_for(answer, WAIT_S_MAX)


class Collector:
    """A reader that keeps what it gets; `decide` says what becomes of a message."""

    def __init__(self, topic, decide=lambda message: True, address=TCP, **options):
        self.messages = []
        self.decide = decide
        options.setdefault("max_in_flight", 50)
        options.setdefault("max_backoff_duration", 0.1)
        self.reader = nsq.Reader(
            topic=topic, channel="ch", message_handler=self.handle,
            nsqd_tcp_addresses=[address], **options)

    def handle(self, message):
        self.messages.append((message.body, message.attempts))
        return self.decide(message)

    async def until(self, count):
        await wait_for(lambda: len(self.messages) >= count, f"{count} messages have come")
        self.reader.close()
        return self.messages


async def round_trip(count=300, **options):
    topic = new_topic()
    writer = await connected_writer(**options)
    sent = [b"message %d " % n + b"x" * (n * 7 % 3000) for n in range(count)]
    half = count // 2
    for body in sent[:half]:
        assert await publish(writer, "pub", topic, body) == b"OK"
    assert await publish(writer, "mpub", topic, sent[half:]) == b"OK"
    got = await Collector(topic, **options).until(count)
    assert sorted(body for body, _ in got) == sorted(sent), "other messages came than were sent"
    assert all(attempts == 1 for _, attempts in got)
    return got


@check
async def publish_and_consume():
    await round_trip()


@check
async def one_message_in_flight():
    topic = new_topic()
    writer = await connected_writer()
    sent = [b"%d" % n for n in range(2000)]
    for n in range(0, 2000, 100):
        assert await publish(writer, "mpub", topic, sent[n:n + 100]) == b"OK"
    got = await Collector(topic, max_in_flight=1).until(2000)
    assert sorted(int(body) for body, _ in got) == list(range(2000))


@check
async def delayed_publish():
    topic = new_topic()
    writer = await connected_writer()
    start = time.monotonic()
    assert await publish(writer, "dpub", topic, 400, b"later") == b"OK"
    got = await Collector(topic).until(1)
    assert got[0][0] == b"later"
    assert time.monotonic() - start >= 0.4, "it came too early"


@check
async def requeue_counts_attempts():
    topic = new_topic()
    writer = await connected_writer()
    await publish(writer, "pub", topic, b"again")

    def decide(message):
        if message.attempts < 4:
            message.requeue(delay=0, backoff=False)
        return True

    got = await Collector(topic, decide).until(4)
    assert got == [(b"again", n) for n in (1, 2, 3, 4)], got


@check
async def requeue_with_delay():
    topic = new_topic()
    writer = await connected_writer()
    await publish(writer, "pub", topic, b"slowly")
    times = []

    def decide(message):
        times.append(time.monotonic())
        if message.attempts == 1:
            message.requeue(delay=1, time_ms=500, backoff=False)
        return True

    await Collector(topic, decide).until(2)
    assert times[1] - times[0] >= 0.45, f"it came back after {times[1] - times[0]:.3f} s"


@check
async def timeout_redelivers():
    topic = new_topic()
    writer = await connected_writer()
    await publish(writer, "pub", topic, b"forgotten")

    def decide(message):
        if message.attempts == 1:
            message.enable_async()
        return True

    got = await Collector(topic, decide, msg_timeout=1).until(2)
    assert got == [(b"forgotten", 1), (b"forgotten", 2)], got


@check
async def touch_prevents_the_timeout():
    topic = new_topic()
    writer = await connected_writer()
    await publish(writer, "pub", topic, b"kept")
    done = []

    async def work(message):
        for _ in range(5):
            await asyncio.sleep(1.2)
            message.touch()
        message.finish()
        done.append(message)

    def decide(message):
        message.enable_async()
        asyncio.ensure_future(work(message))

    collector = Collector(topic, decide, msg_timeout=4)
    await wait_for(lambda: done, "the message is finished")
    assert await collector.until(1) == [(b"kept", 1)], "touched, and delivered again all the same"


@check
async def deflate():
    await round_trip(deflate=True, deflate_level=6)


@check
async def snappy():
    await round_trip(snappy=True)


@check
async def tls():
    await round_trip(**TLS)


@check
async def tls_and_deflate():
    await round_trip(deflate=True, deflate_level=3, **TLS)


@check
async def tls_and_snappy():
    await round_trip(snappy=True, **TLS)


@check
async def heartbeats_keep_a_connection():
    topic = new_topic()
    collector = Collector(topic, heartbeat_interval=1)
    beats = []
    collector.reader.heartbeat = beats.append
    # The connection takes the method over when it is made, on the next turn of the loop.
    await wait_for(lambda: len(beats) >= 3, "three heartbeats have come")
    writer = await connected_writer()
    await publish(writer, "pub", topic, b"still here")
    assert (await collector.until(1))[0][0] == b"still here"


@check
async def bad_names_are_refused():
    writer = await connected_writer()
    answer = await publish(writer, "pub", "bad$topic", b"x")
    assert isinstance(answer, nsq.Error) and "E_BAD_TOPIC" in str(answer), answer


@check
async def http_publish():
    topic = new_topic()
    body = "\n".join(f"line {n}" for n in range(10)).encode()

    def post():
        for path in ("pub", "mpub"):
            url = f"http://{HTTP}/{path}?topic={topic}"
            assert urllib.request.urlopen(url, data=body, timeout=WAIT_S_MAX).read() == b"OK"

    await asyncio.get_running_loop().run_in_executor(None, post)
    got = [message for message, _ in await Collector(topic).until(11)]
    assert sorted(got) == sorted([body] + body.split(b"\n"))


class AuthServer(tornado.web.RequestHandler):
    """Lets the secret `sesame` read and write topics that begin with `allowed`."""

    def get(self):
        if self.get_argument("secret") != "sesame":
            self.set_status(403)
            return
        self.finish({"ttl": 30, "identity": "tester", "identity_url": "", "authorizations": [{
            "permissions": ["subscribe", "publish"], "topic": "allowed.*", "channels": [".*"]}]})


@check
async def authentication():
    host, port = AUTH_HTTP.split(":")
    server = tornado.web.Application([("/auth", AuthServer)]).listen(int(port), host)
    try:
        topic = "allowed_" + new_topic()
        good = {"address": AUTH_TCP, "auth_secret": "sesame"}
        writer = await connected_writer(**good)
        assert await publish(writer, "pub", topic, b"secret") == b"OK"
        assert (await Collector(topic, **good).until(1))[0][0] == b"secret"
        answer = await publish(writer, "pub", "forbidden", b"x")
        assert isinstance(answer, nsq.Error) and "E_UNAUTHORIZED" in str(answer), answer
        # Without a secret the connection stands, and every command is refused.
        writer = await connected_writer(address=AUTH_TCP)
        answer = await publish(writer, "pub", topic, b"x")
        assert isinstance(answer, nsq.Error) and "E_AUTH_FIRST" in str(answer), answer
    finally:
        server.stop()


async def main():
    failed = False
    for function in checks:
        name = function.__name__
        if "snappy" in name and len(compressed_sockets) < 2:
            print(f"skip {name}: python-snappy could not be installed")
            continue
        try:
            await asyncio.wait_for(function(), CHECK_S_MAX)
            print(f"ok {name}", flush=True)
        except Exception as error:
            failed = True
            traceback.print_exc()
            why = " ".join(str(error).split()) or type(error).__name__
            print(f"not ok {name}: {why}", flush=True)
    return failed


if __name__ == "__main__":
    # pynsq warns of every connection that a check closes on purpose.
    logging.getLogger("nsq").setLevel(logging.CRITICAL)
    sys.exit(asyncio.run(main()))
