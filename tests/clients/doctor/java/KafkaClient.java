import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.AppInfoParser;

/** Kafka's Java client: it waits for each message, with a linger or without, or does not wait. */
final class KafkaClient {
    private KafkaClient() {}

    private static Properties properties(Map<String, String> more) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", System.getenv("CLOVERLEAF_KAFKA"));
        properties.putAll(more);
        return properties;
    }

    private static KafkaProducer<byte[], byte[]> producer(Map<String, String> settings) {
        ByteArraySerializer serializer = new ByteArraySerializer();
        return new KafkaProducer<>(properties(settings), serializer, serializer);
    }

    private static void oneByOne(Map<String, String> settings) throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = producer(settings)) {
            Kit.every(0, () -> producer.send(new ProducerRecord<>("java", Kit.BODY)).get());
        }
    }

    private static void good() throws Exception {
        Thread consumer = Kit.beside(KafkaClient::consume);
        List<Future<?>> sent = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = producer(Map.of("client.id", "good"))) {
            Kit.every(3, () -> sent.add(producer.send(new ProducerRecord<>("good-java", Kit.BODY))));
        }
        for (Future<?> future : sent) {
            future.get();
        }
        consumer.join();
    }

    private static void consume() throws Exception {
        Map<String, String> settings =
                Map.of("client.id", "good", "group.id", "good-java", "auto.offset.reset", "earliest");
        ByteArrayDeserializer deserializer = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(properties(settings), deserializer, deserializer)) {
            consumer.subscribe(List.of("good-java"));
            Kit.every(0, () -> Kit.saw(consumer.poll(Duration.ofMillis(500)).count()));
        }
        Kit.untilOverAndSeen();
    }

    public static void main(String[] words) throws Exception {
        Map<String, Kit.Behaviour> behaviours = Map.of(
                // Not the 5 ms of its default: to wake its threads takes as long on a busy machine.
                "linger", () -> oneByOne(Map.of("linger.ms", "25")),
                "sync-produce", () -> oneByOne(Map.of("linger.ms", "0", "client.id", "sync-produce")),
                "good", KafkaClient::good);
        Kit.main("apache-kafka-java", AppInfoParser.getVersion(), behaviours, words);
    }
}
