// kafka-go: its Writer says nothing of itself, so what it should change is said in general terms.
package main

import (
	"context"
	"os"
	"time"

	"github.com/segmentio/kafka-go"

	"cloverleaf/tests/doctor/kit"
)

var ctx = context.Background()

func writer(topic string) *kafka.Writer {
	return &kafka.Writer{
		Addr:                   kafka.TCP(os.Getenv("CLOVERLEAF_KAFKA")),
		Topic:                  topic,
		AllowAutoTopicCreation: true,
		BatchTimeout:           time.Millisecond,
		RequiredAcks:           kafka.RequireAll,
	}
}

// The topic may be there a moment later.
func write(writer *kafka.Writer) {
	for {
		err := writer.WriteMessages(ctx, kafka.Message{Value: make([]byte, 200)})
		if err != kafka.UnknownTopicOrPartition {
			kit.Check(err)
			return
		}
	}
}

func syncProduce() {
	writer := writer("kafka-go")
	for !kit.IsOver() {
		write(writer)
	}
	kit.Check(writer.Close())
}

func good() {
	writer := writer("good-kafka-go")
	writer.Transport = &kafka.Transport{ClientID: "good-kafka-go"}
	write(writer)
	writer.Async = true
	writer.BatchTimeout = 10 * time.Millisecond
	go func() {
		for !kit.IsOver() {
			write(writer)
			time.Sleep(3 * time.Millisecond)
		}
	}()
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{os.Getenv("CLOVERLEAF_KAFKA")},
		GroupID: "good-kafka-go",
		Topic:   "good-kafka-go",
		Dialer:  &kafka.Dialer{ClientID: "good-kafka-go", Timeout: 10 * time.Second},
	})
	limited, cancel := context.WithDeadline(ctx, kit.End)
	defer cancel()
	for {
		if _, err := reader.ReadMessage(limited); limited.Err() != nil {
			break
		} else {
			kit.Check(err)
		}
	}
	kit.Check(reader.Close())
}

func main() {
	kit.Say("", "")
	kit.Main(map[string]func(){"sync-produce": syncProduce, "good": good})
}
