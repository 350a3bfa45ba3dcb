"""An orderly restart (SIGTERM): committed offsets, group members and producers go on.

usage: restart_test.py ADDRESS -- COMMAND...   the command that runs the broker
"""

import sys

import harness
from harness import PATIENCE_S, check, main, same, wait_for

harness.BROKER, command = sys.argv[1], sys.argv[3:]
del sys.argv[1:]

import confluent_kit  # noqa: E402  (after the address is known)
from confluent_kafka import OFFSET_INVALID, KafkaException, TopicPartition  # noqa: E402
from own_broker import Broker  # noqa: E402

confluent_kit.BROKER = harness.BROKER
PARTITIONS = 3
PATIENT = {"reconnect.backoff.max.ms": 200, "retry.backoff.ms": 50}


def committed(group, topic, partitions):
    client = confluent_kit.consumer(group_id=group)
    wanted = [TopicPartition(topic, number) for number in partitions]
    found = []

    def answered():
        try:
            found[:] = client.committed(wanted, timeout=PATIENCE_S)
            return True
        except KafkaException:
            return False  # Kafka listens before it is the group's coordinator

    wait_for(answered, "the coordinator answers")
    client.close()
    return [(one.offset, one.metadata) for one in found]


@check
def committed_offsets_and_their_metadata_are_kept():
    with Broker(command) as broker:
        topic, group = confluent_kit.create(partitions=PARTITIONS), harness.name("group")
        for partition in range(PARTITIONS):
            values = [{"value": b"%d" % n, "partition": partition} for n in range(100)]
            confluent_kit.produce_all(topic, values)
        client = confluent_kit.consumer(group_id=group)
        offsets = [
            TopicPartition(topic, 0, 41, metadata="half"),
            TopicPartition(topic, 1, 100),
        ]
        client.commit(offsets=offsets, asynchronous=False)
        client.close()
        before = committed(group, topic, range(PARTITIONS))
        same([offset for offset, _ in before], [41, 100, OFFSET_INVALID], "committed")
        same(before[0][1], "half", "metadata")
        for _ in range(2):
            broker.stop()
            broker.start()
            same(committed(group, topic, range(PARTITIONS)), before, "committed after the restart")
        client = confluent_kit.consumer(group_id=group)
        client.subscribe([topic])
        messages = confluent_kit.read(client, 59 + 100)
        client.close()
        places = sorted((m.partition(), m.offset()) for m in messages)
        rest = [(0, n) for n in range(41, 100)] + [(2, n) for n in range(100)]
        same(places, rest, "what the group had not read")


@check
def members_and_producers_go_on_without_a_rebalance():
    with Broker(command) as broker:
        topic, group = confluent_kit.create(partitions=PARTITIONS), harness.name("group")
        member = confluent_kit.Member(
            [topic], group, session_timeout_ms=120_000, **PATIENT)
        out = confluent_kit.producer(enable_idempotence=True, **PATIENT)
        reports = confluent_kit.Deliveries()
        sent = 0

        def produce(count):
            nonlocal sent
            for _ in range(count):
                out.produce(topic, b"%d" % sent, partition=sent % PARTITIONS, on_delivery=reports)
                sent += 1

        def read_all():
            out.poll(0)
            return len(member.values) >= sent

        try:
            produce(300)
            wait_for(read_all, "the member has read all")
            for _ in range(2):
                events = list(member.events)
                broker.stop()
                produce(300)
                broker.start()
                wait_for(read_all, "the member has read all after the restart")
                same(member.events, events, "what the member was told")
            same(out.flush(PATIENCE_S), 0, "messages that were never answered")
            same(reports.codes(), [], "delivery errors")
            values = sorted(int(value) for value in member.values)
            same(values, list(range(sent)), "what the member has read")
        finally:
            member.stop()


main()
