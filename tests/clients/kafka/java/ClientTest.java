// Kafka's Java client: produce, consume, groups, administration.
//
// The address comes from the environment: KAFKA, and KAFKA_TLS with KAFKA_TLS_CA.
// Prints `ok NAME` or `not ok NAME: WHY` per check; the exit status is 1 when one failed.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public final class ClientTest {
    private static final String BROKER = System.getenv("KAFKA");
    private static final String TLS = System.getenv().getOrDefault("KAFKA_TLS", "");
    private static final Duration POLL = Duration.ofMillis(100);
    /** Only what hangs takes so long; a machine that is slow and busy does not decide. */
    private static final long CHECK_S_MAX = 1800;
    private static int numbers;

    interface Check {
        void run() throws Exception;
    }

    public static void main(String[] words) {
        Map<String, Check> checks = new java.util.LinkedHashMap<>();
        checks.put("produce and consume", ClientTest::produceAndConsume);
        checks.put("keys, headers and tombstones", ClientTest::keysHeadersAndTombstones);
        checks.put("each compression and each acks", ClientTest::eachCompressionAndEachAcks);
        checks.put("eight partitions", ClientTest::eightPartitions);
        checks.put("a record that is too large", ClientTest::tooLarge);
        checks.put("seek, offsets and times", ClientTest::seekOffsetsAndTimes);
        checks.put("a group commits and goes on", ClientTest::commits);
        checks.put("members share, cooperatively", () -> share(true));
        checks.put("members share, eagerly", () -> share(false));
        checks.put("administration", ClientTest::administration);
        checks.put("many topics in one fetch session", ClientTest::manyTopicsInOneSession);
        if (!TLS.isEmpty()) {
            checks.put("TLS", ClientTest::tls);
        }
        boolean failed = false;
        ExecutorService thread = Executors.newCachedThreadPool(task -> {
            Thread daemon = new Thread(task);
            daemon.setDaemon(true);
            return daemon;
        });
        for (Map.Entry<String, Check> entry : checks.entrySet()) {
            Callable<Void> run = () -> {
                entry.getValue().run();
                return null;
            };
            try {
                thread.submit(run).get(CHECK_S_MAX, TimeUnit.SECONDS);
                System.out.println("ok " + entry.getKey());
            } catch (Exception problem) {
                failed = true;
                Throwable cause = problem.getCause() == null ? problem : problem.getCause();
                cause.printStackTrace();
                String why = String.valueOf(cause).replaceAll("\\s+", " ");
                System.out.println("not ok " + entry.getKey() + ": " + why);
            }
        }
        System.exit(failed ? 1 : 0);
    }

    static String name() {
        return "java-" + ProcessHandle.current().pid() + "-" + numbers++;
    }

    static void same(Object found, Object expected, String what) {
        if (!expected.equals(found)) {
            throw new AssertionError(what + ": expected " + expected + ", found " + found);
        }
    }

    static Map<String, Object> settings(Map<String, Object> more) {
        Map<String, Object> all = new HashMap<>();
        all.put("bootstrap.servers", BROKER);
        all.put("key.serializer", StringSerializer.class);
        all.put("value.serializer", StringSerializer.class);
        all.put("key.deserializer", StringDeserializer.class);
        all.put("value.deserializer", StringDeserializer.class);
        all.put("auto.offset.reset", "earliest");
        all.put("enable.auto.commit", false);
        all.put("request.timeout.ms", 120_000);
        all.put("delivery.timeout.ms", 600_000);
        all.putAll(more);
        return all;
    }

    static Admin admin() {
        return Admin.create(Map.of("bootstrap.servers", BROKER));
    }

    static String create(int partitions, Map<String, String> config) throws Exception {
        String topic = name();
        NewTopic wanted = new NewTopic(topic, Optional.of(partitions), Optional.empty());
        try (Admin admin = admin()) {
            admin.createTopics(List.of(wanted.configs(config))).all().get();
            // Kafka answers before it knows the topic everywhere.
            until(() -> admin.listTopics().names().get().contains(topic), "it is listed");
        }
        return topic;
    }

    static List<RecordMetadata> produce(
            List<ProducerRecord<String, String>> records, Map<String, Object> more)
            throws Exception {
        try (Producer<String, String> producer = new KafkaProducer<>(settings(more))) {
            List<Future<RecordMetadata>> futures = new ArrayList<>();
            for (ProducerRecord<String, String> record : records) {
                futures.add(producer.send(record));
            }
            List<RecordMetadata> reports = new ArrayList<>();
            for (Future<RecordMetadata> future : futures) {
                reports.add(future.get());
            }
            return reports;
        }
    }

    static List<ProducerRecord<String, String>> numbered(String topic, int count) {
        List<ProducerRecord<String, String>> records = new ArrayList<>();
        for (int n = 0; n < count; n++) {
            records.add(new ProducerRecord<>(topic, String.valueOf(n)));
        }
        return records;
    }

    static List<ConsumerRecord<String, String>> read(Consumer<String, String> from, int count) {
        List<ConsumerRecord<String, String>> records = new ArrayList<>();
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(600);
        while (records.size() < count) {
            from.poll(POLL).forEach(records::add);
            if (System.nanoTime() > deadline) {
                throw new AssertionError(records.size() + " of " + count + " records have come");
            }
        }
        return records;
    }

    static List<ConsumerRecord<String, String>> readTopic(
            String topic, int partitions, int count, Map<String, Object> more) {
        try (Consumer<String, String> consumer = new KafkaConsumer<>(settings(more))) {
            List<TopicPartition> all = new ArrayList<>();
            for (int n = 0; n < partitions; n++) {
                all.add(new TopicPartition(topic, n));
            }
            consumer.assign(all);
            consumer.seekToBeginning(all);
            return read(consumer, count);
        }
    }

    static void roundTrip(Map<String, Object> producing, Map<String, Object> consuming)
            throws Exception {
        String topic = create(1, Map.of());
        produce(numbered(topic, 1000), producing);
        List<ConsumerRecord<String, String>> records = readTopic(topic, 1, 1000, consuming);
        for (int n = 0; n < 1000; n++) {
            same(records.get(n).value(), String.valueOf(n), "record " + n);
            same(records.get(n).offset(), (long) n, "offset");
        }
    }

    static void produceAndConsume() throws Exception {
        roundTrip(Map.of(), Map.of());
    }

    static void keysHeadersAndTombstones() throws Exception {
        String topic = create(1, Map.of());
        ProducerRecord<String, String> record = new ProducerRecord<>(topic, "k", "v");
        record.headers().add("h", "1".getBytes(StandardCharsets.UTF_8));
        record.headers().add("null", null);
        produce(List.of(record, new ProducerRecord<>(topic, "k", null)), Map.of());
        List<ConsumerRecord<String, String>> records = readTopic(topic, 1, 2, Map.of());
        same(records.get(0).headers(), record.headers(), "headers");
        same(records.get(0).key(), "k", "key");
        same(records.get(1).value() == null, true, "tombstone");
    }

    static void eachCompressionAndEachAcks() throws Exception {
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            for (String acks : List.of("0", "1", "all")) {
                boolean idempotent = acks.equals("all");
                roundTrip(Map.of("compression.type", codec, "acks", acks, "linger.ms", 5,
                        "enable.idempotence", idempotent), Map.of());
            }
        }
    }

    static void eightPartitions() throws Exception {
        String topic = create(8, Map.of());
        List<ProducerRecord<String, String>> records = new ArrayList<>();
        for (int n = 0; n < 8000; n++) {
            records.add(new ProducerRecord<>(topic, "k" + n % 100, String.valueOf(n)));
        }
        // Kafka refuses a moment long what comes to a new partition. When it takes a producer's
        // second batch and not its first, that one can never be stored in order: so one by one.
        for (int n = 0; n < 8; n++) {
            produce(List.of(new ProducerRecord<>(topic, n, null, "first")), Map.of());
        }
        produce(records, Map.of());
        Map<String, Integer> last = new HashMap<>();
        for (ConsumerRecord<String, String> record : readTopic(topic, 8, 8008, Map.of())) {
            if (record.key() == null) {
                continue;
            }
            int value = Integer.parseInt(record.value());
            Integer before = last.put(record.key(), value);
            same(before == null || before + 100 == value, true, "order of " + record.key());
        }
    }

    static void tooLarge() throws Exception {
        String topic = create(1, Map.of("max.message.bytes", "10000"));
        produce(List.of(new ProducerRecord<>(topic, "x".repeat(9000))), Map.of());
        try {
            produce(List.of(new ProducerRecord<>(topic, "x".repeat(20000))), Map.of());
            throw new AssertionError("it was taken");
        } catch (ExecutionException refused) {
            same(refused.getCause().getClass(), RecordTooLargeException.class, "error");
        }
    }

    static void seekOffsetsAndTimes() throws Exception {
        // The timestamps are of years ago, which would be old enough to go.
        String topic = create(1, Map.of("retention.ms", "-1"));
        TopicPartition partition = new TopicPartition(topic, 0);
        long at = 1_700_000_000_000L;
        List<ProducerRecord<String, String>> records = new ArrayList<>();
        for (int n = 0; n < 10; n++) {
            records.add(new ProducerRecord<>(topic, 0, at + n * 10, null, "" + n));
        }
        produce(records, Map.of());
        try (Consumer<String, String> consumer = new KafkaConsumer<>(settings(Map.of()))) {
            consumer.assign(List.of(partition));
            same(consumer.beginningOffsets(List.of(partition)).get(partition), 0L, "beginning");
            same(consumer.endOffsets(List.of(partition)).get(partition), 10L, "end");
            same(consumer.offsetsForTimes(Map.of(partition, at + 45)).get(partition).offset(), 5L,
                    "offset for a time");
            consumer.seek(partition, 7);
            same(read(consumer, 1).get(0).value(), "7", "after a seek");
            consumer.seekToEnd(List.of(partition));
            same(consumer.position(partition), 10L, "position at the end");
        }
        try (Admin admin = admin()) {
            Map<TopicPartition, OffsetSpec> wanted = Map.of(partition, OffsetSpec.maxTimestamp());
            ListOffsetsResultInfo info = admin.listOffsets(wanted).all().get().get(partition);
            same(info.offset(), 9L, "the largest timestamp");
        }
    }

    static void commits() throws Exception {
        String topic = create(1, Map.of());
        Map<String, Object> group = Map.of("group.id", name());
        TopicPartition partition = new TopicPartition(topic, 0);
        produce(numbered(topic, 20), Map.of());
        try (Consumer<String, String> consumer = new KafkaConsumer<>(settings(group))) {
            consumer.subscribe(List.of(topic));
            read(consumer, 1);
            OffsetAndMetadata offset = new OffsetAndMetadata(8, "note");
            consumer.commitSync(Map.of(partition, offset));
            same(consumer.committed(Set.of(partition)).get(partition), offset, "committed");
        }
        try (Consumer<String, String> consumer = new KafkaConsumer<>(settings(group))) {
            consumer.subscribe(List.of(topic));
            same(read(consumer, 1).get(0).value(), "8", "where it goes on");
        }
    }

    /** A group member on a thread of its own. */
    static final class Member extends Thread {
        final AtomicBoolean stop = new AtomicBoolean();
        volatile Set<TopicPartition> assigned = Set.of();
        final Map<String, Object> settings;
        final String topic;

        Member(String topic, Map<String, Object> settings) {
            this.topic = topic;
            this.settings = settings;
            setDaemon(true);
            start();
        }

        @Override
        public void run() {
            try (Consumer<String, String> consumer = new KafkaConsumer<>(settings(settings))) {
                consumer.subscribe(List.of(topic));
                while (!stop.get()) {
                    consumer.poll(POLL);
                    assigned = consumer.assignment();
                }
            }
        }

        void leave() throws Exception {
            stop.set(true);
            join(600_000);
        }
    }

    static void until(Callable<Boolean> condition, String what) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(600);
        while (!condition.call()) {
            if (System.nanoTime() > deadline) {
                throw new AssertionError("waited in vain until " + what);
            }
            Thread.sleep(20);
        }
    }

    static void share(boolean cooperatively) throws Exception {
        String topic = create(6, Map.of());
        Map<String, Object> settings = new HashMap<>();
        settings.put("group.id", name());
        settings.put("heartbeat.interval.ms", 300);
        if (cooperatively) {
            String assignor = CooperativeStickyAssignor.class.getName();
            settings.put("partition.assignment.strategy", assignor);
        }
        List<Member> members = new ArrayList<>();
        for (int share : new int[] {6, 3, 2}) {
            members.add(new Member(topic, settings));
            Callable<Boolean> even = () -> members.stream()
                    .allMatch(member -> member.assigned.size() == share);
            until(even, "each of " + members.size() + " has " + share);
        }
        members.get(2).leave();
        members.get(1).leave();
        until(() -> members.get(0).assigned.size() == 6, "the first has all again");
        members.get(0).leave();
    }

    static void administration() throws Exception {
        String topic = create(2, Map.of("retention.ms", "60000"));
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        TopicPartition partition = new TopicPartition(topic, 0);
        try (Admin admin = admin()) {
            try {
                admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all().get();
                throw new AssertionError("a topic was made twice");
            } catch (ExecutionException refused) {
                same(refused.getCause().getClass(), TopicExistsException.class, "error");
            }
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(4))).all().get();
            until(() -> admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic)
                    .partitions().size() == 4, "four partitions");
            ConfigEntry entry = new ConfigEntry("retention.ms", "70000");
            AlterConfigOp set = new AlterConfigOp(entry, AlterConfigOp.OpType.SET);
            Collection<AlterConfigOp> change = List.of(set);
            admin.incrementalAlterConfigs(Map.of(resource, change)).all().get();
            until(() -> admin.describeConfigs(List.of(resource)).all().get().get(resource)
                    .get("retention.ms").value().equals("70000"), "the setting is changed");
            produce(List.of(new ProducerRecord<>(topic, 0, null, "x")), Map.of());
            Map<TopicPartition, RecordsToDelete> all =
                    Map.of(partition, RecordsToDelete.beforeOffset(1));
            admin.deleteRecords(all).all().get();
            until(() -> admin.listOffsets(Map.of(partition, OffsetSpec.earliest())).all().get()
                    .get(partition).offset() == 1, "the record is gone");
            same(admin.describeCluster().nodes().get().size(), 1, "nodes");
            same(admin.describeLogDirs(List.of(1)).allDescriptions().get().size(), 1, "brokers");
            same(admin.describeProducers(List.of(partition)).all().get().size(), 1, "producers");
            admin.listGroups().all().get();
            admin.describeFeatures().featureMetadata().get();
            admin.deleteTopics(List.of(topic)).all().get();
            until(() -> !admin.listTopics().names().get().contains(topic), "it is gone");
        }
    }

    /** One consumer of many topics, of which few have something to read. */
    static void manyTopicsInOneSession() throws Exception {
        List<NewTopic> topics = new ArrayList<>();
        List<TopicPartition> partitions = new ArrayList<>();
        for (int n = 0; n < 100; n++) {
            NewTopic topic = new NewTopic(name(), 2, (short) 1);
            topics.add(topic);
            partitions.add(new TopicPartition(topic.name(), 0));
            partitions.add(new TopicPartition(topic.name(), 1));
        }
        try (Admin admin = admin();
                Consumer<String, String> consumer = new KafkaConsumer<>(settings(Map.of()))) {
            admin.createTopics(topics).all().get();
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            for (int round = 0; round < 5; round++) {
                String topic = topics.get(round * 17).name();
                produce(numbered(topic, 3), Map.of("linger.ms", 50));
                for (ConsumerRecord<String, String> record : read(consumer, 3)) {
                    same(record.topic(), topic, "topic");
                }
            }
        }
    }

    static void tls() throws Exception {
        Map<String, Object> tls = Map.of("bootstrap.servers", TLS, "security.protocol", "SSL",
                "ssl.truststore.type", "PEM",
                "ssl.truststore.location", System.getenv("KAFKA_TLS_CA"));
        roundTrip(tls, tls);
    }
}
