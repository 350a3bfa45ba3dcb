"""A consumer that works as Broadway does, and what the dispatch policy makes of it.

Broadway (Elixir) with RabbitMQ: each *producer* has a channel with a prefetch of its own, and
hands what it gets to the *processors*. Each processor asks each producer for `MAX_DEMAND`
messages, and a producer gives out in the order of their asking. So a processor that has asked two
producers may get twice what it works on at once, and what waits in its mailbox waits although
other processors are idle. A policy that gives all messages to one producer while it has credit
leaves none idle.

Two producers, 25 processors, 1.2 s of work, 25 messages; each is acknowledged when its work is
done. RabbitMQ leaves 5 to 12 processors idle and takes twice as long as the work does.
"""

import collections
import threading
import time

from kit import (
    ORIGINAL, PATIENCE_S, Skip, channel, check, connected, main, name, same, settled, wait_for,
)

PRODUCERS = 2
PROCESSORS = 25
MAX_DEMAND = 1
PREFETCH = 50
MESSAGES = 25


class Producer:
    """One channel on one connection; GenStage's DemandDispatcher in its simple form."""

    def __init__(self, title, pipeline):
        self.pipeline = pipeline
        self.waiting = collections.deque()
        # Those who have asked, in the order of their asking, once for each message asked for.
        self.asked = collections.deque(
            processor for _ in range(MAX_DEMAND) for processor in range(PROCESSORS))
        self.title = title
        self.ready = threading.Event()
        self.acks = collections.deque()
        self.acked = 0
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()
        assert self.ready.wait(PATIENCE_S), "a producer does not start"

    def run(self):
        with channel() as on:
            on.basic_qos(prefetch_count=PREFETCH)
            on.basic_consume(self.title, self.on_message)
            self.connection = on.connection
            self.ready.set()
            while not self.pipeline.stop.is_set():
                on.connection.process_data_events(time_limit=0.005)
                while self.acks:
                    on.basic_ack(self.acks.popleft())
                    self.acked += 1

    def on_message(self, _channel, method, _properties, body):
        self.waiting.append((method.delivery_tag, body))
        self.give_out()

    def give_out(self):
        with self.pipeline.lock:
            while self.waiting and self.asked:
                tag, body = self.waiting.popleft()
                processor = self.asked.popleft()
                self.pipeline.hand_over(processor, self, tag, body)

    def done(self, processor, tag):
        self.acks.append(tag)
        self.asked.append(processor)
        self.give_out()


class Pipeline:
    """Two producers and their processors; keeps what each processor did. Work goes on until
    `finish` is set, so that it is seen who works at the same time."""

    def __init__(self, title):
        self.lock = threading.RLock()
        self.stop = threading.Event()
        self.finish = threading.Event()
        self.mailboxes = [collections.deque() for _ in range(PROCESSORS)]
        self.worked = [0] * PROCESSORS
        self.bodies = []
        self.changed = threading.Condition(self.lock)
        self.processors = [threading.Thread(target=self.process, args=[n], daemon=True)
                           for n in range(PROCESSORS)]
        for processor in self.processors:
            processor.start()
        self.producers = [Producer(title, self) for _ in range(PRODUCERS)]

    def hand_over(self, processor, producer, tag, body):
        self.mailboxes[processor].append((producer, tag, body))
        self.changed.notify_all()

    def process(self, number):
        mailbox = self.mailboxes[number]
        while True:
            with self.changed:
                while not mailbox:
                    if self.stop.is_set():
                        return
                    self.changed.wait(0.5)
                producer, tag, body = mailbox.popleft()
                self.worked[number] += 1
            self.finish.wait()
            with self.changed:
                self.bodies.append(body)
                self.changed.notify_all()
            producer.done(number, tag)

    def has(self):
        """Messages that have come: with a processor, or waiting for one."""
        with self.lock:
            waiting = sum(len(producer.waiting) for producer in self.producers)
            return sum(self.worked) + sum(map(len, self.mailboxes)) + waiting

    def idle(self):
        """Processors that have nothing to do."""
        with self.lock:
            return sum(not worked and not mailbox
                       for worked, mailbox in zip(self.worked, self.mailboxes))

    def wait(self, number):
        deadline = time.monotonic() + PATIENCE_S
        with self.changed:
            while len(self.bodies) < number:
                self.changed.wait(0.5)
                assert time.monotonic() < deadline, f"{len(self.bodies)} of {number} were done"

    def end(self):
        self.stop.set()
        for producer in self.producers:
            producer.thread.join(PATIENCE_S)


def run(arguments=None):
    """How many processors have nothing to do while others have 25 messages."""
    title = name("queue")
    with channel(confirms=False) as on:
        on.queue_declare(title, durable=True, arguments=arguments)
        pipeline = Pipeline(title)
        for number in range(MESSAGES):
            on.basic_publish("", title, b"%d" % number)
        wait_for(lambda: pipeline.has() == MESSAGES, "all has come")
        idle = pipeline.idle()
        pipeline.finish.set()
        pipeline.wait(MESSAGES)
        # All is acknowledged: nothing comes back when the producers have gone.
        wait_for(lambda: sum(producer.acked for producer in pipeline.producers) == MESSAGES,
                 "all is acknowledged")
        pipeline.end()
        same(on.queue_declare(title, passive=True).method.message_count, 0, "left")
        same(sorted(int(body) for body in pipeline.bodies), list(range(MESSAGES)), "messages")
        on.queue_delete(title)
    return idle


@check
def fill_first_keeps_every_processor_busy():
    if ORIGINAL:
        raise Skip("RabbitMQ has one policy")
    same([run({"x-cloverleaf-dispatch": "fill-first"}) for _ in range(3)], [0] * 3, "idle")


@check
def two_producers_leave_processors_idle_by_default():
    """Shows that the consumer here behaves as Broadway does; not a promise."""
    idle = [run() for _ in range(3)]
    assert all(5 <= it <= 13 for it in idle), f"idle processors: {idle}"


@check
def one_full_producer_is_followed_by_the_next():
    """Fill-first goes on with the next consumer once the window of the first is used up."""
    if ORIGINAL:
        raise Skip("RabbitMQ has one policy")
    title = name("queue")
    with connected() as connection:
        out = connection.channel()
        out.queue_declare(title, arguments={"x-cloverleaf-dispatch": "fill-first"})
        counts, held = [0] * 3, []
        for number in range(3):
            on = connection.channel()
            on.basic_qos(prefetch_count=10)

            def handle(of, method, _properties, _body, number=number):
                counts[number] += 1
                held.append((of, method.delivery_tag))

            on.basic_consume(title, handle)
        for _ in range(15):
            out.basic_publish("", title, b"x")
        settled(lambda: sorted(counts), [0, 5, 10], "what each has got", out)
        out.queue_delete(title)


main()
