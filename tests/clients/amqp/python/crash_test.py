"""A publisher with confirms while the broker is killed: nothing confirmed is lost, order kept but
for redeliveries, which are marked as such.

usage: crash_test.py ROUNDS ADDRESS -- COMMAND...   the command that runs the broker
"""

import random
import sys
import threading
import time

import kit
import harness

rounds, kit.AMQP = int(sys.argv[1]), sys.argv[2]
command = sys.argv[4:]
del sys.argv[1:]

from kit import (  # noqa: E402
    PATIENCE_S, PERSISTENT, channel, check, connected, main, name, pika, same, wait_for,
)
from own_broker import Broker  # noqa: E402

harness.BROKER = kit.AMQP
harness.CHECK_S_MAX += 60 * rounds
# Of a connection that the broker leaves, and of a broker that is not there yet.
GONE = (pika.exceptions.AMQPError, pika.exceptions.AMQPConnectionError, OSError, AssertionError)
IN_FLIGHT_MAX = 300


class Publishing(threading.Thread):
    """Numbers its messages; each is published once, and it knows which were confirmed."""

    def __init__(self, title, mode):
        super().__init__(daemon=True)
        self.title, self.mode = title, mode
        self.sent = 0
        self.confirmed = set()
        self.refused = set()
        self.stop = threading.Event()
        self.start()

    def run(self):
        while not self.stop.is_set():
            try:
                with connected() as connection:
                    self.publish(connection)
            except GONE:
                time.sleep(0.02)

    def publish(self, connection):
        on = connection.channel()
        raw, waiting, tag = on._impl, {}, 0

        def settle(frame):
            answer = frame.method
            tags = [answer.delivery_tag]
            if answer.multiple:
                tags = [t for t in waiting if t <= answer.delivery_tag]
            numbers = {waiting.pop(t) for t in tags}
            is_ack = isinstance(answer, pika.spec.Basic.Ack)
            (self.confirmed if is_ack else self.refused).update(numbers)

        raw.confirm_delivery(settle)
        properties = pika.BasicProperties(delivery_mode=self.mode)
        while not self.stop.is_set() or waiting:
            while len(waiting) < IN_FLIGHT_MAX and not self.stop.is_set():
                tag += 1
                waiting[tag] = self.sent
                raw.basic_publish("", self.title, b"%d" % self.sent, properties)
                self.sent += 1
            connection.process_data_events(time_limit=0.01)


class Consuming(threading.Thread):
    """Acknowledges nearly all that it gets, some late."""

    def __init__(self, title):
        super().__init__(daemon=True)
        self.title = title
        self.got = []
        self.stop = threading.Event()
        self.start()

    def run(self):
        while not self.stop.is_set():
            try:
                with channel() as on:
                    on.basic_qos(prefetch_count=100)
                    on.basic_consume(self.title, self.on_message)
                    while not self.stop.is_set():
                        on.connection.process_data_events(time_limit=0.01)
            except GONE:
                time.sleep(0.02)

    def on_message(self, on, method, _properties, body):
        self.got.append((int(body), method.redelivered))
        if len(self.got) % 50 == 0:
            on.basic_ack(method.delivery_tag, multiple=True)
        elif random.random() < 0.02:
            on.basic_nack(method.delivery_tag)


def crash(mode, arguments=None):
    with Broker(command) as broker:
        title = name("queue")
        with channel() as on:
            on.queue_declare(title, durable=True, arguments=arguments)
        publishing, consuming = Publishing(title, mode), Consuming(title)
        for _ in range(rounds):
            had, read = len(publishing.confirmed), len(consuming.got)
            wait_for(lambda: len(publishing.confirmed) > had + 500, "messages are confirmed")
            wait_for(lambda: len(consuming.got) > read + 100, "messages are consumed")
            time.sleep(random.uniform(0, 0.3))
            broker.kill()
            broker.start()
        had = len(publishing.confirmed)
        wait_for(lambda: len(publishing.confirmed) > had + 500, "messages flow at last")
        publishing.stop.set()
        publishing.join(PATIENCE_S)
        assert not publishing.is_alive(), "some are never confirmed"
        missing = wait_for_all(publishing, consuming)
        consuming.stop.set()
        consuming.join(PATIENCE_S)
        same(sorted(missing)[:5], [], "confirmed messages that were lost")
        same(sorted(publishing.refused)[:5], [], "messages that were refused")
        check_order(consuming.got)
        print(f"        {publishing.sent} sent, {len(publishing.confirmed)} confirmed, "
              f"{len(consuming.got)} deliveries")


def wait_for_all(publishing, consuming):
    """What was confirmed and does not come, although nothing has come for a while."""
    had, since = len(consuming.got), time.monotonic()
    while True:
        missing = publishing.confirmed - {number for number, _ in list(consuming.got)}
        if not missing or time.monotonic() - since > PATIENCE_S:
            return missing
        if len(consuming.got) > had:
            had, since = len(consuming.got), time.monotonic()
        time.sleep(0.1)


def check_order(got):
    seen, last = set(), -1
    for number, redelivered in got:
        if number in seen:
            assert redelivered, f"{number} came again and was not marked as redelivered"
            continue
        assert number > last, f"{number} came for the first time behind {last}"
        seen.add(number)
        last = number


@check
def confirmed_messages_of_a_durable_queue():
    crash(PERSISTENT)


@check
def confirmed_messages_of_a_quorum_queue():
    crash(PERSISTENT, {"x-queue-type": "quorum"})


main()
