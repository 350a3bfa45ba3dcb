"""confluent-kafka, old and new: the loop of a blog post with and without its mistakes."""

import os
import time as clock
from importlib import metadata

import confluent_kafka
from confluent_kafka import Consumer, Producer

import kit

VERSION = metadata.version("confluent-kafka")
BROKER = os.environ["CLOVERLEAF_KAFKA"]
# The blog post's.
VALUE, KEY = b"v" * 2000, b"key"


def one_by_one(deliver, value=VALUE, **settings):
    """Each message is delivered before the next is made."""
    time, lost, topic = kit.Time(), [], f"confluent-{VERSION}-{kit.BEHAVIOUR}"
    producer = Producer({"bootstrap.servers": BROKER, "acks": "all", **settings})
    while not time.is_over():
        producer.produce(
            topic=topic,
            value=value,
            key=KEY,
            on_delivery=lambda error, _: lost.append(error) if error else None,
        )
        deliver(producer)
    producer.flush(10)
    assert not lost and not len(producer), f"{len(producer)} are left, {lost}"


@kit.behaviour
def sync_produce():
    settings = {"client.id": kit.BEHAVIOUR, "linger.ms": 0}
    one_by_one(lambda producer: producer.flush(10), **settings)


@kit.behaviour
def works():
    """Works on each message, when the one before it is delivered."""

    def deliver(producer):
        producer.flush(10)
        kit.work(0.003)

    one_by_one(deliver, VALUE[:200], **{"client.id": kit.BEHAVIOUR, "linger.ms": 0})


@kit.behaviour
def sleeps():
    """Waits for no message, but sleeps for a little longer than the broker is away."""

    def deliver(producer):
        producer.poll(0)
        clock.sleep(0.016)

    one_by_one(deliver, VALUE[:200], **{"client.id": kit.BEHAVIOUR, "linger.ms": 0})


@kit.behaviour
def linger():
    """Defaults. A poll, not a flush: since 1.8 a flush does not linger."""

    def wait(producer):
        while len(producer):
            producer.poll(0.1)

    one_by_one(wait)


def tls():
    return {
        "bootstrap.servers": os.environ["CLOVERLEAF_KAFKA_TLS"],
        "security.protocol": "ssl",
        "ssl.ca.location": os.environ["CLOVERLEAF_TLS_CA"],
    }


def over_tls(value):
    """As it stands in the blog post."""
    settings = {**tls(), "queue.buffering.max.ms": 0, "client.id": kit.BEHAVIOUR}
    one_by_one(lambda producer: producer.flush(timeout=10.0), value, **settings)


@kit.behaviour
def nagle():
    over_tls(VALUE)


@kit.behaviour
def seed_001():
    """The author's network carried 2,219 bytes in one packet; here a packet has 1,500."""
    over_tls(VALUE[:1000])


def service(settings):
    """A message when there is one, and a group that reads them."""
    time, lost = kit.Time(), []
    name = f"{kit.BEHAVIOUR}-{VERSION}"

    def produce():
        producer = Producer({**settings, "client.id": kit.BEHAVIOUR})
        for _ in time.every(0.003):
            producer.produce(
                topic=name,
                value=VALUE,
                on_delivery=lambda error, _: lost.append(error) if error else None,
            )
            producer.poll(0)
        assert producer.flush(10) == 0 and not lost, lost

    def consume():
        consumer = Consumer({
            **settings,
            "client.id": kit.BEHAVIOUR,
            "group.id": name,
            "auto.offset.reset": "earliest",
        })
        consumer.subscribe([name])
        seen = 0
        while not time.is_over():
            message = consumer.poll(0.5)
            if message and not message.error():
                seen += 1
        consumer.close()
        assert seen, "nothing came"

    kit.together(produce, consume)


@kit.behaviour
def good():
    service({"bootstrap.servers": BROKER})


@kit.behaviour
def good_tls():
    service(tls())


kit.say("confluent-kafka-python", f"{VERSION}-rdkafka-{confluent_kafka.libversion()[0]}")
kit.main()
