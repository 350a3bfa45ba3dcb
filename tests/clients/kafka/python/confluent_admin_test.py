"""confluent-kafka's AdminClient: topics, partitions, configurations, records, groups, cluster."""

from confluent_kafka import (
    ConsumerGroupState, ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicCollection,
    TopicPartition)
from confluent_kafka.admin import (
    AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic, OffsetSpec,
    ResourceType)

from confluent_kit import KEPT, Member, admin, consumer, create, produce_all, read, read_topic
from harness import PATIENCE_S, check, main, name, same, wait_for


def done(futures):
    """The results of some futures, by key."""
    if isinstance(futures, dict):
        return {key: future.result(timeout=PATIENCE_S) for key, future in futures.items()}
    return futures.result(timeout=PATIENCE_S)


def refused(futures, code, what):
    for future in futures.values():
        try:
            future.result(timeout=PATIENCE_S)
        except KafkaException as problem:
            error = problem.args[0]
            same(error.name(), KafkaError(code).name(), what)
            return error.str()
        raise AssertionError(f"{what}: not refused")


def config(topic):
    client = admin()
    resource = ConfigResource(ResourceType.TOPIC, topic)
    return list(done(client.describe_configs([resource])).values())[0]


def alter(client, topic, *entries):
    entries = [ConfigEntry(key, value, incremental_operation=operation)
               for key, value, operation in entries]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    return client.incremental_alter_configs([resource])


def listed(client, topic=None):
    return client.list_topics(topic, timeout=PATIENCE_S)


def ends(client, topic):
    """The first and the next offset of partition 0."""
    return client.get_watermark_offsets(TopicPartition(topic, 0), timeout=PATIENCE_S)


@check
def topics_are_made_and_deleted():
    client = admin()
    topics = [name() for _ in range(3)]
    done(client.create_topics([NewTopic(topic, num_partitions=3) for topic in topics]))
    wait_for(lambda: set(topics) <= set(listed(client).topics), "they are there")
    found = listed(client, topics[0]).topics[topics[0]]
    same(sorted(found.partitions), [0, 1, 2], "partitions")
    same([p.replicas for p in found.partitions.values()], [[1]] * 3, "replicas")
    again = client.create_topics([NewTopic(topics[0], 1)])
    refused(again, KafkaError.TOPIC_ALREADY_EXISTS, "twice")
    refused(client.create_topics([NewTopic("no good!", 1)]), KafkaError.TOPIC_EXCEPTION, "name")
    refused(client.create_topics([NewTopic(name(), 0)]), KafkaError.INVALID_PARTITIONS, "none")
    done(client.delete_topics(topics))
    wait_for(lambda: not set(topics) & set(listed(client).topics), "they are gone")
    refused(client.delete_topics([name()]), KafkaError.UNKNOWN_TOPIC_OR_PART, "an unknown one")


@check
def validate_only_makes_nothing():
    client, topic = admin(), name()
    done(client.create_topics([NewTopic(topic, 1)], validate_only=True))
    same(topic in listed(client).topics, False, "made")


@check
def topics_are_described():
    client, topic = admin(), create(partitions=2)
    found = done(client.describe_topics(TopicCollection([topic])))[topic]
    same(found.name, topic, "name")
    same([(p.id, p.leader.id, len(p.isr)) for p in found.partitions], [(0, 1, 1), (1, 1, 1)], "p")
    same(found.is_internal, False, "internal")
    assert found.topic_id is not None


@check
def partitions_are_added():
    client, topic = admin(), create(partitions=2)
    produce_all(topic, [{"value": b"before", "partition": 1}])
    done(client.create_partitions([NewPartitions(topic, 5)]))
    wait_for(lambda: len(listed(client, topic).topics[topic].partitions) == 5, "5")
    produce_all(topic, [{"value": b"after", "partition": 4}])
    got = {m.value() for m in read_topic(topic, 2, partitions=5)}
    same(got, {b"before", b"after"}, "messages")
    less = client.create_partitions([NewPartitions(topic, 3)])
    refused(less, KafkaError.INVALID_PARTITIONS, "fewer")
    unknown = client.create_partitions([NewPartitions(name(), 3)])
    refused(unknown, KafkaError.UNKNOWN_TOPIC_OR_PART, "an unknown topic")


@check
def configurations_of_a_new_topic():
    settings = {"retention.ms": "3600000", "cleanup.policy": "compact", "min.insync.replicas": "1"}
    topic = create(**settings)
    found = config(topic)
    same(found["retention.ms"].value, "3600000", "retention.ms")
    same(found["cleanup.policy"].value, "compact", "cleanup.policy")
    same(found["retention.ms"].is_default, False, "is default")
    same(found["max.message.bytes"].value, "1048588", "max.message.bytes")
    same(found["max.message.bytes"].is_default, True, "is default")
    for key in ["retention.bytes", "segment.bytes", "compression.type", "message.timestamp.type",
                "delete.retention.ms", "min.compaction.lag.ms", "segment.ms", "flush.ms"]:
        assert key in found, f"{key} is not described"
    client = admin()
    for key, value in [("no.such.setting", "1"), ("retention.ms", "soon"), ("segment.bytes", "1"),
                       ("cleanup.policy", "burn"), ("compression.type", "rar")]:
        new = NewTopic(name(), 1, config={key: value})
        refused(client.create_topics([new]), KafkaError.INVALID_CONFIG, f"{key}={value}")


@check
def configurations_are_changed_one_by_one():
    client, topic = admin(), create(**{"retention.ms": "3600000"})
    done(alter(client, topic, ("max.message.bytes", "5000", AlterConfigOpType.SET)))
    wait_for(lambda: config(topic)["max.message.bytes"].value == "5000", "it is set")
    same(config(topic)["retention.ms"].value, "3600000", "the other one")
    done(alter(client, topic, ("cleanup.policy", "compact", AlterConfigOpType.APPEND)))
    wait_for(lambda: config(topic)["cleanup.policy"].value == "delete,compact", "appended")
    done(alter(client, topic, ("cleanup.policy", "compact", AlterConfigOpType.SUBTRACT)))
    wait_for(lambda: config(topic)["cleanup.policy"].value == "delete", "subtracted")
    done(alter(client, topic, ("max.message.bytes", None, AlterConfigOpType.DELETE)))
    wait_for(lambda: config(topic)["max.message.bytes"].value == "1048588", "the default again")
    bad = alter(client, topic, ("retention.ms", "soon", AlterConfigOpType.SET))
    refused(bad, KafkaError.INVALID_CONFIG, "a value that is none")
    unknown = alter(client, name(), ("retention.ms", "1000", AlterConfigOpType.SET))
    refused(unknown, KafkaError.UNKNOWN_TOPIC_OR_PART, "an unknown topic")


@check
def configurations_are_replaced():
    topic = create(**{"retention.ms": "3600000", "max.message.bytes": "7000"})
    client = admin()
    resource = ConfigResource(ResourceType.TOPIC, topic, set_config={"retention.ms": "7200000"})
    done(client.alter_configs([resource]))
    wait_for(lambda: config(topic)["retention.ms"].value == "7200000", "it is set")
    same(config(topic)["max.message.bytes"].value, "1048588", "what was not named")


@check
def configurations_of_the_broker():
    client = admin()
    resource = ConfigResource(ResourceType.BROKER, "1")
    found = list(done(client.describe_configs([resource])).values())[0]
    for key in ["log.retention.ms", "num.partitions", "message.max.bytes",
                "auto.create.topics.enable"]:
        assert key in found, f"{key} is not described"
    same(found["message.max.bytes"].value, "1048588", "message.max.bytes")


@check
def replication_that_many_programs_ask_for():
    # Kafka on one node refuses it; we take it, and describe the one replica that there is.
    client, topic = admin(), name()
    new = NewTopic(topic, 1, replication_factor=3, config={"min.insync.replicas": "2"})
    try:
        done(client.create_topics([new]))
    except KafkaException as problem:
        same(problem.args[0].code(), KafkaError.INVALID_REPLICATION_FACTOR, "error")
        return
    produce_all(topic, [b"x"], acks="all")
    same(listed(client, topic).topics[topic].partitions[0].isrs, [1], "replicas")


@check
def records_are_deleted():
    client, topic = admin(), create()
    produce_all(topic, [b"%d" % n for n in range(10)])
    done(client.delete_records([TopicPartition(topic, 0, 6)]))
    reader = consumer()
    same(ends(reader, topic), (6, 10), "ends")
    reader.close()
    same([m.offset() for m in read_topic(topic, 4)], [6, 7, 8, 9], "what is left")
    done(client.delete_records([TopicPartition(topic, 0, -1)]))
    reader = consumer()
    same(ends(reader, topic), (10, 10), "ends")
    reader.close()
    beyond = client.delete_records([TopicPartition(topic, 0, 500)])
    refused(beyond, KafkaError.OFFSET_OUT_OF_RANGE, "beyond the end")


@check
def offsets_are_listed():
    client, topic = admin(), create(**KEPT)
    base = 1_700_000_000_000
    stamps = [5, 9, 7, 1]
    produce_all(topic, [{"value": b"x", "timestamp": base + n} for n in stamps])
    partition = TopicPartition(topic, 0)

    def at(spec):
        return done(client.list_offsets({partition: spec}))[partition].offset

    same(at(OffsetSpec.earliest()), 0, "earliest")
    same(at(OffsetSpec.latest()), 4, "latest")
    same(at(OffsetSpec.max_timestamp()), 1, "the largest timestamp")
    same(at(OffsetSpec.for_timestamp(base + 6)), 1, "the first one at or after a time")


@check
def groups_are_listed_described_and_deleted():
    client, topic, group = admin(), create(partitions=2), name("group")
    produce_all(topic, [b"x"])
    member = Member([topic], group, client_id="its-client", enable_auto_commit=True)
    wait_for(lambda: len(member.assigned) == 2, "it is assigned")
    listed = {g.group_id: g for g in done(client.list_consumer_groups()).valid}
    same(listed[group].state, ConsumerGroupState.STABLE, "state in the list")
    found = done(client.describe_consumer_groups([group]))[group]
    same(found.state, ConsumerGroupState.STABLE, "state")
    same(found.partition_assignor, "range", "assignor")
    same([m.client_id for m in found.members], ["its-client"], "members")
    assigned = sorted(p.partition for p in found.members[0].assignment.topic_partitions)
    same(assigned, [0, 1], "assignment")
    same(found.coordinator.id, 1, "coordinator")
    busy = client.delete_consumer_groups([group])
    refused(busy, KafkaError.NON_EMPTY_GROUP, "deleting a group with members")
    wait_for(lambda: member.values, "it has the message")
    member.stop()
    same(done(client.describe_consumer_groups([group]))[group].state, ConsumerGroupState.EMPTY, "e")
    only = client.list_consumer_groups(states={ConsumerGroupState.EMPTY})
    assert group in {g.group_id for g in done(only).valid}, "not among the empty ones"
    done(client.delete_consumer_groups([group]))
    assert group not in {g.group_id for g in done(client.list_consumer_groups()).valid}
    unknown = client.delete_consumer_groups([name("group")])
    refused(unknown, KafkaError.GROUP_ID_NOT_FOUND, "an unknown group")


@check
def offsets_of_a_group_are_changed():
    client, topic, group = admin(), create(partitions=2), name("group")
    produce_all(topic, [{"value": b"%d" % n, "partition": 0} for n in range(10)])
    wanted = [TopicPartition(topic, 0, 4), TopicPartition(topic, 1, 0)]
    done(client.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, wanted)]))
    found = done(client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]))[group]
    offsets = sorted((p.partition, p.offset) for p in found.topic_partitions)
    same(offsets, [(0, 4), (1, 0)], "offsets")
    reader = consumer(group_id=group)
    reader.subscribe([topic])
    same(read(reader, 1)[0].value(), b"4", "where the group goes on")
    busy = client.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, wanted)])
    codes = [p.error.code() for p in done(busy)[group].topic_partitions]
    same(codes, [KafkaError.UNKNOWN_MEMBER_ID] * 2, "errors while the group has a member")
    reader.close()


@check
def the_cluster_is_described():
    client = admin()
    found = done(client.describe_cluster())
    same([node.id for node in found.nodes], [1], "nodes")
    same(found.controller.id, 1, "controller")
    assert found.cluster_id, "no cluster id"
    same(listed(client).cluster_id, found.cluster_id, "cluster id of Metadata")


main()
