"""kafka-python: it waits for each message, or does not."""

import os

import kafka
from kafka import KafkaConsumer, KafkaProducer

import kit

BROKER = os.environ["CLOVERLEAF_KAFKA"]


@kit.behaviour
def sync_produce():
    producer = KafkaProducer(bootstrap_servers=BROKER)
    while not kit.is_over():
        producer.send("kafka-python", kit.BODY).get(timeout=10)
    producer.close()


@kit.behaviour
def good():
    topic = "good-kafka-python"
    settings = {"bootstrap_servers": BROKER, "client_id": "good"}

    def produce():
        producer = KafkaProducer(linger_ms=5, **settings)
        sent = [producer.send(topic, kit.BODY) for _ in kit.every(0.003)]
        for future in sent:
            future.get(timeout=10)
        producer.close()

    def consume():
        consumer = KafkaConsumer(topic, group_id=topic, auto_offset_reset="earliest", **settings)
        while not kit.is_over():
            kit.saw(*consumer.poll(timeout_ms=500).values())
        consumer.close()

    kit.together(produce, consume)


kit.say("kafka-python", kafka.__version__)
kit.main(receives=["good"])
