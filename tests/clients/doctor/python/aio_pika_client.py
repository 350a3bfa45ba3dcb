"""aio-pika: confirms one after the other, or together."""

import asyncio
import os
from importlib import metadata

import aio_pika

import kit

URL = os.environ["CLOVERLEAF_AMQP_URL"]
MESSAGE = aio_pika.Message(b"v" * 200)


@kit.story
def sync_produce():
    async def run():
        time = kit.Time()
        async with await aio_pika.connect_robust(URL) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue("aio-pika")
            while not time.is_over():
                await channel.default_exchange.publish(MESSAGE, queue.name)

    asyncio.run(run())


@kit.story
def good():
    async def publish(time, channel):
        sent = []
        while not time.is_over():
            publish = channel.default_exchange.publish(MESSAGE, "good-aio-pika")
            sent.append(asyncio.create_task(publish))
            await asyncio.sleep(0.006)
        await asyncio.gather(*sent)

    async def run():
        time, seen = kit.Time(), []
        properties = {"connection_name": "good"}
        async with await aio_pika.connect_robust(URL, client_properties=properties) as connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=20)
            queue = await channel.declare_queue("good-aio-pika")

            async def work(message):
                async with message.process():
                    seen.append(message.delivery_tag)

            await queue.consume(work)
            await publish(time, channel)
        assert seen, "nothing came"

    asyncio.run(run())


kit.say("aiormq", metadata.version("aiormq"))
kit.main()
