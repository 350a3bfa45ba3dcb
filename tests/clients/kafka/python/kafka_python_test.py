"""kafka-python: produce, consume, groups, administration."""

import threading

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic
from kafka.errors import TopicAlreadyExistsError
from kafka.structs import OffsetAndMetadata

from harness import BROKER, PATIENCE_S, TLS, TLS_CA, Skip, check, main, name, same, wait_for


def create(partitions=1, **config):
    topic = name()
    admin = KafkaAdminClient(bootstrap_servers=BROKER)
    admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=config)])
    admin.close()
    return topic


def produce(topic, values, **settings):
    producer = KafkaProducer(bootstrap_servers=BROKER, **settings)
    futures = [producer.send(topic, **(value if isinstance(value, dict) else {"value": value}))
               for value in values]
    reports = [future.get(PATIENCE_S) for future in futures]
    producer.close()
    return reports


def consume(topic, count, **settings):
    settings.setdefault("auto_offset_reset", "earliest")
    settings.setdefault("bootstrap_servers", BROKER)
    consumer = KafkaConsumer(topic, consumer_timeout_ms=PATIENCE_S * 1000, **settings)
    messages = []
    for message in consumer:
        messages.append(message)
        if len(messages) == count:
            break
    consumer.close()
    return messages


@check
def produce_and_consume():
    topic = create()
    sent = [b"message %d" % n for n in range(500)]
    reports = produce(topic, sent)
    same([report.offset for report in reports], list(range(500)), "offsets")
    same([m.value for m in consume(topic, 500)], sent, "values")


@check
def keys_headers_and_tombstones():
    topic = create()
    produce(topic, [
        {"value": b"v", "key": b"k", "headers": [("h", b"1"), ("h", b"2")]},
        {"value": None, "key": b"k"},
    ])
    got = [(m.key, m.value, list(m.headers)) for m in consume(topic, 2)]
    same(got, [(b"k", b"v", [("h", b"1"), ("h", b"2")]), (b"k", None, [])], "messages")


@check
def compressions_and_acks():
    for codec in [None, "gzip", "lz4"]:
        for acks in [0, 1, "all"]:
            topic = create()
            sent = [b"%d" % n for n in range(300)]
            settings = {"compression_type": codec, "acks": acks, "linger_ms": 5}
            produce(topic, sent, enable_idempotence=False, **settings)
            same([m.value for m in consume(topic, 300)], sent, f"{codec}, acks={acks}")


@check
def idempotent_producer():
    topic = create()
    sent = [b"%d" % n for n in range(1000)]
    produce(topic, sent, enable_idempotence=True)
    same([m.value for m in consume(topic, 1000)], sent, "values")


@check
def a_group_commits_and_goes_on():
    topic, group = create(), name("group")
    produce(topic, [b"%d" % n for n in range(20)])
    consumer = KafkaConsumer(
        topic, bootstrap_servers=BROKER, group_id=group, auto_offset_reset="earliest",
        enable_auto_commit=False)
    for _ in range(8):
        message = next(consumer)
    partition = TopicPartition(topic, 0)
    consumer.commit({partition: OffsetAndMetadata(message.offset + 1, "note", -1)})
    same(consumer.committed(partition), 8, "committed")
    same(consumer.committed(partition, metadata=True).metadata, "note", "metadata")
    consumer.close()
    same(consume(topic, 1, group_id=group)[0].value, b"8", "where it goes on")


@check
def two_members_share():
    topic, group = create(partitions=4), name("group")
    stop, held = threading.Event(), {}

    def member(number):
        consumer = KafkaConsumer(topic, bootstrap_servers=BROKER, group_id=group)
        while not stop.is_set():
            # kafka-python 3.0.12 forgets an assignment that comes just as a poll's time is over:
            # with polls of 50 ms about one run in six hangs, against Apache Kafka too.
            consumer.poll(1000)
            held[number] = consumer.assignment()
        consumer.close()

    threads = [threading.Thread(target=member, args=[n], daemon=True) for n in range(2)]
    for thread in threads:
        thread.start()
    wait_for(lambda: [len(held.get(n) or ()) for n in range(2)] == [2, 2], "both have two")
    same(len(held[0] | held[1]), 4, "partitions held")
    stop.set()
    for thread in threads:
        thread.join(PATIENCE_S)


@check
def offsets_and_times():
    # The timestamps are of years ago, which would be old enough to go.
    topic = create(**{"retention.ms": "-1"})
    base = 1_700_000_000_000
    produce(topic, [{"value": b"x", "timestamp_ms": base + n * 10} for n in range(10)])
    consumer, partition = KafkaConsumer(bootstrap_servers=BROKER), TopicPartition(topic, 0)
    same(consumer.beginning_offsets([partition]), {partition: 0}, "beginning")
    same(consumer.end_offsets([partition]), {partition: 10}, "end")
    found = consumer.offsets_for_times({partition: base + 45})[partition]
    same((found.offset, found.timestamp), (5, base + 50), "offset for a time")
    consumer.assign([partition])
    consumer.seek(partition, 7)
    same(next(consumer).offset, 7, "after a seek")
    consumer.close()


@check
def administration():
    admin, topic = KafkaAdminClient(bootstrap_servers=BROKER), create(**{"retention.ms": "60000"})
    assert topic in admin.list_topics()
    try:
        admin.create_topics([NewTopic(topic, 1, 1)])
        raise AssertionError("a topic was made twice")
    except TopicAlreadyExistsError:
        pass
    admin.create_partitions({topic: NewPartitions(3)})
    found = admin.describe_topics([topic])[0]
    same(len(found["partitions"]), 3, "partitions")
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    assert "60000" in repr(admin.describe_configs([resource])), "retention.ms is not described"
    consume_group = name("group")
    produce(topic, [b"x"])
    consume(topic, 1, group_id=consume_group)
    wait_for(lambda: consume_group in repr(admin.list_groups()), "the group is listed")
    same(admin.delete_groups([consume_group]), {consume_group: "OK"}, "deleted groups")
    assert admin.describe_cluster()
    assert admin.describe_log_dirs()
    admin.delete_topics([topic])
    wait_for(lambda: topic not in admin.list_topics(), "it is gone")
    admin.close()


@check
def tls():
    if not TLS:
        raise Skip("no TLS address")
    settings = {"bootstrap_servers": TLS, "security_protocol": "SSL", "ssl_cafile": TLS_CA}
    topic = create()
    producer = KafkaProducer(**settings)
    for n in range(100):
        producer.send(topic, b"%d" % n)
    producer.flush(PATIENCE_S)
    producer.close()
    got = consume(topic, 100, **settings)
    same([m.value for m in got], [b"%d" % n for n in range(100)], "values")


main()
