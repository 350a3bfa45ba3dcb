"""A disk that is full, and has room again: the file BALLAST is what can be deleted."""

import os

from confluent_kafka import KafkaError

from confluent_kit import Deliveries, create, producer, read_topic
from harness import PATIENCE_S, check, main, same, wait_for

BODY = os.urandom(10_000)
# More than the disk has.
MESSAGES_MAX = 20_000


@check
def a_full_disk():
    topic = create()
    out, reports = producer(acks="all", retries=0), Deliveries()
    while not reports.errors:
        assert len(reports.messages) < MESSAGES_MAX, "the disk took more than it has"
        out.produce(topic, BODY, on_delivery=reports)
        out.flush(PATIENCE_S)
    same(reports.codes(), [KafkaError.KAFKA_STORAGE_ERROR], "error")
    taken = len(reports.messages)
    same(len(read_topic(topic, taken)), taken, "messages that a consumer gets meanwhile")
    # A producer that waits gets through once there is room.
    patient, later = producer(acks="all", message_timeout_ms=PATIENCE_S * 1000), Deliveries()
    patient.produce(topic, b"waited", on_delivery=later)
    patient.poll(1)
    same((later.messages, later.errors), ([], []), "reports while the disk is full")
    os.remove(os.environ["BALLAST"])
    wait_for(lambda: patient.poll(0.1) or later.messages, "publishing works again")
    got = read_topic(topic, taken + 1)
    same(got[-1].value(), b"waited", "the last message")


main()
