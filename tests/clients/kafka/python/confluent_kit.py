"""confluent-kafka as most checks use it."""

import threading
import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from harness import BROKER, PATIENCE_S, name, same, wait_for

# For messages with timestamps of years ago, which would be old enough to go.
KEPT = {"retention.ms": "-1"}
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def admin(**settings):
    return AdminClient({"bootstrap.servers": BROKER, **settings})


def create(partitions=1, topic=None, **config):
    topic = topic or name()
    new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=config)
    client = admin()
    for future in client.create_topics([new]).values():
        future.result(timeout=PATIENCE_S)

    def is_led():
        found = client.list_topics(topic, timeout=PATIENCE_S).topics[topic]
        led = found.error is None and all(p.leader >= 0 for p in found.partitions.values())
        return led and len(found.partitions) == partitions

    wait_for(is_led, f"{topic} has a leader")
    return topic


def producer(**settings):
    return Producer({"bootstrap.servers": BROKER, "linger.ms": 0, **dotted(settings)})


def consumer(**settings):
    defaults = {
        "bootstrap.servers": BROKER,
        "group.id": name("group"),
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    return Consumer({**defaults, **dotted(settings)})


def dotted(settings):
    return {key.replace("_", "."): value for key, value in settings.items()}


class Deliveries:
    """Delivery reports: what was acknowledged, and what not."""

    def __init__(self):
        self.messages = []
        self.errors = []

    def __call__(self, error, message):
        if error is None:
            self.messages.append(message)
        else:
            self.errors.append(error)

    def codes(self):
        return [error.code() for error in self.errors]


def produce_all(topic, values, **settings):
    """Produces and waits until all are acknowledged; returns the reports."""
    out, reports = producer(**settings), Deliveries()
    for value in values:
        message = value if isinstance(value, dict) else {"value": value}
        while True:
            try:
                out.produce(topic, on_delivery=reports, **message)
                break
            except BufferError:
                out.poll(0.1)
        out.poll(0)
    same(out.flush(PATIENCE_S), 0, "messages left after flush")
    same([str(error) for error in reports.errors], [], "delivery errors")
    return reports.messages


def stored(client):
    """What the broker has of the partitions that a consumer reads, in words."""
    parts = []
    for at in client.position(client.assignment()):
        try:
            first, end = client.get_watermark_offsets(at, timeout=PATIENCE_S)
        except KafkaException as error:
            first, end = "?", error
        parts.append(f"{at.topic}/{at.partition} has {first} to {end}, read up to {at.offset}")
    return "; ".join(parts) or "nothing is assigned"


def read(client, count):
    """Polls until `count` messages have come."""
    messages = []
    deadline = time.monotonic() + PATIENCE_S
    while len(messages) < count:
        if time.monotonic() > deadline:
            raise AssertionError(f"{len(messages)} of {count} messages have come; {stored(client)}")
        for message in client.consume(count - len(messages), 0.1):
            # Old versions tell the end of a partition as an error.
            if message.error() is None:
                messages.append(message)
            elif message.error().code() != KafkaError._PARTITION_EOF:
                raise AssertionError(f"consume: {message.error()}")
    return messages


def read_topic(topic, count, partitions=1, **settings):
    """The first `count` messages of a topic, read without a group's help."""
    client = consumer(**settings)
    client.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    messages = read(client, count)
    client.close()
    return messages


class Member(threading.Thread):
    """A group member that polls in the background and keeps what it sees."""

    def __init__(self, topics, group, **settings):
        super().__init__(daemon=True)
        self.client = consumer(group_id=group, **settings)
        # A new set each time: another thread may be looking through the one that it has taken.
        self.assigned = set()
        self.events = []
        self.values = []
        self.problem = None
        self.is_over = threading.Event()
        self.client.subscribe(
            topics, on_assign=self.on_assign, on_revoke=self.on_revoke, on_lost=self.on_lost)
        self.start()

    def on_assign(self, client, partitions):
        self.events.append(("assign", len(partitions)))
        self.assigned = self.assigned | {(p.topic, p.partition) for p in partitions}

    def on_revoke(self, client, partitions):
        self.events.append(("revoke", len(partitions)))
        self.assigned = self.assigned - {(p.topic, p.partition) for p in partitions}

    def on_lost(self, client, partitions):
        self.events.append(("lost", len(partitions)))
        self.assigned = self.assigned - {(p.topic, p.partition) for p in partitions}

    def run(self):
        try:
            while not self.is_over.is_set():
                message = self.client.poll(0.05)
                if message is not None and not message.error():
                    self.values.append(message.value())
        except Exception as problem:
            self.problem = problem

    def stop(self, close=True):
        self.is_over.set()
        self.join(PATIENCE_S)
        if close:
            self.client.close()
        assert self.problem is None, self.problem


def shared_evenly(members, partitions):
    """Whether each partition has one member and no member has more than its share."""
    held = [p for member in members for p in member.assigned]
    most = -(-partitions // len(members))
    return (len(held) == len(set(held)) == partitions
            and all(len(member.assigned) <= most for member in members))
