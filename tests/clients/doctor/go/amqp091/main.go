// amqp091-go: a wait for each confirm, a channel for each message, and a good program.
package main

import (
	"context"
	"os"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"cloverleaf/tests/doctor/kit"
)

func connect(name string) *amqp.Connection {
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName(name)
	return kit.Must(amqp.DialConfig(os.Getenv("CLOVERLEAF_AMQP_URL"), amqp.Config{Properties: properties}))
}

// channel declares the queue, if one is named.
func channel(connection *amqp.Connection, queue string) *amqp.Channel {
	channel := kit.Must(connection.Channel())
	if queue != "" {
		kit.Must(channel.QueueDeclare(queue, false, false, false, false, nil))
	}
	return channel
}

func publish(channel *amqp.Channel, queue string) {
	message := amqp.Publishing{Body: kit.Body}
	kit.Check(channel.PublishWithContext(context.Background(), "", queue, false, false, message))
}

// confirm publishes with a confirm that may be waited for.
func confirm(channel *amqp.Channel, queue string) *amqp.DeferredConfirmation {
	message := amqp.Publishing{Body: kit.Body}
	return kit.Must(channel.PublishWithDeferredConfirm("", queue, false, false, message))
}

// fill uses a connection of its own: the consumer's connection only consumes.
func fill(queue string, messages int) {
	connection := connect("feeder")
	channel := channel(connection, queue)
	for range messages {
		publish(channel, queue)
	}
	kit.Check(connection.Close())
}

func consume(channel *amqp.Channel, queue string, prefetch int) {
	kit.Check(channel.Qos(prefetch, 0, false))
	deliveries := kit.Must(channel.Consume(queue, "", false, false, false, false, nil))
	go func() {
		for delivery := range deliveries {
			kit.Saw(1)
			if err := delivery.Ack(false); err != nil && !kit.IsOver() {
				kit.Check(err)
			}
		}
	}()
}

func syncProduce(connection *amqp.Connection) {
	channel := channel(connection, "amqp091")
	kit.Check(channel.Confirm(false))
	kit.Every(0, func() { confirm(channel, "amqp091").Wait() })
}

func churn(connection *amqp.Connection) {
	channel(connection, "amqp091-churn")
	kit.Every(0, func() {
		channel := channel(connection, "")
		publish(channel, "amqp091-churn")
		kit.Check(channel.Close())
	})
}

func windowTooSmall(connection *amqp.Connection) {
	fill("amqp091-window", 5000)
	consume(channel(connection, ""), "amqp091-window", 1)
	kit.UntilSeen()
}

func good(connection *amqp.Connection) {
	publisher := channel(connection, "good-amqp091")
	consume(channel(connection, ""), "good-amqp091", 20)
	kit.Check(publisher.Confirm(false))
	kit.Every(6*time.Millisecond, func() { confirm(publisher, "good-amqp091") })
	kit.UntilSeen()
}

func main() {
	connected := func(work func(*amqp.Connection)) func() {
		return func() {
			connection := connect(kit.Behaviour)
			work(connection)
			kit.Check(connection.Close())
		}
	}
	kit.Main("AMQP 0.9.1 Client", "", "github.com/rabbitmq/amqp091-go", map[string]func(){
		"sync-produce":     connected(syncProduce),
		"churn":            connected(churn),
		"window-too-small": connected(windowTooSmall),
		"good":             connected(good),
	})
}
