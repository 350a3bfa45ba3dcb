"""Compaction as a consumer sees it: a key's old values go, a tombstone is seen and then goes.

The broker looks for what is to be compacted several times a second.
"""

import random
import time

from confluent_kafka import TopicPartition

import confluent_kit
from harness import PATIENCE_S, check, main, same, wait_for

# Segments of one MiB are the smallest that Kafka 4 takes; values do not compress.
VALUE_BYTES = 30_000
ROUNDS = 6
KEYS = 24
# So long that a slow machine reads the log often enough to see one.
TOMBSTONES_KEPT_MS = 15_000
SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": str(TOMBSTONES_KEPT_MS),
}


def value(number):
    return b"%d " % number + random.randbytes(VALUE_BYTES)


def number_of(message):
    return int(message.value().split(b" ", 1)[0])


def write(topic, keys, number):
    """One value for each key; returns the offset that each was given."""
    messages = [{"key": key, "value": value(number)} for key in keys]
    done = confluent_kit.produce_all(topic, messages, batch_num_messages=4)
    return {message.key(): message.offset() for message in done}


def read_from_start(topic):
    client = confluent_kit.consumer()
    at = TopicPartition(topic, 0, 0)
    _, end = client.get_watermark_offsets(at, timeout=PATIENCE_S)
    client.assign([at])
    messages = []
    deadline = time.monotonic() + PATIENCE_S
    while client.position([at])[0].offset < end:
        assert time.monotonic() < deadline, f"{client.position([at])[0].offset} of {end}"
        for message in client.consume(100, 0.1):
            assert message.error() is None, message.error()
            messages.append(message)
    client.close()
    same([m.offset() for m in messages], sorted(m.offset() for m in messages), "the order")
    return messages


def fill(topic, number):
    """Pushes what was written before out of the newest segments, which stay as they are."""
    return write(topic, [b"filler-%d" % key for key in range(120)], number)


@check
def old_values_go_and_the_newest_stay():
    topic = confluent_kit.create(**SETTINGS)
    keys = [b"key-%d" % key for key in range(KEYS)]
    follower = confluent_kit.consumer()
    follower.assign([TopicPartition(topic, 0, 0)])
    for number in range(ROUNDS):
        places = write(topic, keys, number)
    # It has read a part, and stands where everything around will be compacted away.
    seen = confluent_kit.read(follower, KEYS + 3)
    fill(topic, 0)

    def newest_only():
        messages = [m for m in read_from_start(topic) if m.key() in places]
        newest = {m.key(): m for m in messages if number_of(m) == ROUNDS - 1}
        same({key: m.offset() for key, m in newest.items()}, places, "newest values")
        assert all(len(m.value()) > VALUE_BYTES for m in newest.values())
        return len(messages) == KEYS

    wait_for(newest_only, "each key has one value")
    rest = []
    while len({m.key() for m in rest if m.key() in places and number_of(m) == ROUNDS - 1}) < KEYS:
        rest += confluent_kit.read(follower, 1)
    follower.close()
    offsets = [m.offset() for m in seen + rest]
    same(offsets, sorted(set(offsets)), "the follower's order")


@check
def a_tombstone_is_seen_and_then_goes():
    topic = confluent_kit.create(**SETTINGS)
    write(topic, [b"gone", b"kept"], 0)
    fill(topic, 0)
    confluent_kit.produce_all(topic, [{"key": b"gone", "value": None}])
    states, fillers = [], 1

    def state():
        """Fills on, because a log with nothing new is not compacted again."""
        nonlocal fillers
        fill(topic, fillers)
        fillers += 1
        messages = read_from_start(topic)
        kept = [number_of(m) for m in messages if m.key() == b"kept"]
        same(kept, [0], "the key that nobody deleted")
        return [m.value() is None for m in messages if m.key() == b"gone"]

    def is_gone():
        now = state()
        if not states or states[-1] != now:
            states.append(now)
        return now == []

    try:
        wait_for(is_gone, "the tombstone is gone")
    except AssertionError as fault:
        fault.add_note(f"seen of its key (True: a tombstone): {states}, after {fillers} fillings")
        raise
    # False: the value, True: its tombstone. The value never comes without the tombstone.
    same([s for s in states if s not in ([False, True], [True], [])], [], "other states")
    same(states[-2:], [[True], []], "the tombstone alone, then nothing")


@check
def what_compaction_has_compressed_is_read_as_it_was_written():
    kinds = [*confluent_kit.CODECS[1:], "uncompressed"]
    topics = {}
    for kind, sent in zip(kinds, confluent_kit.CODECS, strict=True):
        topic = confluent_kit.create(**SETTINGS, **{"compression.type": kind})
        texts = {b"key-%d" % key: b"%d words " % key * 2_000 for key in range(KEYS)}
        for values in [dict.fromkeys(texts, b"old"), texts]:
            messages = [{"key": key, "value": value} for key, value in values.items()]
            confluent_kit.produce_all(topic, messages, compression_type=sent)
        fill(topic, 0)
        topics[topic] = texts
    for topic, texts in topics.items():
        wait_for(lambda at=topic, of=texts: has_one_value_each(at, of), "each key has one value")


def has_one_value_each(topic, newest):
    found = [m for m in read_from_start(topic) if m.key() in newest]
    same({m.key(): m.value() for m in found}, newest, "newest values")
    return len(found) == len(newest)


main()
