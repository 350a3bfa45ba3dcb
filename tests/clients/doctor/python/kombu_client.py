"""kombu, on which Celery stands: confirms one after the other, or none."""

import os
import socket

import amqp
from kombu import Connection

import kit

URL = os.environ["CLOVERLEAF_AMQP_URL"]


@kit.behaviour
def sync_produce():
    time = kit.Time()
    with Connection(URL, transport_options={"confirm_publish": True}) as connection:
        queue = connection.SimpleQueue("kombu")
        while not time.is_over():
            queue.put("v" * 200)
        queue.close()


@kit.behaviour
def good():
    time, seen = kit.Time(), []

    named = {"client_properties": {"connection_name": "good"}}

    def publish():
        with Connection(URL, transport_options=named) as connection:
            queue = connection.SimpleQueue("good-kombu")
            for _ in time.every(0.006):
                queue.put("v" * 200)
            queue.close()

    def work(_, message):
        message.ack()
        seen.append(1)

    def consume():
        with Connection(URL, transport_options=named) as connection:
            queue = connection.SimpleQueue("good-kombu")
            queue.close()
            with connection.Consumer(queue.queue, callbacks=[work], prefetch_count=20):
                while not time.is_over():
                    try:
                        connection.drain_events(timeout=0.5)
                    except socket.timeout:
                        pass
        assert seen, "nothing came"

    kit.together(publish, consume)


kit.say("py-amqp", amqp.__version__)
kit.main()
