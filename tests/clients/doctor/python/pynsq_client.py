"""pynsq: a reader that takes one message at a time, writers over a full link, and a good one."""

import itertools
import os
import random
import time as clock

import nsq
import tornado.ioloop

import kit

NSQD = os.environ["CLOVERLEAF_NSQD"]


def run(time):
    """Until the time is over."""
    loop = tornado.ioloop.IOLoop.current()
    loop.call_later(max(0, time.end - clock.monotonic()), loop.stop)
    loop.start()


def publish(writer, topic, messages):
    """Once the connection is there, all with a single command."""

    def attempt():
        if not any(conn.state == "CONNECTED" for conn in writer.conns.values()):
            tornado.ioloop.IOLoop.current().call_later(0.05, attempt)
            return
        writer.mpub(topic, [b"v" * 200] * messages, callback=lambda conn, answer: None)

    attempt()


def reader(topic, work, **settings):
    seen = []

    def handle(message):
        seen.append(message.id)
        return work(message)

    nsq.Reader(
        topic=topic,
        channel="channel",
        message_handler=handle,
        nsqd_tcp_addresses=[NSQD],
        **settings,
    )
    return seen


@kit.behaviour
def window_too_small():
    time = kit.Time()
    publish(nsq.Writer([NSQD], hostname="feeder"), "pynsq", 5000)
    seen = reader("pynsq", lambda message: True, hostname=kit.BEHAVIOUR)
    run(time)
    assert seen, "nothing came"


def send(body):
    """As much as the connection takes; so many at a time, for the program's own sake."""
    time, writer = kit.Time(), nsq.Writer([NSQD], hostname=kit.BEHAVIOUR)
    numbers, answers = itertools.count(), []

    def one():
        writer.pub("pynsq-text", body(next(numbers)), callback=answered)

    def answered(conn, answer):
        assert answer == b"OK", answer
        answers.append(answer)
        one()

    def begin():
        if any(conn.state == "CONNECTED" for conn in writer.conns.values()):
            for _ in range(500):
                one()
        else:
            tornado.ioloop.IOLoop.current().call_later(0.05, begin)

    begin()
    run(time)
    assert answers, "nothing was answered"


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
    """The link is as full, and nothing can be done about it."""
    send(lambda number: random.randbytes(1000))


@kit.behaviour
def good():
    time, writer = kit.Time(), nsq.Writer([NSQD], hostname="good")
    ticks = tornado.ioloop.PeriodicCallback(lambda: publish(writer, "good-pynsq", 1), 7)
    ticks.start()
    seen = reader("good-pynsq", lambda message: True, max_in_flight=20, hostname="good")
    run(time)
    assert seen, "nothing came"


kit.say("pynsq", nsq.__version__)
kit.main()
