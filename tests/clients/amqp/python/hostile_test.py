"""Clients that break every rule, beside a healthy one that must not notice."""

import random
import socket
import struct
import threading
import time

import raw
from kit import (
    ORIGINAL, PATIENCE_S, PERSISTENT, Consumer, Skip, address, channel, check, count, main, name,
    publish, pump, queue, same, wait_for,
)
from raw import BODY, CONTENT_HEADER, HEADER, HEARTBEAT, METHOD, Wire

RANDOM = random.Random(1)
# What 200 peers announce and do not finish: 128 MiB each.
HALF_PEERS = 200
HALF_BYTES = 128 << 20
# As much as they can send of it, together.
HALF_SENT_MAX = 1_000_000_000


class Healthy(threading.Thread):
    """Publishes, waits for the confirm, consumes."""

    def __init__(self):
        super().__init__(daemon=True)
        self.turns = 0
        self.error = None
        self.stop = threading.Event()
        self.start()

    def run(self):
        try:
            with channel(confirms=True) as on:
                title = queue(on)
                consumer = Consumer(on, title)
                while not self.stop.is_set():
                    publish(on, title, b"%d" % self.turns, delivery_mode=PERSISTENT)
                    got = consumer.wait(self.turns + 1)[-1]
                    same(got.body, b"%d" % self.turns, "what the healthy client got")
                    consumer.ack(got)
                    self.turns += 1
        except Exception as error:
            self.error = error

    def goes_on(self):
        had = self.turns
        wait_for(lambda: self.error or self.turns > had + 20, "the healthy client goes on")

    def finish(self):
        self.goes_on()
        self.stop.set()
        self.join(PATIENCE_S)
        assert self.error is None, f"the healthy client: {self.error!r}"


def beside_a_healthy_one(function):
    """A generator yields where it is at its worst: there the healthy one has to go on."""
    def run():
        healthy = Healthy()
        for _ in function() or ():
            healthy.goes_on()
        healthy.finish()
    run.__name__ = function.__name__
    return check(run)


def connect():
    stream = socket.create_connection(address(), PATIENCE_S)
    stream.settimeout(PATIENCE_S)
    return stream


@beside_a_healthy_one
def random_bytes():
    for number in range(200):
        data = RANDOM.randbytes(RANDOM.randrange(20_000))
        stream = connect()
        try:
            stream.sendall((HEADER if number % 2 else b"") + data)
        except OSError:
            pass
        stream.close()
    for _ in range(100):
        wire = Wire()
        kind = RANDOM.choice([METHOD, CONTENT_HEADER, BODY, HEARTBEAT, RANDOM.randrange(256)])
        wire.send(raw.frame(kind, RANDOM.randrange(3), RANDOM.randbytes(RANDOM.randrange(300))))
        wire.close()


@beside_a_healthy_one
def other_protocols():
    for text in [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
                 b"  V2", b"CONNECT {}\r\n", b"AMQP\x00\x01\x00\x00"]:
        stream = connect()
        try:
            stream.sendall(text + bytes(1000))
            stream.shutdown(socket.SHUT_WR)
            while stream.recv(1000):
                pass
        except (ConnectionError, OSError) as error:
            assert not isinstance(error, TimeoutError), f"{text!r} keeps its connection"
        stream.close()


@beside_a_healthy_one
def every_beginning_of_a_dialogue():
    whole = (HEADER + raw.start_ok() + raw.tune_ok() + raw.open_vhost() + raw.channel_open()
             + raw.queue_declare(1, "half", 0) + raw.message(1, "half", b"x" * 50))
    for length in range(0, len(whole), 7):
        stream = connect()
        stream.sendall(whole[:length])
        stream.close()
    # Byte by byte it is understood all the same.
    with channel() as on:
        on.queue_declare("half")
        stream = connect()
        for byte in whole:
            stream.sendall(bytes([byte]))
        wait_for(lambda: count_of(on, "half"), "the message is there")
        on.queue_delete("half")
    stream.close()


def count_of(on, title):
    return count(on, title) > 0


@check
def methods_in_the_wrong_order():
    """Before the connection is open: the broker may close without a word, but must close."""
    for pieces in [
        [raw.open_vhost()], [raw.tune_ok()], [raw.channel_open()], [raw.start_ok(), raw.start_ok()],
        [raw.start_ok(), raw.open_vhost()], [raw.start_ok(), raw.tune_ok(), raw.channel_open()],
        [raw.start_ok(), raw.tune_ok(), raw.tune_ok()],
        [raw.start_ok(mechanism="NONSENSE")], [raw.start_ok(mechanism="PLAIN", user="x")],
        [raw.start_ok(), raw.tune_ok(frame_bytes=100), raw.open_vhost()],
        [raw.start_ok(), raw.tune_ok(frame_bytes=1 << 30), raw.open_vhost()],
        [raw.start_ok(), raw.tune_ok(channels=0xffff), raw.open_vhost(), b"\x09" * 100],
    ]:
        wire = Wire(opened=False)
        wire.send(HEADER, *pieces)
        if wire.refusal()[0] == "connection":
            wire.close_ok()
        else:
            wire.is_closed()


@check
def what_ends_an_open_connection():
    """Which code each of these has, as RabbitMQ 4 gives them."""
    cases = {
        "a method on a channel that is not open":
            (raw.queue_declare(2, "x"), 504, "CHANNEL_ERROR"),
        "a second channel.open": (raw.channel_open(1), 504, "second 'channel.open' seen"),
        "a content header without publish":
            (raw.content_header(1, 10), 505, "UNEXPECTED_FRAME"),
        "a body without header": (raw.frame(BODY, 1, b"x"), 505, "UNEXPECTED_FRAME"),
        "a body in the place of a header":
            (raw.basic_publish(1, "", "x") + raw.frame(BODY, 1, b"x"), 505, "UNEXPECTED_FRAME"),
        "a method in the place of a header":
            (raw.basic_publish(1, "", "x") + raw.queue_declare(1, "x"), 505, "UNEXPECTED_FRAME"),
        "a method in the place of a body":
            (raw.basic_publish(1, "", "x") + raw.content_header(1, 5) + raw.queue_declare(1, "x"),
             505, "UNEXPECTED_FRAME"),
        "a header of another class":
            (raw.basic_publish(1, "", "x") + raw.content_header(1, 5, class_id=50),
             505, "UNEXPECTED_FRAME"),
        "a frame without its end":
            (raw.frame(METHOD, 1, b"\x00\x32\x00\x0a", end=b"\x00"), 501, "FRAME_ERROR"),
        "a frame of an unknown type": (raw.frame(99, 1, b"x"), 501, "FRAME_ERROR"),
        "a frame that is too large":
            (struct.pack(">BHI", BODY, 1, 1 << 20) + bytes(1 << 20) + b"\xce", 501, "FRAME_ERROR"),
        "a method that is cut short":
            (raw.method(1, 50, 10, b"\x00\x00\xff"), 501, "FRAME_ERROR - cannot decode"),
        "a table that is longer than its method":
            (raw.method(1, 50, 10, b"\x00\x00\x01x\x00\x00\x00\xff\xff"), 501, "cannot decode"),
        "connection methods on a channel":
            (raw.method(1, 10, 40, raw.short("/") + b"\0\0"), 503, "unimplemented method"),
        "channel methods on channel 0":
            (raw.queue_declare(0, "x"), 504, "unexpected method in connection state running"),
        "a second connection.open":
            (raw.open_vhost(), 504, "unexpected method in connection state running"),
        "immediate": (raw.basic_publish(1, "", "x", bits=2) + raw.content_header(1, 0), 540,
                      "immediate=true"),
    }
    wrong = []
    for what, (data, code, text) in cases.items():
        wire = Wire()
        wire.send(data)
        kind, found, said = wire.refusal()
        if (kind, found) != ("connection", code) or text not in said:
            wrong.append(f"{what}: {kind} {found} {said!r} where {code} {text!r} was due")
        if kind == "connection":
            wire.close_ok()
        else:
            wire.close()
    same(wrong, [], "answers")


@check
def methods_that_nobody_knows():
    """RabbitMQ closes without a word; any close will do."""
    for data in [raw.method(1, 60, 999), raw.method(1, 999, 10), raw.method(0, 10, 999),
                 raw.frame(METHOD, 1, b""), raw.frame(METHOD, 1, b"\x00\x32\x00")]:
        wire = Wire()
        wire.send(data)
        kind = wire.refusal()[0]
        assert kind in ("connection", "closed"), f"{data!r}: {kind}"
        wire.close()


@check
def what_is_no_error():
    wire = Wire()
    # Heartbeats at any time, empty bodies, a close of a channel that has been closed.
    wire.send(raw.frame(HEARTBEAT, 0, b""), raw.queue_declare(1, "no-error", 0))
    wire.expect((50, 11))
    wire.send(raw.basic_publish(1, "", "no-error"), raw.frame(HEARTBEAT, 0, b""),
              raw.content_header(1, 2), raw.frame(BODY, 1, b""), raw.frame(BODY, 1, b"a"),
              raw.frame(BODY, 1, b"b"))
    wire.send(raw.method(1, 50, 40, b"\x00\x00" + raw.short("no-error") + b"\x00"))
    deleted = wire.expect((50, 41))
    same(struct.unpack(">I", deleted)[0], 1, "messages in the deleted queue")
    # A refused method closes the channel; what comes behind it is passed over until close-ok.
    wire.send(raw.queue_declare(1, "amq.not-allowed"), raw.queue_declare(1, "later"),
              raw.message(1, "later", b"x" * 100))
    same(wire.refusal()[:2], ("channel", 403), "the refusal")
    wire.send(raw.method(1, 20, 41), raw.channel_open(1))
    wire.expect((20, 11))
    wire.close()


@check
def a_channel_number_is_used_again():
    wire = Wire(channels=0)
    for turn in range(2000):
        number = turn % 3 + 1
        wire.send(raw.channel_open(number))
        wire.expect((20, 11))
        wire.send(raw.method(number, 20, 40, struct.pack(">H", 200) + b"\x00\x00\x00\x00\x00"))
        wire.expect((20, 41))
    wire.close()


@beside_a_healthy_one
def two_thousand_channels_with_a_consumer_each():
    title = name("queue")
    wire = Wire(channels=0)
    for number in range(1, 2048):
        wire.send(raw.channel_open(number))
    for _ in range(1, 2048):
        wire.expect((20, 11))
    wire.send(raw.queue_declare(1, title))
    wire.expect((50, 11))
    for number in range(1, 2048):
        wire.send(raw.basic_consume(number, title, f"tag-{number}", bits=0))
    for _ in range(1, 2048):
        wire.expect((60, 21))
    with channel() as on:
        publish(on, title, *[b"x"] * 2047)
        deliveries = 0
        while deliveries < 2047:
            found = wire.method()
            assert found is not None, "the broker has closed"
            deliveries += found[1] == (60, 60)
        wire.close()
        wait_for(lambda: count(on, title) == 2047, "all are back")
        on.queue_delete(title)


@beside_a_healthy_one
def half_contents():
    """200 peers announce 128 MiB each and send as much as the broker takes."""
    if ORIGINAL:
        raise Skip("RabbitMQ takes it all, and more memory than there may be")
    head = (raw.basic_publish(1, "", "nowhere") + raw.content_header(1, HALF_BYTES))
    piece = raw.frame(BODY, 1, b"x" * 131064)
    wires = []
    for _ in range(HALF_PEERS):
        wire = Wire()
        wire.send(head)
        wire.stream.setblocking(False)
        wires.append([wire, b""])
    sent, quiet_since = 0, time.monotonic()
    while time.monotonic() - quiet_since < 1 and sent < HALF_SENT_MAX:
        for entry in wires:
            wire, rest = entry
            try:
                done = wire.stream.send(rest or piece)
                entry[1] = (rest or piece)[done:]
                sent += done
                quiet_since = time.monotonic()
            except BlockingIOError:
                pass
            except OSError:
                # It was closed, which is an answer as good as any.
                pass
    print(f"        {sent >> 20} MB were taken of {HALF_PEERS} half contents")
    yield
    for wire, _ in wires:
        wire.close()


@beside_a_healthy_one
def announced_and_never_sent():
    if ORIGINAL:
        raise Skip("RabbitMQ waits for all of it before it refuses it")
    for size in [1 << 40, (1 << 64) - 1, 600 << 20]:
        wire = Wire()
        wire.send(raw.basic_publish(1, "", "nowhere"), raw.content_header(1, size))
        kind, code, text = wire.refusal()
        same((kind, code), ("channel", 406), f"the answer to {size} bytes")
        assert "larger than" in text, text
        wire.close()


@beside_a_healthy_one
def a_consumer_that_never_acknowledges():
    """Without a prefetch limit it gets all there is, and it all comes back."""
    title, total = name("queue"), 200_000
    with channel() as on:
        on.queue_declare(title, durable=True)
        wire = Wire()
        thousand = raw.message(1, title, b"x" * 100) * 1000
        for _ in range(total // 1000):
            wire.send(thousand)
        wait_for(lambda: count(on, title) == total, "all are there")
        wire.send(raw.basic_consume(1, title, "greedy", bits=0))
        got = 0
        while got < total:
            found = wire.method()
            assert found is not None, "the broker has closed"
            got += found[1] == (60, 60)
        same(count(on, title), 0, "ready")
        wire.close()
        wait_for(lambda: count(on, title) == total, "all are back")
        on.queue_delete(title)


@beside_a_healthy_one
def a_consumer_that_never_reads():
    title = name("queue")
    with channel(confirms=True) as on:
        on.queue_declare(title, durable=True)
        wire = Wire()
        wire.send(raw.basic_consume(1, title, "deaf", bits=0))
        body = b"x" * 100_000
        for _ in range(1500):
            publish(on, title, body)
        wire.close()
        wait_for(lambda: count(on, title) == 1500, "all are back")
        on.queue_delete(title)


@beside_a_healthy_one
def a_queue_deleted_under_its_consumers():
    for _ in range(30):
        with channel() as on, channel() as other:
            title = name("queue")
            on.queue_declare(title)
            consumer = Consumer(on, title)
            publish(other, title, *[b"x"] * 50)
            other.queue_delete(title)
            pump(on, seconds=0.05)
            for got in consumer.got:
                consumer.ack(got)
            same(on.queue_declare(title).method.consumer_count, 0, "consumers of the new one")
            on.queue_delete(title)


@beside_a_healthy_one
def connections_opened_and_closed():
    for number in range(1000):
        stream = connect()
        if number % 3:
            stream.sendall(HEADER[:number % 9])
        stream.close()
    for _ in range(200):
        wire = Wire()
        wire.send(raw.queue_declare(1, "", bits=4))
        wire.close()


@beside_a_healthy_one
def a_connection_killed_in_a_transaction():
    with channel() as on:
        title = name("queue")
        on.queue_declare(title)
        for _ in range(20):
            wire = Wire()
            wire.send(raw.method(1, 90, 10))
            wire.expect((90, 11))
            wire.send(*[raw.message(1, title, b"never") for _ in range(100)])
            wire.close()
        pump(on)
        same(count(on, title), 0, "messages of transactions that nobody committed")
        on.queue_delete(title)


@check
def missed_heartbeats():
    wire = Wire(heartbeat_s=1)
    start = time.monotonic()
    wire.is_closed()
    took = time.monotonic() - start
    assert took > 1.5, f"closed after {took:.1f} s of silence with a heartbeat of 1 s"


@check
def deep_and_large_tables():
    deep = b""
    for _ in range(10_000):
        deep = raw.short("k") + b"F" + raw.long(deep)
        if len(deep) > 100_000:
            break
    wire = Wire()
    wire.send(raw.queue_declare(1, name("queue"), bits=4, arguments=deep))
    found = wire.method()
    assert found is None or found[1] in [(50, 11), (10, 50), (20, 40)], found
    wire.close()
    wide = b"".join(raw.short(f"k{n}") + b"t\x01" for n in range(10_000))
    wire = Wire()
    wire.send(raw.queue_declare(1, name("queue"), bits=4, arguments=wide))
    found = wire.method()
    assert found is None or found[1] in [(50, 11), (10, 50), (20, 40)], found
    wire.close()


@check
def all_is_well_after_that():
    with channel(confirms=True) as on:
        title = queue(on)
        publish(on, title, *[b"x"] * 100)
        same(count(on, title), 100, "messages")


main()
