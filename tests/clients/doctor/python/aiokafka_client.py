"""aiokafka: it waits for each message, or does not. The broker learns only its client_id."""

import asyncio
import os

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

import kit

BROKER = os.environ["CLOVERLEAF_KAFKA"]


async def produce(topic, then, **settings):
    """Sends messages. After each it awaits `then`, which gets the delivery of the message."""
    producer = AIOKafkaProducer(bootstrap_servers=BROKER, **settings)
    await producer.start()
    while not kit.is_over():
        await then(await producer.send(topic, kit.BODY))
    await producer.stop()


async def delivered(delivery):
    await delivery


@kit.behaviour
def sync_produce():
    return produce("aiokafka", delivered)


@kit.behaviour
def works():
    """Works for 3 ms after the delivery of each message."""

    async def work(delivery):
        await delivery
        kit.work(0.003)

    return produce("works-aiokafka", work, acks="all")


@kit.behaviour
def sleeps():
    """Waits for no message, but sleeps a little longer than a round trip after each."""
    return produce("sleeps-aiokafka", lambda _: asyncio.sleep(0.016), acks="all")


@kit.behaviour
def full_batch():
    """As fast as it can, with the library's batches of 16 KiB."""

    async def nothing(_):
        pass

    return produce("full-batch-aiokafka", nothing)


@kit.behaviour
async def collects():
    """A message each 2 ms, by the clock: what comes within a round trip goes together."""
    loop = asyncio.get_running_loop()
    due = loop.time()

    def wait(_):
        nonlocal due
        due += 0.002
        return asyncio.sleep(max(0, due - loop.time()))

    await produce("collects-aiokafka", wait, client_id="aiokafka-collects")


@kit.behaviour
async def good():
    topic, named, sent = "good-aiokafka", {"client_id": "aiokafka-good"}, []

    def wait(delivery):
        sent.append(delivery)
        return asyncio.sleep(0.003)

    async def consume():
        group = {"group_id": topic, "auto_offset_reset": "earliest"}
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=BROKER, **group, **named)
        await consumer.start()
        while not kit.is_over():
            kit.saw(*(await consumer.getmany(timeout_ms=500)).values())
        await consumer.stop()

    await asyncio.gather(produce(topic, wait, **named), consume())
    await asyncio.gather(*sent)


# It tells the broker neither library nor version.
kit.say("", "")
kit.main(receives=["good"])
