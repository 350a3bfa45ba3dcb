"""From another machine: the broker listens everywhere, and tells each client what it has reached."""

import confluent_kit
from harness import BROKER, PATIENCE_S, check, main, same


@check
def clients_elsewhere_are_told_the_address_that_they_have_reached():
    brokers = confluent_kit.admin().list_topics(timeout=PATIENCE_S).brokers.values()
    same([f"{b.host}:{b.port}" for b in brokers], [BROKER], "brokers")


@check
def clients_elsewhere_produce_and_consume():
    topic = confluent_kit.create(partitions=2)
    values = [b"%d" % number for number in range(200)]
    confluent_kit.produce_all(topic, values, enable_idempotence=True)
    client = confluent_kit.consumer()
    client.subscribe([topic])
    read = [m.value() for m in confluent_kit.read(client, len(values))]
    same(sorted(read), sorted(values), "values")
    client.commit(asynchronous=False)
    client.close()


main()
