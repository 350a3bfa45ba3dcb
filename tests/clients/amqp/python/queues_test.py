"""Queues: what their declarations mean, and what their arguments do."""

import time

from kit import (
    PERSISTENT, Consumer, channel, check, connected, consumers, count, drain, exchange, get, main,
    name, pika, publish, pump, queue, refused, same, settled, until_refused, wait_for,
)


def dead_letters(on):
    """An exchange for dead letters, and a queue with all that come to it."""
    through, title = exchange(on, "fanout"), queue(on)
    on.queue_bind(title, through)
    return through, title


def death(got):
    """The newest entry of the history of a dead letter."""
    return got.properties.headers["x-death"][0]


@check
def server_named_queue():
    with channel() as on:
        answer = on.queue_declare("", exclusive=True).method
        assert answer.queue.startswith("amq.gen-"), answer.queue
        # An empty name means the one that the channel has declared last.
        on.queue_bind("", "amq.fanout")
        on.queue_unbind("", "amq.fanout")
        publish(on, answer.queue, b"mine")
        same(get(on, "").body, b"mine", "body")
        other = on.queue_declare("", exclusive=True).method.queue
        assert other != answer.queue, "each has a name of its own"


@check
def a_declaration_tells_messages_and_consumers():
    with channel(confirms=True) as on:
        title = queue(on)
        publish(on, title, b"1", b"2", b"3")
        answer = on.queue_declare(title, passive=True).method
        same((answer.queue, answer.message_count, answer.consumer_count), (title, 3, 0), "before")
        consumer = Consumer(on, title)
        consumer.wait(3)
        answer = on.queue_declare(title, exclusive=True).method
        same((answer.message_count, answer.consumer_count), (0, 1), "with a consumer")


@check
def a_queue_is_declared_again_only_as_it_is():
    title = name("queue")
    arguments = {"x-message-ttl": 60000, "x-max-length": 10}
    with connected() as connection:
        on = connection.channel()
        on.queue_declare(title, durable=True, arguments=arguments)
        on.queue_declare(title, durable=True, arguments=arguments)
        where = f"for queue '{title}' in vhost '/'"
        for changed, argument in [
            (dict(durable=False, arguments=arguments), "durable"),
            (dict(durable=True, auto_delete=True, arguments=arguments), "auto_delete"),
            (dict(durable=True, arguments={**arguments, "x-message-ttl": 1}), "x-message-ttl"),
            (dict(durable=True, arguments={"x-max-length": 10}), "x-message-ttl"),
            (dict(durable=True, arguments={**arguments, "x-expires": 9000}), "x-expires"),
            (dict(durable=True, arguments={**arguments, "x-max-priority": 3}), "x-max-priority"),
        ]:
            with refused(406, "PRECONDITION_FAILED", f"inequivalent arg '{argument}' {where}"):
                connection.channel().queue_declare(title, **changed)
        text = "received '1' but current is '60000'"
        with refused(406, "x-message-ttl", text):
            wrong = {**arguments, "x-message-ttl": 1}
            connection.channel().queue_declare(title, durable=True, arguments=wrong)
        connection.channel().queue_delete(title)


@check
def arguments_that_make_no_sense():
    for arguments, text in [
        ({"x-message-ttl": -1}, "x-message-ttl"),
        ({"x-expires": 0}, "x-expires"),
        ({"x-max-length": -5}, "x-max-length"),
        ({"x-max-length": "many"}, "x-max-length"),
        ({"x-max-priority": 256}, "x-max-priority"),
        ({"x-overflow": "explode"}, "x-overflow"),
        ({"x-dead-letter-exchange": 5}, "x-dead-letter-exchange"),
        ({"x-dead-letter-routing-key": "key"}, "x-dead-letter-routing-key"),
        ({"x-single-active-consumer": "yes"}, "x-single-active-consumer"),
        ({"x-queue-type": "nonsense"}, "x-queue-type"),
    ]:
        with refused(406, "PRECONDITION_FAILED", text), channel() as on:
            on.queue_declare(name("queue"), arguments=arguments)


@check
def an_exclusive_queue_belongs_to_its_connection():
    with channel() as mine:
        title = queue(mine)
        text = f"cannot obtain exclusive access to locked queue '{title}' in vhost '/'"
        for use in [
            lambda on: on.queue_declare(title, passive=True),
            lambda on: on.queue_declare(title, exclusive=True),
            lambda on: on.basic_consume(title, print),
            lambda on: on.basic_get(title),
            lambda on: on.queue_purge(title),
            lambda on: on.queue_delete(title),
            lambda on: on.queue_bind(title, "amq.fanout"),
        ]:
            with refused(405, "RESOURCE_LOCKED - ", text), channel() as other:
                use(other)
        with channel() as other:
            publish(other, title, b"anybody may publish")
        same(get(mine, title).body, b"anybody may publish", "body")
    with channel() as other, refused(404, f"NOT_FOUND - no queue '{title}' in vhost '/'"):
        # Its connection has taken it along, soon.
        while True:
            pump(other, seconds=0.1)
            other.queue_declare(title, passive=True)


@check
def an_auto_delete_queue_goes_with_its_last_consumer():
    title = name("queue")
    with connected() as connection:
        on = connection.channel()
        on.queue_declare(title, auto_delete=True)
        publish(on, title, b"waits for a first consumer")
        one, two = Consumer(on, title, auto_ack=True), Consumer(on, title, auto_ack=True)
        wait_for(lambda: pump(on, seconds=0.05) or one.got + two.got, "it is delivered")
        on.basic_cancel(one.tag)
        same(consumers(on, title), 1, "consumers left")
        on.basic_cancel(two.tag)
        with refused(404, f"no queue '{title}' in vhost '/'"):
            connection.channel().queue_declare(title, passive=True)


@check
def purge_and_delete():
    title = name("queue")
    with connected() as connection:
        on = connection.channel()
        on.confirm_delivery()
        on.queue_declare(title)
        publish(on, title, *[b"x"] * 10)
        held = on.basic_get(title)[0]
        same(on.queue_purge(title).method.message_count, 9, "purged")
        same(count(on, title), 0, "left")
        # What a consumer holds is not purged.
        on.basic_nack(held.delivery_tag)
        same(get(on, title).body, b"x", "what was held")
        publish(on, title, b"1", b"2")
        with refused(406, f"PRECONDITION_FAILED - queue '{title}' in vhost '/'", "empty"):
            connection.channel().queue_delete(title, if_empty=True)
        consumer = Consumer(connection.channel(), title)
        with refused(406, f"PRECONDITION_FAILED - queue '{title}' in vhost '/' in use"):
            connection.channel().queue_delete(title, if_unused=True)
        consumer.channel.close()
        wait_for(lambda: count(on, title) == 2, "both are back")
        same(on.queue_delete(title, if_unused=True).method.message_count, 2, "deleted with it")
        same(on.queue_delete(title).method.message_count, 0, "it is no error to delete nothing")
        with refused(404, f"NOT_FOUND - no queue '{title}' in vhost '/'"):
            connection.channel().queue_declare(title, passive=True)


@check
def names():
    with channel() as on:
        for title in ["with space", "with/slash", "ünï", "x" * 255, "a.b-c_d", "#", "..", "."]:
            title = title if len(title) == 255 else f"{title}{name()}"
            same(on.queue_declare(title, exclusive=True).method.queue, title, "name")
            publish(on, title, title.encode())
            same(get(on, title).body, title.encode(), "body")
    with refused(403, "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'"):
        with channel() as on:
            on.queue_declare("amq.mine")


@check
def messages_of_a_queue_live_as_long_as_it_says():
    with channel(confirms=True) as on:
        through, dead = dead_letters(on)
        title = queue(on, {"x-message-ttl": 5000, "x-dead-letter-exchange": through})
        start = time.monotonic()
        publish(on, title, b"1", b"2")
        same(count(on, title), 2, "at first")
        wait_for(lambda: count(on, dead) == 2, "both are dead")
        took = time.monotonic() - start
        first, second = get(on, dead), get(on, dead)
        same((first.body, second.body), (b"1", b"2"), "in order")
        assert took > 4.9, f"they lived {took:.2f} s"
        entry = death(first)
        same((entry["reason"], entry["queue"], entry["count"]), ("expired", title, 1), "x-death")
        same(count(on, title), 0, "left")


@check
def a_message_lives_as_long_as_it_says():
    with channel() as on:
        through, dead = dead_letters(on)
        title = queue(on, {"x-message-ttl": 60000, "x-dead-letter-exchange": through})
        publish(on, title, b"short", expiration="200")
        got = get(on, dead)
        same(got.body, b"short", "body")
        same(got.properties.expiration, None, "it must not expire again")
        same(death(got)["original-expiration"], "200", "x-death")
        # One without delay to a queue without consumer is gone at once.
        plain = queue(on)
        publish(on, plain, b"never seen", expiration="0")
        wait_for(lambda: count(on, plain) == 0, "it has gone")
    for wrong in ["soon", "-1", "1.5", ""]:
        with refused(406, f"invalid expiration '{wrong}'"), channel() as on:
            publish(on, queue(on), b"wrong", expiration=wrong)
            until_refused(on)


@check
def a_short_lived_message_expires_at_the_head():
    with channel() as on:
        through, dead = dead_letters(on)
        title = queue(on, {"x-dead-letter-exchange": through})
        publish(on, title, b"long")
        publish(on, title, b"short", expiration="1")
        pump(on)
        same(count(on, title), 2, "it waits behind the other")
        same(get(on, title).body, b"long", "the first")
        same(get(on, dead).body, b"short", "dead")


@check
def a_message_that_is_given_back_expires_all_the_same():
    with channel() as on:
        through, dead = dead_letters(on)
        title = queue(on, {"x-message-ttl": 3000, "x-dead-letter-exchange": through})
        publish(on, title, b"held")
        held = get(on, title, auto_ack=False)
        pump(on, seconds=6)
        same(drain(on, dead), [], "what is held does not expire")
        on.basic_nack(held.method.delivery_tag)
        same(get(on, dead).body, b"held", "given back")


@check
def an_unused_queue_expires():
    title = name("queue")
    with connected() as connection:
        on = connection.channel()
        on.queue_declare(title, arguments={"x-expires": 10_000})
        consumer = Consumer(on, title)
        pump(on, seconds=12)
        same(consumers(on, title), 1, "a consumer keeps it")
        on.basic_cancel(consumer.tag)
        for _ in range(4):
            pump(on, seconds=3)
            on.basic_get(title)  # so does a look into it
        with refused(404, f"no queue '{title}' in vhost '/'"):
            for _ in range(20):
                # A declaration would keep it, too.
                pump(on, seconds=12)
                connection.channel().queue_declare(title, passive=True)


@check
def the_oldest_go_when_a_queue_is_full():
    with channel(confirms=True) as on:
        through, dead = dead_letters(on)
        title = queue(on, {"x-max-length": 3, "x-dead-letter-exchange": through})
        publish(on, title, *[b"%d" % n for n in range(5)])
        same([get(on, dead).body, get(on, dead).body], [b"0", b"1"], "dead")
        same(drain(on, title), [b"2", b"3", b"4"], "left")
        # What a consumer holds does not count.
        publish(on, title, b"a", b"b", b"c")
        held = get(on, title, auto_ack=False)
        publish(on, title, b"d")
        same((held.body, drain(on, title)), (b"a", [b"b", b"c", b"d"]), "with one held")


@check
def new_ones_are_refused_when_a_queue_is_full():
    with channel(confirms=True) as on:
        title = queue(on, {"x-max-length": 2, "x-overflow": "reject-publish"})
        publish(on, title, b"1", b"2")
        for _ in range(3):
            try:
                publish(on, title, b"too many")
            except pika.exceptions.NackError:
                continue
            raise AssertionError("it was not refused")
        same(get(on, title).body, b"1", "the first")
        publish(on, title, b"3")
        same(drain(on, title), [b"2", b"3"], "left")


@check
def refused_ones_can_be_dead_letters():
    with channel(confirms=True) as on:
        through, dead = dead_letters(on)
        title = queue(on, {"x-max-length": 1, "x-overflow": "reject-publish-dlx",
                           "x-dead-letter-exchange": through})
        publish(on, title, b"1")
        try:
            publish(on, title, b"2")
            raise AssertionError("it was not refused")
        except pika.exceptions.NackError:
            pass
        got = get(on, dead)
        same((got.body, death(got)["reason"]), (b"2", "maxlen"), "the dead letter")
        same(drain(on, title), [b"1"], "left")


@check
def a_limit_in_bytes():
    with channel(confirms=True) as on:
        title = queue(on, {"x-max-length-bytes": 1000})
        publish(on, title, *[bytes([n]) * 300 for n in range(6)])
        left = drain(on, title)
        same([body[0] for body in left], [3, 4, 5], "left")
        strict = queue(on, {"x-max-length-bytes": 1000, "x-overflow": "reject-publish"})
        publish(on, strict, b"x" * 600)
        try:
            publish(on, strict, b"x" * 401)
            raise AssertionError("it was not refused")
        except pika.exceptions.NackError:
            pass
        publish(on, strict, b"x" * 400)
        same(count(on, strict), 2, "messages")


@check
def priorities():
    with channel(confirms=True) as on:
        title = queue(on, {"x-max-priority": 5})
        for number, priority in enumerate([0, 3, 5, 1, 3, None, 9, 5]):
            publish(on, title, b"%d" % number, priority=priority)
        same(count(on, title), 8, "messages")
        found = [int(body) for body in drain(on, title)]
        # 9 counts as 5, and none as 0; alike ones keep their order.
        same(found, [2, 6, 7, 1, 4, 3, 0, 5], "order")
        consumer = Consumer(on, title, auto_ack=True)
        publish(on, title, b"goes on", priority=2)
        same(consumer.wait(1)[0].properties.priority, 2, "the property")


@check
def the_highest_priority_goes_first_when_a_queue_is_full():
    for limit in [{"x-max-length": 3}, {"x-max-length-bytes": 6}]:
        with channel(confirms=True) as on:
            title = queue(on, {"x-max-priority": 5, **limit})
            for body, priority in [(b"l1", 1), (b"h1", 5), (b"m1", 3), (b"l2", 1), (b"l3", 1)]:
                publish(on, title, body, priority=priority)
            same(drain(on, title), [b"l1", b"l2", b"l3"], f"{limit}: what is left")


@check
def a_requeued_message_of_a_priority_keeps_it():
    with channel(confirms=True) as on:
        title = queue(on, {"x-max-priority": 2})
        publish(on, title, b"low", priority=0)
        publish(on, title, b"high", priority=2)
        held = get(on, title, auto_ack=False)
        same(held.body, b"high", "first")
        on.basic_nack(held.method.delivery_tag)
        same(drain(on, title), [b"high", b"low"], "after it is back")


@check
def single_active_consumer():
    with channel() as one, channel() as two, channel(confirms=True) as out:
        title = name("queue")
        out.queue_declare(title, arguments={"x-single-active-consumer": True})
        first, second = Consumer(one, title), Consumer(two, title)
        publish(out, title, *[b"%d" % n for n in range(10)])
        first.wait(10)
        pump(two)
        same(second.got, [], "the second waits")
        first.ack(first.got[4], multiple=True)
        pump(one, seconds=0.1)
        one.connection.close()
        second.wait(5)
        same(second.bodies, [b"5", b"6", b"7", b"8", b"9"], "what the first held, in order")
        same({got.method.redelivered for got in second.got}, {True}, "redelivered")
        publish(out, title, b"new")
        same(second.wait(6)[5].body, b"new", "the second is active")
        with refused(403, "ACCESS_REFUSED"), channel() as other:
            other.basic_consume(title, print, exclusive=True)
        out.queue_delete(title)


@check
def a_higher_priority_takes_over_from_the_single_active_consumer_of_a_quorum_queue_only():
    for kind in ["classic", "quorum"]:
        with channel() as out, channel() as first, channel() as second:
            title = name("queue")
            out.queue_declare(title, durable=True, arguments={
                "x-single-active-consumer": True, "x-queue-type": kind})
            low = Consumer(first, title)
            publish(out, title, b"1", b"2")
            low.wait(2)
            high = Consumer(second, title, arguments={"x-priority": 5})
            pump(second)

            def bodies():
                return low.bodies, high.bodies

            publish(out, title, b"3")
            found = {"classic": [b"1", b"2", b"3"], "quorum": [b"1", b"2"]}[kind]
            settled(bodies, (found, []), f"{kind}: while the first one holds some", first, second)
            first.basic_ack(0, multiple=True)
            publish(out, title, b"4")
            expected = {
                "classic": ([b"1", b"2", b"3", b"4"], []), "quorum": (found, [b"3", b"4"])}[kind]
            settled(bodies, expected, f"{kind}: afterwards", first, second)
            out.queue_delete(title)


@check
def queue_types():
    with channel() as on:
        queue(on, {"x-queue-type": "classic"})
        queue(on, {"x-queue-mode": "lazy"})
        title = queue(on, {"x-queue-type": "quorum"}, durable=True, exclusive=False)
        publish(on, title, b"quorum", delivery_mode=PERSISTENT)
        same(get(on, title).body, b"quorum", "body")
        on.queue_delete(title)
    for wrong in [dict(durable=False), dict(durable=True, exclusive=True)]:
        with refused(406, "PRECONDITION_FAILED"), channel() as on:
            on.queue_declare(name("queue"), arguments={"x-queue-type": "quorum"}, **wrong)


@check
def a_delivery_limit():
    with channel() as on:
        through, dead = dead_letters(on)
        arguments = {"x-queue-type": "quorum", "x-delivery-limit": 2,
                     "x-dead-letter-exchange": through}
        title = queue(on, arguments, durable=True, exclusive=False)
        publish(on, title, b"poison", delivery_mode=PERSISTENT)
        for attempt in range(3):
            got = get(on, title, auto_ack=False)
            headers = got.properties.headers or {}
            same(headers.get("x-delivery-count", 0), attempt, "x-delivery-count")
            on.basic_nack(got.method.delivery_tag)
        got = get(on, dead)
        same((got.body, death(got)["reason"]), (b"poison", "delivery_limit"), "the dead letter")
        on.queue_delete(title)


main()
