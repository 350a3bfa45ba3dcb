"""pynsq: a reader that takes one message at a time, writers over a full link, and a good one."""

import itertools
import os
import random

import nsq
from tornado.ioloop import IOLoop, PeriodicCallback

import kit

NSQD = os.environ["CLOVERLEAF_NSQD"]


def until_over():
    loop = IOLoop.current()
    loop.call_later(kit.left(), loop.stop)
    loop.start()


def writer(name, begin):
    """Makes a writer, and calls `begin` with it once it is connected."""
    writer = nsq.Writer([NSQD], hostname=name)

    def attempt():
        if any(conn.state == "CONNECTED" for conn in writer.conns.values()):
            begin(writer)
        else:
            IOLoop.current().call_later(0.05, attempt)

    attempt()


def publish(topic, messages):
    """Publishes all with a single command."""
    return lambda writer: writer.mpub(topic, [kit.BODY] * messages, callback=lambda conn, answer: None)


def reader(topic, **settings):
    def handle(message):
        kit.saw(message.id)
        return True

    settings.update(topic=topic, channel="channel", nsqd_tcp_addresses=[NSQD])
    nsq.Reader(message_handler=handle, hostname=kit.BEHAVIOUR, **settings)


@kit.behaviour
def window_too_small():
    writer("feeder", publish("pynsq", 5000))
    reader("pynsq")
    until_over()


def send(body):
    """Keeps 500 messages in flight, which is more than the connection takes."""
    numbers = itertools.count()

    def one(writer):
        def answered(conn, answer):
            assert answer == b"OK", answer
            kit.saw(answer)
            one(writer)

        writer.pub("pynsq-text", body(next(numbers)), callback=answered)

    def begin(writer):
        for _ in range(500):
            one(writer)

    writer(kit.BEHAVIOUR, begin)
    until_over()


@kit.behaviour
def no_compression():
    """Each message has the same names, with other values."""
    line = '{"order":%d,"customer":"c-%06d","amount":%d,"currency":"EUR","state":"paid"}'

    def text(number):
        values = [random.getrandbits(32) for _ in range(13)]
        return "".join(line % (number, it % 1000000, it % 977) for it in values).encode()

    send(text)


@kit.behaviour
def noise():
    """Fills the link with bytes that do not compress."""
    send(lambda number: random.randbytes(1000))


@kit.behaviour
def good():
    one = publish("good-pynsq", 1)
    writer("good", lambda writer: PeriodicCallback(lambda: one(writer), 7).start())
    reader("good-pynsq", max_in_flight=20)
    until_over()


kit.say("pynsq", nsq.__version__)
kit.main(receives=kit.BEHAVIOURS)
