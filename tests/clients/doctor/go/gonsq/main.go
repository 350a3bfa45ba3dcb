// go-nsq: the mistakes that its defaults invite, and a good program.
package main

import (
	"fmt"
	"math/rand"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/nsqio/go-nsq"

	"cloverleaf/tests/doctor/kit"
)

var nsqd = os.Getenv("CLOVERLEAF_NSQD")

// config has the behaviour as the client's name, this MaxInFlight, and otherwise the defaults.
func config(inFlight int) *nsq.Config {
	config := nsq.NewConfig()
	config.ClientID = kit.Behaviour
	config.MaxInFlight = inFlight
	return config
}

func producer(config *nsq.Config) *nsq.Producer {
	producer := kit.Must(nsq.NewProducer(nsqd, config))
	producer.SetLoggerLevel(nsq.LogLevelMax)
	return producer
}

func fill(topic string, messages int) {
	config := config(1)
	config.ClientID = "feeder"
	kit.Check(producer(config).MultiPublish(topic, slices.Repeat([][]byte{kit.Body}, messages)))
}

// consume starts a consumer with this many handlers, which call work for each message.
func consume(topic string, config *nsq.Config, handlers int, work func()) {
	consumer := kit.Must(nsq.NewConsumer(topic, "channel", config))
	consumer.SetLoggerLevel(nsq.LogLevelMax)
	consumer.AddConcurrentHandlers(nsq.HandlerFunc(func(*nsq.Message) error {
		work()
		kit.Saw(1)
		return nil
	}), handlers)
	kit.Check(consumer.ConnectToNSQD(nsqd))
}

func lasting(job time.Duration) func() {
	return func() { time.Sleep(job) }
}

// publish waits for the answer.
func publish(producer *nsq.Producer, topic string) {
	kit.Check(producer.Publish(topic, kit.Body))
}

// send publishes with this pause after each message, and without waiting for the answer. At most 500
// messages are in flight.
func send(topic string, config *nsq.Config, body func(int) []byte, pause time.Duration) {
	// A write to a full link may wait for longer than the default of a second.
	config.WriteTimeout = 10 * time.Second
	producer, done := producer(config), make(chan *nsq.ProducerTransaction, 500)
	number := 0
	kit.Every(pause, func() {
		if number >= cap(done) {
			kit.Check((<-done).Error)
		}
		kit.Check(producer.PublishAsync(topic, body(number), done))
		number++
	})
}

// text is JSON with the same field names in each message, and other values.
func text(number int) []byte {
	var body []byte
	for len(body) < 1200 {
		value := rand.Uint32()
		body = fmt.Appendf(body, `{"order":%d,"customer":"c-%06d","amount":%d,"currency":"EUR","state":"paid"}`,
			number, value%1000000, value%977)
	}
	return body
}

func syncProduce() {
	producer := producer(config(1))
	kit.Every(0, func() { publish(producer, "go-nsq") })
	producer.Stop()
}

func churn() {
	kit.Every(0, func() {
		producer := producer(config(1))
		publish(producer, "go-nsq-churn")
		producer.Stop()
	})
}

func windowTooSmall() {
	fill("go-nsq-window", 5000)
	consume("go-nsq-window", config(1), 1, func() {})
	kit.UntilSeen()
}

// Each consumer has one goroutine, as with AddHandler, but may hold 50 messages. The second consumer
// comes when the first one works on a message and holds all others, so that it gets none.
func hoarding() {
	const topic = "go-nsq-jobs"
	works := lasting(300 * time.Millisecond)
	first, begins := make(chan struct{}), sync.Once{}
	consume(topic, config(50), 1, func() {
		begins.Do(func() { close(first) })
		works()
	})
	fill(topic, 45)
	<-first
	consume(topic, config(50), 1, works)
	kit.UntilSeen()
}

// Each message takes half a second longer than the deadline that the client has asked for.
func ackDeadline() {
	fill("go-nsq-slow", 40)
	config := config(4)
	config.MsgTimeout = time.Second
	consume("go-nsq-slow", config, 4, lasting(1500*time.Millisecond))
	kit.UntilSeen()
}

func compression(isOn bool) func() {
	return func() {
		config := config(1)
		config.Deflate = isOn
		send("go-nsq-text", config, text, 0)
	}
}

func good() {
	consume("good-go-nsq", config(20), 4, lasting(time.Millisecond))
	send("good-go-nsq", config(20), func(int) []byte { return kit.Body }, 6*time.Millisecond)
	kit.UntilSeen()
}

func main() {
	kit.Main("go-nsq", nsq.VERSION, "", map[string]func(){
		"sync-produce":     syncProduce,
		"window-too-small": windowTooSmall,
		"hoarding":         hoarding,
		"ack-deadline":     ackDeadline,
		"churn":            churn,
		"no-compression":   compression(false),
		"compression":      compression(true),
		"good":             good,
	})
}
