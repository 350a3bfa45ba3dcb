"""Ten thousand queues: declared, bound, used, deleted. BROKER_PID is the broker's process."""

import os
import pathlib

import raw
from kit import (
    ORIGINAL, PERSISTENT, channel, check, count, get, main, name, publish, same, wait_for,
)
from raw import Wire

QUEUES = 10_000
# Of the broker's own processor time: what else the machine does is not its fault.
DECLARE_CPU_S_MAX = 3
DURABLE = 2
OWN = name("many")


def broker_cpu_s():
    """What the broker has used so far: user and system time of proc(5), behind the name."""
    stat = pathlib.Path("/proc", os.environ["BROKER_PID"], "stat").read_text()
    ticks = stat.rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def title(number):
    return f"{OWN}-{number}"


@check
def ten_thousand_queues_are_declared():
    wire = Wire()
    before = 0 if ORIGINAL else broker_cpu_s()
    for first in range(0, QUEUES, 500):
        wire.send(b"".join(raw.queue_declare(1, title(n), DURABLE)
                           for n in range(first, first + 500)))
        for _ in range(500):
            wire.expect((50, 11))
    if not ORIGINAL:
        used = broker_cpu_s() - before
        assert used < DECLARE_CPU_S_MAX, f"the broker used {used:.1f} s"
        print(f"        the broker used {used:.2f} s for {QUEUES} declarations")
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
            wait_for(lambda: count(on, title(number)) == 1, "it has come")
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
