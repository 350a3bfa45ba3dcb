"""Publishes over TLS, one message after the other, as in seed 001."""

import os
import sys
import tempfile
import time

from confluent_kafka import Producer

topic, is_off = sys.argv[1:]
address, authority = os.environ["CLOVERLEAF_KAFKA_TLS"], os.environ["AUTHORITY"]


def failed(error):
    print(error, file=sys.stderr)


def delivered(error, _message):
    if error:
        sys.exit(str(error))


# Versions of seed 001's time take the authority as a file only, and read it at once.
with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
    file.write(authority)
    file.flush()
    producer = Producer({
        "bootstrap.servers": address,
        "client.id": "lab-" + topic,
        "security.protocol": "ssl",
        "ssl.ca.location": file.name,
        "error_cb": failed,
        "linger.ms": 0,
        "socket.nagle.disable": is_off == "true",
    })
while True:
    begun = time.monotonic()
    producer.produce(topic, b"x" * 600, on_delivery=delivered)
    if producer.flush(10):
        sys.exit(1)
    print("done", int((time.monotonic() - begun) * 1e6))
