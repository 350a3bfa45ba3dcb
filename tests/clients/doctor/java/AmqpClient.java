import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.impl.ClientVersion;
import java.util.Map;

/** RabbitMQ's Java client: a wait for each confirm, a prefetch count of one, and a good program. */
final class AmqpClient {
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

    private static void publish(Channel channel, String queue) throws Exception {
        channel.basicPublish("", queue, null, Kit.BODY);
    }

    private static void consume(Connection connection, String queue, int prefetch) throws Exception {
        Channel channel = channel(connection, queue);
        channel.basicQos(prefetch);
        channel.basicConsume(queue, false, (tag, delivery) -> {
            Kit.saw(1);
            channel.basicAck(delivery.getEnvelope().getDeliveryTag(), false);
        }, tag -> {});
    }

    private static void syncProduce() throws Exception {
        try (Connection connection = connect("sync-produce")) {
            Channel channel = channel(connection, "amqp-java");
            channel.confirmSelect();
            Kit.every(0, () -> {
                publish(channel, "amqp-java");
                channel.waitForConfirmsOrDie(10_000);
            });
        }
    }

    private static void windowTooSmall() throws Exception {
        // On a connection of its own: the consumer's connection only consumes.
        try (Connection feeder = connect("feeder")) {
            Channel channel = channel(feeder, "amqp-java-window");
            for (int i = 0; i < 5000; i++) {
                publish(channel, "amqp-java-window");
            }
        }
        try (Connection connection = connect("window-too-small")) {
            consume(connection, "amqp-java-window", 1);
            Kit.untilOverAndSeen();
        }
    }

    private static void good() throws Exception {
        try (Connection connection = connect("good")) {
            consume(connection, "good-amqp-java", 20);
            Channel channel = channel(connection, "good-amqp-java");
            channel.confirmSelect();
            channel.addConfirmListener((tag, multiple) -> {}, (tag, multiple) -> System.exit(1));
            Kit.every(6, () -> publish(channel, "good-amqp-java"));
            Kit.untilOverAndSeen();
        }
    }

    public static void main(String[] words) throws Exception {
        Map<String, Kit.Behaviour> behaviours = Map.of(
                "sync-produce", AmqpClient::syncProduce,
                "window-too-small", AmqpClient::windowTooSmall,
                "good", AmqpClient::good);
        Kit.main("RabbitMQ", ClientVersion.VERSION, behaviours, words);
    }
}
