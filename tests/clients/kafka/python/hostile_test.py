"""Clients that break every rule, beside a healthy one that must not notice."""

import random
import socket
import struct
import threading

from confluent_kit import Deliveries, create, producer, read_topic
from harness import BROKER, PATIENCE_S, check, main, same, wait_for

HOST, PORT = BROKER.rsplit(":", 1)
RANDOM = random.Random(1)
# The newest version of each API that some client may send; a few more than there are.
VERSIONS = {key: 15 for key in range(95)}


class Healthy(threading.Thread):
    """Produces and consumes all the time."""

    def __init__(self):
        super().__init__(daemon=True)
        self.topic = create()
        self.reports = Deliveries()
        self.sent = 0
        self.stop = threading.Event()
        self.start()

    def run(self):
        out = producer(acks="all")
        while not self.stop.is_set():
            out.produce(self.topic, b"%d" % self.sent, on_delivery=self.reports)
            self.sent += 1
            out.flush(PATIENCE_S)

    def goes_on(self):
        had = self.sent
        wait_for(lambda: self.sent > had + 20, "the healthy client goes on")

    def finish(self):
        self.goes_on()
        self.stop.set()
        self.join(PATIENCE_S)
        same([str(e) for e in self.reports.errors], [], "errors of the healthy client")
        got = [m.value() for m in read_topic(self.topic, self.sent)]
        same(got, [b"%d" % n for n in range(self.sent)], "messages of the healthy client")


def beside_a_healthy_one(function):
    """A generator yields where it is at its worst: there the healthy one has to go on."""
    def run():
        healthy = Healthy()
        for _ in function() or ():
            healthy.goes_on()
        healthy.finish()
    run.__name__ = function.__name__
    return check(run)


def connect():
    return socket.create_connection((HOST, int(PORT)), PATIENCE_S)


def send(data):
    """Sends all of it, unless the broker closes before."""
    connection = connect()
    try:
        connection.sendall(data)
    except OSError:
        pass
    return connection


def is_closed(connection):
    """Reads until the broker closes."""
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        raise AssertionError("the broker keeps the connection")
    except OSError:
        pass
    connection.close()


def frame(body):
    return struct.pack(">i", len(body)) + body


def request(key, version, body, correlation=1):
    """A request with a header of version 1."""
    client = b"hostile"
    head = struct.pack(">hhih", key, version, correlation, len(client)) + client
    return frame(head + body)


def noise(length):
    return RANDOM.randbytes(length)


@beside_a_healthy_one
def random_bytes():
    for _ in range(200):
        send(noise(RANDOM.randrange(20_000))).close()


@beside_a_healthy_one
def other_protocols():
    for text in [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
                 b"  V2", b"AMQP\x00\x00\x09\x01", b"CONNECT {}\r\n"]:
        connection = send(text + bytes(1000))
        connection.shutdown(socket.SHUT_WR)
        is_closed(connection)


@beside_a_healthy_one
def lengths_that_are_wrong():
    for length in [-1, -(2**31), 2**31 - 1, 200 << 20]:
        is_closed(send(struct.pack(">i", length) + noise(100)))
    for length in [0, 1, 4, 7]:
        is_closed(send(struct.pack(">i", length) + bytes(length)))


@beside_a_healthy_one
def half_requests():
    whole = request(0, 8, noise(1000))
    for length in range(0, len(whole), 37):
        send(whole[:length]).close()


@beside_a_healthy_one
def each_request_with_noise():
    for key, newest in VERSIONS.items():
        connections = []
        for version in range(newest):
            connections.append(send(request(key, version, noise(RANDOM.randrange(300)))))
        for connection in connections:
            connection.close()


@beside_a_healthy_one
def each_request_with_large_counts():
    # Arrays of two billion entries, in the old spelling and in the compact one.
    for key, newest in VERSIONS.items():
        connections = []
        for version in range(newest):
            for count in [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\x00\x7f\xff\xff\xff"]:
                connections.append(send(request(key, version, count * 40)))
        for connection in connections:
            connection.close()


@beside_a_healthy_one
def each_request_with_nothing_in_it():
    for key, newest in VERSIONS.items():
        for version in range(newest):
            send(request(key, version, b"")).close()


@beside_a_healthy_one
def unknown_requests():
    for key in [-1, 200, 32767]:
        is_closed(send(request(key, 0, bytes(100))))
    # An unknown version of ApiVersions has an answer: version 0 with UNSUPPORTED_VERSION.
    connection = send(request(18, 99, b"\x00"))
    size, correlation, error = struct.unpack(">iih", connection.recv(10, socket.MSG_WAITALL))
    same((correlation, error), (1, 35), "answer to ApiVersions 99")
    connection.close()


@beside_a_healthy_one
def a_client_that_never_reads():
    metadata = request(3, 1, b"\xff\xff\xff\xff")
    connection = connect()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(2)
    try:
        for _ in range(20_000):
            connection.sendall(metadata)
    except OSError:
        pass  # the broker reads no more, or has closed
    yield
    connection.close()


@beside_a_healthy_one
def many_connections():
    for _ in range(20):
        connections = [connect() for _ in range(100)]
        yield
        for connection in connections:
            connection.close()


main()
