"""pika: blocking, one message at a time, or many."""

import os
import threading
import time as clock

import pika

import kit

PARAMETERS = pika.URLParameters(os.environ["CLOVERLEAF_AMQP_URL"])


def connection(name):
    PARAMETERS.client_properties = {"connection_name": name}
    return pika.BlockingConnection(PARAMETERS)


def fill(name, messages):
    """Publishes so many messages to a queue, on a connection of its own: whoever consumes them does
    nothing else."""
    with connection("feeder") as feeder:
        channel = feeder.channel()
        for _ in range(messages):
            channel.basic_publish("", name, b"v" * 200)


def consume(channel, name, time, work_s, begins=lambda: None):
    """Works on one message after the other."""
    seen = 0
    for method, _, _ in channel.consume(name, inactivity_timeout=0.2):
        if method:
            begins()
            clock.sleep(work_s)
            channel.basic_ack(method.delivery_tag)
            seen += 1
        if time.is_over():
            break
    channel.cancel()
    return seen


@kit.behaviour
def sync_produce():
    time, channel = kit.Time(), connection(kit.BEHAVIOUR).channel()
    channel.queue_declare("pika")
    channel.confirm_delivery()
    while not time.is_over():
        channel.basic_publish("", "pika", b"v" * 200)
    channel.connection.close()


@kit.behaviour
def works():
    """Works on each message, when the one before it is on the disk."""
    time, channel = kit.Time(), connection(kit.BEHAVIOUR).channel()
    channel.queue_declare("works-pika", durable=True)
    channel.confirm_delivery()
    persistent = pika.BasicProperties(delivery_mode=2)
    while not time.is_over():
        channel.basic_publish("", "works-pika", b"v" * 200, persistent)
        kit.work(0.003)
    channel.connection.close()


@kit.behaviour
def window_too_small():
    """In a queue that its connection has for itself."""
    time, channel = kit.Time(), connection(kit.BEHAVIOUR).channel()
    name = channel.queue_declare("", exclusive=True).method.queue
    fill(name, 5000)
    channel.basic_qos(prefetch_count=1)
    assert consume(channel, name, time, 0), "nothing came"
    channel.connection.close()


@kit.behaviour
def hoarding():
    """A process takes 50 jobs, the next one, which comes a moment later, none."""
    time = kit.Time()
    with connection("feeder") as feeder:
        channel = feeder.channel()
        channel.queue_declare("pika-jobs")
        workers = []
        for number in range(2):
            workers.append(connection(kit.BEHAVIOUR).channel())
            workers[number].basic_qos(prefetch_count=50)

        first_works, all_are_there = threading.Event(), threading.Event()

        def work(number, begins=lambda: None):
            consume(workers[number], "pika-jobs", time, 0.3, begins)
            workers[number].connection.close()

        def come_late():
            all_are_there.wait()
            first_works.wait()
            work(1)

        def feed():
            for _ in range(45):
                channel.basic_publish("", "pika-jobs", b"job")
            # Its answer comes when all of them are in the queue.
            channel.queue_declare("pika-jobs")
            all_are_there.set()
            while not time.is_over():
                feeder.sleep(0.5)

        kit.together(feed, lambda: work(0, first_works.set), come_late)


@kit.behaviour
def idle():
    """Waits for messages that do not come."""
    time, channel = kit.Time(), connection(kit.BEHAVIOUR).channel()
    channel.queue_declare("idle-pika")
    assert not consume(channel, "idle-pika", time, 0), "something came"
    channel.connection.close()


@kit.behaviour
def good():
    time = kit.Time()

    def publish():
        channel = connection("good").channel()
        channel.queue_declare("good-pika")
        for _ in time.every(0.006):
            channel.basic_publish("", "good-pika", b"v" * 200)
        channel.connection.close()

    def work():
        channel = connection("good").channel()
        channel.queue_declare("good-pika")
        channel.basic_qos(prefetch_count=20)
        assert consume(channel, "good-pika", time, 0.002), "nothing came"
        channel.connection.close()

    kit.together(publish, work)


kit.say("Pika Python Client Library", pika.__version__)
kit.main()
