"""pika as these programs use it: connections, consumers that collect, errors that are expected.

Checks and `main` come from `harness.py` of the Kafka programs, which is about no protocol.
Addresses: AMQP, and ADMIN, KAFKA, NSQ_HTTP, NSQ_TCP where a program needs them. AMQP_ORIGINAL=1
says that the broker is RabbitMQ, whose restarts take longer and which has fewer extensions.
"""

import collections
import contextlib
import os
import pathlib
import sys
import time
import urllib.parse
import urllib.request

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "kafka" / "python"))

import pika  # noqa: E402
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker  # noqa: E402

from harness import PATIENCE_S, Skip, check, main, name, same, wait_for  # noqa: E402, F401

AMQP = os.environ.get("AMQP", "127.0.0.1:5672")
ORIGINAL = os.environ.get("AMQP_ORIGINAL") == "1"
# Of a message that is synced to the disk when its queue is durable.
PERSISTENT = 2
# How long a check looks on when nothing more may come.
QUIET_S = 0.3

Got = collections.namedtuple("Got", "method properties body")


def address():
    host, port = AMQP.rsplit(":", 1)
    return host, int(port)


def parameters(user="guest", password="guest", vhost="/", **more):
    host, port = address()
    more = {"socket_timeout": PATIENCE_S, "blocked_connection_timeout": PATIENCE_S, **more}
    login = pika.PlainCredentials(user, password)
    return pika.ConnectionParameters(host, port, vhost, login, **more)


@contextlib.contextmanager
def connected(**more):
    connection = pika.BlockingConnection(parameters(**more))
    try:
        yield connection
    finally:
        if connection.is_open:
            connection.close()


@contextlib.contextmanager
def channel(confirms=False, **more):
    """A channel on a connection of its own."""
    with connected(**more) as connection:
        opened = connection.channel()
        if confirms:
            opened.confirm_delivery()
        yield opened


@contextlib.contextmanager
def refused(code, *texts):
    """What is done inside ends the channel or the connection with this code and a text that holds
    each of `texts`."""
    try:
        yield
    except (ChannelClosedByBroker, ConnectionClosedByBroker) as closed:
        same(closed.reply_code, code, f"reply code of {closed.reply_text!r}")
        for text in texts:
            assert text in closed.reply_text, f"{text!r} is not in {closed.reply_text!r}"
    else:
        raise AssertionError(f"it was not refused; {code} was due")


def queue(on, arguments=None, **more):
    """Declares a queue that goes with its connection, and returns its name."""
    title = more.pop("queue", None) or name("queue")
    more = {"exclusive": True, **more}
    on.queue_declare(title, arguments=arguments, **more)
    return title


def exchange(on, kind, **more):
    title = name("exchange")
    more = {"auto_delete": True, **more}
    on.exchange_declare(title, kind, **more)
    return title


def publish(on, to, *bodies, through="", **properties):
    for body in bodies:
        on.basic_publish(through, to, body, pika.BasicProperties(**properties))


def get(on, title, auto_ack=True):
    """The next message of a queue, which must have one soon."""
    def one():
        method, properties, body = on.basic_get(title, auto_ack=auto_ack)
        return method and Got(method, properties, body)
    return wait_for(one, f"{title} has a message")


def told_of(title):
    """What the broker tells of a queue's topic, for the message of a check that has failed."""
    admin = os.environ.get("ADMIN")
    if ORIGINAL or not admin:
        return "not asked for"
    path = f"http://{admin}/api/topics/{urllib.parse.quote(title, safe='')}"
    try:
        with urllib.request.urlopen(path, timeout=PATIENCE_S) as answer:
            return answer.read().decode()
    except OSError as error:
        return str(error)


def drain(on, title):
    """The bodies of all messages that are ready."""
    bodies = []
    while True:
        method, _, body = on.basic_get(title, auto_ack=True)
        if method is None:
            return bodies
        bodies.append(body)


def count(on, title):
    """Messages that are ready, as a passive declaration tells them."""
    return on.queue_declare(title, passive=True).method.message_count


def consumers(on, title):
    return on.queue_declare(title, passive=True).method.consumer_count


def pump(*channels, seconds=QUIET_S):
    """Lets the connections of these channels work for a while; tells when one is closed."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for on in channels:
            on.connection.process_data_events(time_limit=0.01)
            if isinstance(on._closing_reason, ChannelClosedByBroker):
                raise on._closing_reason


def settled(found, expected, what, *channels):
    """Works until `found()` is what is expected, and looks on for a while whether it stays so."""
    deadline = time.monotonic() + PATIENCE_S
    while found() != expected and time.monotonic() < deadline:
        pump(*channels, seconds=0.02)
    pump(*channels)
    same(found(), expected, what)


def until_refused(*channels):
    """Works until the broker closes one of them, which raises, or has had time enough for that."""
    pump(*channels, seconds=PATIENCE_S)


class Consumer:
    """Collects what is delivered to it."""

    def __init__(self, on, title, auto_ack=False, **more):
        self.channel = on
        self.queue = title
        self.got = []
        # Told by the broker, where the program does not expect it.
        self.cancels = []
        on.add_on_cancel_callback(self.cancels.append)
        self.tag = on.basic_consume(title, self._on_message, auto_ack=auto_ack, **more)

    def _on_message(self, _channel, method, properties, body):
        self.got.append(Got(method, properties, body))

    @property
    def bodies(self):
        return [got.body for got in self.got]

    def wait(self, number):
        """Works until it has so many messages, and returns all that it has."""
        deadline = time.monotonic() + PATIENCE_S
        while len(self.got) < number:
            self.channel.connection.process_data_events(time_limit=0.05)
            assert time.monotonic() < deadline, (
                f"waited in vain for {number} messages; {len(self.got)} came;"
                f" {self._why()}")
        return self.got

    def _why(self):
        """What may have kept the others back: pika tells of none of it by itself."""
        return (f"channel open: {self.channel.is_open}, cancelled: {self.cancels}, "
                f"topic: {told_of(self.queue)}")

    def exactly(self, number):
        """It gets so many and no more."""
        self.wait(number)
        pump(self.channel)
        same(len(self.got), number, "messages that came")
        return self.got

    def ack(self, got, **more):
        self.channel.basic_ack(got.method.delivery_tag, **more)
