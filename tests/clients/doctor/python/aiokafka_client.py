"""aiokafka: it waits for each message, or does not. It tells the broker nothing but its client_id."""

import asyncio
import os

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

import kit

BROKER = os.environ["CLOVERLEAF_KAFKA"]


@kit.behaviour
def sync_produce():
    async def run():
        time, producer = kit.Time(), AIOKafkaProducer(bootstrap_servers=BROKER)
        await producer.start()
        while not time.is_over():
            await producer.send_and_wait("aiokafka", b"v" * 200)
        await producer.stop()

    asyncio.run(run())


@kit.behaviour
def works():
    """Works on each message, when the one before it is delivered."""

    async def run():
        time, producer = kit.Time(), AIOKafkaProducer(bootstrap_servers=BROKER, acks="all")
        await producer.start()
        while not time.is_over():
            await producer.send_and_wait("works-aiokafka", b"v" * 200)
            kit.work(0.003)
        await producer.stop()

    asyncio.run(run())


@kit.behaviour
def sleeps():
    """Waits for no message, but sleeps for a little longer than the broker is away."""

    async def run():
        time, producer = kit.Time(), AIOKafkaProducer(bootstrap_servers=BROKER, acks="all")
        await producer.start()
        while not time.is_over():
            await producer.send("sleeps-aiokafka", b"v" * 200)
            await asyncio.sleep(0.016)
        await producer.stop()

    asyncio.run(run())


@kit.behaviour
def full_batch():
    """As fast as it can, with the library's batches of 16 KiB."""

    async def run():
        time, producer = kit.Time(), AIOKafkaProducer(bootstrap_servers=BROKER)
        await producer.start()
        while not time.is_over():
            await producer.send("full-batch-aiokafka", b"v" * 200)
        await producer.stop()

    asyncio.run(run())


@kit.behaviour
def collects():
    """A message each 2 ms, by the clock: what comes within a round trip goes together."""

    async def run():
        time = kit.Time()
        producer = AIOKafkaProducer(bootstrap_servers=BROKER, client_id="aiokafka-collects")
        await producer.start()
        due = asyncio.get_running_loop().time()
        while not time.is_over():
            await producer.send("collects-aiokafka", b"v" * 200)
            due += 0.002
            await asyncio.sleep(max(0, due - asyncio.get_running_loop().time()))
        await producer.stop()

    asyncio.run(run())


@kit.behaviour
def good():
    async def produce(time):
        producer = AIOKafkaProducer(bootstrap_servers=BROKER, client_id="aiokafka-good")
        await producer.start()
        sent = []
        while not time.is_over():
            sent.append(await producer.send("good-aiokafka", b"v" * 200))
            await asyncio.sleep(0.003)
        await asyncio.gather(*sent)
        await producer.stop()

    async def consume(time):
        consumer = AIOKafkaConsumer(
            "good-aiokafka",
            bootstrap_servers=BROKER,
            client_id="aiokafka-good",
            group_id="good-aiokafka",
            auto_offset_reset="earliest",
        )
        await consumer.start()
        seen = 0
        while not time.is_over():
            came = await consumer.getmany(timeout_ms=500)
            seen += sum(len(records) for records in came.values())
        await consumer.stop()
        assert seen, "nothing came"

    async def run():
        time = kit.Time()
        await asyncio.gather(produce(time), consume(time))

    asyncio.run(run())


# It says neither.
kit.say("", "")
kit.main()
