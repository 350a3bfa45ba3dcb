"""A broker behind a forwarded port: it tells its clients the address that they can use.

KAFKA is the broker's own address, FORWARD the one that it tells; there this program forwards.
"""

import os
import select
import socket
import threading

from confluent_kafka import KafkaException, TopicPartition

import confluent_kit
import harness
from harness import PATIENCE_S, check, main, same

DIRECT, FORWARD = harness.BROKER, os.environ["FORWARD"]


def pair(address):
    host, port = address.rsplit(":", 1)
    return host, int(port)


class Forward(threading.Thread):
    """Forwards each connection and counts what goes through."""

    def __init__(self):
        super().__init__(daemon=True)
        self.listener = socket.create_server(pair(FORWARD))
        self.connections = []
        self.bytes = 0
        self.start()

    def run(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            broker = socket.create_connection(pair(DIRECT), 10)
            self.connections += [client, broker]
            threading.Thread(target=self.copy, args=[client, broker], daemon=True).start()

    def copy(self, client, broker):
        to = {client: broker, broker: client}
        try:
            while True:
                for source in select.select(list(to), [], [])[0]:
                    data = source.recv(1 << 16)
                    if not data:
                        return
                    self.bytes += len(data)
                    to[source].sendall(data)
        except (OSError, ValueError):
            pass
        finally:
            client.close()
            broker.close()

    def stop(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for connection in self.connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def use(bootstrap):
    """Produces and consumes with a group, having been given this address."""
    confluent_kit.BROKER = bootstrap
    topic, group = confluent_kit.create(partitions=2), harness.name("group")
    values = [b"%d" % number for number in range(200)]
    confluent_kit.produce_all(topic, values, enable_idempotence=True)
    client = confluent_kit.consumer(group_id=group)
    client.subscribe([topic])
    read = [m.value() for m in confluent_kit.read(client, len(values))]
    same(sorted(read), sorted(values), "values")
    client.commit(asynchronous=False)
    found = client.committed([TopicPartition(topic, n) for n in range(2)], timeout=PATIENCE_S)
    same(sum(max(one.offset, 0) for one in found), len(values), "committed")
    client.close()


@check
def clients_are_told_the_advertised_address_and_use_it():
    forward = Forward()
    try:
        for bootstrap in (FORWARD, DIRECT):
            confluent_kit.BROKER = bootstrap
            brokers = confluent_kit.admin().list_topics(timeout=PATIENCE_S).brokers.values()
            same([f"{b.host}:{b.port}" for b in brokers], [FORWARD], f"told at {bootstrap}")
            had = forward.bytes
            use(bootstrap)
            assert forward.bytes > had + 2000, "the messages went another way"
    finally:
        forward.stop()


@check
def without_the_forward_nothing_is_to_be_had():
    confluent_kit.BROKER = DIRECT
    out, reports = confluent_kit.producer(message_timeout_ms=3000), confluent_kit.Deliveries()
    out.produce("nowhere", b"x", on_delivery=reports)
    out.flush(PATIENCE_S)
    same(len(reports.errors), 1, "messages that were not delivered")
    client = confluent_kit.consumer()
    try:
        client.committed([TopicPartition("nowhere", 0)], timeout=3)
        raise AssertionError("the group's coordinator was found past the advertised address")
    except KafkaException:
        pass
    client.close()


main()
