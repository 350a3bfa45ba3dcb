"""A disk that is full, and has room again: what publishers and consumers are told meanwhile.

usage: disk_full_test.py ADDRESS -- COMMAND...   the command that runs the broker

The file BALLAST is what can be deleted when the disk is full. RabbitMQ stops reading from a
connection that publishes then; we go on reading and refuse, so nothing waits without an answer.
"""

import asyncio
import collections
import os
import sys

import kit
import harness

kit.AMQP = sys.argv[1]
command = sys.argv[3:]
del sys.argv[1:]

import aio_pika  # noqa: E402
from aio_pika.exceptions import DeliveryError  # noqa: E402
from pika.exceptions import ChannelClosedByBroker, NackError  # noqa: E402

from kit import (  # noqa: E402
    PERSISTENT, Consumer, channel, check, connected, drain, main, name, publish, pump, same,
    wait_for,
)
from own_broker import Broker  # noqa: E402

harness.BROKER = kit.AMQP
PADDING = os.urandom(10_000)
# More than the disk has.
MESSAGES_MAX = 20_000
# On their way at once, so that the disk becomes full in the midst of them.
IN_FLIGHT = 200

Told = collections.namedtuple("Told", "blocked unblocked")


def body(number):
    return b"%d " % number + PADDING


def number_of(message):
    return int(message.split(b" ", 1)[0])


def told_by(connection):
    """What the broker has told this connection: reasons, and how often it went on."""
    told = Told([], [])
    connection.add_on_connection_blocked_callback(
        lambda _, method: told.blocked.append(method.method.reason))
    connection.add_on_connection_unblocked_callback(lambda *_: told.unblocked.append(True))
    return told


async def publish_in_flight(title, numbers):
    """Publishes all at once with confirms; returns which were confirmed and which refused."""
    connection = await aio_pika.connect(f"amqp://guest:guest@{kit.AMQP}/")
    async with connection:
        on = await connection.channel()

        async def one(number):
            message = aio_pika.Message(body(number), delivery_mode=PERSISTENT)
            try:
                await on.default_exchange.publish(message, title)
                return number, True
            except DeliveryError:
                return number, False

        results = await asyncio.gather(*[one(number) for number in numbers])
    return ({number for number, taken in results if taken},
            {number for number, taken in results if not taken})


def fill(title):
    """Publishes until something is refused; returns what was confirmed, and how many there are."""
    confirmed, refused, published = set(), set(), 0
    while not refused:
        assert published < MESSAGES_MAX, "the disk took more than it has"
        numbers = range(published, published + IN_FLIGHT)
        taken, refused = asyncio.run(publish_in_flight(title, numbers))
        confirmed |= taken
        published += IN_FLIGHT
    assert confirmed, "nothing was confirmed"
    return confirmed, published


def refused_publish(on, title, number, **more):
    try:
        publish(on, title, body(number), **more)
    except NackError:
        return
    raise AssertionError("a publish on a full disk was confirmed")


def transaction_is_refused(title):
    try:
        with channel() as on:
            on.tx_select()
            publish(on, title, body(-1), delivery_mode=PERSISTENT)
            on.tx_commit()
    except ChannelClosedByBroker:
        return
    raise AssertionError("a transaction was committed on a full disk")


def consume_half(title, confirmed):
    """Takes half of what was confirmed, while the disk is full."""
    with channel() as on:
        on.basic_qos(prefetch_count=50)
        consumer = Consumer(on, title)
        half = len(confirmed) // 2
        for index in range(half):
            consumer.ack(consumer.wait(index + 1)[index])
        # Behind this answer all of them are acknowledged.
        on.basic_cancel(consumer.tag)
        return {number_of(got) for got in consumer.bodies[:half]}


@check
def publishers_are_told_and_nothing_confirmed_is_lost():
    with Broker(command) as broker:
        title = name("queue")
        deaf = {"capabilities": {"publisher_confirms": True, "basic.nack": True}}
        with connected() as first, connected(client_properties=deaf) as second:
            told, told_deaf = told_by(first), told_by(second)
            out, out_deaf = first.channel(), second.channel()
            for on in [out, out_deaf]:
                on.confirm_delivery()
            out.queue_declare(title, durable=True)

            confirmed, published = fill(title)
            same(told, Told([], []), "told before it published anything")
            refused_publish(out, title, -1, delivery_mode=PERSISTENT)
            refused_publish(out, title, -1)
            refused_publish(out_deaf, title, -1, delivery_mode=PERSISTENT)
            pump(out, out_deaf)
            same(told, Told(["low on disk"], []), "told when a publish was refused")
            same(told_deaf, Told([], []), "told to one that did not ask for it")
            transaction_is_refused(title)
            taken, refused = asyncio.run(publish_in_flight(title, range(-IN_FLIGHT, 0)))
            same((len(taken), len(refused)), (0, IN_FLIGHT), "confirmed and refused")

            pump(out, out_deaf)
            same(told.unblocked, [], "told to go on too early")
            # It gives room back, of which they may be told.
            consumed = consume_half(title, confirmed)
            same(len(consumed), len(confirmed) // 2, "consumed while the disk is full")

            os.remove(os.environ["BALLAST"])
            wait_for(lambda: pump(out, seconds=0.02) or told.unblocked, "told to go on")
            publish(out, title, body(published), delivery_mode=PERSISTENT)
            publish(out_deaf, title, body(published + 1), delivery_mode=PERSISTENT)
            numbers = range(published + 2, published + 2 + IN_FLIGHT)
            taken, refused = asyncio.run(publish_in_flight(title, numbers))
            same(len(refused), 0, "refused when there was room again")
            confirmed |= taken | {published, published + 1}
            pump(out, out_deaf)
            same((len(told.blocked), len(told.unblocked)), (1, 1), "times told")
            same(told_deaf, Told([], []), "told to one that did not ask for it")
        broker.kill()
        broker.start()
        with channel() as on:
            found = [number_of(message) for message in drain(on, title)]
            on.queue_delete(title)
        same(sorted(confirmed - consumed - set(found)), [], "confirmed and lost")
        same(sorted(set(found) - confirmed), [], "refused, and stored all the same")
        same(len(set(found)), len(found), "messages that came once")


main()
