"""A consumer with an unlimited prefetch that acknowledges nothing, and a long backlog.

Addresses: AMQP. MESSAGES: how many (default: a million).
"""

import os
import struct

import raw
from kit import channel, check, count, get, main, name, publish, queue, same, wait_for
from raw import Wire

TOTAL = int(os.environ.get("MESSAGES", "1000000"))
BODY = b"0123456789"
TAG = "greedy"
CHUNK = 10_000


def ack(tag, multiple):
    return raw.method(1, 60, 80, struct.pack(">QB", tag, multiple))


def delivery_bytes(title):
    """Bytes of a delivery: all are alike, because a delivery tag has eight."""
    arguments = raw.short(TAG) + bytes(9) + raw.short("") + raw.short(title)
    pieces = [raw.method(1, 60, 60, arguments), raw.content_header(1, len(BODY)),
              raw.frame(raw.BODY, 1, BODY)]
    return sum(map(len, pieces))


@check
def everything_is_held_by_one_and_half_of_it_comes_back():
    title = name("backlog")
    with channel() as on:
        on.queue_declare(title, durable=True)
        out = Wire()
        chunk = raw.message(1, title, BODY) * CHUNK
        for _ in range(TOTAL // CHUNK):
            out.send(chunk)
        wait_for(lambda: count(on, title) == TOTAL, "all are there")
        out.close()

        wire = Wire()
        wire.send(raw.basic_consume(1, title, TAG, bits=0))
        wire.expect((60, 21))
        wire.skip(delivery_bytes(title) * TOTAL)
        same(count(on, title), 0, "ready")

        # Others go on beside it.
        other = queue(on)
        publish(on, other, b"beside")
        same(get(on, other).body, b"beside", "another queue")
        publish(on, title, BODY)
        method = wire.method()
        same(method[1], (60, 60), "one more is delivered")

        # The older half is acknowledged in one go, and the newer one comes back in its order.
        half = TOTAL // 2
        wire.send(ack(half, 1))
        wire.close()
        wait_for(lambda: count(on, title) == TOTAL + 1 - half, "the rest is back")
        got = get(on, title)
        same((got.body, got.method.redelivered), (BODY, True), "what came back")
        on.queue_delete(title)


main()
