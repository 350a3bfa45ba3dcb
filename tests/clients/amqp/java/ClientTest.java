// RabbitMQ's Java client: publish, consume, confirms, errors, recovery, RPC.
//
// The address comes from the environment: AMQP, and AMQP_TLS with AMQP_TLS_CA.
// Prints `ok NAME` or `not ok NAME: WHY` per check; the exit status is 1 when one failed.

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.AuthenticationFailureException;
import com.rabbitmq.client.BuiltinExchangeType;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DefaultConsumer;
import com.rabbitmq.client.Delivery;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.Recoverable;
import com.rabbitmq.client.RecoverableConnection;
import com.rabbitmq.client.RecoveryListener;
import com.rabbitmq.client.RpcClient;
import com.rabbitmq.client.RpcClientParams;
import com.rabbitmq.client.RpcServer;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.FileInputStream;
import java.io.IOException;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Date;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

public final class ClientTest {
    private static final String TLS = System.getenv().getOrDefault("AMQP_TLS", "");
    /** Only what hangs takes so long; a machine that is slow and busy does not decide. */
    private static final long CHECK_S_MAX = 1800;
    private static int numbers;

    interface Check {
        void run() throws Exception;
    }

    interface Use {
        void on(Channel channel) throws Exception;
    }

    public static void main(String[] words) {
        Map<String, Check> checks = new java.util.LinkedHashMap<>();
        checks.put("publish and consume", ClientTest::publishAndConsume);
        checks.put("properties and headers", ClientTest::propertiesAndHeaders);
        checks.put("confirms, many in flight", ClientTest::manyConfirms);
        checks.put("confirms, waited for in groups", ClientTest::waitForConfirms);
        checks.put("returns", ClientTest::returns);
        checks.put("errors close the channel, and tell why", ClientTest::channelErrors);
        checks.put("a wrong password", ClientTest::wrongPassword);
        checks.put("get, nack, redelivered", ClientTest::getAndGiveBack);
        checks.put("transactions", ClientTest::transactions);
        checks.put("a consumer is told that its queue is gone", ClientTest::cancelled);
        checks.put("calls and answers", ClientTest::calls);
        checks.put("priorities of messages", ClientTest::priorities);
        checks.put("a connection that recovers", ClientTest::recovers);
        checks.put("twenty channels at once", ClientTest::twentyChannels);
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
            Future<Void> result = thread.submit(run);
            try {
                result.get(CHECK_S_MAX, TimeUnit.SECONDS);
                System.out.println("ok " + entry.getKey());
            } catch (Throwable error) {
                failed = true;
                result.cancel(true);
                Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
                cause.printStackTrace();
                String why = String.valueOf(cause).replaceAll("\\s+", " ");
                System.out.println("not ok " + entry.getKey() + ": " + why);
            }
        }
        System.out.flush();
        Runtime.getRuntime().halt(failed ? 1 : 0);
    }

    private static ConnectionFactory factory() {
        String[] address = System.getenv("AMQP").split(":");
        ConnectionFactory factory = new ConnectionFactory();
        factory.setHost(address[0]);
        factory.setPort(Integer.parseInt(address[1]));
        return factory;
    }

    private static void withChannel(Use use) throws Exception {
        try (Connection connection = factory().newConnection()) {
            use.on(connection.createChannel());
        }
    }

    private static synchronized String name() {
        return "java-" + ProcessHandle.current().pid() + "-" + numbers++;
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String text(byte[] body) {
        return new String(body, StandardCharsets.UTF_8);
    }

    private static void same(Object found, Object expected, String what) {
        if (!expected.equals(found)) {
            throw new AssertionError(what + ": expected " + expected + ", found " + found);
        }
    }

    private static <T> T next(BlockingQueue<T> queue, String what) throws InterruptedException {
        T found = queue.poll(600, TimeUnit.SECONDS);
        if (found == null) {
            throw new AssertionError("waited 20 s in vain for " + what);
        }
        return found;
    }

    private static BlockingQueue<Delivery> consume(Channel channel, String queue, boolean autoAck)
            throws IOException {
        BlockingQueue<Delivery> deliveries = new LinkedBlockingQueue<>();
        channel.basicConsume(queue, autoAck, (tag, delivery) -> deliveries.add(delivery), tag -> { });
        return deliveries;
    }

    private static void publishAndConsume() throws Exception {
        withChannel(channel -> {
            String exchange = name();
            channel.exchangeDeclare(exchange, BuiltinExchangeType.TOPIC, false, true, null);
            String queue = channel.queueDeclare().getQueue();
            channel.queueBind(queue, exchange, "a.#");
            channel.basicQos(10);
            BlockingQueue<Delivery> deliveries = consume(channel, queue, false);
            for (int n = 0; n < 500; n++) {
                channel.basicPublish(exchange, "a." + n, MessageProperties.TEXT_PLAIN, bytes("" + n));
            }
            for (int n = 0; n < 500; n++) {
                Delivery delivery = next(deliveries, "message " + n);
                same(text(delivery.getBody()), "" + n, "body");
                same(delivery.getEnvelope().getRoutingKey(), "a." + n, "key");
                same(delivery.getEnvelope().isRedeliver(), false, "redelivered");
                channel.basicAck(delivery.getEnvelope().getDeliveryTag(), n % 5 == 4);
            }
            same(channel.messageCount(queue), 0L, "messages left");
        });
    }

    private static void propertiesAndHeaders() throws Exception {
        withChannel(channel -> {
            Map<String, Object> headers = new HashMap<>();
            headers.put("text", "ünï");
            headers.put("int", 5);
            headers.put("long", 1L << 40);
            headers.put("short", (short) 7);
            headers.put("byte", (byte) -3);
            headers.put("bool", true);
            headers.put("double", 1.5);
            headers.put("float", 2.5f);
            headers.put("decimal", new BigDecimal("3.14"));
            headers.put("date", new Date(1764000000000L));
            headers.put("null", null);
            headers.put("list", Arrays.asList(1, true));
            headers.put("table", Map.of("inner", 2));
            AMQP.BasicProperties sent = new AMQP.BasicProperties.Builder()
                .contentType("a/b").contentEncoding("gzip").headers(headers).deliveryMode(2).priority(4)
                .correlationId("c").replyTo("r").expiration("60000").messageId("m")
                .timestamp(new Date(1764000000000L)).type("t").userId("guest").appId("app").build();
            String queue = channel.queueDeclare().getQueue();
            channel.basicPublish("", queue, sent, bytes("body"));
            GetResponse got = null;
            while (got == null) {
                got = channel.basicGet(queue, true);
            }
            AMQP.BasicProperties found = got.getProps();
            for (Map.Entry<String, Object> header : headers.entrySet()) {
                Object value = found.getHeaders().get(header.getKey());
                // Texts and what is in tables come as LongString.
                same(String.valueOf(value), String.valueOf(header.getValue()), header.getKey());
            }
            same(found.builder().headers(null).build(), sent.builder().headers(null).build(), "others");
        });
    }

    private static void manyConfirms() throws Exception {
        withChannel(channel -> {
            String queue = name();
            channel.queueDeclare(queue, true, false, false, null);
            channel.confirmSelect();
            ConcurrentSkipListMap<Long, Integer> waiting = new ConcurrentSkipListMap<>();
            AtomicInteger refused = new AtomicInteger();
            CountDownLatch done = new CountDownLatch(5000);
            channel.addConfirmListener((tag, multiple) -> {
                Map<Long, Integer> these = multiple ? waiting.headMap(tag, true)
                    : waiting.subMap(tag, true, tag, true);
                int count = these.size();
                these.clear();
                for (int n = 0; n < count; n++) {
                    done.countDown();
                }
            }, (tag, multiple) -> refused.incrementAndGet());
            for (int n = 0; n < 5000; n++) {
                waiting.put(channel.getNextPublishSeqNo(), n);
                channel.basicPublish("", queue, MessageProperties.PERSISTENT_BASIC, bytes("" + n));
            }
            same(done.await(600, TimeUnit.SECONDS), true, "all are confirmed");
            same(refused.get(), 0, "refused");
            same(channel.queueDelete(queue).getMessageCount(), 5000, "messages");
        });
    }

    private static void waitForConfirms() throws Exception {
        withChannel(channel -> {
            String queue = name();
            channel.queueDeclare(queue, true, false, false, null);
            channel.confirmSelect();
            for (int group = 0; group < 20; group++) {
                for (int n = 0; n < 50; n++) {
                    channel.basicPublish("", queue, MessageProperties.PERSISTENT_BASIC, bytes("x"));
                }
                channel.waitForConfirmsOrDie(10_000);
            }
            same(channel.queuePurge(queue).getMessageCount(), 1000, "messages");
            channel.queueDelete(queue);
        });
    }

    private static void returns() throws Exception {
        withChannel(channel -> {
            BlockingQueue<String> returned = new ArrayBlockingQueue<>(10);
            channel.addReturnListener(back -> returned.add(
                back.getReplyCode() + " " + back.getReplyText() + " " + text(back.getBody())));
            channel.confirmSelect();
            channel.basicPublish("", name(), true, null, bytes("lost"));
            channel.waitForConfirmsOrDie(10_000);
            same(next(returned, "the message"), "312 NO_ROUTE lost", "what came back");
        });
    }

    private static void refused(int code, String text, Use use) throws Exception {
        try {
            withChannel(use);
        } catch (IOException | ShutdownSignalException error) {
            Throwable cause = error instanceof ShutdownSignalException ? error : error.getCause();
            AMQP.Channel.Close close =
                (AMQP.Channel.Close) ((ShutdownSignalException) cause).getReason();
            same(close.getReplyCode(), code, "code of " + close.getReplyText());
            if (!close.getReplyText().contains(text)) {
                throw new AssertionError(text + " is not in " + close.getReplyText());
            }
            return;
        }
        throw new AssertionError("it was not refused: " + code + " " + text);
    }

    private static void channelErrors() throws Exception {
        refused(404, "no queue 'missing' in vhost '/'",
            channel -> channel.queueDeclarePassive("missing"));
        refused(404, "no exchange 'missing' in vhost '/'",
            channel -> channel.exchangeDeclarePassive("missing"));
        refused(403, "reserved prefix 'amq.*'",
            channel -> channel.queueDeclare("amq.mine", false, false, false, null));
        refused(406, "inequivalent arg 'x-max-length'", channel -> {
            String queue = name();
            channel.queueDeclare(queue, false, true, true, null);
            channel.queueDeclare(queue, false, true, true, Map.of("x-max-length", 5));
        });
        refused(406, "unknown delivery tag 5", channel -> {
            channel.basicAck(5, false);
            channel.queueDeclare();
        });
        refused(405, "RESOURCE_LOCKED", channel -> {
            String queue = channel.queueDeclare().getQueue();
            withOther(other -> other.queueDeclarePassive(queue));
        });
    }

    private static void withOther(Use use) throws Exception {
        withChannel(use);
    }

    private static void wrongPassword() throws Exception {
        ConnectionFactory factory = factory();
        factory.setPassword("wrong");
        try {
            factory.newConnection().close();
        } catch (AuthenticationFailureException error) {
            same(error.getMessage().contains("ACCESS_REFUSED"), true, error.getMessage());
            return;
        }
        throw new AssertionError("it was let in");
    }

    private static void getAndGiveBack() throws Exception {
        withChannel(channel -> {
            String queue = channel.queueDeclare().getQueue();
            for (int n = 0; n < 5; n++) {
                channel.basicPublish("", queue, null, bytes("" + n));
            }
            List<Long> tags = new ArrayList<>();
            for (int n = 0; n < 3; n++) {
                GetResponse got = channel.basicGet(queue, false);
                same(text(got.getBody()), "" + n, "body");
                same(got.getMessageCount(), 4 - n, "messages behind it");
                tags.add(got.getEnvelope().getDeliveryTag());
            }
            channel.basicAck(tags.get(0), false);
            channel.basicNack(tags.get(2), true, true);
            for (int n = 1; n < 5; n++) {
                GetResponse got = channel.basicGet(queue, true);
                same(text(got.getBody()), "" + n, "once more");
                same(got.getEnvelope().isRedeliver(), n < 3, "redelivered");
            }
            same(String.valueOf(channel.basicGet(queue, true)), "null", "an empty queue");
        });
    }

    private static void transactions() throws Exception {
        withChannel(channel -> {
            String queue = channel.queueDeclare().getQueue();
            channel.txSelect();
            channel.basicPublish("", queue, null, bytes("never"));
            channel.txRollback();
            channel.basicPublish("", queue, null, bytes("kept"));
            channel.txCommit();
            same(text(channel.basicGet(queue, true).getBody()), "kept", "body");
            same(channel.messageCount(queue), 0L, "left");
        });
    }

    private static void cancelled() throws Exception {
        withChannel(channel -> {
            String queue = name();
            channel.queueDeclare(queue, false, false, false, null);
            CountDownLatch told = new CountDownLatch(1);
            channel.basicConsume(queue, true, new DefaultConsumer(channel) {
                @Override
                public void handleCancel(String tag) {
                    told.countDown();
                }
            });
            withOther(other -> other.queueDelete(queue));
            same(told.await(600, TimeUnit.SECONDS), true, "it is told");
        });
    }

    /** The client's own RPC classes, which use direct reply-to. */
    private static void calls() throws Exception {
        withChannel(server -> {
            String queue = server.queueDeclare().getQueue();
            RpcServer rpc = new RpcServer(server, queue) {
                @Override
                public byte[] handleCall(Delivery request, AMQP.BasicProperties properties) {
                    return bytes(text(request.getBody()) + "!");
                }
            };
            Thread serving = new Thread(() -> {
                try {
                    rpc.mainloop();
                } catch (IOException | ShutdownSignalException error) {
                    // The check is over.
                }
            });
            serving.setDaemon(true);
            serving.start();
            withOther(channel -> {
                RpcClient client = new RpcClient(new RpcClientParams()
                    .channel(channel).exchange("").routingKey(queue).timeout(600_000));
                for (int n = 0; n < 100; n++) {
                    same(client.stringCall("call " + n), "call " + n + "!", "the answer");
                }
            });
        });
    }

    private static void priorities() throws Exception {
        withChannel(channel -> {
            String queue = channel.queueDeclare("", false, true, true, Map.of("x-max-priority", 9))
                .getQueue();
            channel.confirmSelect();
            for (int n = 0; n < 10; n++) {
                AMQP.BasicProperties properties =
                    new AMQP.BasicProperties.Builder().priority(n).build();
                channel.basicPublish("", queue, properties, bytes("" + n));
            }
            channel.waitForConfirmsOrDie(10_000);
            for (int n = 9; n >= 0; n--) {
                same(text(channel.basicGet(queue, true).getBody()), "" + n, "order");
            }
        });
    }

    /** The client declares all again that it had, and goes on. */
    private static void recovers() throws Exception {
        ConnectionFactory factory = factory();
        factory.setNetworkRecoveryInterval(100);
        try (Connection connection = factory.newConnection()) {
            Channel channel = connection.createChannel();
            String exchange = name();
            channel.exchangeDeclare(exchange, BuiltinExchangeType.FANOUT, false, true, null);
            String queue = channel.queueDeclare().getQueue();
            channel.queueBind(queue, exchange, "");
            BlockingQueue<Delivery> deliveries = consume(channel, queue, true);
            channel.basicPublish(exchange, "", null, bytes("before"));
            same(text(next(deliveries, "the first").getBody()), "before", "body");
            CountDownLatch recovered = new CountDownLatch(1);
            ((RecoverableConnection) connection).addRecoveryListener(new RecoveryListener() {
                @Override
                public void handleRecovery(Recoverable recoverable) {
                    recovered.countDown();
                }

                @Override
                public void handleRecoveryStarted(Recoverable recoverable) {
                }
            });
            // An error that ends the connection: the broker closes it.
            Channel broken = connection.createChannel();
            try {
                broken.basicQos(10, 0, false);
                broken.basicPublish("", "x", false, true, null, bytes("immediate"));
            } catch (IOException | ShutdownSignalException error) {
                // It has heard of it already.
            }
            same(recovered.await(600, TimeUnit.SECONDS), true, "it recovers");
            channel.basicPublish(exchange, "", null, bytes("after"));
            same(text(next(deliveries, "one after it").getBody()), "after", "body");
        }
    }

    private static void twentyChannels() throws Exception {
        try (Connection connection = factory().newConnection()) {
            String queue = name();
            connection.createChannel().queueDeclare(queue, true, false, false, null);
            ExecutorService threads = Executors.newFixedThreadPool(20);
            List<Future<Void>> results = new ArrayList<>();
            for (int worker = 0; worker < 20; worker++) {
                results.add(threads.submit(() -> {
                    Channel channel = connection.createChannel();
                    channel.confirmSelect();
                    for (int n = 0; n < 200; n++) {
                        channel.basicPublish("", queue, MessageProperties.PERSISTENT_BASIC, bytes("x"));
                    }
                    channel.waitForConfirmsOrDie(30_000);
                    channel.close();
                    return null;
                }));
            }
            for (Future<Void> result : results) {
                result.get();
            }
            threads.shutdown();
            Channel channel = connection.createChannel();
            BlockingQueue<Delivery> deliveries = consume(channel, queue, true);
            for (int n = 0; n < 4000; n++) {
                next(deliveries, "message " + n);
            }
            channel.queueDelete(queue);
        }
    }

    private static void tls() throws Exception {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        try (FileInputStream file = new FileInputStream(System.getenv("AMQP_TLS_CA"))) {
            store.setCertificateEntry("ca",
                CertificateFactory.getInstance("X.509").generateCertificate(file));
        }
        TrustManagerFactory trust = TrustManagerFactory.getInstance("PKIX");
        trust.init(store);
        SSLContext context = SSLContext.getInstance("TLSv1.3");
        context.init(null, trust.getTrustManagers(), null);
        ConnectionFactory factory = factory();
        factory.setPort(Integer.parseInt(TLS.split(":")[1]));
        factory.useSslProtocol(context);
        try (Connection connection = factory.newConnection()) {
            Channel channel = connection.createChannel();
            String queue = channel.queueDeclare().getQueue();
            channel.confirmSelect();
            channel.basicPublish("", queue, null, new byte[300_000]);
            channel.waitForConfirmsOrDie(10_000);
            same(channel.basicGet(queue, true).getBody().length, 300_000, "bytes");
        }
    }
}
