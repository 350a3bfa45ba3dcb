"""One queue, three protocols: pika on one end, confluent-kafka or NSQ on the other.

Addresses: AMQP, KAFKA, NSQ_HTTP, NSQ_TCP. No original broker does this.
"""

import asyncio
import os
import urllib.request

from kit import (
    PATIENCE_S, PERSISTENT, Consumer, channel, check, count, drain, exchange, get, main, name,
    pika, publish, pump, queue, same, wait_for,
)

import nsq
from confluent_kit import CODECS, create, produce_all, read_topic

NSQ_HTTP = os.environ["NSQ_HTTP"]
NSQ_TCP = os.environ["NSQ_TCP"]


def post(path, body=b""):
    request = urllib.request.Request(f"http://{NSQ_HTTP}{path}", data=body, method="POST")
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        same(answer.status, 200, path)


def declare(on, **more):
    """A queue whose name Kafka and NSQ can spell too."""
    title = name("queue")
    on.queue_declare(title, durable=True, **more)
    return title


@check
def kafka_records_come_to_a_consumer():
    with channel() as on:
        title = declare(on)
        sent = [b"%d " % n + b"x" * (n % 300) for n in range(500)]
        records = [{"value": v, "key": b"k%d" % n, "headers": [("h", b"%d" % n)]}
                   for n, v in enumerate(sent)]
        produce_all(title, records)
        consuming = Consumer(on, title)
        got = consuming.wait(500)
        same(consuming.bodies, sent, "bodies")
        first = got[7]
        same((first.method.exchange, first.method.routing_key, first.method.redelivered),
             ("", title, False), "where it comes from")
        headers = first.properties.headers
        same((as_bytes(headers["h"]), as_bytes(headers["kafka-key"])), (b"7", b"k7"), "headers")
        assert first.properties.timestamp is None or first.properties.timestamp > 1_700_000_000
        on.basic_ack(0, multiple=True)
        on.queue_delete(title)


def as_bytes(value):
    return value.encode() if isinstance(value, str) else value


@check
def kafka_records_of_each_compression():
    with channel() as on:
        for codec in CODECS:
            title = declare(on)
            sent = [b"%d" % n for n in range(1000)]
            produce_all(title, sent, compression_type=codec, linger_ms=5)
            consuming = Consumer(on, title, auto_ack=True)
            consuming.wait(1000)
            same(consuming.bodies, sent, codec)
            on.queue_delete(title)


@check
def a_queue_on_a_topic_that_kafka_made_begins_with_the_earliest():
    title = create(partitions=3)
    sent = [b"%d" % n for n in range(300)]
    produce_all(title, [{"value": v, "key": v} for v in sent])
    with channel() as on:
        same(on.queue_declare(title, durable=True).method.message_count, 300, "messages")
        consuming = Consumer(on, title)
        consuming.wait(300)
        same(sorted(consuming.bodies), sorted(sent), "bodies")
        on.basic_ack(0, multiple=True)
        pump(on)
        # Kafka's users keep the topic.
        on.queue_delete(title)
    same(sorted(m.value() for m in read_topic(title, 300, partitions=3)), sorted(sent),
         "values in Kafka")


@check
def publishes_can_be_read_by_offset():
    with channel(confirms=True) as on:
        title = declare(on)
        through = exchange(on, "topic")
        on.queue_bind(title, through, "a.#")

        publish(on, "a.b", b"through", through=through, headers={"text": "1", "n": 5},
                delivery_mode=PERSISTENT, content_type="text/plain")
        publish(on, title, b"directly")
        messages = read_topic(title, 2)
        same([m.value() for m in messages], [b"through", b"directly"], "values")
        same([m.key() for m in messages], [None, None], "keys")
        headers = dict(messages[0].headers())
        same(headers["amqp-routing-key"], b"a.b", "amqp-routing-key")
        same(headers["amqp-exchange"], through.encode(), "amqp-exchange")
        same(headers["text"], b"1", "a header of the user")
        # The queue has them all the same.
        got = get(on, title)
        same((got.body, got.method.exchange, got.method.routing_key, got.properties.headers),
             (b"through", through, "a.b", {"text": "1", "n": 5}), "what the queue has")
        same(get(on, title).body, b"directly", "the other")
        on.queue_delete(title)


@check
def nsq_publishes_come_to_a_consumer():
    with channel() as on:
        title = declare(on)
        consuming = Consumer(on, title)
        sent = [b"message %d" % n for n in range(100)]
        for body in sent[:50]:
            post(f"/pub?topic={title}", body)
        post(f"/mpub?topic={title}", b"\n".join(sent[50:]))
        consuming.wait(100)
        same(consuming.bodies, sent, "bodies")
        on.basic_ack(0, multiple=True)
        on.queue_delete(title)


@check
async def publishes_come_to_an_nsq_channel():
    with channel(confirms=True) as on:
        title = declare(on)
        post(f"/channel/create?topic={title}&channel=ch")
        sent = [b"%d" % n for n in range(100)]
        publish(on, title, *sent)
        bodies, enough = [], asyncio.Event()

        def handle(message):
            bodies.append(message.body)
            if len(bodies) >= len(sent):
                enough.set()
            return True

        reader = nsq.Reader(topic=title, channel="ch", message_handler=handle,
                            nsqd_tcp_addresses=[NSQ_TCP], max_in_flight=50)
        try:
            await asyncio.wait_for(enough.wait(), PATIENCE_S)
        finally:
            reader.close()
        same(sorted(bodies), sorted(sent), "bodies in NSQ")
        same(drain(on, title), sent, "and in the queue")


@check
def a_topic_that_is_deleted_takes_its_queue_along():
    with channel() as on:
        title = declare(on)
        cancelled = []
        on.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
        consuming = Consumer(on, title)
        post(f"/topic/delete?topic={title}")
        wait_for(lambda: pump(on, seconds=0.05) or cancelled, "the consumer is told")
        same(cancelled, [consuming.tag], "cancelled")
        same(on.queue_declare(title, durable=True).method.message_count, 0, "a new one is empty")
        same(count(on, title), 0, "messages")
        on.queue_delete(title)


@check
def a_round_trip_keeps_every_property():
    with channel() as on:
        title = queue(on)
        properties = pika.BasicProperties(
            headers={"h": [1, {"x": None}]}, priority=3, correlation_id="c", type="t", app_id="a")
        on.basic_publish("", title, b"body", properties)
        found = get(on, title).properties
        same({k: v for k, v in vars(found).items() if v is not None},
             {k: v for k, v in vars(properties).items() if v is not None}, "properties")


main()
