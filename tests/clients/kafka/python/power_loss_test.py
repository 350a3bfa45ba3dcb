"""A power loss: what was not synced is gone, and everybody reaches the end all the same.

usage: power_loss_test.py ADDRESS -- COMMAND...   the command that runs the broker

The broker is killed, the newest batches are taken from its file, and it starts again in what it
takes for another boot of the machine.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import harness
from harness import PATIENCE_S, Skip, check, main, same, wait_for

harness.BROKER, command = sys.argv[1], sys.argv[3:]
del sys.argv[1:]

import confluent_kit  # noqa: E402  (after the address is known)
from confluent_kafka import KafkaError, KafkaException, TopicPartition  # noqa: E402
from own_broker import Broker  # noqa: E402

confluent_kit.BROKER = harness.BROKER
BOOT_ID = "/proc/sys/kernel/random/boot_id"
PATIENT = {"reconnect.backoff.max.ms": 200, "retry.backoff.ms": 50}
AUTOMATIC = {"enable.auto.commit": True, "auto.commit.interval.ms": 50, **PATIENT}


class Machine:
    """A broker whose machine can lose power."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.boots = 0
        self.boot = Path(self.folder.name) / "boot_id"
        self.data = Path(next(a for a in command if a.startswith("--data-dir=")).partition("=")[2])
        self.broker = Broker(["unshare", "--map-root-user", "--mount", "sh", "-c",
                              f'mount --bind "$0" {BOOT_ID} && exec "$@"', self.boot, *command])

    def __enter__(self):
        self.boot.write_text("0")
        probe = [*self.broker.command[:7], "true"]
        if subprocess.run(probe, stderr=subprocess.DEVNULL).returncode != 0:
            raise Skip("this machine gives nobody another boot id")
        self.start()
        return self

    def __exit__(self, *_):
        self.broker.kill()
        self.folder.cleanup()

    def start(self):
        self.boots += 1
        self.boot.write_text(f"00000000-0000-0000-0000-{self.boots:012}\n")
        self.broker.start()

    def lose_power(self, topic, messages):
        """Of a topic with a message in each batch, what is behind so many messages is lost."""
        self.broker.written()
        self.broker.kill()
        files = [path for path in self.data.glob("topics/*/0/*.log")
                 if topic.encode() in path.read_bytes()]
        same(len(files), 1, "files of the topic")
        bytes_ = files[0].read_bytes()
        at = 0
        for _ in range(messages):
            at += 12 + int.from_bytes(bytes_[at + 8:at + 12], "big")
        assert any(bytes_[at:]), "there is nothing to lose"
        files[0].write_bytes(bytes_[:at] + bytes(len(bytes_) - at))
        self.start()


def produce(topic, count):
    for _ in range(count):
        confluent_kit.produce_all(topic, [{"value": topic.encode()}])


def watermarks(topic):
    client = confluent_kit.consumer(**PATIENT)
    found = client.get_watermark_offsets(TopicPartition(topic, 0), timeout=PATIENCE_S)
    client.close()
    return found


def lag(topic, group):
    """As an exporter has it: two numbers of the broker, subtracted."""
    client = confluent_kit.consumer(group_id=group, **PATIENT)

    def committed():
        try:
            return client.committed([TopicPartition(topic, 0)], timeout=PATIENCE_S)
        except KafkaException:
            return None  # Kafka listens before it is the group's coordinator

    offset = wait_for(committed, "the coordinator answers")[0].offset
    client.close()
    return watermarks(topic)[1] - offset


def read_to_the_end(topic, start, group=None):
    """As `kcat -e` does: until the partition's end is told. With a group, as its member."""
    settings = {"enable.partition.eof": True, **PATIENT}
    if group:
        client = confluent_kit.consumer(group_id=group, **{**AUTOMATIC, **settings})
        client.subscribe([topic])
    else:
        client = confluent_kit.consumer(**settings)
        client.assign([TopicPartition(topic, 0, start)])
    count = 0
    while True:
        message = client.poll(PATIENCE_S)
        assert message is not None, f"no end after {count} messages; {confluent_kit.stored(client)}"
        if message.error() is None:
            count += 1
        elif message.error().code() == KafkaError._PARTITION_EOF:
            break
    client.close()
    return count


@check
def everybody_reaches_the_end():
    with Machine() as machine:
        topic = confluent_kit.create()
        idle, half, ahead = (harness.name("group") for _ in range(3))
        produce(topic, 20)
        same(read_to_the_end(topic, 0, idle), 20, "what the idle group has read")
        client = confluent_kit.consumer(group_id=half)
        client.commit(offsets=[TopicPartition(topic, 0, 10)], asynchronous=False)
        client.close()
        produce(topic, 5)
        # This one reads what will be lost, and lives on.
        member = confluent_kit.Member([topic], ahead, **AUTOMATIC)
        try:
            wait_for(lambda: len(member.values) == 25, "the member has read all")
            wait_for(lambda: lag(topic, ahead) == 0, "the member has committed")
            machine.lose_power(topic, 20)
            for _ in range(2):
                same(watermarks(topic), (0, 20), "start and end")
                same(read_to_the_end(topic, 0), 20, "messages from the start")
                same(read_to_the_end(topic, 20), 0, "messages from the end")
                lags = [lag(topic, group) for group in (idle, half, ahead)]
                same(lags, [0, 10, 0], "what the groups are behind")
                machine.broker.stop()
                machine.broker.start()
            produce(topic, 1)
            wait_for(lambda: len(member.values) == 26, "the member has the new message")
            wait_for(lambda: lag(topic, ahead) == 0, "the member has committed it")
        finally:
            member.stop()
        end = watermarks(topic)[1]
        assert end > 1 << 24, f"the end is {end}: offsets may have been used twice"
        same(lag(topic, idle), 1, "what the idle group is behind")
        same(read_to_the_end(topic, 0, idle), 1, "what is new to the idle group")
        same(read_to_the_end(topic, 0, half), 11, "what is new to the group that was behind")
        same([lag(topic, group) for group in (idle, half)], [0, 0], "what they are behind")


main()
