"""Consumers: windows, acknowledgements, order, redeliveries, cancellations, basic.get, recover."""

import threading

import admin
from kit import (
    ORIGINAL, PATIENCE_S, Consumer, Skip, channel, check, connected, consumers, count, drain, get,
    main, name, parameters, pika, publish, pump, queue, refused, same, settled, until_refused,
    wait_for,
)


def numbers(*range_of):
    return [b"%d" % n for n in range(*range_of)]


@check
def messages_come_in_order():
    with channel(confirms=True) as on:
        title = queue(on)
        consumer = Consumer(on, title, auto_ack=True)
        with channel() as out:
            publish(out, title, *numbers(5000))
            consumer.wait(5000)
        same(consumer.bodies, numbers(5000), "bodies")
        tags = [got.method.delivery_tag for got in consumer.got]
        same(tags, list(range(1, 5001)), "delivery tags")
        same({got.method.redelivered for got in consumer.got}, {False}, "redelivered")
        same({got.method.consumer_tag for got in consumer.got}, {consumer.tag}, "consumer tag")


@check
def a_window_for_each_consumer():
    with channel() as on:
        title = queue(on)
        publish(on, title, *numbers(20))
        on.basic_qos(prefetch_count=3)
        one = Consumer(on, title)
        on.basic_qos(prefetch_count=5)
        two = Consumer(on, title)
        settled(lambda: (len(one.got), len(two.got)), (3, 5), "without an acknowledgement", on)
        one.ack(one.got[0])
        two.ack(two.got[1])
        settled(lambda: (len(one.got), len(two.got)), (4, 6), "one more each", on)
        on.basic_ack(0, multiple=True)
        settled(lambda: len(one.got) + len(two.got), 18,
                "all acknowledged, and the windows full again", on)


@check
def a_window_for_the_channel():
    with channel() as on:
        first, second = queue(on), queue(on)
        publish(on, first, *numbers(10))
        publish(on, second, *numbers(10))
        on.basic_qos(prefetch_count=4, global_qos=True)
        one, two = Consumer(on, first), Consumer(on, second)

        def both():
            return len(one.got) + len(two.got)

        settled(both, 4, "all consumers of the channel together", on)
        on.basic_ack(0, multiple=True)
        settled(both, 8, "and four more", on)
        # Both limits hold: a narrower one for each consumer.
        on.basic_qos(prefetch_count=1)
        third = queue(on)
        publish(on, third, *numbers(10))
        on.basic_cancel(one.tag)
        on.basic_cancel(two.tag)
        on.basic_ack(0, multiple=True)
        narrow = Consumer(on, third)
        settled(lambda: len(narrow.got), 1, "with a window of 1 of its own", on)


@check
def a_narrowed_and_a_lifted_window():
    with channel() as on:
        title = queue(on)
        publish(on, title, *numbers(50))
        on.basic_qos(prefetch_count=10, global_qos=True)
        consumer = Consumer(on, title)
        consumer.exactly(10)
        on.basic_qos(prefetch_count=0, global_qos=True)
        consumer.exactly(50)


@check
def messages_are_shared_evenly():
    with connected() as connection:
        on = connection.channel()
        title = queue(on)
        all_of_them = []
        for _ in range(4):
            other = connection.channel()
            other.basic_qos(prefetch_count=10)
            all_of_them.append(Consumer(other, title))
        publish(on, title, *numbers(40))
        settled(lambda: [len(consumer.got) for consumer in all_of_them], [10] * 4,
                "each one's share", on)


@check
def requeued_messages_take_their_old_place():
    with channel() as on:
        title = queue(on)
        publish(on, title, *numbers(6))
        held = [get(on, title, auto_ack=False) for _ in range(4)]
        on.basic_nack(held[2].method.delivery_tag)
        on.basic_reject(held[0].method.delivery_tag)
        found = [get(on, title, auto_ack=False) for _ in range(4)]
        same([got.body for got in found], [b"0", b"2", b"4", b"5"], "order")
        same([got.method.redelivered for got in found], [True, True, False, False], "redelivered")
        on.basic_nack(0, multiple=True)
        found = [get(on, title) for _ in range(6)]
        same([got.body for got in found], numbers(6), "all given back")
        same([got.method.redelivered for got in found], [True] * 6, "redelivered")


@check
def a_closed_channel_gives_back_what_it_holds():
    with connected() as connection:
        on, other = connection.channel(), connection.channel()
        title = queue(on)
        publish(on, title, *numbers(100))
        consumer = Consumer(other, title)
        consumer.wait(100)
        consumer.ack(consumer.got[10])
        consumer.ack(consumer.got[49])
        other.close()
        wait_for(lambda: count(on, title) == 98, "98 are back")
        expected = [body for n, body in enumerate(numbers(100)) if n not in (10, 49)]
        found = [get(on, title) for _ in range(98)]
        same([got.body for got in found], expected, "in order")
        same({got.method.redelivered for got in found}, {True}, "redelivered")


@check
def a_lost_connection_gives_back_what_it_holds():
    with channel() as on:
        title = name("queue")
        on.queue_declare(title)
        publish(on, title, *numbers(10))
        lost = pika.BlockingConnection(parameters())
        consumer = Consumer(lost.channel(), title)
        consumer.wait(10)
        # The socket is closed without a word.
        lost._impl._transport._sock.close()
        wait_for(lambda: count(on, title) == 10, "all are back")
        same(drain(on, title), numbers(10), "in order")
        on.queue_delete(title)


@check
def acknowledging_many_at_once():
    with channel() as on:
        title = queue(on)
        publish(on, title, *numbers(10))
        held = [get(on, title, auto_ack=False) for _ in range(10)]
        on.basic_ack(held[2].method.delivery_tag)
        on.basic_ack(held[6].method.delivery_tag, multiple=True)
        on.basic_nack(0, multiple=True)
        same(drain(on, title), numbers(7, 10), "left")
        # Nothing is held: "all" is nothing, and no error.
        on.basic_ack(0, multiple=True)
        same(count(on, title), 0, "left")


@check
def tags_that_are_not_known():
    for use in [
        lambda on: on.basic_ack(99),
        lambda on: on.basic_nack(99),
        lambda on: on.basic_reject(99),
        lambda on: on.basic_ack(99, multiple=True),
    ]:
        with refused(406, "PRECONDITION_FAILED - unknown delivery tag 99"), channel() as on:
            use(on)
            until_refused(on)
    with refused(406, "unknown delivery tag 1"), channel() as on:
        title = queue(on)
        publish(on, title, b"once")
        got = get(on, title, auto_ack=False)
        on.basic_ack(got.method.delivery_tag)
        on.basic_ack(got.method.delivery_tag)
        until_refused(on)


@check
def tags_belong_to_their_channel():
    with connected() as connection:
        one, two = connection.channel(), connection.channel()
        title = queue(one)
        publish(one, title, b"mine")
        got = get(one, title, auto_ack=False)
        with refused(406, "unknown delivery tag"):
            two.basic_ack(got.method.delivery_tag)
            until_refused(two)
        one.basic_ack(got.method.delivery_tag)
        same(count(one, title), 0, "left")


@check
def recover_gives_back_all():
    with channel() as on:
        title = queue(on)
        publish(on, title, *numbers(3))
        consumer = Consumer(on, title)
        consumer.wait(3)
        on.basic_recover(requeue=True)
        consumer.wait(6)
        same(consumer.bodies[3:], numbers(3), "once more")
        same([got.method.redelivered for got in consumer.got], [False] * 3 + [True] * 3,
             "redelivered")
        same([got.method.delivery_tag for got in consumer.got], [1, 2, 3, 4, 5, 6], "new tags")
    with refused(540, "NOT_IMPLEMENTED - requeue=false"), channel() as on:
        on.basic_recover(requeue=False)


@check
def basic_get():
    with channel(confirms=True) as on:
        title = queue(on)
        publish(on, title, *numbers(3))
        got = get(on, title, auto_ack=False)
        same((got.body, got.method.message_count, got.method.redelivered, got.method.exchange,
              got.method.routing_key), (b"0", 2, False, "", title), "the first")
        same(count(on, title), 2, "ready")
        consumer = Consumer(on, title)
        consumer.wait(2)
        same(on.basic_get(title), (None, None, None), "a consumer has the others")
        on.basic_nack(0, multiple=True)
        wait_for(lambda: pump(on, seconds=0.05) or len(consumer.got) == 5, "all come to it")
    with refused(404, "NOT_FOUND - no queue 'missing' in vhost '/'"), channel() as on:
        on.basic_get("missing")


@check
def cancelling_keeps_what_is_held():
    with channel() as on:
        title = queue(on)
        publish(on, title, *numbers(5))
        consumer = Consumer(on, title)
        got = list(consumer.wait(5))
        # pika gives back what it has not handed out; all was handed out.
        on.basic_cancel(consumer.tag)
        same((consumers(on, title), count(on, title)), (0, 0), "held still")
        consumer.ack(got[0])
        on.basic_nack(got[1].method.delivery_tag)
        same(get(on, title).body, b"1", "given back")
        publish(on, title, b"not for it")
        pump(on)
        same(len(consumer.got), 5, "nothing more comes to it")
        on.basic_cancel("never there")


@check
def consumer_tags():
    with channel() as on:
        title = queue(on)
        same(Consumer(on, title, consumer_tag="mine").tag, "mine", "the tag")
    with connected() as connection:
        on = connection.channel()
        title = queue(on)
        raw = on._impl
        with refused(530, "NOT_ALLOWED - attempt to reuse consumer tag 'twice'"):
            answers = []
            for _ in range(2):
                raw._consumers.pop("twice", None)
                raw.basic_consume(title, print, consumer_tag="twice", callback=answers.append)
                pump(on)
            until_refused(on)


@check
def exclusive_consumer():
    with connected() as connection:
        on = connection.channel()
        title = queue(on)
        Consumer(on, title, exclusive=True)
        text = f"ACCESS_REFUSED - queue '{title}' in vhost '/' in exclusive use"
        with refused(403, text):
            connection.channel().basic_consume(title, print)
        shared = queue(on)
        Consumer(on, shared)
        with refused(403, f"ACCESS_REFUSED - queue '{shared}' in vhost '/' in exclusive use"):
            connection.channel().basic_consume(shared, print, exclusive=True)


@check
def consumers_of_higher_priority_come_first():
    with connected() as connection:
        out = connection.channel()
        title = queue(out)
        found = {}
        for priority in [0, 10, 5]:
            on = connection.channel()
            on.basic_qos(prefetch_count=2)
            found[priority] = Consumer(on, title, arguments={"x-priority": priority})
        publish(out, title, *numbers(5))
        settled(lambda: {p: len(c.got) for p, c in found.items()}, {10: 2, 5: 2, 0: 1},
                "each one's share", out)


@check
def consumers_hear_that_their_queue_is_gone():
    with channel() as on, channel() as other:
        title = name("queue")
        on.queue_declare(title)
        cancelled = []
        on.add_on_cancel_callback(lambda method: cancelled.append(method.method.consumer_tag))
        consumer = Consumer(on, title)
        publish(on, title, b"held")
        consumer.wait(1)
        other.queue_delete(title)
        wait_for(lambda: pump(on, seconds=0.05) or cancelled, "it is told")
        same(cancelled, [consumer.tag], "cancelled consumers")
        # What it held can be acknowledged, though there is nobody to hear it.
        consumer.ack(consumer.got[0])
        same(on.queue_declare("", exclusive=True).method.message_count, 0, "the channel goes on")


@check
def channels_are_apart():
    with connected() as connection:
        channels = [connection.channel() for _ in range(50)]
        title = queue(channels[0])
        for number, on in enumerate(channels):
            publish(on, title, b"%d" % number)
        with refused(404, "NOT_FOUND"):
            channels[7].queue_declare("missing", passive=True)
        found = sorted(int(get(channels[8], title).body) for _ in channels)
        same(found, list(range(50)), "all messages")
        # The number is free again.
        again = connection.channel(channels[7].channel_number)
        publish(again, title, b"again")
        same(get(again, title).body, b"again", "a reused number")


@check
def direct_reply_to():
    with channel() as client, channel() as server:
        title = queue(server)
        requests = Consumer(server, title, auto_ack=True)
        replies = Consumer(client, "amq.rabbitmq.reply-to", auto_ack=True)
        for number in range(20):
            publish(client, title, b"%d" % number, reply_to="amq.rabbitmq.reply-to",
                    correlation_id=str(number))
        for got in requests.wait(20):
            to = got.properties.reply_to
            assert to.startswith("amq.rabbitmq.reply-to."), to
            publish(server, to, got.body + b"!", correlation_id=got.properties.correlation_id)
        found = [(got.properties.correlation_id, got.body) for got in replies.wait(20)]
        same(found, [(str(n), b"%d!" % n) for n in range(20)], "replies")
        same(server.queue_declare(to, passive=True).method.queue, to, "it can be asked for")
    # Nobody is there any more: a mandatory reply comes back.
    with channel(confirms=True) as on:
        try:
            on.basic_publish("", to, b"late", mandatory=True)
            raise AssertionError("it was not returned")
        except pika.exceptions.UnroutableError:
            pass
    with refused(406, "fast reply consumer does not exist"), channel() as on:
        publish(on, queue(on), b"x", reply_to="amq.rabbitmq.reply-to")
        until_refused(on)
    with refused(406, "reply consumer cannot acknowledge"), channel() as on:
        Consumer(on, "amq.rabbitmq.reply-to")


@check
def ten_consumers_on_ten_connections():
    """Each message to one of them, none lost, none twice."""
    title, total, found = name("queue"), 5000, []
    with channel(confirms=True) as out:
        out.queue_declare(title)
        stop, lock = threading.Event(), threading.Lock()

        def work():
            with channel() as on:
                on.basic_qos(prefetch_count=20)

                def handle(_channel, method, _properties, body):
                    with lock:
                        found.append(int(body))
                    on.basic_ack(method.delivery_tag)

                on.basic_consume(title, handle)
                while not stop.is_set():
                    on.connection.process_data_events(time_limit=0.05)

        workers = [threading.Thread(target=work, daemon=True) for _ in range(10)]
        for worker in workers:
            worker.start()
        with channel() as fast:
            publish(fast, title, *numbers(total))
        wait_for(lambda: len(found) >= total, "all have come")
        stop.set()
        for worker in workers:
            worker.join(PATIENCE_S)
        same(sorted(found), list(range(total)), "each of them once")
        same(count(out, title), 0, "left")
        out.queue_delete(title)


@check
def a_command_while_it_runs_changes_who_gets_what():
    if ORIGINAL:
        raise Skip("RabbitMQ has one policy")
    with connected() as connection:
        out = connection.channel()
        title = name("queue")
        out.queue_declare(title)
        admin.set_dispatch(title, "fill-first")
        all_of_them = []
        for _ in range(2):
            on = connection.channel()
            on.basic_qos(prefetch_count=10)
            all_of_them.append(Consumer(on, title))
        publish(out, title, *numbers(12))
        settled(lambda: sorted(len(consumer.got) for consumer in all_of_them), [2, 10],
                "fill-first", out)
        out.queue_delete(title)


main()
