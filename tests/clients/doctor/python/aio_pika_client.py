"""aio-pika: it waits for each confirm, or for many together."""

import asyncio
import os
from importlib import metadata

import aio_pika

import kit

MESSAGE = aio_pika.Message(kit.BODY)


async def connect(**properties):
    url = os.environ["CLOVERLEAF_AMQP_URL"]
    return await aio_pika.connect_robust(url, client_properties=properties)


@kit.behaviour
async def sync_produce():
    async with await connect() as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("aio-pika")
        while not kit.is_over():
            await channel.default_exchange.publish(MESSAGE, queue.name)


@kit.behaviour
async def waves():
    """Two consumers that share ten workers. Both give the first message of a group to the first worker,
    so that messages wait while workers are idle. It takes a minute. PREFETCH, CONSUMERS and DISPATCH
    set what cures it, GROUP the messages of a group."""
    prefetch, consumers = (int(os.environ.get(*it)) for it in (("PREFETCH", "20"), ("CONSUMERS", "2")))
    group = int(os.environ.get("GROUP", "2"))
    arguments = {"x-cloverleaf-dispatch": os.environ.get("DISPATCH", "least-loaded")}

    async def work(line, done):
        while True:
            message = await line.get()
            await asyncio.sleep(1)
            await message.ack()
            done.put_nowait(message)

    async def consume(connection, lines):
        """Returns its next worker, which is the first one when a group begins."""
        channel, following = await connection.channel(), [0]
        await channel.set_qos(prefetch_count=prefetch)
        queue = await channel.declare_queue("waves-aio-pika", arguments=arguments)

        async def take(message):
            lines[following[0] % len(lines)].put_nowait(message)
            following[0] += 1

        await queue.consume(take)
        return following

    done = asyncio.Queue()
    lines = [asyncio.Queue() for _ in range(10)]
    workers = [asyncio.create_task(work(line, done)) for line in lines]
    took = []
    connections = [await connect(connection_name="waves") for _ in range(consumers)]
    nexts = [await consume(connection, lines) for connection in connections]
    async with await connect() as feeder:
        exchange = (await feeder.channel()).default_exchange
        while not kit.is_over():
            for count in 1, group:
                for following in nexts:
                    following[0] = 0
                begun = asyncio.get_running_loop().time()
                sends = [exchange.publish(MESSAGE, "waves-aio-pika") for _ in range(count)]
                await asyncio.gather(*sends)
                for _ in range(count):
                    await done.get()
                took.append(asyncio.get_running_loop().time() - begun)
                await asyncio.sleep(1.5)
    of_groups = took[1::2]
    print(f"{group} jobs of 1 s take {sum(of_groups) / len(of_groups):.2f} s")
    for worker in workers:
        worker.cancel()
    for connection in connections:
        await connection.close()


@kit.behaviour
async def good():
    sent = []

    async def work(message):
        async with message.process():
            kit.saw(message.delivery_tag)

    async with await connect(connection_name="good") as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=20)
        queue = await channel.declare_queue("good-aio-pika")
        await queue.consume(work)
        while not kit.is_over():
            publish = channel.default_exchange.publish(MESSAGE, queue.name)
            sent.append(asyncio.create_task(publish))
            await asyncio.sleep(0.006)
        await asyncio.gather(*sent)


kit.say("aiormq", metadata.version("aiormq"))
kit.main(receives=["good"])
