"""confluent-kafka, old and new: the loop of a blog post with and without its mistakes."""

import os
import time
from importlib import metadata

import confluent_kafka
from confluent_kafka import Consumer, Producer

import kit

VERSION = metadata.version("confluent-kafka")
CLEAR = {"bootstrap.servers": os.environ["CLOVERLEAF_KAFKA"]}
TLS = {
    "bootstrap.servers": os.environ.get("CLOVERLEAF_KAFKA_TLS"),
    "security.protocol": "ssl",
    "ssl.ca.location": os.environ.get("CLOVERLEAF_TLS_CA"),
}
NAMED = {"client.id": kit.BEHAVIOUR}
# The blog post's.
VALUE, KEY = b"v" * 2000, b"key"


def produce(topic, then, value=VALUE, key=None, **settings):
    """Sends messages. After each it calls `then` with the producer."""
    lost, producer = [], Producer(settings)
    while not kit.is_over():
        producer.produce(
            topic=topic,
            value=value,
            key=key,
            on_delivery=lambda error, _: lost.append(error) if error else None,
        )
        then(producer)
    producer.flush(10)
    assert not lost and not len(producer), f"{len(producer)} are left, {lost}"


def one_by_one(deliver, value=VALUE, **settings):
    """Each message is delivered before the next is made."""
    topic = f"confluent-{VERSION}-{kit.BEHAVIOUR}"
    produce(topic, deliver, value, KEY, **{**CLEAR, "acks": "all", **settings})


def flush(producer):
    producer.flush(10)


@kit.behaviour
def sync_produce():
    one_by_one(flush, **NAMED, **{"linger.ms": 0})


@kit.behaviour
def works():
    """Works for 3 ms after the delivery of each message."""

    def deliver(producer):
        producer.flush(10)
        kit.work(0.003)

    one_by_one(deliver, VALUE[:200], **NAMED, **{"linger.ms": 0})


@kit.behaviour
def sleeps():
    """Waits for no message, but sleeps a little longer than a round trip after each."""

    def deliver(producer):
        producer.poll(0)
        time.sleep(0.016)

    one_by_one(deliver, VALUE[:200], **NAMED, **{"linger.ms": 0})


@kit.behaviour
def linger():
    """Defaults. A poll, not a flush: since 1.8 a flush does not linger."""

    def wait(producer):
        while len(producer):
            producer.poll(0.1)

    one_by_one(wait)


def over_tls(value):
    """The settings of the blog post."""
    one_by_one(flush, value, **TLS, **NAMED, **{"queue.buffering.max.ms": 0})


@kit.behaviour
def nagle():
    over_tls(VALUE)


@kit.behaviour
def seed_001():
    """The author's network carried 2,219 bytes in one packet; here a packet has 1,500."""
    over_tls(VALUE[:1000])


def service(settings):
    """A message each 3 ms, and a group that reads them."""
    name, settings, ticks = f"{kit.BEHAVIOUR}-{VERSION}", {**settings, **NAMED}, kit.every(0.003)

    def tick(producer):
        producer.poll(0)
        next(ticks, None)

    def consume():
        consumer = Consumer({**settings, "group.id": name, "auto.offset.reset": "earliest"})
        consumer.subscribe([name])
        while not kit.is_over():
            message = consumer.poll(0.5)
            if message and not message.error():
                kit.saw(message)
        consumer.close()

    kit.together(lambda: produce(name, tick, **settings), consume)


@kit.behaviour
def good():
    service(CLEAR)


@kit.behaviour
def good_tls():
    service(TLS)


kit.say("confluent-kafka-python", f"{VERSION}-rdkafka-{confluent_kafka.libversion()[0]}")
kit.main(receives=["good", "good-tls"])
