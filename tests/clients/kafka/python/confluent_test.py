"""confluent-kafka (librdkafka): produce and consume. Runs with librdkafka 1.9 and with 2.x."""

import os
import time
import uuid

from confluent_kafka import (
    OFFSET_BEGINNING, OFFSET_END, TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, KafkaError,
    TopicPartition)

from confluent_kit import (
    CODECS, KEPT, Deliveries, admin, consumer, create, produce_all, producer, read,
    read_topic)
from harness import PATIENCE_S, TLS, TLS_CA, Skip, check, main, name, same, wait_for


def round_trip(count=300, **settings):
    topic = create()
    sent = [b"message %d " % n + b"x" * (n * 7 % 3000) for n in range(count)]
    produce_all(topic, sent, **settings)
    same([m.value() for m in read_topic(topic, count)], sent, "values")
    return topic


@check
def produce_and_consume():
    round_trip()


@check
def keys_headers_and_tombstones():
    topic = create()
    headers = [("one", b"1"), ("empty", b""), ("null", None), ("one", b"again")]
    sent = [
        {"value": b"v", "key": b"k", "headers": headers},
        {"value": None, "key": b"k"},
        {"value": b"", "key": b""},
        {"value": b"no key"},
        {"value": "text äöü", "key": "schlüssel", "headers": {"h": "ü"}},
    ]
    produce_all(topic, sent)
    got = [(m.key(), m.value(), m.headers()) for m in read_topic(topic, len(sent))]
    same(got, [
        (b"k", b"v", headers),
        (b"k", None, None),
        (b"", b"", None),
        (None, b"no key", None),
        ("schlüssel".encode(), "text äöü".encode(), [("h", "ü".encode())]),
    ], "messages")


@check
def each_compression():
    for codec in CODECS:
        round_trip(compression_type=codec, linger_ms=5)


@check
def many_small_messages_in_compressed_batches():
    for codec in CODECS:
        topic = create()
        sent = [b"%d" % n for n in range(20_000)]
        produce_all(topic, sent, compression_type=codec, linger_ms=20)
        same([m.value() for m in read_topic(topic, len(sent))], sent, codec)


@check
def acks_zero_one_and_all():
    for acks in ["1", "all"]:
        round_trip(acks=acks)
    topic, out = create(), producer(acks="0")
    sent = [b"message %d" % n for n in range(300)]
    for value in sent:
        out.produce(topic, value)
    same(out.flush(PATIENCE_S), 0, "messages left after flush")
    # What a producer without acknowledgements leaves behind in its socket may go with it: it stays
    # until all has come.
    same([m.value() for m in read_topic(topic, 300)], sent, "values")
    same(len(out), 0, "messages that were queued again")


@check
def offsets_in_the_reports():
    topic = create()
    reports = produce_all(topic, [b"x"] * 50, acks="all")
    same([m.offset() for m in reports], list(range(50)), "offsets")
    out, report = producer(acks=0), Deliveries()
    out.produce(topic, b"y", on_delivery=report)
    out.flush(PATIENCE_S)
    same(report.codes(), [], "errors with acks=0")


@check
def idempotent_producer():
    topic = create(partitions=3)
    sent = [{"value": b"%d" % n, "partition": n % 3} for n in range(3000)]
    produce_all(topic, sent, enable_idempotence=True, linger_ms=1)
    got = read_topic(topic, len(sent), partitions=3)
    for number in range(3):
        values = [int(m.value()) for m in got if m.partition() == number]
        same(values, list(range(number, 3000, 3)), f"partition {number}")


@check
def batches_to_eight_partitions():
    topic = create(partitions=8)
    sent = [{"value": b"%d" % n, "key": b"%d" % (n % 100)} for n in range(8000)]
    reports = produce_all(topic, sent, linger_ms=10)
    same({m.partition() for m in reports}, set(range(8)), "partitions used")
    got = read_topic(topic, len(sent), partitions=8)
    by_key = {}
    for message in got:
        values = by_key.setdefault((message.partition(), message.key()), [])
        values.append(int(message.value()))
    same(len(by_key), 100, "pairs of key and partition")
    for (_, key), values in by_key.items():
        # Not their order: librdkafka 1.x may send those first that came after the metadata.
        same(sorted(values), list(range(int(key), 8000, 100)), f"key {key}")


@check
def a_large_message():
    topic = create()
    body = os.urandom(900_000)
    produce_all(topic, [body], message_max_bytes=2_000_000)
    same(read_topic(topic, 1)[0].value(), body, "body")


@check
def a_message_that_is_too_large():
    topic = create(**{"max.message.bytes": "10000"})
    out, reports = producer(), Deliveries()
    out.produce(topic, os.urandom(9_000), on_delivery=reports)
    out.flush(PATIENCE_S)
    same(reports.codes(), [], "errors below the limit")
    out.produce(topic, os.urandom(20_000), on_delivery=reports)
    out.flush(PATIENCE_S)
    same(reports.codes(), [KafkaError.MSG_SIZE_TOO_LARGE], "errors above the limit")
    # The broker refuses one that is too large for its default, too.
    out, reports = producer(**{"message.max.bytes": 10_000_000}), Deliveries()
    out.produce(create(), os.urandom(3_000_000), on_delivery=reports)
    out.flush(PATIENCE_S)
    same(reports.codes(), [KafkaError.MSG_SIZE_TOO_LARGE], "errors above the default")


@check
def a_large_message_where_the_topic_allows_it():
    topic = create(**{"max.message.bytes": "6000000"})
    body = os.urandom(5_000_000)
    produce_all(topic, [body], message_max_bytes=6_000_000)
    got = read_topic(topic, 1, **{"fetch.message.max.bytes": 1000})
    same(got[0].value(), body, "body, though it is larger than the consumer's limit")


@check
def timestamps():
    topic = create(**KEPT)
    produce_all(topic, [{"value": b"x", "timestamp": 1_600_000_000_000}])
    same(read_topic(topic, 1)[0].timestamp(), (TIMESTAMP_CREATE_TIME, 1_600_000_000_000), "own")
    topic = create(**KEPT, **{"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)
    message = {"value": b"x", "timestamp": 1_600_000_000_000}
    produce_all(topic, [message] * 3, linger_ms=50)
    for message in read_topic(topic, 3):
        kind, at = message.timestamp()
        same(kind, TIMESTAMP_LOG_APPEND_TIME, "kind")
        assert before - 1000 <= at <= time.time() * 1000 + 1000, at


@check
def a_consumer_waits_for_what_comes():
    topic = create()
    # Whoever waits as long as it may 20 times does not come to an end.
    client = consumer(fetch_wait_max_ms=250_000, socket_timeout_ms=300_000)
    client.assign([TopicPartition(topic, 0, 0)])
    same(client.poll(0.5), None, "an empty topic")
    out = producer()
    for n in range(20):
        out.produce(topic, b"%d" % n)
        out.poll(0)
        same(read(client, 1)[0].value(), b"%d" % n, "value")
        out.flush(PATIENCE_S)
    client.close()


def reaches_end(client):
    """The client tells that it has read all."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        message = client.poll(0.2)
        if message is not None:
            same(message.error() and message.error().code(), KafkaError._PARTITION_EOF, "the end")
            return
        assert time.monotonic() < deadline, "the end is not reached"


@check
def assign_and_seek():
    topic = create()
    produce_all(topic, [b"%d" % n for n in range(100)])
    client = consumer()
    client.assign([TopicPartition(topic, 0, 40)])
    same(read(client, 1)[0].value(), b"40", "assigned at 40")
    client.seek(TopicPartition(topic, 0, 90))
    same([m.value() for m in read(client, 10)], [b"%d" % n for n in range(90, 100)], "from 90")
    client.seek(TopicPartition(topic, 0, OFFSET_BEGINNING))
    same(read(client, 1)[0].value(), b"0", "from the beginning")
    client.close()
    # The client asks where the end is, and behind a Fetch that waits it hears of it late.
    client = consumer(enable_partition_eof=True)
    client.assign([TopicPartition(topic, 0, OFFSET_END)])
    reaches_end(client)
    same(client.poll(1), None, "nothing after the end")
    produce_all(topic, [b"new"])
    same(read(client, 1)[0].value(), b"new", "what came after the end")
    reaches_end(client)
    client.pause([TopicPartition(topic, 0)])
    produce_all(topic, [b"while paused"])
    same(client.poll(0.5), None, "a paused partition")
    client.resume([TopicPartition(topic, 0)])
    same(read(client, 1)[0].value(), b"while paused", "resumed")
    client.close()


@check
def watermarks_and_offsets_for_times():
    topic = create(partitions=2, **KEPT)
    base = 1_700_000_000_000
    produce_all(topic, [
        {"value": b"x", "partition": 0, "timestamp": base + n * 1000} for n in range(20)])
    client = consumer()
    for partition, expected in [(0, (0, 20)), (1, (0, 0))]:
        at = TopicPartition(topic, partition)
        found = client.get_watermark_offsets(at, timeout=PATIENCE_S)
        same(found, expected, f"ends of {partition}")

    def at(timestamp, partition=0):
        asked = [TopicPartition(topic, partition, timestamp)]
        return client.offsets_for_times(asked, timeout=PATIENCE_S)[0].offset

    same(at(base), 0, "the first")
    same(at(base - 5), 0, "before the first")
    same(at(base + 7000), 7, "exactly")
    same(at(base + 7001), 8, "between two")
    same(at(base + 60_000), OFFSET_END, "after the last")
    same(at(base, partition=1), OFFSET_END, "an empty partition")
    client.close()


@check
def an_offset_that_does_not_exist():
    topic = create()
    produce_all(topic, [b"%d" % n for n in range(10)])
    client = consumer()
    client.assign([TopicPartition(topic, 0, 5000)])
    same(read(client, 1)[0].value(), b"0", "reset to the earliest")
    client.close()
    client = consumer(auto_offset_reset="error")
    client.assign([TopicPartition(topic, 0, 5000)])
    message = wait_for(lambda: client.poll(0.2), "an error has come")
    same(message.error().code(), KafkaError._AUTO_OFFSET_RESET, "error")
    client.close()


@check
def topics_that_do_not_exist():
    topic = name("auto")
    produce_all(topic, [b"made by producing"])
    same(read_topic(topic, 1)[0].value(), b"made by producing", "value")
    missing = name("missing")
    client = consumer()
    client.subscribe([missing])
    message = wait_for(lambda: client.poll(0.2), "an error has come")
    same(message.error().code(), KafkaError.UNKNOWN_TOPIC_OR_PART, "error")
    client.close()
    same(missing in admin().list_topics(timeout=PATIENCE_S).topics, False, "made by consuming")
    out, reports = producer(), Deliveries()
    out.produce("not a name!", b"x", on_delivery=reports)
    out.flush(PATIENCE_S)
    same(len(reports.errors), 1, "errors for a name that is none")


@check
def two_hundred_partitions_in_one_consumer():
    topic = create(partitions=200)
    sent = [{"value": b"%d" % n, "partition": n % 200} for n in range(4000)]
    produce_all(topic, sent, linger_ms=5)
    got = read_topic(topic, 4000, partitions=200)
    same(sorted(int(m.value()) for m in got), list(range(4000)), "values")


@check
def tls():
    if not TLS:
        raise Skip("no TLS address")
    settings = {
        "bootstrap.servers": TLS,
        "security.protocol": "ssl",
        "ssl.ca.location": TLS_CA,
    }
    topic = create()
    sent = [b"secret %d " % n + b"x" * (n % 5000) for n in range(2000)]
    produce_all(topic, sent, linger_ms=1, **settings)
    produce_all(topic, [os.urandom(800_000)], **settings)
    got = read_topic(topic, 2001, **settings)
    same([m.value() for m in got[:2000]], sent, "values")
    # A client that does not trust the authority does not connect.
    settings.pop("ssl.ca.location")
    out, reports = producer(**settings, message_timeout_ms=2000), Deliveries()
    out.produce(topic, b"x", on_delivery=reports)
    out.flush(PATIENCE_S)
    same(reports.codes(), [KafkaError._MSG_TIMED_OUT], "errors without the authority")


@check
def a_topic_deleted_and_made_again():
    topic = create()
    produce_all(topic, [b"old"] * 5)
    client = admin()
    for future in client.delete_topics([topic], operation_timeout=PATIENCE_S).values():
        future.result(timeout=PATIENCE_S)
    wait_for(lambda: topic not in client.list_topics(timeout=PATIENCE_S).topics, "it is gone")
    create(topic=topic)
    produce_all(topic, [b"new"])
    same([(m.value(), m.offset()) for m in read_topic(topic, 1)], [(b"new", 0)], "messages")


@check
def many_producers_at_once():
    topic = create(partitions=4)
    clients = [producer(acks="all", client_id=f"client-{n}") for n in range(20)]
    reports = Deliveries()
    for n in range(100):
        for number, out in enumerate(clients):
            out.produce(topic, f"{number} {n}", partition=number % 4, on_delivery=reports)
    for out in clients:
        same(out.flush(PATIENCE_S), 0, "messages left")
    same(reports.codes(), [], "errors")
    got = read_topic(topic, 2000, partitions=4)
    for number in range(20):
        mine = [m.value() for m in got if m.value().startswith(b"%d " % number)]
        same(mine, [b"%d %d" % (number, n) for n in range(100)], f"order of producer {number}")


@check
def a_group_id_that_is_new_each_time():
    topic = create()
    produce_all(topic, [b"%d" % n for n in range(10)])
    client = consumer(group_id=str(uuid.uuid4()))
    client.subscribe([topic])
    same(len(read(client, 10)), 10, "messages")
    client.close()


main()
