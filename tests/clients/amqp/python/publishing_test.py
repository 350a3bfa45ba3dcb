"""Publishing: properties, sizes, confirms, transactions, and what is refused."""

import datetime
import decimal

from kit import (
    ORIGINAL, PERSISTENT, Consumer, channel, check, connected, count, drain, exchange, get, main,
    name, pika, publish, pump, queue, refused, same, until_refused,
)


@check
def properties_come_as_they_went():
    when = datetime.datetime(2026, 11, 22, 1, 2, 3, tzinfo=datetime.timezone.utc)
    headers = {
        "text": "ünï", "bytes": b"\x00\xff", "true": True, "int": -5, "big": 1 << 40,
        "none": None, "list": [1, "two", {"three": 3}], "table": {"a": {"b": []}},
        "when": when, "decimal": decimal.Decimal("3.14"),
    }
    properties = pika.BasicProperties(
        content_type="application/json", content_encoding="gzip", headers=headers,
        delivery_mode=PERSISTENT, priority=7, correlation_id="c", reply_to="r",
        expiration="60000", message_id="m", timestamp=1764000000, type="t", user_id="guest",
        app_id="a", cluster_id="k")
    with channel() as on:
        title = queue(on)
        on.basic_publish("", title, b"body", properties)
        got = get(on, title)
        for key, value in vars(properties).items():
            found = getattr(got.properties, key)
            if key == "headers":
                found = {k: v.encode() if k == "bytes" and isinstance(v, str) else v
                         for k, v in found.items()}
            same(found, value, key)
        on.basic_publish("", title, b"")
        got = get(on, title)
        same((got.body, {k: v for k, v in vars(got.properties).items() if v is not None}),
             (b"", {}), "no properties and no body")


@check
def each_size():
    with channel(confirms=True) as on:
        title = queue(on)
        # The largest frame has 131072 bytes, of which 8 are not body.
        for size in [0, 1, 131063, 131064, 131065, 262128, 262129, 1 << 20, 10 << 20]:
            body = bytes(n % 251 for n in range(1000)) * (size // 1000 + 1)
            on.basic_publish("", title, body[:size])
            found = get(on, title).body
            assert found == body[:size], f"{size} bytes came as {len(found)} or changed"


@check
def small_frames():
    with channel(confirms=True, frame_max=4096) as on:
        title = queue(on)
        consumer = Consumer(on, title, auto_ack=True)
        for size in [4087, 4088, 4089, 100_000]:
            on.basic_publish("", title, b"x" * size)
        consumer.wait(4)
        same([len(body) for body in consumer.bodies], [4087, 4088, 4089, 100_000], "sizes")


@check
def confirms_one_by_one():
    with channel(confirms=True) as on:
        title = queue(on, durable=True, exclusive=False)
        for number in range(200):
            publish(on, title, b"%d" % number, delivery_mode=PERSISTENT)
        same(count(on, title), 200, "messages")
        same(drain(on, title), [b"%d" % n for n in range(200)], "bodies")
        on.queue_delete(title)


@check
def many_confirms_in_flight():
    """Confirms come in order, several at once, and all of them.

    RabbitMQ's come in order only where they say `multiple`."""
    with connected() as connection:
        on = connection.channel()
        title = queue(on, durable=True, exclusive=False)
        raw, answers = on._impl, []
        raw.confirm_delivery(lambda frame: answers.append(frame.method))
        pump(on)
        for number in range(3000):
            mode = PERSISTENT if number % 3 else 1
            raw.basic_publish("", title, b"%d" % number, pika.BasicProperties(delivery_mode=mode))
        # The last answer may be for one message alone, and `multiple` or not.
        while len(covered(answers)) < 3000:
            pump(on, seconds=0.1)
        confirmed = [answer.delivery_tag for answer in answers if answer.multiple or not ORIGINAL]
        same({type(answer).__name__ for answer in answers}, {"Ack"}, "answers")
        same(confirmed, sorted(confirmed), "the tags rise")
        same(covered(answers), set(range(1, 3001)), "each is confirmed once")
        same(drain(on, title), [b"%d" % n for n in range(3000)], "bodies")
        on.queue_delete(title)


def covered(answers):
    """The tags that are confirmed; each at most once."""
    found = set()
    for answer in answers:
        tags = {answer.delivery_tag}
        if answer.multiple:
            tags |= {n for n in range(1, answer.delivery_tag) if n not in found}
        assert not tags & found, f"confirmed twice: {sorted(tags & found)[:5]}"
        found |= tags
    return found


@check
def what_reaches_no_queue_is_confirmed():
    with channel(confirms=True) as on:
        publish(on, name("missing"), b"nowhere")
        through = exchange(on, "fanout", auto_delete=False)
        publish(on, "", b"nowhere", through=through)
        on.exchange_delete(through)


@check
def one_message_to_many_queues_is_confirmed_once():
    with channel(confirms=True) as on:
        through = exchange(on, "fanout")
        titles = [queue(on, durable=n % 2 == 0, exclusive=False) for n in range(6)]
        for title in titles:
            on.queue_bind(title, through)
        for number in range(20):
            publish(on, "", b"%d" % number, through=through, delivery_mode=PERSISTENT)
        for title in titles:
            same(drain(on, title), [b"%d" % n for n in range(20)], title)
            on.queue_delete(title)


@check
def a_transaction():
    with channel() as on, channel() as other:
        title, work = queue(on, exclusive=False), queue(on, exclusive=False)
        publish(other, work, b"1", b"2", b"3")
        on.tx_select()
        publish(on, title, b"a", b"b")
        held = [get(on, work, auto_ack=False) for _ in range(3)]
        on.basic_ack(held[0].method.delivery_tag)
        pump(on)
        same(count(other, title), 0, "nothing before the commit")
        on.tx_commit()
        same(count(other, title), 2, "published with the commit")
        publish(on, title, b"never")
        on.basic_ack(held[1].method.delivery_tag)
        on.tx_rollback()
        # The acknowledgement is undone: it can be given again.
        on.basic_ack(held[1].method.delivery_tag)
        on.basic_nack(held[2].method.delivery_tag)
        on.tx_commit()
        same(drain(other, title), [b"a", b"b"], "messages")
        same(drain(other, work), [b"3"], "what was given back")
        for it in [title, work]:
            other.queue_delete(it)


@check
def a_transaction_that_its_connection_leaves():
    with channel() as other:
        title = queue(other, exclusive=False)
        publish(other, title, b"held")
        with channel() as on:
            on.tx_select()
            publish(on, title, b"never")
            held = get(on, title, auto_ack=False)
            on.basic_ack(held.method.delivery_tag)
            pump(on)
        pump(other)
        same(drain(other, title), [b"held"], "neither published nor acknowledged")
        other.queue_delete(title)


@check
def modes_of_a_channel():
    with refused(406, "PRECONDITION_FAILED - cannot switch from tx to confirm mode"):
        with channel() as on:
            on.tx_select()
            on.confirm_delivery()
    with refused(406, "PRECONDITION_FAILED - cannot switch from confirm to tx mode"):
        with channel(confirms=True) as on:
            on.tx_select()
    with refused(406, "PRECONDITION_FAILED - channel is not transactional"), channel() as on:
        on.tx_commit()
    with refused(406, "PRECONDITION_FAILED - channel is not transactional"), channel() as on:
        on.tx_rollback()


@check
def user_id_must_be_the_own_one():
    with channel() as on:
        title = queue(on)
        publish(on, title, b"mine", user_id="guest")
        same(get(on, title).properties.user_id, "guest", "user-id")
    text = "user_id property set to 'somebody' but authenticated user was 'guest'"
    with refused(406, f"PRECONDITION_FAILED - {text}"), channel() as on:
        publish(on, queue(on), b"not mine", user_id="somebody")
        until_refused(on)


@check
def what_is_not_offered():
    with connected() as connection:
        raw = connection.channel()
        method = pika.spec.Basic.Publish(exchange="", routing_key="x", immediate=True)
        with refused(540, "NOT_IMPLEMENTED - immediate=true"):
            raw._impl._send_method(method, (pika.BasicProperties(), b"body"))
            until_refused(raw)
    with refused(540, "NOT_IMPLEMENTED - prefetch_size!=0 (10)"), channel() as on:
        on.basic_qos(prefetch_size=10)
    with refused(540, "NOT_IMPLEMENTED - active=false"), channel() as on:
        on.flow(False)
    with channel() as on:
        same(on.flow(True), True, "flow")


@check
def a_message_that_is_too_large():
    with refused(501, ""), channel() as on:
        # A frame of more than was agreed on.
        size = 140_000
        impl = on.connection._impl
        frame = b"\x03\x00\x01" + size.to_bytes(4, "big") + b"x" * size + b"\xce"
        impl._output_marshaled_frames([frame])
        until_refused(on)


main()
