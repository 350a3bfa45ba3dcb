"""pika: blocking, one message at a time, or many."""

import os
import threading
import time

import pika

import kit

PARAMETERS = pika.URLParameters(os.environ["CLOVERLEAF_AMQP_URL"])


def open_channel(name=kit.BEHAVIOUR):
    """A channel on a connection of its own."""
    PARAMETERS.client_properties = {"connection_name": name}
    return pika.BlockingConnection(PARAMETERS).channel()


def fill(name, messages):
    """Publishes messages to a queue, on a connection of its own: the consumer's connection only
    consumes."""
    feeder = open_channel("feeder")
    for _ in range(messages):
        feeder.basic_publish("", name, kit.BODY)
    feeder.connection.close()


def publish(name, then=lambda: None, properties=None, confirms=True, **queue):
    """Publishes one message after the other, and calls `then` after each."""
    channel = open_channel()
    channel.queue_declare(name, **queue)
    if confirms:
        channel.confirm_delivery()
    while not kit.is_over():
        channel.basic_publish("", name, kit.BODY, properties)
        then()
    channel.connection.close()


def consume(channel, name, job_s, begins=lambda: None):
    """Works on one message after the other."""
    for method, _, _ in channel.consume(name, inactivity_timeout=0.2):
        if method:
            begins()
            time.sleep(job_s)
            channel.basic_ack(method.delivery_tag)
            kit.saw(method)
        if kit.is_over():
            break
    channel.cancel()
    channel.connection.close()


@kit.behaviour
def sync_produce():
    publish("pika")


@kit.behaviour
def works():
    """Works for 3 ms after each confirm of a persistent message."""
    persistent = pika.BasicProperties(delivery_mode=2)
    publish("works-pika", lambda: kit.work(0.003), persistent, durable=True)


@kit.behaviour
def window_too_small():
    """In a queue that is exclusive to its connection."""
    channel = open_channel()
    name = channel.queue_declare("", exclusive=True).method.queue
    fill(name, 5000)
    channel.basic_qos(prefetch_count=1)
    consume(channel, name, 0)


@kit.behaviour
def hoarding():
    """A worker with a prefetch of 50 takes all jobs; one that comes a moment later gets none."""
    feeder = open_channel("feeder")
    feeder.queue_declare("pika-jobs")
    workers = [open_channel(), open_channel()]
    for worker in workers:
        worker.basic_qos(prefetch_count=50)
    first_works, all_are_there = threading.Event(), threading.Event()

    def begin_late():
        all_are_there.wait()
        first_works.wait()
        consume(workers[1], "pika-jobs", 0.3)

    def feed():
        for _ in range(45):
            feeder.basic_publish("", "pika-jobs", b"job")
        # Its answer comes when all of them are in the queue.
        feeder.queue_declare("pika-jobs")
        all_are_there.set()
        while not kit.is_over():
            feeder.connection.sleep(0.5)
        feeder.connection.close()

    kit.together(feed, lambda: consume(workers[0], "pika-jobs", 0.3, first_works.set), begin_late)


@kit.behaviour
def idle():
    """Waits for messages that do not come."""
    channel = open_channel()
    channel.queue_declare("idle-pika")
    consume(channel, "idle-pika", 0)
    assert not kit.SEEN, "something came"


@kit.behaviour
def good():
    ticks = kit.every(0.006)

    def work():
        channel = open_channel()
        channel.queue_declare("good-pika")
        channel.basic_qos(prefetch_count=20)
        consume(channel, "good-pika", 0.002)

    kit.together(lambda: publish("good-pika", lambda: next(ticks, None), confirms=False), work)


kit.say("Pika Python Client Library", pika.__version__)
kit.main(receives=["window-too-small", "good"])
