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

// config is the library's defaults, and the behaviour as the client's name.
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

// consume has so many handlers, each of which does this for a message.
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

// publish awaits each message.
func publish(producer *nsq.Producer, topic string) {
	kit.Check(producer.Publish(topic, kit.Body))
}

// send publishes as much as the connection takes, or with a pause after each; so many are on their way,
// for the program's own sake.
func send(topic string, config *nsq.Config, body func(int) []byte, pause time.Duration) {
	// The link is another's, too: a write may wait for longer than a second.
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

// What programs send each other: the same names in each, with other values.
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

// AddHandler is one goroutine, however many messages the consumer holds; a second process comes when
// the first one works on a message, has got all that were published with it, and gets nothing.
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

// Half a second more than the client has asked for.
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
