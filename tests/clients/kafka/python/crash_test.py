"""An idempotent producer while the broker is killed: nothing lost, nothing twice, order kept.

usage: crash_test.py ROUNDS ADDRESS -- COMMAND...   the command that runs the broker
Groups are part of it: a member commits as it reads, and never goes back behind a commit.
"""

import itertools
import random
import sys
import threading
import time

import harness
from harness import PATIENCE_S, check, main, same, wait_for

rounds, harness.BROKER = int(sys.argv[1]), sys.argv[2]
command = sys.argv[4:]
del sys.argv[1:]

import confluent_kit  # noqa: E402  (after the address is known)
from confluent_kafka import OFFSET_INVALID, KafkaException, TopicPartition  # noqa: E402
from own_broker import Broker  # noqa: E402

confluent_kit.BROKER = harness.BROKER
harness.CHECK_S_MAX += 60 * rounds
PARTITIONS = 3
# What makes a client wait longer than a broker takes to come back is no test of the broker.
PATIENT = {
    "message.timeout.ms": 120_000, "reconnect.backoff.max.ms": 200, "retry.backoff.ms": 50,
}


class Producing(threading.Thread):
    """Numbers each message in its partition; knows which were acknowledged."""

    def __init__(self, topic, acks):
        super().__init__(daemon=True)
        self.topic = topic
        self.acknowledged = [0] * PARTITIONS
        self.sent = [0] * PARTITIONS
        self.errors = []
        self.stop = threading.Event()
        idempotent = acks == "all"
        settings = {"enable.idempotence": idempotent, "acks": acks, "linger.ms": 1, **PATIENT}
        settings["max.in.flight.requests.per.connection"] = 5 if idempotent else 1
        self.out = confluent_kit.producer(**settings)
        self.start()

    def delivered(self, error, message):
        if error is None:
            self.acknowledged[message.partition()] += 1
        else:
            self.errors.append(str(error))

    def run(self):
        for partition in itertools.cycle(range(PARTITIONS)):
            if self.stop.is_set():
                break
            value = b"%d" % self.sent[partition]
            if len(self.out) > 2000:
                self.out.poll(0.01)
                continue
            self.out.produce(
                self.topic, value, partition=partition, on_delivery=self.delivered)
            self.sent[partition] += 1
            self.out.poll(0)

    def finish(self):
        self.stop.set()
        self.join(PATIENCE_S)
        same(self.out.flush(PATIENCE_S), 0, "messages that were never answered")
        same(self.errors[:3], [], "delivery errors")


def read_all(topic, partition):
    client = confluent_kit.consumer()
    at = TopicPartition(topic, partition, 0)
    _, end = client.get_watermark_offsets(at, timeout=PATIENCE_S)
    client.assign([at])
    messages = []
    while client.position([at])[0].offset < end:
        message = client.poll(5)
        assert message is not None, f"nothing more comes after {len(messages)} messages"
        assert message.error() is None, message.error()
        messages.append(message)
    client.close()
    return messages


def crash(acks):
    broker = Broker(command)
    broker.start()
    try:
        topic = confluent_kit.create(partitions=PARTITIONS)
        producing = Producing(topic, acks)
        group = harness.name("group")
        committing = threading.Event()
        committed = []
        reader = threading.Thread(
            target=commit_while_reading, args=[topic, group, committing, committed], daemon=True)
        reader.start()
        for _ in range(rounds):
            had, commits = sum(producing.acknowledged), len(committed)
            wait_for(lambda: sum(producing.acknowledged) > had + 500, "messages flow")
            wait_for(lambda: len(committed) > commits, "the group commits")
            time.sleep(random.uniform(0, 0.3))
            broker.kill()
            broker.start()
        had = sum(producing.acknowledged)
        wait_for(lambda: sum(producing.acknowledged) > had + 500, "messages flow at last")
        producing.finish()
        committing.set()
        reader.join(PATIENCE_S)
        for partition in range(PARTITIONS):
            values = [int(m.value()) for m in read_all(topic, partition)]
            sent = producing.sent[partition]
            if acks == "all":
                lost = sorted(set(range(sent)) - set(values))
                twice = len(values) - len(set(values))
                assert values == list(range(sent)), (
                    f"partition {partition}: {sent} sent, {len(values)} there, "
                    f"lost {lost[:5]}, {twice} twice, in order {values == sorted(values)}")
            else:
                lost = sorted(set(range(sent)) - set(values))
                same(lost[:5], [], f"messages of partition {partition} that were lost")
        assert committed, "nothing was committed"
        client = confluent_kit.consumer(group_id=group)
        for partition in range(PARTITIONS):
            wanted = [TopicPartition(topic, partition)]
            found = client.committed(wanted, timeout=PATIENCE_S)[0].offset
            best = max((o for p, o in committed if p == partition), default=OFFSET_INVALID)
            assert found >= best, f"partition {partition}: {best} was committed, {found} is kept"
        client.close()
    finally:
        broker.kill()


def commit_while_reading(topic, group, stop, committed):
    client = confluent_kit.consumer(group_id=group, session_timeout_ms=6000, **{
        "reconnect.backoff.max.ms": 200})
    client.subscribe([topic])
    while not stop.is_set():
        message = client.poll(0.1)
        if message is None or message.error():
            continue
        if message.offset() % 200 == 0:
            try:
                offset = TopicPartition(topic, message.partition(), message.offset() + 1)
                done = client.commit(offsets=[offset], asynchronous=False)
                committed += [(p.partition, p.offset) for p in done if p.error is None]
            except KafkaException:
                pass  # it is gone, or it has been told to rebalance: not committed
    client.close()


@check
def idempotent_producer_while_the_broker_is_killed():
    crash("all")


@check
def acks_of_one_while_the_broker_is_killed():
    crash("1")


main()
