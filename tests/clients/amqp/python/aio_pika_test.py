"""aio-pika: many confirms in flight, iterators, calls, connections that come back."""

import asyncio

import aio_pika
from aio_pika import DeliveryMode, ExchangeType, Message
from aio_pika.exceptions import DeliveryError, ChannelPreconditionFailed, QueueEmpty
from aio_pika.patterns import RPC, Master

from kit import AMQP, PATIENCE_S, check, main, name, same

URL = f"amqp://guest:guest@{AMQP}/%2F"


async def connect(**more):
    return await aio_pika.connect(URL, timeout=PATIENCE_S, **more)


async def within(seconds, awaitable, what):
    try:
        return await asyncio.wait_for(awaitable, seconds)
    except asyncio.TimeoutError:
        raise AssertionError(f"waited {seconds} s in vain for {what}")


@check
async def publish_and_consume():
    async with await connect() as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=50)
        queue = await channel.declare_queue(name("queue"), durable=True)
        message = Message(b"body", headers={"h": 1}, delivery_mode=DeliveryMode.PERSISTENT,
                          content_type="text/plain", message_id="m", priority=3)
        confirmed = await channel.default_exchange.publish(message, queue.name)
        assert confirmed is not None, "it was not confirmed"
        async with queue.iterator(timeout=PATIENCE_S) as messages:
            async for got in messages:
                async with got.process():
                    same((got.body, got.headers, got.message_id, got.priority, got.content_type),
                         (b"body", {"h": 1}, "m", 3, "text/plain"), "the message")
                break
        await queue.delete(if_unused=False, if_empty=False)


@check
async def two_thousand_confirms_in_flight():
    async with await connect() as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(name("queue"), durable=True)
        sent = [b"%d" % n for n in range(2000)]
        publishes = [channel.default_exchange.publish(
            Message(body, delivery_mode=DeliveryMode.PERSISTENT), queue.name) for body in sent]
        results = await within(40, asyncio.gather(*publishes), "all confirms")
        assert all(results), "not all were confirmed"
        found, done = [], asyncio.Event()

        async def handle(message):
            found.append(message.body)
            await message.ack()
            if len(found) == len(sent):
                done.set()

        await queue.consume(handle)
        await within(40, done.wait(), "all messages")
        same(found, sent, "bodies")
        await queue.delete(if_unused=False, if_empty=False)


@check
async def messages_that_nobody_wants_come_back():
    async with await connect() as connection:
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        try:
            await channel.default_exchange.publish(Message(b"lost"), name("missing"))
        except DeliveryError as error:
            same(error.message.body, b"lost", "what came back")
        else:
            raise AssertionError("it did not come back")


@check
async def refused_when_the_queue_is_full():
    async with await connect() as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(
            name("queue"), exclusive=True,
            arguments={"x-max-length": 5, "x-overflow": "reject-publish"})
        results = await asyncio.gather(*[
            channel.default_exchange.publish(Message(b"%d" % n), queue.name) for n in range(20)],
            return_exceptions=True)
        refused = sum(isinstance(result, DeliveryError) for result in results)
        # RabbitMQ lets a few more in, which it has got before it notices.
        assert 1 <= refused <= 15, f"{refused} were refused"


@check
async def exchanges_and_their_bindings():
    async with await connect() as connection:
        channel = await connection.channel()
        topic = await channel.declare_exchange(name("exchange"), ExchangeType.TOPIC,
                                               auto_delete=True)
        headers = await channel.declare_exchange(name("exchange"), ExchangeType.HEADERS,
                                                 auto_delete=True)
        await headers.bind(topic, "to.headers.#")
        queue = await channel.declare_queue("", exclusive=True)
        await queue.bind(topic, "a.*")
        await queue.bind(headers, arguments={"x-match": "any", "x": "1"})
        for key, more in [("a.b", {}), ("a.b.c", {}), ("to.headers.now", {"x": "1"}),
                          ("to.headers.now", {"x": "2"})]:
            await topic.publish(Message(key.encode(), headers=more), key)
        found = [(await queue.get(timeout=PATIENCE_S, no_ack=True)).body for _ in range(2)]
        same(found, [b"a.b", b"to.headers.now"], "what came through")
        try:
            await queue.get(timeout=PATIENCE_S, no_ack=True)
            raise AssertionError("more came through")
        except QueueEmpty:
            pass


@check
async def a_failed_declaration_closes_its_channel_only():
    async with await connect() as connection:
        one, two = await connection.channel(), await connection.channel()
        title = name("queue")
        await one.declare_queue(title, exclusive=True)
        try:
            await two.declare_queue(title, exclusive=True, arguments={"x-max-length": 1})
            raise AssertionError("it was not refused")
        except ChannelPreconditionFailed as error:
            assert "inequivalent arg 'x-max-length'" in str(error), error
        await one.default_exchange.publish(Message(b"goes on"), title)


@check
async def calls_and_answers():
    async with await connect() as connection:
        channel = await connection.channel()
        rpc = await RPC.create(channel)

        async def multiply(*, x, y):
            return x * y

        method = name("method")
        await rpc.register(method, multiply, auto_delete=True)
        results = await within(30, asyncio.gather(*[
            rpc.call(method, kwargs={"x": n, "y": n}) for n in range(100)]), "all answers")
        same(results, [n * n for n in range(100)], "answers")
        await rpc.close()


@check
async def tasks_of_a_master_and_its_workers():
    async with await connect() as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=5)
        master, done, title = Master(channel), [], name("task")

        async def work(*, number):
            done.append(number)

        workers = [await master.create_worker(title, work, auto_delete=True) for _ in range(3)]
        for number in range(60):
            await master.create_task(title, kwargs={"number": number})
        deadline = asyncio.get_running_loop().time() + 20
        while len(done) < 60 and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        same(sorted(done), list(range(60)), "tasks")
        for worker in workers:
            await worker.close()


@check
async def a_transaction():
    async with await connect() as connection:
        channel = await connection.channel(publisher_confirms=False)
        queue = await channel.declare_queue("", exclusive=True)
        async with channel.transaction():
            await channel.default_exchange.publish(Message(b"kept"), queue.name)
        try:
            async with channel.transaction():
                await channel.default_exchange.publish(Message(b"never"), queue.name)
                raise RuntimeError("undone")
        except RuntimeError:
            pass
        same((await queue.get(timeout=PATIENCE_S, no_ack=True)).body, b"kept", "the first")
        same(await queue.get(fail=False, no_ack=True), None, "no other")


@check
async def a_robust_connection_comes_back():
    """The connection is cut; it declares its queue and consumer again and goes on."""
    connection = await aio_pika.connect_robust(URL, reconnect_interval=0.1)
    channel = await connection.channel()
    queue = await channel.declare_queue(name("queue"), durable=True)
    found, seen = [], asyncio.Event()

    async def handle(message):
        found.append(message.body)
        await message.ack()
        seen.set()

    await queue.consume(handle)
    await channel.default_exchange.publish(Message(b"before"), queue.name)
    await within(10, seen.wait(), "the first message")
    seen.clear()
    await cut(connection)
    async with await connect() as other:
        exchange = (await other.channel()).default_exchange
        await exchange.publish(Message(b"after"), queue.name)
    await within(20, seen.wait(), "a message after the cut")
    same(found, [b"before", b"after"], "messages")
    await queue.delete(if_unused=False, if_empty=False)
    await connection.close()


async def cut(connection):
    """Closes the socket without a word."""
    await connection.transport.connection.close(ConnectionError("cut"))


main()
