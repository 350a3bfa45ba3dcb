"""pika and aio-pika as measuring clients; `cargo xtask bench-peers amqp` runs it.

usage: bench_client.py HOST:PORT delete|pika|aio-pika --queue NAME [options]
  delete     deletes the queue
  pika       publishes one message, waits for its confirm, and again
  aio-pika   the same with the other library
Prints the line `measuring` when the warm-up is over, then one JSON line: messages, rate in messages
per second, p50_us, p99_us, mean_us.
"""

import argparse
import asyncio
import json
import time

# Not measured: connections, caches and the processor's clock settle.
WARM_UP = 200
TRANSIENT, PERSISTENT = 1, 2

parser = argparse.ArgumentParser()
parser.add_argument("broker")
parser.add_argument("mode", choices=["delete", "pika", "aio-pika"])
parser.add_argument("--queue", required=True)
parser.add_argument("--kind", choices=["classic", "quorum", "transient"], default="classic")
parser.add_argument("--messages", type=int, default=2000)
parser.add_argument("--size", type=int, default=100)
options = parser.parse_args()

clock = time.perf_counter
uri = f"amqp://guest:guest@{options.broker}/%2f"
is_transient = options.kind == "transient"
delivery_mode = TRANSIENT if is_transient else PERSISTENT
declaration = {
    "durable": not is_transient,
    "exclusive": is_transient,
    "arguments": {"x-queue-type": "quorum"} if options.kind == "quorum" else None,
}


def numbers():
    """Counts the messages, and says when the measured ones begin."""
    for n in range(WARM_UP + options.messages):
        if n == WARM_UP:
            print("measuring", flush=True)
        yield n


def delete():
    import pika

    connection = pika.BlockingConnection(pika.URLParameters(uri))
    connection.channel().queue_delete(options.queue)
    connection.close()


def with_pika():
    import pika

    connection = pika.BlockingConnection(pika.URLParameters(uri))
    channel = connection.channel()
    channel.queue_declare(options.queue, **declaration)
    channel.confirm_delivery()
    properties = pika.BasicProperties(delivery_mode=delivery_mode)
    body, took = b"x" * options.size, []
    for _ in numbers():
        start = clock()
        channel.basic_publish("", options.queue, body, properties)
        took.append(clock() - start)
    report(took)
    channel.queue_delete(options.queue)
    connection.close()


async def with_aio_pika():
    import aio_pika

    connection = await aio_pika.connect(uri)
    channel = await connection.channel(publisher_confirms=True)
    await channel.declare_queue(options.queue, **declaration)
    message = aio_pika.Message(b"x" * options.size, delivery_mode=delivery_mode)
    took = []
    for _ in numbers():
        start = clock()
        await channel.default_exchange.publish(message, options.queue)
        took.append(clock() - start)
    report(took)
    await channel.queue_delete(options.queue)
    await connection.close()


def report(took):
    measured = took[WARM_UP:]
    ordered = sorted(measured)

    def at(q):
        return round(ordered[min(len(ordered) - 1, int(len(ordered) * q))] * 1e6, 1)

    found = {
        "messages": len(ordered),
        "rate": len(ordered) / sum(ordered),
        "p50_us": at(0.5),
        "p99_us": at(0.99),
        "mean_us": sum(ordered) / len(ordered) * 1e6,
    }
    print(json.dumps(found), flush=True)


if options.mode == "delete":
    delete()
elif options.mode == "pika":
    with_pika()
else:
    asyncio.run(with_aio_pika())
