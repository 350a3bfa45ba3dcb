// franz-go: it waits for each record and lingers meanwhile, or does not wait.
package main

import (
	"context"
	"errors"
	"os"
	"sync"
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
	client, err := kgo.NewClient(options...)
	kit.Check(err)
	return client
}

func oneByOne(options ...kgo.Opt) {
	client := client("franz-go-"+kit.Behaviour, options...)
	defer client.Close()
	for !kit.IsOver() {
		record := &kgo.Record{Value: make([]byte, 200)}
		kit.Check(client.ProduceSync(ctx, record).FirstErr())
	}
}

// service sends so many records at a time, and reads them in a group.
func service(records int, pause time.Duration) {
	name := kit.Behaviour + "-franz-go"
	var everyone sync.WaitGroup
	everyone.Add(2)
	go func() {
		defer everyone.Done()
		client := client(name, kgo.ClientID(kit.Behaviour))
		defer client.Close()
		for !kit.IsOver() {
			for range records {
				client.Produce(ctx, &kgo.Record{Value: make([]byte, 200)}, func(_ *kgo.Record, err error) {
					kit.Check(err)
				})
			}
			time.Sleep(pause)
		}
		kit.Check(client.Flush(ctx))
	}()
	go func() {
		defer everyone.Done()
		consumer := client(name, kgo.ClientID(kit.Behaviour), kgo.ConsumerGroup(name), kgo.ConsumeTopics(name))
		defer consumer.Close()
		limited, cancel := context.WithDeadline(ctx, kit.End)
		defer cancel()
		seen := 0
		for !kit.IsOver() {
			seen += consumer.PollFetches(limited).NumRecords()
		}
		if seen == 0 {
			kit.Check(errors.New("nothing came"))
		}
	}()
	everyone.Wait()
}

func main() {
	kit.Say("kgo", "v"+kit.Version("github.com/twmb/franz-go"))
	kit.Main(map[string]func(){
		"linger":       func() { oneByOne() },
		"sync-produce": func() { oneByOne(kgo.ProducerLinger(0), kgo.ClientID(kit.Behaviour)) },
		"good":         func() { service(1, 3*time.Millisecond) },
		"bursts":       func() { service(500, time.Second) },
	})
}
