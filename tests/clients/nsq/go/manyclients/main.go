// Many go-nsq producers and consumers at once: nothing is lost, nothing is invented, and with one
// consumer each producer's messages come in their order.
//
// The broker's address is NSQ_TCP. -ordered also demands the order, which nsqd does not promise.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"sync"
	"time"

	"cloverleaf/tests/nsq/ledger"

	"github.com/nsqio/go-nsq"
)

const (
	producers     = 16
	perProducer   = 2000
	secondsMax    = 600
	batchMessages = 10
)

var (
	tcp     = os.Getenv("NSQ_TCP")
	ordered = flag.Bool("ordered", false, "demand each producer's order")
	failed  = false
)

func main() {
	flag.Parse()
	check("one consumer, window of 1", func(topic string) string {
		return run(topic, []consumer{{handlers: 1, window: 1}}, nil, *ordered)
	})
	check("one consumer", func(topic string) string {
		return run(topic, []consumer{{handlers: 1, window: 500}}, nil, *ordered)
	})
	check("many consumers", func(topic string) string {
		many := make([]consumer, 16)
		for i := range many {
			many[i] = consumer{handlers: 4, window: 50}
		}
		return run(topic, many, nil, false)
	})
	check("many consumers that requeue", func(topic string) string {
		many := make([]consumer, 8)
		for i := range many {
			many[i] = consumer{handlers: 2, window: 50}
		}
		return run(topic, many, func(m *nsq.Message) error {
			if m.Attempts == 1 && m.ID[15]%5 == 0 {
				m.RequeueWithoutBackoff(0)
			}
			return nil
		}, false)
	})
	for name, set := range map[string]func(*nsq.Config){
		"deflate": func(c *nsq.Config) { c.Deflate = true },
		"snappy":  func(c *nsq.Config) { c.Snappy = true },
	} {
		check("one consumer, "+name, func(topic string) string {
			return run(topic, []consumer{{handlers: 1, window: 500, set: set}}, nil, *ordered)
		})
	}
	if failed {
		os.Exit(1)
	}
}

func check(name string, body func(topic string) string) {
	topic := fmt.Sprintf("go_%d_%d", os.Getpid(), time.Now().UnixNano())
	if faults := body(topic); faults != "" {
		failed = true
		fmt.Printf("not ok %s: %s\n", name, faults)
	} else {
		fmt.Printf("ok %s\n", name)
	}
}

// newConfig leaves a busy machine more time than the library's one second.
func newConfig() *nsq.Config {
	config := nsq.NewConfig()
	config.DialTimeout = 60 * time.Second
	config.WriteTimeout = 60 * time.Second
	return config
}

type consumer struct {
	handlers, window int
	set              func(*nsq.Config)
}

func run(topic string, consumers []consumer, before func(*nsq.Message) error, ordered bool) string {
	quiet := log.New(os.Stderr, "", log.LstdFlags)
	book := ledger.New(producers)
	reader := book.Reader()
	for _, c := range consumers {
		config := newConfig()
		config.MaxInFlight = c.window
		config.LookupdPollInterval = 200 * time.Millisecond
		if c.set != nil {
			c.set(config)
		}
		q, err := nsq.NewConsumer(topic, "ch", config)
		if err != nil {
			return err.Error()
		}
		q.SetLogger(quiet, nsq.LogLevelError)
		q.AddConcurrentHandlers(nsq.HandlerFunc(func(m *nsq.Message) error {
			if before != nil {
				if err := before(m); err != nil || m.HasResponded() {
					return err
				}
			}
			reader.Delivered(m.Body)
			return nil
		}), c.handlers)
		if err := q.ConnectToNSQD(tcp); err != nil {
			return err.Error()
		}
		defer func() {
			q.Stop()
			<-q.StopChan
		}()
	}
	errors := make(chan error, producers)
	var group sync.WaitGroup
	for p := 0; p < producers; p++ {
		group.Add(1)
		go func(p int) {
			defer group.Done()
			config := newConfig()
			if consumers[0].set != nil {
				consumers[0].set(config)
			}
			errors <- produce(p, topic, book, config, quiet)
		}(p)
	}
	group.Wait()
	for p := 0; p < producers; p++ {
		if err := <-errors; err != nil {
			return err.Error()
		}
	}
	deadline := time.Now().Add(secondsMax * time.Second)
	for reader.Missing() > 0 && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
	}
	return reader.Faults(ordered)
}

func produce(p int, topic string, book *ledger.Ledger, config *nsq.Config, quiet *log.Logger) error {
	producer, err := nsq.NewProducer(tcp, config)
	if err != nil {
		return err
	}
	defer producer.Stop()
	producer.SetLogger(quiet, nsq.LogLevelError)
	for sent := 0; sent < perProducer; {
		first, bodies := book.Attempt(p, batchMessages)
		if (sent/batchMessages)%2 == 0 {
			err = producer.MultiPublish(topic, bodies)
		} else {
			for _, body := range bodies {
				if err = producer.Publish(topic, body); err != nil {
					break
				}
			}
		}
		if err != nil {
			return err
		}
		book.Confirm(p, first, batchMessages)
		sent += batchMessages
	}
	return nil
}
