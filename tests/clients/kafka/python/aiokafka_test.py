"""aiokafka: produce, consume, groups."""

import asyncio

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.helpers import create_ssl_context

from harness import BROKER, PATIENCE_S, TLS, TLS_CA, Skip, check, main, name, same


async def create(partitions=1):
    topic = name()
    admin = AIOKafkaAdminClient(bootstrap_servers=BROKER)
    await admin.start()
    await admin.create_topics([NewTopic(topic, partitions, 1)])
    await admin.close()
    return topic


async def produce(topic, values, **settings):
    producer = AIOKafkaProducer(**{"bootstrap_servers": BROKER, **settings})
    await producer.start()
    try:
        futures = [await producer.send(topic, value) for value in values]
        return await asyncio.gather(*futures)
    finally:
        await producer.stop()


async def consume(topic, count, **settings):
    settings = {"bootstrap_servers": BROKER, "auto_offset_reset": "earliest", **settings}
    consumer = AIOKafkaConsumer(topic, **settings)
    await consumer.start()
    try:
        return [await asyncio.wait_for(consumer.getone(), PATIENCE_S) for _ in range(count)]
    finally:
        await consumer.stop()


@check
async def produce_and_consume():
    topic = await create()
    sent = [b"message %d" % n for n in range(1000)]
    await produce(topic, sent)
    same([m.value for m in await consume(topic, 1000)], sent, "values")


@check
async def each_compression():
    for codec in ["gzip", "snappy", "lz4", "zstd"]:
        topic = await create()
        sent = [b"%d" % n * 20 for n in range(500)]
        await produce(topic, sent, compression_type=codec, linger_ms=5)
        same([m.value for m in await consume(topic, 500)], sent, codec)


@check
async def idempotent_producer():
    topic = await create()
    sent = [b"%d" % n for n in range(500)]
    await produce(topic, sent, enable_idempotence=True)
    same([m.value for m in await consume(topic, 500)], sent, "values")


@check
async def keys_headers_and_tombstones():
    topic = await create()
    producer = AIOKafkaProducer(bootstrap_servers=BROKER)
    await producer.start()
    await producer.send_and_wait(topic, b"v", key=b"k", headers=[("h", b"1"), ("i", b"")])
    await producer.send_and_wait(topic, None, key=b"k")
    await producer.stop()
    got = [(m.key, m.value, m.headers) for m in await consume(topic, 2)]
    same(got, [(b"k", b"v", (("h", b"1"), ("i", b""))), (b"k", None, ())], "messages")


@check
async def a_group_commits_and_goes_on():
    topic, group = await create(), name("group")
    await produce(topic, [b"%d" % n for n in range(20)])
    settings = {"bootstrap_servers": BROKER, "group_id": group, "enable_auto_commit": False,
                "auto_offset_reset": "earliest"}
    consumer = AIOKafkaConsumer(topic, **settings)
    await consumer.start()
    for _ in range(8):
        await asyncio.wait_for(consumer.getone(), PATIENCE_S)
    partition = TopicPartition(topic, 0)
    await consumer.commit({partition: 8})
    same(await consumer.committed(partition), 8, "committed")
    await consumer.stop()
    same((await consume(topic, 1, **settings))[0].value, b"8", "where it goes on")


@check
async def two_members_share():
    topic, group = await create(partitions=4), name("group")
    members = [AIOKafkaConsumer(topic, bootstrap_servers=BROKER, group_id=group)
               for _ in range(2)]
    for member in members:
        await member.start()
    while [len(member.assignment()) for member in members] != [2, 2]:
        for member in members:
            await member.getmany(timeout_ms=50)
    same(len(members[0].assignment() | members[1].assignment()), 4, "partitions held")
    for member in members:
        await member.stop()


@check
async def seek_and_ends():
    topic = await create()
    await produce(topic, [b"%d" % n for n in range(30)])
    consumer, partition = AIOKafkaConsumer(bootstrap_servers=BROKER), TopicPartition(topic, 0)
    await consumer.start()
    same(await consumer.end_offsets([partition]), {partition: 30}, "end")
    consumer.assign([partition])
    consumer.seek(partition, 25)
    same((await asyncio.wait_for(consumer.getone(), PATIENCE_S)).value, b"25", "after a seek")
    await consumer.stop()


@check
async def tls():
    if not TLS:
        raise Skip("no TLS address")
    settings = {"bootstrap_servers": TLS, "security_protocol": "SSL",
                "ssl_context": create_ssl_context(cafile=TLS_CA)}
    topic = await create()
    sent = [b"%d" % n for n in range(200)]
    await produce(topic, sent, **settings)
    same([m.value for m in await consume(topic, 200, **settings)], sent, "values")


main()
