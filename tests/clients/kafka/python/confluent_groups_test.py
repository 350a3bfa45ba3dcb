"""confluent-kafka (librdkafka): consumer groups. Runs with librdkafka 1.9 and with 2.x."""

import signal
import subprocess
import sys

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from confluent_kit import Member, consumer, create, produce_all, read, shared_evenly
from harness import PATIENCE_S, check, main, name, same, wait_for

# As long as the broker allows, and longer than a check waits: whoever leaves is not waited for, and
# whoever is slow is not taken for dead.
SESSION = {"session_timeout_ms": 1_800_000, "max_poll_interval_ms": 1_800_000,
           "heartbeat_interval_ms": 500}
# Of one that dies: Kafka's own lower bound.
MORTAL = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 500}


def committed(topic, group, partition=0):
    client = consumer(group_id=group)

    def ask():
        try:
            return client.committed([TopicPartition(topic, partition)], timeout=PATIENCE_S)
        except KafkaException as problem:
            # Kafka's coordinator starts with the first group of all.
            same(problem.args[0].code(), KafkaError.NOT_COORDINATOR, "error")

    found = wait_for(ask, "the coordinator answers")[0]
    client.close()
    return found.offset


@check
def a_group_of_one():
    topic, group = create(), name("group")
    produce_all(topic, [b"%d" % n for n in range(100)])
    same(committed(topic, group), OFFSET_INVALID, "before it has committed")
    client = consumer(group_id=group)
    client.subscribe([topic])
    same([m.value() for m in read(client, 60)], [b"%d" % n for n in range(60)], "first half")
    client.commit(offsets=[TopicPartition(topic, 0, 60)], asynchronous=False)
    client.close()
    same(committed(topic, group), 60, "committed")
    client = consumer(group_id=group)
    client.subscribe([topic])
    same([m.value() for m in read(client, 40)], [b"%d" % n for n in range(60, 100)], "the rest")
    client.close()


@check
def automatic_commits():
    topic, group = create(), name("group")
    produce_all(topic, [b"%d" % n for n in range(50)])
    client = consumer(group_id=group, enable_auto_commit=True, auto_commit_interval_ms=100)
    client.subscribe([topic])
    read(client, 50)
    wait_for(lambda: client.poll(0.05) is None and committed(topic, group) == 50, "committed")
    produce_all(topic, [b"more"])
    read(client, 1)
    client.close()
    same(committed(topic, group), 51, "committed by close")


@check
def metadata_of_a_commit():
    topic, group = create(), name("group")
    client = consumer(group_id=group)
    offset = TopicPartition(topic, 0, 7)
    try:
        offset = TopicPartition(topic, 0, 7, metadata="a note")
    except TypeError:
        pass  # librdkafka 1.x's binding has no metadata
    client.commit(offsets=[offset], asynchronous=False)
    found = client.committed([TopicPartition(topic, 0)], timeout=PATIENCE_S)[0]
    same(found.offset, 7, "offset")
    if hasattr(found, "metadata") and hasattr(offset, "metadata"):
        same(found.metadata, offset.metadata, "metadata")
    client.close()


@check
def two_members_share_and_hand_over():
    topic, group = create(partitions=6), name("group")
    first = Member([topic], group, **SESSION)
    wait_for(lambda: len(first.assigned) == 6, "the first has all")
    second = Member([topic], group, **SESSION)
    wait_for(lambda: shared_evenly([first, second], 6), "both have three")
    sent = [{"value": b"%d" % n, "partition": n % 6} for n in range(600)]
    produce_all(topic, sent)
    wait_for(lambda: len(first.values) + len(second.values) >= 600, "all has come")
    same(sorted(int(v) for v in first.values + second.values), list(range(600)), "values")
    second.stop()
    wait_for(lambda: len(first.assigned) == 6, "the first has all again")
    first.stop()


@check
def each_assignor():
    for strategy in ["range", "roundrobin", "cooperative-sticky"]:
        topics, group = [create(partitions=3), create(partitions=4)], name("group")
        settings = dict(SESSION, partition_assignment_strategy=strategy)
        members = [Member(topics, group, **settings) for _ in range(3)]

        def is_assigned():
            held = [p for member in members for p in member.assigned]
            return len(held) == len(set(held)) == 7 and all(m.assigned for m in members)

        wait_for(is_assigned, f"{strategy}: each has some")
        for member in members:
            member.stop()


@check
def cooperative_members_keep_what_they_have():
    topic, group = create(partitions=8), name("group")
    settings = dict(SESSION, partition_assignment_strategy="cooperative-sticky")
    first = Member([topic], group, **settings)
    wait_for(lambda: len(first.assigned) == 8, "the first has all")
    second = Member([topic], group, **settings)
    wait_for(lambda: shared_evenly([first, second], 8), "both have four")
    revoked = sum(count for kind, count in first.events if kind == "revoke")
    same(revoked, 4, "partitions taken from the first")
    same([e for e in first.events if e[0] == "lost"], [], "partitions lost")
    second.stop()
    wait_for(lambda: len(first.assigned) == 8, "the first has all again")
    first.stop()


@check
def a_member_that_dies():
    topic, group = create(partitions=4), name("group")
    settings = ["--dies", topic, group]
    other = subprocess.Popen(
        [sys.executable, __file__, *settings], stdout=subprocess.PIPE, text=True)
    try:
        same(other.stdout.readline().strip(), "has 4", "what the other process says")
        survivor = Member([topic], group, **SESSION)
        wait_for(lambda: len(survivor.assigned) == 2, "both have two")
    finally:
        # With it alive, whoever reads what this program prints would wait for its end, too.
        other.kill()
        other.wait()
    wait_for(lambda: len(survivor.assigned) == 4, "the survivor has all")
    survivor.stop()


@check
def a_member_that_dies_in_a_rebalance():
    topic, group = create(partitions=4), name("group")
    survivor = Member([topic], group, **SESSION)
    wait_for(lambda: len(survivor.assigned) == 4, "the first has all")

    def revokes():
        return sum(kind == "revoke" for kind, _ in survivor.events)

    for _ in range(3):
        # The rebalance of the turn before may go on; this turn is about the next one.
        wait_for(lambda: survivor.events[-1][0] == "assign", "the survivor has its part")
        before = revokes()
        other = subprocess.Popen(
            [sys.executable, __file__, "--dies", topic, group], stdout=subprocess.PIPE, text=True)
        try:
            wait_for(lambda: revokes() > before, "the rebalance has begun")
        finally:
            other.kill()
            other.wait()
    wait_for(lambda: len(survivor.assigned) == 4, "the survivor has all")
    survivor.stop()


@check
def a_member_that_stops_polling():
    topic, group = create(partitions=2), name("group")
    idle = consumer(group_id=group, max_poll_interval_ms=6000, **MORTAL)
    idle.subscribe([topic])
    wait_for(lambda: idle.poll(0.1) is None and len(idle.assignment()) == 2, "it has both")
    other = Member([topic], group, **SESSION)
    # The idle one leaves by itself, as it knows that it is late.
    wait_for(lambda: len(other.assigned) == 2, "the other has both")
    message = wait_for(lambda: idle.poll(0.5), "an error has come")
    same(message.error().code(), KafkaError._MAX_POLL_EXCEEDED, "error")
    other.stop()
    idle.close()


@check
def static_members_come_back_without_a_rebalance():
    topic, group = create(partitions=4), name("group")
    stays = Member([topic], group, group_instance_id="stays", **SESSION)
    leaves = Member([topic], group, group_instance_id="comes-back", **SESSION)
    wait_for(lambda: shared_evenly([stays, leaves], 4), "both have two")
    had, events = set(leaves.assigned), list(stays.events)
    leaves.stop()
    back = Member([topic], group, group_instance_id="comes-back", **SESSION)
    wait_for(lambda: back.assigned, "it is back")
    same(back.assigned, had, "what it has")
    same(stays.events, events, "rebalances that the other saw")
    back.stop()
    stays.stop()


@check
def two_static_members_of_one_name():
    topic, group = create(partitions=2), name("group")
    first = consumer(group_id=group, group_instance_id="one", **SESSION)
    first.subscribe([topic])
    wait_for(lambda: first.poll(0.1) is None and first.assignment(), "the first has joined")
    second = Member([topic], group, group_instance_id="one", **SESSION)
    wait_for(lambda: len(second.assigned) == 2, "the second has taken its place")

    def fenced():
        try:
            message = first.poll(0.2)
        except KafkaException as problem:
            return problem.args[0]
        return message and message.error()

    same(wait_for(fenced, "the first is told").code(), KafkaError._FATAL, "error")
    first.close()
    second.stop()


@check
def a_commit_of_a_stranger_is_refused():
    topic, group = create(), name("group")
    member = Member([topic], group, **SESSION)
    wait_for(lambda: member.assigned, "it is assigned")
    stranger = consumer(group_id=group)
    try:
        stranger.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
        raise AssertionError("a commit without membership was taken while the group has members")
    except KafkaException as problem:
        same(problem.args[0].code(), KafkaError.UNKNOWN_MEMBER_ID, "error")
    stranger.close()
    member.stop()


@check
def subscription_by_pattern():
    prefix, group = name("pattern"), name("group")
    first = create(partitions=2, topic=f"{prefix}-a")
    member = Member([f"^{prefix}-.*"], group, **{"topic.metadata.refresh.interval.ms": 500})
    wait_for(lambda: member.assigned == {(first, 0), (first, 1)}, "the first topic")
    second = create(topic=f"{prefix}-b")
    wait_for(lambda: (second, 0) in member.assigned, "the second topic")
    member.stop()


@check
def new_partitions_reach_a_member():
    from confluent_kafka.admin import NewPartitions
    from confluent_kit import admin
    topic, group = create(partitions=1), name("group")
    member = Member([topic], group, **{"topic.metadata.refresh.interval.ms": 500})
    wait_for(lambda: len(member.assigned) == 1, "one partition")
    client = admin()
    for future in client.create_partitions([NewPartitions(topic, 3)]).values():
        future.result(timeout=PATIENCE_S)
    wait_for(lambda: len(member.assigned) == 3, "three partitions")
    produce_all(topic, [{"value": b"%d" % n, "partition": n} for n in range(3)])
    wait_for(lambda: sorted(member.values) == [b"0", b"1", b"2"], "messages of all three")
    member.stop()


@check
def twenty_members():
    topic, group = create(partitions=20), name("group")
    members = [Member([topic], group, **SESSION) for _ in range(20)]
    wait_for(lambda: shared_evenly(members, 20), "each has one")
    for member in members:
        member.is_over.set()
    for member in members:
        member.stop()


def die(topic, group):
    """A member in a process of its own, which is killed."""
    member = Member([topic], group, **MORTAL)
    wait_for(lambda: member.assigned, "it is assigned")
    print(f"has {len(member.assigned)}", flush=True)
    signal.pause()


if sys.argv[1:2] == ["--dies"]:
    die(*sys.argv[2:])
main()
