"""pynsq: a reader that takes one message at a time, one that works for too long, and a good one."""

import os
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


@kit.story
def window_too_small():
    time = kit.Time()
    publish(nsq.Writer([NSQD], hostname="feeder"), "pynsq", 5000)
    seen = reader("pynsq", lambda message: True, hostname=kit.STORY)
    run(time)
    assert seen, "nothing came"


@kit.story
def good():
    time, writer = kit.Time(), nsq.Writer([NSQD], hostname="good")
    ticks = tornado.ioloop.PeriodicCallback(lambda: publish(writer, "good-pynsq", 1), 7)
    ticks.start()
    seen = reader("good-pynsq", lambda message: True, max_in_flight=20, hostname="good")
    run(time)
    assert seen, "nothing came"


kit.say("pynsq", nsq.__version__)
kit.main()
