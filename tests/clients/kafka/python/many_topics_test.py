"""A thousand topics of ten partitions."""

from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewTopic

from confluent_kit import Deliveries, Member, admin, consumer, producer, read
from harness import PATIENCE_S, check, main, name, same, wait_for

TOPICS, PARTITIONS = 1000, 10
PREFIX = name("many")
topics = [f"{PREFIX}-{number}" for number in range(TOPICS)]


@check
def are_made():
    client = admin()
    for first in range(0, TOPICS, 200):
        some = [NewTopic(topic, PARTITIONS, 1) for topic in topics[first:first + 200]]
        for future in client.create_topics(some).values():
            future.result(timeout=PATIENCE_S)
    found = client.list_topics(timeout=PATIENCE_S).topics
    same(sum(len(found[topic].partitions) for topic in topics), TOPICS * PARTITIONS, "partitions")


@check
def are_written_to():
    out = producer(linger_ms=50, **{"queue.buffering.max.messages": 1_000_000})
    reports = Deliveries()
    for round_ in range(3):
        for topic in topics:
            for partition in range(PARTITIONS):
                out.produce(topic, b"%d" % round_, partition=partition, on_delivery=reports)
            out.poll(0)
    same(out.flush(PATIENCE_S), 0, "messages left")
    same(reports.codes()[:3], [], "errors")
    same(len(reports.messages), 3 * TOPICS * PARTITIONS, "messages")


@check
def are_read_by_one_consumer():
    client = consumer()
    client.assign([TopicPartition(t, p, 0) for t in topics for p in range(PARTITIONS)])
    messages = read(client, 3 * TOPICS * PARTITIONS)
    by_partition = {}
    for message in messages:
        by_partition.setdefault((message.topic(), message.partition()), []).append(message.value())
    same(len(by_partition), TOPICS * PARTITIONS, "partitions read")
    same({tuple(values) for values in by_partition.values()}, {(b"0", b"1", b"2")}, "values")
    client.close()


@check
def are_shared_by_a_group():
    group = name("group")
    # The client asks for the start of each partition by itself, and each question waits behind a
    # Fetch that has nothing yet: with any broker, as answers come in order.
    settings = {"fetch.wait.max.ms": 20}
    members = [Member([f"^{PREFIX}-.*"], group, **settings) for _ in range(2)]
    half = TOPICS * PARTITIONS // 2
    wait_for(lambda: [len(m.assigned) for m in members] == [half, half], "each has half")
    wait_for(lambda: sum(len(m.values) for m in members) >= 6 * half, "all has come")
    for member in members:
        member.stop()


@check
def some_are_deleted():
    client, some = admin(), topics[:200]
    for future in client.delete_topics(some, operation_timeout=PATIENCE_S).values():
        future.result(timeout=PATIENCE_S)
    left = client.list_topics(timeout=PATIENCE_S).topics
    same([topic for topic in topics if topic in left], topics[200:], "topics left")


main()
