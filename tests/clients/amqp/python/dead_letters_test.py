"""Dead letters: why, from where, how often, and that they do not go round for ever."""

import time

from kit import (
    PATIENCE_S, Consumer, channel, check, count, drain, exchange, get, main, name, publish, pump,
    queue, same, settled, wait_for,
)


def bound(on, through, key=""):
    title = queue(on)
    on.queue_bind(title, through, key)
    return title


@check
def further_routing_keys_are_followed_unless_the_queue_has_one():
    with channel() as on:
        through = exchange(on, "direct")
        copy, blind = bound(on, through, "copy"), bound(on, through, "blind")
        for more, copies in [({}, 1), ({"x-dead-letter-routing-key": "copy"}, 0)]:
            title = queue(on, {"x-dead-letter-exchange": through, **more})
            publish(on, title, b"m", headers={"CC": ["copy"], "BCC": ["blind"]})
            on.basic_reject(get(on, title, auto_ack=False).method.delivery_tag, requeue=False)
            got = get(on, copy)
            same(got.properties.headers["x-death"][0]["routing-keys"], [title, "copy"], "keys")
            settled(lambda: count(on, blind), copies, f"{more}: blind copies", on)
            assert all("BCC" not in got.properties.headers
                       for got in [get(on, blind) for _ in range(copies)])


@check
def rejected():
    with channel() as on:
        through = exchange(on, "direct")
        dead = bound(on, through, "key")
        title = queue(on, {"x-dead-letter-exchange": through})
        on.queue_bind(title, "amq.direct", "key")
        headers = {"h": "1"}
        publish(on, "key", b"1", b"2", b"3", through="amq.direct", headers=headers, priority=4,
                content_type="text/plain", message_id="m")
        held = [get(on, title, auto_ack=False) for _ in range(3)]
        on.basic_reject(held[0].method.delivery_tag, requeue=False)
        on.basic_nack(held[2].method.delivery_tag, multiple=True, requeue=False)
        letters = [get(on, dead) for _ in range(3)]
        same([got.body for got in letters], [b"1", b"2", b"3"], "in order")
        got = letters[0]
        same((got.method.exchange, got.method.routing_key), (through, "key"), "by way of")
        properties = got.properties
        same((properties.content_type, properties.message_id, properties.priority),
             ("text/plain", "m", 4), "properties")
        headers = properties.headers
        same({k: v for k, v in headers.items() if k != "x-death"}, {
            "h": "1", "x-first-death-exchange": "amq.direct", "x-first-death-queue": title,
            "x-first-death-reason": "rejected", "x-last-death-exchange": "amq.direct",
            "x-last-death-queue": title, "x-last-death-reason": "rejected",
        }, "headers")
        entry = dict(headers["x-death"][0])
        when = entry.pop("time").timestamp()
        # pika gives a time of UTC without its zone.
        zone = time.timezone if time.daylight == 0 else time.altzone
        assert abs(when - zone - time.time()) < 60 or abs(when - time.time()) < 60, when
        same(entry, {"count": 1, "reason": "rejected", "queue": title, "exchange": "amq.direct",
                     "routing-keys": ["key"]}, "x-death")


@check
def with_a_key_of_their_own():
    with channel() as on:
        through = exchange(on, "direct")
        dead = bound(on, through, "dead")
        title = queue(on, {"x-dead-letter-exchange": through, "x-dead-letter-routing-key": "dead"})
        publish(on, title, b"body", headers={"CC": ["elsewhere"]})
        on.basic_reject(get(on, title, auto_ack=False).method.delivery_tag, requeue=False)
        got = get(on, dead)
        same((got.body, got.method.routing_key), (b"body", "dead"), "the letter")
        entry = got.properties.headers["x-death"][0]
        same(entry["routing-keys"], [title, "elsewhere"], "the keys that it came with")
        same(got.properties.headers["CC"], ["elsewhere"], "CC is kept, and leads nowhere")


@check
def through_the_default_exchange():
    with channel() as on:
        dead = queue(on)
        title = queue(on, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
        publish(on, title, b"body")
        on.basic_reject(get(on, title, auto_ack=False).method.delivery_tag, requeue=False)
        same(get(on, dead).body, b"body", "the letter")


@check
def to_an_exchange_that_is_not_there_they_are_gone():
    with channel() as on:
        title = queue(on, {"x-dead-letter-exchange": name("missing")})
        publish(on, title, b"body", b"next")
        on.basic_reject(get(on, title, auto_ack=False).method.delivery_tag, requeue=False)
        same(drain(on, title), [b"next"], "the queue goes on")


@check
def deaths_of_one_kind_are_counted():
    with channel() as on:
        first, second = name("queue"), name("queue")
        queue(on, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": second}, queue=first)
        queue(on, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": first}, queue=second)
        publish(on, first, b"body")
        for turn in range(3):
            for title in [first, second]:
                got = get(on, title, auto_ack=False)
                on.basic_reject(got.method.delivery_tag, requeue=False)
        got = get(on, first)
        deaths = got.properties.headers["x-death"]
        # The newest comes first; each queue has one entry.
        same([(d["queue"], d["count"], d["reason"]) for d in deaths],
             [(second, 3, "rejected"), (first, 3, "rejected")], "x-death")
        headers = got.properties.headers
        same((headers["x-first-death-queue"], headers["x-last-death-queue"]), (first, second),
             "first and last")


@check
def a_circle_without_a_rejection_ends():
    with channel() as on:
        first, second = name("queue"), name("queue")
        again = {"x-dead-letter-exchange": "", "x-message-ttl": 50}
        queue(on, {**again, "x-dead-letter-routing-key": second}, queue=first)
        queue(on, {**again, "x-dead-letter-routing-key": first}, queue=second)
        publish(on, first, b"body")
        # Who asks one queue after the other may miss it on its way: so they have to stay empty.
        deadline, empty_since = time.monotonic() + PATIENCE_S, time.monotonic()
        while time.monotonic() < empty_since + 1:
            left = count(on, first), count(on, second)
            if left != (0, 0):
                empty_since = time.monotonic()
            assert time.monotonic() < deadline, f"it has not gone: {left}"
            pump(on, seconds=0.02)


@check
def retry_with_a_delay():
    """What many do: rejected ones wait in a queue with a time to live and come back."""
    with channel() as on:
        work, wait = name("queue"), name("queue")
        queue(on, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": wait}, queue=work)
        queue(on, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": work,
                   "x-message-ttl": 200}, queue=wait)
        consumer = Consumer(on, work)
        publish(on, work, b"job")
        for attempt in range(4):
            got = consumer.wait(attempt + 1)[attempt]
            deaths = (got.properties.headers or {}).get("x-death", [])
            rejected = [d["count"] for d in deaths if d["reason"] == "rejected"]
            same(rejected, [attempt] if attempt else [], "attempts so far")
            on.basic_reject(got.method.delivery_tag, requeue=False)
        consumer.wait(5)


@check
def many_at_once():
    with channel(confirms=True) as on:
        through = exchange(on, "fanout")
        dead = bound(on, through)
        title = queue(on, {"x-dead-letter-exchange": through})
        sent = [b"%d" % n for n in range(2000)]
        with channel() as out:
            publish(out, title, *sent)
            same(out.connection.is_open, True, "the publisher goes on")
        consumer = Consumer(on, title)
        got = consumer.wait(2000)
        on.basic_nack(got[-1].method.delivery_tag, multiple=True, requeue=False)
        wait_for(lambda: count(on, dead) == 2000, "all are there")
        same(drain(on, dead), sent, "in order")


@check
def deleting_a_queue_buries_nobody():
    with channel() as on:
        through = exchange(on, "fanout")
        dead = bound(on, through)
        title = queue(on, {"x-dead-letter-exchange": through})
        publish(on, title, b"1")
        same(on.queue_purge(title).method.message_count, 1, "purged")
        publish(on, title, b"2")
        on.queue_delete(title)
        pump(on)
        same(drain(on, dead), [], "dead letters")


main()
