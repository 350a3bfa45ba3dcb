"""kombu, on which Celery is built: it waits for each confirm, or asks for none."""

import os
import socket

import amqp
from kombu import Connection

import kit


def connection(**options):
    return Connection(os.environ["CLOVERLEAF_AMQP_URL"], transport_options=options)


@kit.behaviour
def sync_produce():
    with connection(confirm_publish=True) as there:
        queue = there.SimpleQueue("kombu")
        while not kit.is_over():
            queue.put("v" * 200)
        queue.close()


@kit.behaviour
def good():
    named = {"client_properties": {"connection_name": "good"}}

    def publish():
        with connection(**named) as there:
            queue = there.SimpleQueue("good-kombu")
            for _ in kit.every(0.006):
                queue.put("v" * 200)
            queue.close()

    def work(_, message):
        message.ack()
        kit.saw(message)

    def consume():
        with connection(**named) as there:
            queue = there.SimpleQueue("good-kombu")
            queue.close()
            with there.Consumer(queue.queue, callbacks=[work], prefetch_count=20):
                while not kit.is_over():
                    try:
                        there.drain_events(timeout=0.5)
                    except socket.timeout:
                        pass

    kit.together(publish, consume)


kit.say("py-amqp", amqp.__version__)
kit.main(receives=["good"])
