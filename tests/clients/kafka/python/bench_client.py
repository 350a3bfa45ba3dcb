"""confluent-kafka as a measuring client; `cargo xtask bench-peers kafka` runs it.

usage: bench_client.py BROKER create|delete|sync|e2e --topic TOPIC [options]
  sync   produce(); flush() for each message
  e2e    produces at a rate; another process consumes, and tells how old each message is
Prints one JSON line: rate in messages/s, p50_us, p99_us, mean_us.
"""

import argparse
import json
import os
import struct
import sys
import time

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

# Not measured: connections, caches and the processor's clock settle.
SYNC_WARM_UP = 500
E2E_WARM_UP_S = 1
# How often the schedule is looked at; what is due then is sent at once.
TICK_S = 0.0002

parser = argparse.ArgumentParser()
parser.add_argument("broker")
parser.add_argument("mode", choices=["create", "delete", "sync", "e2e"])
parser.add_argument("--topic", required=True)
parser.add_argument("--partitions", type=int, default=1)
parser.add_argument("--messages", type=int, default=5000)
parser.add_argument("--size", type=int, default=100)
parser.add_argument("--acks", default="all")
parser.add_argument("--rate", type=int, default=1000)
parser.add_argument("--nagle", action="store_true")
parser.add_argument("--tls-ca")
parser.add_argument("--mock", action="store_true", help="librdkafka's own broker, not BROKER")
options = parser.parse_args()

settings = {"bootstrap.servers": options.broker}
if options.mock:
    settings = {"test.mock.num.brokers": 1}
if options.tls_ca:
    settings.update({"security.protocol": "ssl", "ssl.ca.location": options.tls_ca})
producing = {
    **settings, "acks": options.acks, "linger.ms": 0, "socket.nagle.disable": not options.nagle,
}
clock = time.perf_counter


def create():
    admin = AdminClient(settings)
    topic = NewTopic(options.topic, num_partitions=options.partitions, replication_factor=1)
    admin.create_topics([topic])[options.topic].result(60)
    while True:
        found = admin.list_topics(options.topic, timeout=10).topics[options.topic]
        if found.error is None and all(p.leader >= 0 for p in found.partitions.values()):
            return
        time.sleep(0.05)


def delete():
    admin = AdminClient(settings)
    admin.delete_topics([options.topic])[options.topic].result(60)


def percentiles(seconds):
    ordered = sorted(seconds)

    def at(q):
        return round(ordered[min(len(ordered) - 1, int(len(ordered) * q))] * 1e6, 1)

    return {"p50_us": at(0.5), "p99_us": at(0.99), "mean_us": sum(ordered) / len(ordered) * 1e6}


def failed(error, message):
    if error is not None:
        sys.exit(f"delivery error: {error}")


def sync():
    out, body, took = Producer(producing), b"x" * options.size, []
    for _ in range(SYNC_WARM_UP + options.messages):
        start = clock()
        out.produce(options.topic, body, on_delivery=failed)
        out.flush()
        took.append(clock() - start)
    measured = took[SYNC_WARM_UP:]
    return {"rate": len(measured) / sum(measured), **percentiles(measured)}


def e2e():
    """The clock of both processes is the same: the kernel's monotonic one."""
    total = options.messages + options.rate * E2E_WARM_UP_S
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(tell)
        os.read(ready, 1)
        send(total)
        os._exit(0)
    os.close(ready)
    inbox = Consumer({
        **settings, "group.id": options.topic, "enable.auto.commit": False,
        "socket.nagle.disable": True, "auto.offset.reset": "earliest",
    })
    inbox.assign([TopicPartition(options.topic, 0, 0)])
    inbox.poll(0.5)
    os.write(tell, b"!")
    took = []
    deadline = clock() + 60 + total / options.rate
    while len(took) < total:
        message = inbox.poll(1)
        now = clock()
        if message is None or message.error():
            if now > deadline:
                sys.exit(f"{len(took)} of {total} messages have come")
            continue
        took.append(now - struct.unpack("d", message.value()[:8])[0])
    os.waitpid(child, 0)
    inbox.close()
    return {"rate": options.rate, **percentiles(took[-options.messages:])}


def send(total):
    out, rest = Producer(producing), b"x" * (options.size - 8)
    out.list_topics(options.topic, timeout=10)
    start, sent = clock(), 0
    while sent < total:
        due = min(total, int((clock() - start) * options.rate))
        while sent < due:
            out.produce(options.topic, struct.pack("d", clock()) + rest, on_delivery=failed)
            sent += 1
        out.poll(0)
        time.sleep(TICK_S)
    out.flush()


result = globals()[options.mode]()
if result:
    print(json.dumps(result))
