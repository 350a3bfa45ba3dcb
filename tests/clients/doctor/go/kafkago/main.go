// kafka-go: its Writer does not tell its library, so the advice for it is in general terms.
package main

import (
	"context"
	"os"
	"time"

	"github.com/segmentio/kafka-go"

	"cloverleaf/tests/doctor/kit"
)

var (
	ctx    = context.Background()
	broker = os.Getenv("CLOVERLEAF_KAFKA")
)

func writer(topic string) *kafka.Writer {
	return &kafka.Writer{
		Addr:                   kafka.TCP(broker),
		Topic:                  topic,
		AllowAutoTopicCreation: true,
		BatchTimeout:           time.Millisecond,
		RequiredAcks:           kafka.RequireAll,
	}
}

// The topic is created by the first write, and may be there a moment later.
func write(writer *kafka.Writer) {
	err := error(kafka.UnknownTopicOrPartition)
	for err == kafka.UnknownTopicOrPartition {
		err = writer.WriteMessages(ctx, kafka.Message{Value: kit.Body})
	}
	kit.Check(err)
}

func syncProduce() {
	writer := writer("kafka-go")
	kit.Every(0, func() { write(writer) })
	kit.Check(writer.Close())
}

func good() {
	const name = "good-kafka-go"
	writer := writer(name)
	writer.Transport = &kafka.Transport{ClientID: name}
	write(writer)
	writer.Async = true
	writer.BatchTimeout = 10 * time.Millisecond
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{broker},
		GroupID: name,
		Topic:   name,
		Dialer:  &kafka.Dialer{ClientID: name, Timeout: 10 * time.Second},
	})
	limited, cancel := context.WithDeadline(ctx, kit.End)
	defer cancel()
	kit.Together(func() {
		kit.Every(3*time.Millisecond, func() { write(writer) })
	}, func() {
		kit.Every(0, func() {
			if _, err := reader.ReadMessage(limited); limited.Err() == nil {
				kit.Check(err)
			}
		})
	})
	kit.Check(reader.Close())
}

func main() {
	kit.Main("", "", "", map[string]func(){"sync-produce": syncProduce, "good": good})
}
