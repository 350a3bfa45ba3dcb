"""Exchanges: which queues a message reaches, and what may be declared, bound and deleted."""

import pika

from kit import (
    PERSISTENT, Consumer, channel, check, connected, count, drain, exchange, get, main, name,
    publish, pump, queue, refused, same, until_refused, wait_for,
)


@check
def default_exchange_reaches_the_queue_of_the_key():
    with channel() as on:
        title = queue(on)
        publish(on, title, b"one", b"two")
        same([get(on, title).body, get(on, title).body], [b"one", b"two"], "bodies")
        got = on.basic_get(title)
        same(got, (None, None, None), "an empty queue")


@check
def each_built_in_exchange_is_there():
    kinds = {"amq.direct": "direct", "amq.fanout": "fanout", "amq.topic": "topic",
             "amq.headers": "headers", "amq.match": "headers"}
    with channel() as on:
        for title, kind in kinds.items():
            on.exchange_declare(title, passive=True)
            on.exchange_declare(title, kind, durable=True)


@check
def direct_exchange():
    with channel() as on:
        through = exchange(on, "direct")
        first, second = queue(on), queue(on)
        on.queue_bind(first, through, "a")
        on.queue_bind(first, through, "b")
        on.queue_bind(second, through, "b")
        for key in ["a", "b", "c"]:
            publish(on, key, key.encode(), through=through)
        same(drain(on, first), [b"a", b"b"], "keys of the first")
        same(drain(on, second), [b"b"], "keys of the second")
        on.queue_unbind(first, through, "b")
        publish(on, "b", b"again", through=through)
        same((drain(on, first), drain(on, second)), ([], [b"again"]), "after an unbind")


@check
def two_bindings_of_one_queue_give_one_copy():
    with channel() as on:
        through = exchange(on, "topic")
        title = queue(on)
        for pattern in ["#", "a.*", "a.b", "*.b"]:
            on.queue_bind(title, through, pattern)
        publish(on, "a.b", b"once", through=through)
        same(drain(on, title), [b"once"], "copies")


@check
def fanout_exchange():
    with channel() as on:
        through = exchange(on, "fanout")
        titles = [queue(on) for _ in range(5)]
        for title in titles:
            on.queue_bind(title, through, name("ignored"))
        publish(on, "anything", b"all", through=through)
        for title in titles:
            same(get(on, title).body, b"all", title)


@check
def topic_exchange():
    patterns = {
        "#": 8, "*": 1, "*.*": 2, "a.#": 5, "a.*": 1, "a.#.c": 3, "#.c": 3, "*.b.*": 1, "": 1,
        "a.*.c": 1, "#.#": 8, "b.#": 1,
    }
    keys = ["", "a", "a.b", "a.b.c", "a.b.b.c", "a.c.", "b.c", "c..d"]
    with channel() as on:
        through = exchange(on, "topic")
        titles = {pattern: queue(on) for pattern in patterns}
        for pattern, title in titles.items():
            on.queue_bind(title, through, pattern)
        for key in keys:
            publish(on, key, key.encode(), through=through)
        found = {pattern: [b.decode() for b in drain(on, t)] for pattern, t in titles.items()}
        same(found["*"], ["a"], "*")
        same(found["#"], keys, "#")
        same(found["#.#"], keys, "#.#")
        same(found["a.#"], ["a", "a.b", "a.b.c", "a.b.b.c", "a.c."], "a.#")
        same(found["a.#.c"], ["a.b.c", "a.b.b.c"], "a.#.c")
        same(found["#.c"], ["a.b.c", "a.b.b.c", "b.c"], "#.c")
        same(found["a.*"], ["a.b"], "a.*")
        same(found["*.*"], ["a.b", "b.c"], "*.*")
        same(found["*.b.*"], ["a.b.c"], "*.b.*")
        same(found[""], [""], "no word")


@check
def headers_exchange():
    with channel() as on:
        through = exchange(on, "headers")
        cases = {
            "all": {"x-match": "all", "a": "1", "n": 7},
            "default": {"a": "1", "n": 7},
            "any": {"x-match": "any", "a": "1", "n": 7},
            "exists": {"x-match": "all", "a": None},
            "with-x": {"x-match": "all-with-x", "x-a": "1"},
            "any-with-x": {"x-match": "any-with-x", "x-a": "1", "n": 7},
            "without-x": {"x-match": "all", "x-a": "9", "a": "1"},
        }
        titles = {case: queue(on) for case in cases}
        for case, arguments in cases.items():
            on.queue_bind(titles[case], through, "", arguments)
        publish(on, "", b"both", through=through, headers={"a": "1", "n": 7})
        publish(on, "", b"one", through=through, headers={"a": "1", "n": 8})
        publish(on, "", b"other", through=through, headers={"a": "2"})
        publish(on, "", b"x", through=through, headers={"x-a": "1"})
        publish(on, "", b"none", through=through)
        found = {case: drain(on, title) for case, title in titles.items()}
        same(found, {
            "all": [b"both"], "default": [b"both"], "any": [b"both", b"one"],
            "exists": [b"both", b"one", b"other"], "with-x": [b"x"],
            "any-with-x": [b"both", b"x"], "without-x": [b"both", b"one"],
        }, "what each binding lets through")


@check
def exchange_to_exchange_bindings():
    with channel() as on:
        first, second = exchange(on, "topic"), exchange(on, "fanout")
        title = queue(on)
        on.queue_bind(queue(on), first, "keeps.it")
        on.exchange_bind(second, first, "a.#")
        on.queue_bind(title, second)
        publish(on, "a.b", b"through", through=first)
        publish(on, "b", b"not", through=first)
        same(drain(on, title), [b"through"], "through both")
        # A circle ends, and gives one copy.
        on.exchange_bind(first, second)
        publish(on, "a.b", b"round", through=first)
        same(drain(on, title), [b"round"], "in a circle")
        on.exchange_unbind(second, first, "a.#")
        publish(on, "a.b", b"cut", through=first)
        same(drain(on, title), [], "after the unbind")


@check
def alternate_exchange():
    with channel(confirms=True) as on:
        other = exchange(on, "fanout")
        main_one = exchange(on, "direct", arguments={"alternate-exchange": other})
        found, lost = queue(on), queue(on)
        on.queue_bind(found, main_one, "known")
        on.queue_bind(lost, other)
        publish(on, "known", b"known", through=main_one)
        # It has been routed, so that a mandatory message is not returned.
        on.basic_publish(main_one, "unknown", b"unknown", mandatory=True)
        same(drain(on, found), [b"known"], "routed")
        got = get(on, lost)
        same((got.body, got.method.exchange, got.method.routing_key),
             (b"unknown", main_one, "unknown"), "what the alternate exchange got")


@check
def carbon_copies():
    with channel() as on:
        through = exchange(on, "direct")
        titles = [queue(on) for _ in range(4)]
        for title in titles[:3]:
            on.queue_bind(title, through, title)
        to, copy, blind, _ = titles
        headers = {"CC": [copy], "BCC": [blind], "h": "1"}
        publish(on, to, b"copies", through=through, headers=headers)
        for title in titles[:3]:
            got = get(on, title)
            same(got.properties.headers, {"CC": [copy], "h": "1"}, "headers: BCC is taken out")
            same(got.method.routing_key, to, "the key is the message's own")
    with refused(406, "invalid message"), channel() as on:
        publish(on, queue(on), b"wrong", headers={"CC": "not a list"})
        until_refused(on)


@check
def internal_exchange_takes_no_publishes():
    with channel() as on:
        inner, outer = exchange(on, "fanout", internal=True), exchange(on, "fanout")
        title = queue(on)
        on.exchange_bind(inner, outer)
        on.queue_bind(title, inner)
        publish(on, "", b"through", through=outer)
        same(get(on, title).body, b"through", "by way of another")
        with refused(403, f"cannot publish to internal exchange '{inner}' in vhost '/'"):
            publish(on, "", b"directly", through=inner)
            until_refused(on)


@check
def an_exchange_is_declared_again_only_as_it_is():
    with connected() as connection:
        on = connection.channel()
        title = exchange(on, "direct", durable=True)
        on.queue_bind(queue(on), title, "keep")
        on.exchange_declare(title, "direct", durable=True, auto_delete=True)
        on.exchange_declare(title, passive=True)
        for changed, text in [
            (dict(exchange_type="fanout", durable=True, auto_delete=True),
             "received 'fanout' but current is 'direct'"),
            (dict(exchange_type="direct", durable=False, auto_delete=True),
             "received 'false' but current is 'true'"),
            (dict(exchange_type="direct", durable=True, auto_delete=False),
             "received 'false' but current is 'true'"),
        ]:
            with refused(406, f"inequivalent arg '{argument(changed)}' for exchange '{title}'",
                         text):
                connection.channel().exchange_declare(title, **changed)


def argument(changed):
    if changed["exchange_type"] != "direct":
        return "type"
    return "auto_delete" if changed["durable"] else "durable"


@check
def what_may_not_be_declared():
    with refused(403, "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'"):
        with channel() as on:
            on.exchange_declare("amq.mine", "direct")
    with refused(404, "NOT_FOUND - no exchange 'missing' in vhost '/'"), channel() as on:
        on.exchange_declare("missing", passive=True)
    with refused(403, "operation not permitted on the default exchange"), channel() as on:
        on.queue_bind(queue(on), "", "key")
    with refused(403, "ACCESS_REFUSED"), channel() as on:
        on.exchange_declare("", "direct")
    with refused(406, "unknown exchange type 'nonsense'"), channel() as on:
        on.exchange_declare(name("exchange"), "nonsense")


@check
def what_may_not_be_deleted():
    with refused(403, "ACCESS_REFUSED"), channel() as on:
        on.exchange_delete("amq.direct")
    with connected() as connection:
        on = connection.channel()
        title = exchange(on, "direct")
        on.queue_bind(queue(on), title, "key")
        with refused(406, f"PRECONDITION_FAILED - exchange '{title}' in vhost '/' in use"):
            connection.channel().exchange_delete(title, if_unused=True)
        on.exchange_delete(title)
        # It is no error to delete what is not there.
        on.exchange_delete(title)
        with refused(404, f"no exchange '{title}' in vhost '/'"):
            publish(on, "key", b"nowhere", through=title)
            until_refused(on)


@check
def bindings_of_what_is_not_there():
    with refused(404, "no exchange 'missing' in vhost '/'"), channel() as on:
        on.queue_bind(queue(on), "missing", "key")
    with refused(404, "no queue 'missing' in vhost '/'"), channel() as on:
        on.queue_bind("missing", "amq.direct", "key")
    with channel() as on:
        title = queue(on)
        # It is no error to take away a binding that is not there.
        on.queue_unbind(title, "amq.direct", "never bound")


@check
def auto_delete_exchange_goes_with_its_last_binding():
    with connected() as connection:
        on = connection.channel()
        title = exchange(on, "direct")
        one, two = queue(on), queue(on)
        on.queue_bind(one, title, "key")
        on.queue_bind(two, title, "key")
        on.queue_delete(one)
        on.exchange_declare(title, passive=True)
        on.queue_unbind(two, title, "key")
        with refused(404, "NOT_FOUND"):
            connection.channel().exchange_declare(title, passive=True)


@check
def a_deleted_queue_takes_its_bindings_along():
    with channel(confirms=True) as on:
        through = exchange(on, "fanout", auto_delete=False)
        title = name("queue")
        on.queue_declare(title)
        on.queue_bind(title, through)
        on.queue_delete(title)
        on.queue_declare(title)
        publish(on, "", b"not for the new one", through=through)
        same(count(on, title), 0, "messages of the new queue")
        on.queue_delete(title)
        on.exchange_delete(through)


@check
def mandatory_messages_without_a_queue_come_back():
    with channel() as on:
        through = exchange(on, "direct")
        on.queue_bind(queue(on), through, "known")
        returned = []
        on.add_on_return_callback(lambda _channel, *more: returned.append(more))
        properties = pika.BasicProperties(headers={"h": 1}, delivery_mode=PERSISTENT)
        on.basic_publish(through, "unknown", b"body", properties, mandatory=True)
        on.basic_publish(through, "unknown", b"dropped")
        on.basic_publish(through, "known", b"routed", mandatory=True)
        wait_for(lambda: pump(on, seconds=0.05) or returned, "the message comes back")
        pump(on)
        same(len(returned), 1, "messages that came back")
        method, properties, body = returned[0]
        same((method.reply_code, method.reply_text, method.exchange, method.routing_key),
             (312, "NO_ROUTE", through, "unknown"), "the return")
        same((properties.headers, properties.delivery_mode, body), ({"h": 1}, 2, b"body"),
             "the message")


@check
def a_return_comes_before_its_confirm():
    with channel(confirms=True) as on:
        try:
            on.basic_publish("", name("missing"), b"lost", mandatory=True)
        except pika.exceptions.UnroutableError as unroutable:
            same([m.body for m in unroutable.messages], [b"lost"], "what came back")
        else:
            raise AssertionError("it was not returned")
        # Without the flag it is confirmed and gone.
        on.basic_publish("", name("missing"), b"lost")


@check
def a_thousand_bindings():
    with channel() as on:
        through, title = exchange(on, "direct"), queue(on)
        for number in range(1000):
            on.queue_bind(title, through, f"key-{number}")
        consumer = Consumer(on, title, auto_ack=True)
        for number in range(0, 1000, 10):
            publish(on, f"key-{number}", b"%d" % number, through=through)
        consumer.wait(100)
        same(consumer.bodies, [b"%d" % n for n in range(0, 1000, 10)], "bodies")


main()
