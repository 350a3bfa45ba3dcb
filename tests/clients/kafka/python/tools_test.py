"""Kafka's own command line tools, as their shell scripts run them. KAFKA_JARS is their folder."""

import os
import re
import subprocess
import tempfile
from pathlib import Path

from harness import BROKER, PATIENCE_S, check, main, name, same

CLASS_PATH = os.path.join(os.environ["KAFKA_JARS"], "*")
TOOLS = {
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-e2e-latency": "org.apache.kafka.tools.EndToEndLatency",
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
}


def run(tool, *arguments, text="", fails=False, with_errors=True):
    """What a tool has printed."""
    command = ["java", "-Xmx256M", "-XX:TieredStopAtLevel=1", "-cp", CLASS_PATH, TOOLS[tool]]
    address = ["--bootstrap-server", BROKER]
    # This one wants its verb first.
    command += [*arguments, *address] if tool == "kafka-cluster" else [*address, *arguments]
    result = subprocess.run(command, input=text, text=True, capture_output=True, timeout=PATIENCE_S)
    printed = result.stdout + result.stderr
    # Some end with 0 after an error.
    failed = result.returncode != 0 or "Exception" in printed
    assert failed == fails, f"{tool} {arguments}: {result.returncode}\n{printed[-2000:]}"
    return printed if with_errors else result.stdout


def create(partitions=1, **config):
    topic = name()
    settings = [word for key, value in config.items() for word in ("--config", f"{key}={value}")]
    run("kafka-topics", "--create", "--topic", topic, "--partitions", str(partitions), *settings)
    return topic


def produce(topic, lines, *arguments):
    text = "".join(f"{line}\n" for line in lines)
    run("kafka-console-producer", "--topic", topic, *arguments, text=text)


def consume(topic, count, *arguments):
    limits = ["--max-messages", str(count), "--timeout-ms", "60000"]
    return run("kafka-console-consumer", "--topic", topic, "--from-beginning", *limits, *arguments,
               with_errors=False).splitlines()


@check
def kafka_topics():
    topic = create(partitions=3, **{"retention.ms": "3600000"})
    assert topic in run("kafka-topics", "--list").split()
    text = run("kafka-topics", "--describe", "--topic", topic)
    assert "PartitionCount: 3" in text and "retention.ms=3600000" in text, text
    same(len(re.findall(r"Leader: 1\s+Replicas: 1\s+Isr: 1", text)), 3, "partitions described")
    run("kafka-topics", "--alter", "--topic", topic, "--partitions", "5")
    assert "PartitionCount: 5" in run("kafka-topics", "--describe", "--topic", topic)
    again = run("kafka-topics", "--create", "--topic", topic, fails=True)
    assert "already exists" in again, again
    run("kafka-topics", "--create", "--if-not-exists", "--topic", topic)
    run("kafka-topics", "--delete", "--topic", topic)
    assert topic not in run("kafka-topics", "--list").split()


@check
def console_producer_to_console_consumer():
    topic = create()
    lines = [f"line {n}" for n in range(200)]
    produce(topic, lines)
    same(consume(topic, 200), lines, "lines")


@check
def console_with_keys_headers_and_compression():
    topic = create()
    produce(topic, ["h:1\tk1\tv1", "h:2\tk2\tv2"], "--reader-property", "parse.key=true",
            "--reader-property", "parse.headers=true", "--compression-codec", "zstd")
    shown = consume(topic, 2, "--formatter-property", "print.key=true",
                    "--formatter-property", "print.headers=true",
                    "--formatter-property", "print.offset=true")
    same(shown, ["Offset:0\th:1\tk1\tv1", "Offset:1\th:2\tk2\tv2"], "messages")


@check
def kafka_configs():
    topic = create()
    entity = ["--entity-type", "topics", "--entity-name", topic]
    run("kafka-configs", "--alter", *entity, "--add-config",
        "retention.ms=123456,max.message.bytes=99999")
    text = run("kafka-configs", "--describe", *entity)
    assert "retention.ms=123456" in text and "max.message.bytes=99999" in text, text
    run("kafka-configs", "--alter", *entity, "--delete-config", "retention.ms")
    assert "retention.ms" not in run("kafka-configs", "--describe", *entity)
    assert "retention.ms=604800000" in run("kafka-configs", "--describe", "--all", *entity)
    broker = ["--entity-type", "brokers", "--entity-name", "1", "--describe", "--all"]
    assert "message.max.bytes=1048588" in run("kafka-configs", *broker)


@check
def kafka_consumer_groups():
    topic, group = create(), name("group")
    produce(topic, [str(n) for n in range(30)])
    consume(topic, 30, "--group", group)
    assert group in run("kafka-consumer-groups", "--list").split()
    assert "Empty" in run("kafka-consumer-groups", "--describe", "--group", group, "--state")

    def rows():
        text = run("kafka-consumer-groups", "--describe", "--group", group)
        cells = [x.split() for x in text.splitlines() if x.startswith(group)]
        # Group, topic, partition, and from 4.x on the leader's epoch; then offset, end and lag.
        ends = [[n for n in row[3:] if n.lstrip("-").isdigit()][-3:] for row in cells]
        return {int(row[2]): end for row, end in zip(cells, ends)}

    same(sum(int(offset) for offset, _, _ in rows().values()), 30, "offsets")
    reset = ["--reset-offsets", "--group", group, "--topic", topic, "--execute"]
    run("kafka-consumer-groups", *reset, "--to-earliest")
    same(sum(int(lag) for _, _, lag in rows().values()), 30, "lag after a reset to the earliest")
    run("kafka-consumer-groups", *reset, "--to-latest")
    same(sum(int(lag) for _, _, lag in rows().values()), 0, "lag after a reset to the latest")
    run("kafka-consumer-groups", *reset, "--shift-by", "-2")
    same(sum(int(lag) for _, _, lag in rows().values()), 2, "lag after a shift by -2")
    run("kafka-consumer-groups", *reset, "--to-datetime", "2000-01-01T00:00:00.000")
    same(sum(int(lag) for _, _, lag in rows().values()), 30, "lag after a reset to a time")
    run("kafka-consumer-groups", "--delete-offsets", "--group", group, "--topic", topic)
    run("kafka-consumer-groups", "--delete", "--group", group)
    assert group not in run("kafka-consumer-groups", "--list").split()


@check
def kafka_get_offsets_and_delete_records():
    topic = create()
    produce(topic, [str(n) for n in range(50)])
    offsets = ["--topic", topic, "--time"]
    same(run("kafka-get-offsets", *offsets, "-1").split()[-1], f"{topic}:0:50", "latest")
    with tempfile.TemporaryDirectory() as folder:
        wish = Path(folder, "wish.json")
        wish.write_text('{"partitions": [{"topic": "%s", "partition": 0, "offset": 20}],'
                        ' "version": 1}' % topic)
        text = run("kafka-delete-records", "--offset-json-file", str(wish))
    assert "low_watermark: 20" in text, text
    same(run("kafka-get-offsets", *offsets, "-2").split()[-1], f"{topic}:0:20", "earliest")
    # Several have the newest millisecond; the first of them is the answer.
    newest = run("kafka-get-offsets", *offsets, "max-timestamp").split()[-1]
    assert newest.startswith(f"{topic}:0:") and 20 <= int(newest.rpartition(":")[2]) < 50, newest


@check
def kafka_get_offsets_when_all_records_are_deleted():
    topic = create()
    produce(topic, [str(n) for n in range(5)])
    with tempfile.TemporaryDirectory() as folder:
        wish = Path(folder, "wish.json")
        wish.write_text('{"partitions": [{"topic": "%s", "partition": 0, "offset": -1}],'
                        ' "version": 1}' % topic)
        run("kafka-delete-records", "--offset-json-file", str(wish))
    # Kafka may name a message that was deleted; we name none.
    rows = run("kafka-get-offsets", "--topic", topic, "--time", "-3").split()
    assert all(row.startswith(f"{topic}:0:") for row in rows) and len(rows) <= 1, rows


@check
def topics_are_described_in_pages():
    topic = create(partitions=3, **{"min.insync.replicas": "1"})
    text = run("kafka-topics", "--describe", "--topic", topic,
               "--partition-size-limit-per-response", "2")
    assert "PartitionCount: 3" in text and "min.insync.replicas=1" in text, text
    # Without DescribeTopicPartitions it would say N/A.
    same(len(re.findall(r"Elr: +\tLastKnownElr:", text)), 3, "partitions described")


@check
def what_there_is_not():
    assert "No partition reassignments found" in run("kafka-reassign-partitions", "--list")
    assert "No Authorizer is configured" in run("kafka-acls", "--list", fails=True)
    same(run("kafka-client-metrics", "--list", with_errors=False).split(), [], "metrics")
    clients = ["--describe", "--entity-type", "clients"]
    same(run("kafka-configs", *clients, with_errors=False).split(), [], "quotas")


@check
def kafka_configs_of_groups():
    topic, group = create(), name("group")
    groups = ["--describe", "--entity-type", "groups", "--entity-name"]
    assert "doesn't exist" in run("kafka-configs", *groups, group)
    produce(topic, ["a message"])
    consume(topic, 1, "--group", group)
    text = run("kafka-configs", *groups, group)
    same(text.split(), f"Dynamic configs for group {group} are:".split(), "configs")


@check
def kafka_log_dirs_and_cluster():
    topic = create(partitions=2)
    produce(topic, ["x" * 1000] * 10)
    text = run("kafka-log-dirs", "--describe", "--topic-list", topic)
    assert f"{topic}-0" in text and f"{topic}-1" in text, text
    assert re.search(r"Cluster ID: \S+", run("kafka-cluster", "cluster-id"))
    text = run("kafka-broker-api-versions")
    assert "Produce(0): 0 to " in text and "isFenced: false" in text, text


@check
def performance_tools():
    topic = create()
    text = run("kafka-producer-perf-test", "--topic", topic, "--num-records", "20000",
               "--record-size", "100", "--throughput", "-1", "--command-property", "acks=all")
    assert "20000 records sent" in text, text
    text = run("kafka-consumer-perf-test", "--topic", topic, "--num-records", "20000",
               "--timeout", "60000")
    same(text.splitlines()[-1].split(", ")[4], "20000", "records consumed")
    text = run("kafka-e2e-latency", "--topic", create(), "--num-records", "200",
               "--producer-acks", "all", "--record-size", "100")
    assert "Avg latency" in text, text


@check
def verifiable_producer():
    topic = create()
    text = run("kafka-verifiable-producer", "--topic", topic, "--max-messages", "1000",
               "--acks", "-1")
    assert '"acked":1000' in text.replace(" ", ""), text[-500:]
    same(len(consume(topic, 1000)), 1000, "messages")


main()
