// go-nsq: the mistakes that its defaults invite, and a good program.
package main

import (
	"errors"
	"fmt"
	"math/rand"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nsqio/go-nsq"

	"cloverleaf/tests/doctor/kit"
)

var nsqd = os.Getenv("CLOVERLEAF_NSQD")

func producer(name string) *nsq.Producer {
	config := nsq.NewConfig()
	config.ClientID = name
	producer, err := nsq.NewProducer(nsqd, config)
	kit.Check(err)
	producer.SetLoggerLevel(nsq.LogLevelMax)
	return producer
}

// Defaults, and the behaviour as its name.
func config() *nsq.Config {
	config := nsq.NewConfig()
	config.ClientID = kit.Behaviour
	return config
}

func publish(topic string, messages int) {
	bodies := make([][]byte, messages)
	for i := range bodies {
		bodies[i] = make([]byte, 200)
	}
	kit.Check(producer("feeder").MultiPublish(topic, bodies))
}

// A consumer with so many handlers, each of which works for so long.
func consumer(topic string, config *nsq.Config, handlers int, work time.Duration) *atomic.Int64 {
	return consumerThat(func() { time.Sleep(work) }, topic, config, handlers)
}

// A consumer whose handlers do this for each message.
func consumerThat(works func(), topic string, config *nsq.Config, handlers int) *atomic.Int64 {
	seen := new(atomic.Int64)
	consumer, err := nsq.NewConsumer(topic, "channel", config)
	kit.Check(err)
	consumer.SetLoggerLevel(nsq.LogLevelMax)
	consumer.AddConcurrentHandlers(nsq.HandlerFunc(func(*nsq.Message) error {
		works()
		seen.Add(1)
		return nil
	}), handlers)
	kit.Check(consumer.ConnectToNSQD(nsqd))
	return seen
}

func until(seen *atomic.Int64) {
	kit.Wait()
	if seen.Load() == 0 {
		kit.Check(errors.New("nothing came"))
	}
}

func syncProduce() {
	producer := producer(kit.Behaviour)
	for !kit.IsOver() {
		kit.Check(producer.Publish("go-nsq", make([]byte, 200)))
	}
	producer.Stop()
}

func windowTooSmall() {
	publish("go-nsq-window", 5000)
	until(consumer("go-nsq-window", config(), 1, 0))
}

// AddHandler is one goroutine, however many messages the consumer holds; a second process comes when
// the first one works on a message, has got all that were published with it, and gets nothing.
func hoarding() {
	const topic = "go-nsq-jobs"
	config := config()
	config.MaxInFlight = 50
	first, begins := make(chan struct{}), sync.Once{}
	seen := consumerThat(func() {
		begins.Do(func() { close(first) })
		time.Sleep(300 * time.Millisecond)
	}, topic, config, 1)
	publish(topic, 45)
	<-first
	consumer(topic, config, 1, 300*time.Millisecond)
	until(seen)
}

// Half a second more than the client has asked for.
func ackDeadline() {
	publish("go-nsq-slow", 40)
	config := config()
	config.MsgTimeout = time.Second
	config.MaxInFlight = 4
	until(consumer("go-nsq-slow", config, 4, 1500*time.Millisecond))
}

// What programs send each other: the same names in each, with other values.
func text(number int) []byte {
	body := make([]byte, 0, 1400)
	for len(body) < 1200 {
		value := rand.Uint32()
		body = fmt.Appendf(body, `{"order":%d,"customer":"c-%06d","amount":%d,"currency":"EUR","state":"paid"}`,
			number, value%1000000, value%977)
	}
	return body
}

// As much text as the connection takes; so many at a time, for the program's own sake.
func send(config *nsq.Config) {
	// The link is another's, too: a write may wait for longer than a second.
	config.WriteTimeout = 10 * time.Second
	producer, err := nsq.NewProducer(nsqd, config)
	kit.Check(err)
	producer.SetLoggerLevel(nsq.LogLevelMax)
	done := make(chan *nsq.ProducerTransaction, 500)
	for number := 0; !kit.IsOver(); number++ {
		if number >= cap(done) {
			kit.Check((<-done).Error)
		}
		kit.Check(producer.PublishAsync("go-nsq-text", text(number), done))
	}
}

func noCompression() {
	send(config())
}

func compression() {
	config := config()
	config.Deflate = true
	send(config)
}

func churn() {
	for !kit.IsOver() {
		producer := producer(kit.Behaviour)
		kit.Check(producer.Publish("go-nsq-churn", make([]byte, 200)))
		producer.Stop()
	}
}

func good() {
	config := config()
	config.MaxInFlight = 20
	seen := consumer("good-go-nsq", config, 4, time.Millisecond)
	producer, done := producer(kit.Behaviour), make(chan *nsq.ProducerTransaction, 100)
	go func() {
		for answer := range done {
			kit.Check(answer.Error)
		}
	}()
	for !kit.IsOver() {
		kit.Check(producer.PublishAsync("good-go-nsq", make([]byte, 200), done))
		time.Sleep(6 * time.Millisecond)
	}
	until(seen)
}

func main() {
	kit.Say("go-nsq", nsq.VERSION)
	kit.Main(map[string]func(){
		"sync-produce":     syncProduce,
		"window-too-small": windowTooSmall,
		"hoarding":         hoarding,
		"ack-deadline":     ackDeadline,
		"churn":            churn,
		"no-compression":   noCompression,
		"compression":      compression,
		"good":             good,
	})
}
