"""A synchronous producer, one message at a time (the story of Nagle's algorithm and a delayed ACK).

The loop below stands in a blog post, whose author found 20 messages per second. It runs here as it
is, with Nagle's algorithm on and off, in the clear and over TLS. NAGLE_STALLS=1 says that the
broker's quick ACK is off: then the loop has to stall over TLS with Nagle on, where librdkafka sends
a request in several pieces, else this test proves nothing. In the clear it sends one piece.
"""

import os
import statistics
import time

from confluent_kafka import KafkaException, Producer, libversion
from confluent_kafka.admin import AdminClient, NewTopic

from harness import BROKER, TLS, TLS_CA, Skip, check, main, same

STALLS = os.environ.get("NAGLE_STALLS") == "1"
# A delayed ACK of Linux comes after 40 ms.
STALL_S = 0.030
# A stall costs far more than this; a busy machine does not.
RATIO_MAX = 3
VALUE = b"v" * 2000
KEY = b"key"
WARM_UP = 50
MESSAGES = 100 if not STALLS else 20
# The two take turns, and the quietest turn of each counts: a busy machine costs 4 ms at a time.
TURNS = 6 if not STALLS else 2


def loop(nagle_disable, tls):
    """The median time of a message, in seconds."""
    settings = {"bootstrap.servers": BROKER, "acks": "all", "queue.buffering.max.ms": 0}
    settings["socket.nagle.disable"] = nagle_disable
    if tls:
        if not TLS:
            raise Skip("no TLS address")
        settings["bootstrap.servers"] = TLS
        settings["security.protocol"] = "ssl"
        settings["ssl.ca.location"] = TLS_CA
    producer, key, value, errors, took = Producer(settings), KEY, VALUE, [], []

    def delivery_callback(error, message):
        if error is not None:
            errors.append(str(error))
        now = time.perf_counter()
        took.append(now - started[0])
        started[0] = now

    started = [time.perf_counter()]
    for _ in range(WARM_UP + MESSAGES):
        producer.produce(topic='test', value=value, key=key, on_delivery=delivery_callback)
        producer.flush(timeout=10.0)
    same(errors, [], "delivery errors")
    same(len(took), WARM_UP + MESSAGES, "delivery reports")
    return statistics.median(took[WARM_UP:])


def compare(tls):
    turns = [(loop(False, tls), loop(True, tls)) for _ in range(TURNS)]
    with_nagle, without = (min(medians) for medians in zip(*turns))
    shown = f"{with_nagle * 1e6:.0f} us with Nagle, {without * 1e6:.0f} us without"
    print(f"librdkafka {libversion()[0]}, TLS {tls}: {shown}", flush=True)
    assert without < STALL_S, f"it stalls without Nagle: {shown}"
    if STALLS and tls:
        assert with_nagle > STALL_S, f"it does not stall, so the test proves nothing: {shown}"
    elif not STALLS:
        assert with_nagle < STALL_S / 3, f"it stalls: {shown}"
        assert with_nagle < RATIO_MAX * without, f"Nagle costs: {shown}"


@check
def the_topic_is_made():
    admin = AdminClient({"bootstrap.servers": BROKER})
    try:
        for future in admin.create_topics([NewTopic("test", 1, 1)]).values():
            future.result(timeout=20)
    except KafkaException as problem:
        same(problem.args[0].name(), "TOPIC_ALREADY_EXISTS", "error")


@check
def in_the_clear():
    compare(False)


@check
def over_tls():
    compare(True)


main()
