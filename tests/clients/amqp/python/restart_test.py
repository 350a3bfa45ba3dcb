"""What is there after a restart: in order, and by kill -9.

usage: restart_test.py ADDRESS -- COMMAND...   the command that runs the broker
"""

import sys
import time

import kit
import harness

kit.AMQP = sys.argv[1]
command = sys.argv[3:]
del sys.argv[1:]

from kit import (  # noqa: E402
    ORIGINAL, PERSISTENT, Consumer, Skip, channel, check, count, drain, get, main, name, pika,
    publish, pump, refused, same, wait_for,
)
from own_broker import Broker  # noqa: E402

harness.BROKER = kit.AMQP
# Longer than that, and than a restart.
DELAY_S = 10


def written(broker):
    if ORIGINAL:
        time.sleep(3)
    else:
        broker.written()


def again(broker, is_kill):
    if is_kill:
        broker.kill()
    else:
        broker.stop()
    broker.start()


def definitions(is_kill):
    with Broker(command) as broker:
        title, brief, through, other = (name(kind) for kind in
                                        ["queue", "brief", "exchange", "other"])
        with channel(confirms=True) as on:
            on.exchange_declare(through, "topic", durable=True)
            on.exchange_declare(other, "fanout", durable=False)
            on.queue_declare(title, durable=True, arguments={"x-max-length": 5000})
            on.queue_declare(brief, durable=False)
            own = on.queue_declare("", exclusive=True).method.queue
            on.queue_bind(title, through, "a.#")
            on.queue_bind(title, other)
            on.exchange_bind(through, "amq.fanout", "x")
            publish(on, "a.b", *[b"%d" % n for n in range(1000)], through=through,
                    delivery_mode=PERSISTENT)
        again(broker, is_kill)
        with channel(confirms=True) as on:
            same(count(on, title), 1000, "messages")
            on.exchange_declare(through, "topic", durable=True)
            on.queue_declare(title, durable=True, arguments={"x-max-length": 5000})
            publish(on, "a.c", b"1000", through=through, delivery_mode=PERSISTENT)
            same(drain(on, title), [b"%d" % n for n in range(1001)], "messages in order")
        for gone in [brief, own]:
            with refused(404, "NOT_FOUND"), channel() as on:
                on.queue_declare(gone, passive=True)
        with refused(404, "NOT_FOUND"), channel() as on:
            on.exchange_declare(other, passive=True)


def check_orderly():
    if ORIGINAL:
        raise Skip("it is started so that it can only be killed")


@check
def definitions_and_messages_after_an_orderly_restart():
    check_orderly()
    definitions(is_kill=False)


@check
def definitions_and_messages_after_a_kill():
    definitions(is_kill=True)


def deliveries(is_kill):
    with Broker(command) as broker:
        title = name("queue")
        with channel(confirms=True) as on:
            on.queue_declare(title, durable=True)
            publish(on, title, *[b"%d" % n for n in range(100)], delivery_mode=PERSISTENT)
            on.basic_qos(prefetch_count=40)
            consumer = Consumer(on, title)
            got = consumer.exactly(40)
            for number in range(0, 40, 2):
                on.basic_ack(got[number].method.delivery_tag)
            consumer.exactly(60)
            # The broker has seen all that this connection sent before it answers this.
            count(on, title)
            written(broker)
            again(broker, is_kill)
            # Notices that the connection is gone with its broker.
            try:
                pump(on)
            except pika.exceptions.AMQPError:
                pass
        with channel() as on:
            left = [get(on, title) for _ in range(80)]
            same([got.body for got in left],
                 [b"%d" % n for n in range(100) if n >= 40 or n % 2], "what was not acknowledged")
            held = {int(got.body) for got in left if got.method.redelivered}
            expected = {n for n in range(60) if n >= 40 or n % 2}
            same(sorted(expected - held), [], "delivered before, and not marked")
            if is_kill:
                # What is about to be delivered is written down a little ahead.
                expected |= set(range(60, 80))
            same(sorted(held - expected), [], "never delivered before, and marked")
            same(count(on, title), 0, "left")


@check
def what_was_held_is_marked_after_an_orderly_restart():
    check_orderly()
    deliveries(is_kill=False)


@check
def what_was_held_is_marked_after_a_kill():
    deliveries(is_kill=True)


@check
def delayed_messages_outlive_a_kill():
    if ORIGINAL:
        raise Skip("a plug-in that is not installed")
    with Broker(command) as broker:
        title, through = name("queue"), name("exchange")
        with channel(confirms=True) as on:
            on.exchange_declare(through, "x-delayed-message", durable=True,
                                arguments={"x-delayed-type": "direct"})
            on.queue_declare(title, durable=True)
            on.queue_bind(title, through, "key")
            start = time.monotonic()
            publish(on, "key", b"late", through=through, delivery_mode=PERSISTENT,
                    headers={"x-delay": DELAY_S * 1000})
            publish(on, "key", b"now", through=through, delivery_mode=PERSISTENT)
            same(get(on, title).body, b"now", "without delay")
            written(broker)
        broker.kill()
        broker.start()
        with channel() as on:
            got = wait_for(lambda: drain(on, title), "it comes")
            took = time.monotonic() - start
            same(got, [b"late"], "what came")
            # Both ends round to milliseconds.
            assert took > DELAY_S - 0.01, f"it came after {took:.1f} s"


@check
def dead_letters_and_times_to_live_go_on():
    with Broker(command) as broker:
        title, dead = name("queue"), name("queue")
        with channel(confirms=True) as on:
            on.queue_declare(dead, durable=True)
            on.queue_declare(title, durable=True, arguments={
                "x-message-ttl": 15000, "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": dead})
            publish(on, title, b"1", b"2", b"3", delivery_mode=PERSISTENT)
            held = get(on, title, auto_ack=False)
            on.basic_reject(held.method.delivery_tag, requeue=False)
            wait_for(lambda: count(on, dead) == 1, "the first is dead")
            # The queue has to hear of it, too: a kill before that would bury it twice.
            written(broker)
        broker.kill()
        broker.start()
        with channel() as on:
            wait_for(lambda: count(on, dead) == 3, "the others have expired")
            found = [get(on, dead) for _ in range(3)]
            same([got.body for got in found], [b"1", b"2", b"3"], "dead letters")
            reasons = [got.properties.headers["x-death"][0]["reason"] for got in found]
            same(reasons, ["rejected", "expired", "expired"], "reasons")


main()
