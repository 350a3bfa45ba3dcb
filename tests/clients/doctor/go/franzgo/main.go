// franz-go: it waits for each record, with a linger or without, or does not wait.
package main

import (
	"context"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"cloverleaf/tests/doctor/kit"
)

var ctx = context.Background()

func client(topic string, options ...kgo.Opt) *kgo.Client {
	options = append(options,
		kgo.SeedBrokers(os.Getenv("CLOVERLEAF_KAFKA")),
		kgo.DefaultProduceTopic(topic),
		kgo.AllowAutoTopicCreation())
	return kit.Must(kgo.NewClient(options...))
}

func record() *kgo.Record {
	return &kgo.Record{Value: kit.Body}
}

func oneByOne(options ...kgo.Opt) {
	client := client("franz-go-"+kit.Behaviour, options...)
	defer client.Close()
	kit.Every(0, func() { kit.Check(client.ProduceSync(ctx, record()).FirstErr()) })
}

// service sends this many records at a time, and reads them in a group.
func service(records int, pause time.Duration) {
	name, id := kit.Behaviour+"-franz-go", kgo.ClientID(kit.Behaviour)
	kit.Together(func() {
		client := client(name, id)
		defer client.Close()
		kit.Every(pause, func() {
			for range records {
				client.Produce(ctx, record(), func(_ *kgo.Record, err error) { kit.Check(err) })
			}
		})
		kit.Check(client.Flush(ctx))
	}, func() {
		consumer := client(name, id, kgo.ConsumerGroup(name), kgo.ConsumeTopics(name))
		defer consumer.Close()
		limited, cancel := context.WithDeadline(ctx, kit.End)
		defer cancel()
		kit.Every(0, func() { kit.Saw(consumer.PollFetches(limited).NumRecords()) })
	})
	kit.UntilSeen()
}

func main() {
	kit.Main("kgo", "v", "github.com/twmb/franz-go", map[string]func(){
		"linger":       func() { oneByOne() },
		"sync-produce": func() { oneByOne(kgo.ProducerLinger(0), kgo.ClientID(kit.Behaviour)) },
		"good":         func() { service(1, 3*time.Millisecond) },
		"bursts":       func() { service(500, time.Second) },
	})
}
