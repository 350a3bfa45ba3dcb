// amqp091-go: confirms one after the other, a channel for each message, and a good program.
package main

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"cloverleaf/tests/doctor/kit"
)

var ctx = context.Background()

func connect(name string) *amqp.Connection {
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName(name)
	connection, err := amqp.DialConfig(os.Getenv("CLOVERLEAF_AMQP_URL"), amqp.Config{Properties: properties})
	kit.Check(err)
	return connection
}

func channel(connection *amqp.Connection, queue string) *amqp.Channel {
	channel, err := connection.Channel()
	kit.Check(err)
	if queue != "" {
		_, err = channel.QueueDeclare(queue, false, false, false, false, nil)
		kit.Check(err)
	}
	return channel
}

func message() amqp.Publishing {
	return amqp.Publishing{Body: make([]byte, 200)}
}

func syncProduce() {
	connection := connect(kit.Behaviour)
	channel := channel(connection, "amqp091")
	kit.Check(channel.Confirm(false))
	for !kit.IsOver() {
		confirm, err := channel.PublishWithDeferredConfirm("", "amqp091", false, false, message())
		kit.Check(err)
		confirm.Wait()
	}
	kit.Check(connection.Close())
}

func churn() {
	connection := connect(kit.Behaviour)
	channel(connection, "amqp091-churn")
	for !kit.IsOver() {
		channel := channel(connection, "")
		kit.Check(channel.PublishWithContext(ctx, "", "amqp091-churn", false, false, message()))
		kit.Check(channel.Close())
	}
	kit.Check(connection.Close())
}

// On a connection of its own: whoever consumes them does nothing else.
func fill(queue string, messages int) {
	connection := connect("feeder")
	channel := channel(connection, queue)
	for range messages {
		kit.Check(channel.PublishWithContext(ctx, "", queue, false, false, message()))
	}
	kit.Check(connection.Close())
}

func windowTooSmall() {
	fill("amqp091-window", 5000)
	connection := connect(kit.Behaviour)
	consume(channel(connection, ""), "amqp091-window", 1)
	kit.Wait()
	kit.Check(connection.Close())
}

func consume(channel *amqp.Channel, queue string, prefetch int) *atomic.Int64 {
	kit.Check(channel.Qos(prefetch, 0, false))
	deliveries, err := channel.Consume(queue, "", false, false, false, false, nil)
	kit.Check(err)
	seen := new(atomic.Int64)
	go func() {
		for delivery := range deliveries {
			seen.Add(1)
			if err := delivery.Ack(false); err != nil && !kit.IsOver() {
				kit.Check(err)
			}
		}
	}()
	return seen
}

func good() {
	connection := connect(kit.Behaviour)
	publisher := channel(connection, "good-amqp091")
	seen := consume(channel(connection, ""), "good-amqp091", 20)
	kit.Check(publisher.Confirm(false))
	for !kit.IsOver() {
		_, err := publisher.PublishWithDeferredConfirm("", "good-amqp091", false, false, message())
		kit.Check(err)
		time.Sleep(6 * time.Millisecond)
	}
	kit.Check(connection.Close())
	if seen.Load() == 0 {
		kit.Check(errors.New("nothing came"))
	}
}

func main() {
	kit.Say("AMQP 0.9.1 Client", kit.Version("github.com/rabbitmq/amqp091-go"))
	kit.Main(map[string]func(){
		"sync-produce":     syncProduce,
		"churn":            churn,
		"window-too-small": windowTooSmall,
		"good":             good,
	})
}
