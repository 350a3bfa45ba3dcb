"""Ten thousand queues: declared, bound, used, deleted."""

import time

import raw
from kit import (
    ORIGINAL, PERSISTENT, channel, check, count, get, main, name, publish, same, wait_for,
)
from raw import Wire

QUEUES = 10_000
# What a declaration of ours may take; RabbitMQ takes ten times as long.
DECLARE_S_MAX = 3
DURABLE = 2
OWN = name("many")


def title(number):
    return f"{OWN}-{number}"


@check
def ten_thousand_queues_are_declared():
    wire = Wire()
    start = time.monotonic()
    for first in range(0, QUEUES, 500):
        wire.send(b"".join(raw.queue_declare(1, title(n), DURABLE)
                           for n in range(first, first + 500)))
        for _ in range(500):
            wire.expect((50, 11))
    took = time.monotonic() - start
    print(f"        {took:.2f} s for {QUEUES} declarations")
    assert ORIGINAL or took < DECLARE_S_MAX, f"{took:.1f} s"
    wire.close()


@check
def some_of_them_are_used():
    with channel(confirms=True) as on:
        for number in range(0, QUEUES, 100):
            publish(on, title(number), b"%d" % number, delivery_mode=PERSISTENT)
        for number in range(0, QUEUES, 100):
            same(get(on, title(number)).body, b"%d" % number, title(number))


@check
def one_message_to_a_thousand_queues():
    with channel(confirms=True) as on:
        through = name("exchange")
        on.exchange_declare(through, "fanout")
        for number in range(1000):
            on.queue_bind(title(number), through)
        publish(on, "", b"to all", through=through, delivery_mode=PERSISTENT)
        for number in range(0, 1000, 37):
            wait_for(lambda: count(on, title(number)) == 1, "it has come", 10)
        on.exchange_delete(through)


@check
def they_are_deleted():
    wire = Wire()
    for first in range(0, QUEUES, 500):
        wire.send(b"".join(
            raw.method(1, 50, 40, b"\x00\x00" + raw.short(title(n)) + b"\x00")
            for n in range(first, first + 500)))
        for _ in range(500):
            wire.expect((50, 41))
    wire.close()


main()
