"""Connections: login, virtual hosts, tuning, heartbeats, and errors that end a connection."""

import socket
import time

from kit import (
    ORIGINAL, Consumer, address, channel, check, connected, get, main, name, parameters, pika,
    publish, queue, refused, same, wait_for,
)
from pika.exceptions import ProbableAccessDeniedError, ProbableAuthenticationError


@check
def what_the_broker_tells_of_itself():
    with connected() as connection:
        told = connection._impl.server_properties
        for key in ["product", "version", "platform", "capabilities"]:
            assert key in told, f"{key} is missing in {told}"
        for capability in ["publisher_confirms", "exchange_exchange_bindings", "basic.nack",
                           "consumer_cancel_notify", "connection.blocked", "consumer_priorities",
                           "authentication_failure_close", "per_consumer_qos", "direct_reply_to"]:
            same(told["capabilities"].get(capability), True, capability)


@check
def the_agreed_limits():
    with connected() as connection:
        agreed = connection._impl.params
        same((agreed.channel_max, agreed.frame_max, agreed.heartbeat), (2047, 131072, 60), "limits")
    with connected(channel_max=5, frame_max=4096, heartbeat=7) as connection:
        agreed = connection._impl.params
        same((agreed.channel_max, agreed.frame_max, agreed.heartbeat), (5, 4096, 7), "asked for")


@check
def a_wrong_password():
    for user, password in [("guest", "wrong"), ("nobody", "guest"), ("", "")]:
        try:
            pika.BlockingConnection(parameters(user=user, password=password))
        except ProbableAuthenticationError as error:
            text = ("ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For "
                    "details see the broker logfile.")
            assert text in str(error), error
        else:
            raise AssertionError("it was let in")


@check
def a_wrong_virtual_host():
    try:
        pika.BlockingConnection(parameters(vhost="missing"))
    except (ProbableAccessDeniedError, pika.exceptions.ConnectionClosedByBroker) as error:
        assert "530" in str(error) and "vhost missing not found" in str(error), error
    else:
        raise AssertionError("it was let in")


@check
def heartbeats_keep_a_quiet_connection():
    with connected(heartbeat=3) as connection:
        on = connection.channel()
        title = queue(on)
        consumer = Consumer(on, title)
        start = time.monotonic()
        while time.monotonic() - start < 9:
            connection.process_data_events(time_limit=0.5)
        assert connection.is_open, "the broker has closed it"
        publish(on, title, b"still there")
        same(consumer.wait(1)[0].body, b"still there", "body")


@check
def missed_heartbeats_end_a_connection():
    with channel() as on:
        title = name("queue")
        on.queue_declare(title)
        publish(on, title, b"held")
        silent = pika.BlockingConnection(parameters(heartbeat=1))
        get(silent.channel(), title, auto_ack=False)
        # It says nothing any more: after two intervals and a little the message is back.
        start = time.monotonic()
        got = wait_for(lambda: on.basic_get(title, auto_ack=True)[0], "the message is back")
        took = time.monotonic() - start
        assert got.redelivered and took > 1.5, f"back after {took:.1f} s"
        on.queue_delete(title)


@check
def a_connection_is_closed_in_order():
    with connected() as connection:
        on = connection.channel()
        title = queue(on)
        publish(on, title, *[b"x"] * 100)
        connection.close(200, "done")
    with connected() as connection:
        assert connection.is_open


@check
def too_many_channels():
    with connected(channel_max=3) as connection:
        for _ in range(3):
            connection.channel()
        text = "NOT_ALLOWED - number of channels opened (3) has reached the negotiated channel_max"
        with refused(530, text):
            connection._impl.params.channel_max = 10
            connection._impl._next_channel_number = lambda: 4
            connection.channel(4)
    # They are counted: their numbers may be higher than that.
    with connected(channel_max=3) as connection:
        connection._impl.params.channel_max = 0xffff
        assert connection.channel(0xffff).is_open


@check
def the_other_protocol_header():
    """What speaks another version is told which one is spoken here."""
    headers = [b"AMQP\x00\x00\x09\x00"]
    if not ORIGINAL:
        # RabbitMQ offers AMQP 1.0 to whoever says something else.
        headers += [b"AMQP\x00\x01\x00\x00", b"AMQP\x01\x01\x08\x00", b"GET / HT", b"AMQPQMPA"]
    for header in headers:
        stream = socket.create_connection(address(), 10)
        stream.settimeout(10)
        stream.sendall(header)
        answer = b""
        while len(answer) < 8:
            piece = stream.recv(100)
            if not piece:
                break
            answer += piece
        same(answer, b"AMQP\x00\x00\x09\x01", f"the answer to {header!r}")
        stream.close()


@check
def amqplain():
    class Amqplain(pika.credentials.PlainCredentials):
        TYPE = "AMQPLAIN"

        def response_for(self, start):
            if b"AMQPLAIN" not in start.mechanisms.encode().split() \
                    if isinstance(start.mechanisms, str) else \
                    b"AMQPLAIN" not in start.mechanisms.split():
                return None, None
            pieces = []
            pika.data.encode_table(pieces, {"LOGIN": self.username, "PASSWORD": self.password})
            return "AMQPLAIN", b"".join(pieces)[4:]

    pika.credentials.VALID_TYPES.append(Amqplain)
    more = parameters()
    more.credentials = Amqplain("guest", "guest")
    connection = pika.BlockingConnection(more)
    same(connection.channel().queue_declare("", exclusive=True).method.message_count, 0, "a queue")
    connection.close()


@check
def two_hundred_connections():
    connections = [pika.BlockingConnection(parameters()) for _ in range(200)]
    title = name("queue")
    connections[0].channel().queue_declare(title)
    for number, connection in enumerate(connections):
        publish(connection.channel(), title, b"%d" % number)
    found = set()
    on = connections[0].channel()
    while len(found) < 200:
        found.add(int(get(on, title).body))
    on.queue_delete(title)
    for connection in connections:
        connection.close()


main()
