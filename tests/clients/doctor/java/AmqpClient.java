import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.impl.ClientVersion;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;

/** RabbitMQ's Java client: confirms one after the other, a window of one, and a good program. */
final class AmqpClient {
    private static final byte[] BODY = new byte[200];

    private AmqpClient() {}

    private static Connection connect(String name) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(System.getenv("CLOVERLEAF_AMQP_URL"));
        return factory.newConnection(name);
    }

    private static Channel channel(Connection connection, String queue) throws Exception {
        Channel channel = connection.createChannel();
        channel.queueDeclare(queue, false, false, false, null);
        return channel;
    }

    private static AtomicLong consume(Channel channel, String queue, int prefetch) throws Exception {
        AtomicLong seen = new AtomicLong();
        channel.basicQos(prefetch);
        channel.basicConsume(queue, false, (tag, delivery) -> {
            seen.incrementAndGet();
            channel.basicAck(delivery.getEnvelope().getDeliveryTag(), false);
        }, tag -> {});
        return seen;
    }

    private static void syncProduce() throws Exception {
        try (Connection connection = connect("sync-produce")) {
            Channel channel = channel(connection, "amqp-java");
            channel.confirmSelect();
            while (!Kit.isOver()) {
                channel.basicPublish("", "amqp-java", null, BODY);
                channel.waitForConfirmsOrDie(10_000);
            }
        }
    }

    private static void windowTooSmall() throws Exception {
        // On a connection of its own: whoever consumes them does nothing else.
        try (Connection feeder = connect("feeder")) {
            Channel channel = channel(feeder, "amqp-java-window");
            for (int i = 0; i < 5000; i++) {
                channel.basicPublish("", "amqp-java-window", null, BODY);
            }
        }
        try (Connection connection = connect("window-too-small")) {
            AtomicLong seen = consume(connection.createChannel(), "amqp-java-window", 1);
            untilOver(seen);
        }
    }

    private static void good() throws Exception {
        try (Connection connection = connect("good")) {
            AtomicLong seen = consume(channel(connection, "good-amqp-java"), "good-amqp-java", 20);
            Channel channel = channel(connection, "good-amqp-java");
            channel.confirmSelect();
            channel.addConfirmListener((tag, multiple) -> {}, (tag, multiple) -> System.exit(1));
            while (!Kit.isOver()) {
                channel.basicPublish("", "good-amqp-java", null, BODY);
                Thread.sleep(6);
            }
            untilOver(seen);
        }
    }

    private static void untilOver(AtomicLong seen) throws Exception {
        while (!Kit.isOver()) {
            Thread.sleep(100);
        }
        if (seen.get() == 0) {
            throw new IllegalStateException("nothing came");
        }
    }

    public static void main(String[] words) throws Exception {
        Kit.say("RabbitMQ", ClientVersion.VERSION);
        Map<String, Kit.Behaviour> behaviours = Map.of(
                "sync-produce", AmqpClient::syncProduce,
                "window-too-small", AmqpClient::windowTooSmall,
                "good", AmqpClient::good);
        Kit.main(behaviours, words[0]);
    }
}
