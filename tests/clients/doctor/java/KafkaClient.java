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

/** Kafka's Java client: it waits for each message and lingers meanwhile, or does not wait. */
final class KafkaClient {
    private static final byte[] VALUE = new byte[200];

    private KafkaClient() {}

    private static Properties properties(String... more) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", System.getenv("CLOVERLEAF_KAFKA"));
        for (int i = 0; i < more.length; i += 2) {
            properties.put(more[i], more[i + 1]);
        }
        return properties;
    }

    private static KafkaProducer<byte[], byte[]> producer(String... more) {
        ByteArraySerializer serializer = new ByteArraySerializer();
        return new KafkaProducer<>(properties(more), serializer, serializer);
    }

    private static void oneByOne(String... more) throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = producer(more)) {
            while (!Kit.isOver()) {
                producer.send(new ProducerRecord<>("java-" + more.length, VALUE)).get();
            }
        }
    }

    private static void good() throws Exception {
        Thread consumer = Kit.beside(KafkaClient::consume);
        List<Future<?>> sent = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = producer("client.id", "good")) {
            while (!Kit.isOver()) {
                sent.add(producer.send(new ProducerRecord<>("good-java", VALUE)));
                Thread.sleep(3);
            }
        }
        for (Future<?> future : sent) {
            future.get();
        }
        consumer.join();
    }

    private static void consume() {
        String[] settings = {"client.id", "good", "group.id", "good-java", "auto.offset.reset", "earliest"};
        ByteArrayDeserializer deserializer = new ByteArrayDeserializer();
        long seen = 0;
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(properties(settings), deserializer, deserializer)) {
            consumer.subscribe(List.of("good-java"));
            while (!Kit.isOver()) {
                seen += consumer.poll(Duration.ofMillis(500)).count();
            }
        }
        if (seen == 0) {
            throw new IllegalStateException("nothing came");
        }
    }

    public static void main(String[] words) throws Exception {
        Kit.say("apache-kafka-java", AppInfoParser.getVersion());
        Map<String, Kit.Behaviour> behaviours = Map.of(
                // Not the 5 ms of its default: to wake its threads takes as long on a busy machine.
                "linger", () -> oneByOne("linger.ms", "25"),
                "sync-produce", () -> oneByOne("linger.ms", "0", "client.id", "sync-produce"),
                "good", KafkaClient::good);
        Kit.main(behaviours, words[0]);
    }
}
