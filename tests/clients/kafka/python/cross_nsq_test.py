"""One topic, two protocols: confluent-kafka on one end, pynsq on the other.

Addresses: KAFKA, NSQ_TCP, NSQ_HTTP. No original broker does this.
"""

import asyncio
import os
import urllib.request

import nsq
from confluent_kafka import TopicPartition

from confluent_kit import CODECS, Member, consumer, create, produce_all, read, read_topic
from harness import PATIENCE_S, check, main, name, same, wait_for

NSQ_TCP = os.environ["NSQ_TCP"]
NSQ_HTTP = os.environ["NSQ_HTTP"]


def publish(topic, bodies):
    """Publishes over NSQ's HTTP API, half of them one by one, half at once."""
    half = len(bodies) // 2
    for body in bodies[:half]:
        post(f"/pub?topic={topic}", body)
    post(f"/mpub?topic={topic}", b"\n".join(bodies[half:]))


def post(path, body=b""):
    request = urllib.request.Request(f"http://{NSQ_HTTP}{path}", data=body, method="POST")
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        same(answer.status, 200, path)


async def channel(topic, count, channel_name="ch"):
    """The bodies of the first `count` messages of a channel, which pynsq finishes."""
    bodies, enough = [], asyncio.Event()

    def handle(message):
        bodies.append(message.body)
        if len(bodies) >= count:
            enough.set()
        return True

    reader = nsq.Reader(
        topic=topic, channel=channel_name, message_handler=handle, nsqd_tcp_addresses=[NSQ_TCP],
        max_in_flight=500)
    try:
        await asyncio.wait_for(enough.wait(), PATIENCE_S)
    except asyncio.TimeoutError:
        raise AssertionError(f"{len(bodies)} of {count} messages have come to the channel")
    finally:
        reader.close()
    return bodies


@check
async def kafka_to_nsq_with_each_compression():
    for codec in CODECS:
        topic = create()
        sent = [b"%d " % n + b"x" * (n % 500) for n in range(2000)]
        produce_all(topic, sent, compression_type=codec, linger_ms=5)
        same(sorted(await channel(topic, len(sent))), sorted(sent), codec)


@check
async def kafka_to_nsq_from_all_partitions():
    topic = create(partitions=4)
    sent = [b"%d" % n for n in range(1000)]
    produce_all(topic, [{"value": v, "key": v, "headers": [("h", b"1")]} for v in sent])
    same(sorted(await channel(topic, len(sent))), sorted(sent), "bodies")


@check
async def kafka_to_two_channels_and_a_group():
    topic, group = create(), name("group")
    post(f"/channel/create?topic={topic}&channel=one")
    post(f"/channel/create?topic={topic}&channel=two")
    member = Member([topic], group)
    sent = [b"%d" % n for n in range(500)]
    produce_all(topic, sent)
    same(sorted(await channel(topic, 500, "one")), sorted(sent), "first channel")
    same(sorted(await channel(topic, 500, "two")), sorted(sent), "second channel")
    wait_for(lambda: len(member.values) == 500, "the group has all")
    same(member.values, sent, "what the group has")
    member.stop()


@check
def nsq_to_kafka():
    topic = name()
    sent = [b"message %d" % n for n in range(200)]
    publish(topic, sent)
    got = read_topic(topic, 200)
    same([m.value() for m in got], sent, "values")
    same({m.key() for m in got}, {None}, "keys")
    same([m.offset() for m in got], list(range(200)), "offsets")


@check
async def nsq_to_kafka_and_nsq():
    topic = name()
    post(f"/topic/create?topic={topic}")
    post(f"/channel/create?topic={topic}&channel=ch")
    client = consumer(group_id=name("group"))
    client.subscribe([topic])
    sent = [b"message %d" % n for n in range(200)]
    publish(topic, sent)
    same([m.value() for m in read(client, 200)], sent, "values in Kafka")
    client.close()
    same(sorted(await channel(topic, 200)), sorted(sent), "bodies in NSQ")
    # What the channel has finished can still be read by offset.
    same([m.value() for m in read_topic(topic, 200)], sent, "values in Kafka, once more")


@check
async def a_kafka_consumer_waits_for_what_nsq_publishes():
    topic = create()
    client = consumer()
    client.assign([TopicPartition(topic, 0, 0)])
    same(client.poll(0.3), None, "an empty topic")
    publish(topic, [b"one", b"two"])
    same([m.value() for m in read(client, 2)], [b"one", b"two"], "values")
    client.close()


@check
async def headers_and_keys_survive_beside_nsq():
    topic = create()
    headers = [("h", b"1"), ("h", b"2")]
    produce_all(topic, [{"value": b"v", "key": b"k", "headers": headers}], compression_type="zstd")
    same(await channel(topic, 1), [b"v"], "bodies")
    message = read_topic(topic, 1)[0]
    same((message.key(), message.value(), message.headers()), (b"k", b"v", headers), "message")


main()
