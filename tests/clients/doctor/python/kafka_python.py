"""kafka-python: it waits for each message, or does not."""

import os

import kafka
from kafka import KafkaConsumer, KafkaProducer

import kit

BROKER = os.environ["CLOVERLEAF_KAFKA"]


@kit.behaviour
def sync_produce():
    time, producer = kit.Time(), KafkaProducer(bootstrap_servers=BROKER)
    while not time.is_over():
        producer.send("kafka-python", b"v" * 200).get(timeout=10)
    producer.close()


@kit.behaviour
def good():
    time = kit.Time()

    def produce():
        producer = KafkaProducer(bootstrap_servers=BROKER, client_id="good", linger_ms=5)
        sent = [producer.send("good-kafka-python", b"v" * 200) for _ in time.every(0.003)]
        for future in sent:
            future.get(timeout=10)
        producer.close()

    def consume():
        consumer = KafkaConsumer(
            "good-kafka-python",
            bootstrap_servers=BROKER,
            client_id="good",
            group_id="good-kafka-python",
            auto_offset_reset="earliest",
        )
        seen = 0
        while not time.is_over():
            seen += sum(len(records) for records in consumer.poll(timeout_ms=500).values())
        consumer.close()
        assert seen, "nothing came"

    kit.together(produce, consume)


kit.say("kafka-python", kafka.__version__)
kit.main()
