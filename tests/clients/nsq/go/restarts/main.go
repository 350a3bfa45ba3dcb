// Stops and starts a broker again and again while go-nsq producers and a consumer are at work.
// Every message that was answered OK must come, on the channel that was read all the time and on
// one that is read at the end; none may come that nobody sent.
//
// usage: restarts [-rounds N] [-signal KILL|TERM] [-ordered] [-seed N] -- BROKER ARGUMENT...
// The broker's addresses are NSQ_TCP and NSQ_HTTP.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"math/rand"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"cloverleaf/tests/nsq/ledger"

	"github.com/nsqio/go-nsq"
)

const (
	producers = 8
	topic     = "restarts"
	// A broker that is not serving after this time has failed.
	startMax = 600 * time.Second
	// As has one that has not ended so long after SIGTERM.
	stopMax = 600 * time.Second
	// What has not come when nothing came for this time is lost.
	stuckMax = 600 * time.Second
)

var (
	tcp      = os.Getenv("NSQ_TCP")
	address  = os.Getenv("NSQ_HTTP")
	rounds   = flag.Int("rounds", 5, "how often to stop the broker")
	signal   = flag.String("signal", "KILL", "KILL or TERM")
	ordered  = flag.Bool("ordered", false, "demand each producer's order")
	seed     = flag.Int64("seed", time.Now().UnixNano(), "of the random moments")
	quiet    = log.New(os.Stderr, "", log.LstdFlags)
	stopping atomic.Bool
)

func main() {
	flag.Parse()
	name := fmt.Sprintf("%d times SIG%s under load", *rounds, *signal)
	summary, err := run()
	if err != nil {
		fmt.Printf("not ok %s: seed %d: %v\n", name, *seed, err)
		os.Exit(1)
	}
	fmt.Printf("ok %s (%s)\n", name, summary)
}

func run() (string, error) {
	random := rand.New(rand.NewSource(*seed))
	broker, err := start()
	if err != nil {
		return "", err
	}
	defer func() { broker.Process.Kill() }()
	for _, channel := range []string{"live", "end"} {
		if err := create(channel); err != nil {
			return "", err
		}
	}
	book := ledger.New(producers)
	live := book.Reader()
	consumer, err := consume("live", live)
	if err != nil {
		return "", err
	}
	var group sync.WaitGroup
	for p := 0; p < producers; p++ {
		group.Add(1)
		go func(p int) {
			defer group.Done()
			produce(p, book)
		}(p)
	}
	for round := 0; round < *rounds && err == nil; round++ {
		time.Sleep(time.Duration(50+random.Intn(700)) * time.Millisecond)
		if err = stop(broker); err == nil {
			broker, err = start()
		}
	}
	if err == nil {
		time.Sleep(200 * time.Millisecond)
	}
	stopping.Store(true)
	group.Wait()
	if err != nil {
		return "", err
	}
	faults := ""
	if f := drain("live", live); f != "" {
		faults += "channel read all the time: " + f + ". "
	}
	consumer.Stop()
	<-consumer.StopChan
	end := book.Reader()
	if consumer, err = consume("end", end); err != nil {
		return "", err
	}
	if f := drain("end", end); f != "" {
		faults += "channel read at the end: " + f + ". "
	}
	consumer.Stop()
	<-consumer.StopChan
	if faults != "" {
		return "", errors.New(faults)
	}
	return fmt.Sprintf("%d messages, %d delivered again while live, %d at the end",
		book.Confirmed(), live.Twice(), end.Twice()), nil
}

func start() (*exec.Cmd, error) {
	command := exec.Command(flag.Arg(0), flag.Args()[1:]...)
	command.Stdout, command.Stderr = os.Stderr, os.Stderr
	if err := command.Start(); err != nil {
		return nil, err
	}
	deadline := time.Now().Add(startMax)
	for time.Now().Before(deadline) {
		response, err := http.Get("http://" + address + "/ping")
		if err == nil {
			response.Body.Close()
			return command, nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	command.Process.Kill()
	return nil, fmt.Errorf("the broker does not serve after %v", startMax)
}

func stop(broker *exec.Cmd) error {
	if *signal == "KILL" {
		broker.Process.Kill()
		broker.Wait()
		return nil
	}
	broker.Process.Signal(syscall.SIGTERM)
	ended := make(chan error, 1)
	go func() { ended <- broker.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			return fmt.Errorf("after SIGTERM the broker ended with %v", err)
		}
		return nil
	case <-time.After(stopMax):
		broker.Process.Kill()
		return fmt.Errorf("the broker still runs %v after SIGTERM", stopMax)
	}
}

func create(channel string) error {
	for _, path := range []string{"topic/create?", "channel/create?channel=" + channel + "&"} {
		url := fmt.Sprintf("http://%s/%stopic=%s", address, path, topic)
		response, err := http.Post(url, "", nil)
		if err != nil {
			return err
		}
		response.Body.Close()
		if response.StatusCode != 200 {
			return fmt.Errorf("%s: %s", url, response.Status)
		}
	}
	return nil
}

// consume delivers the channel's messages to reader until the consumer is stopped.
func consume(channel string, reader *ledger.Reader) (*nsq.Consumer, error) {
	config := nsq.NewConfig()
	config.MaxInFlight = 200
	// How soon it comes back after a lost connection.
	config.LookupdPollInterval = 20 * time.Millisecond
	config.LookupdPollJitter = 0
	// go-nsq gives a message up after 5 attempts; many crashes in a row are as many attempts.
	config.MaxAttempts = 0
	consumer, err := nsq.NewConsumer(topic, channel, config)
	if err != nil {
		return nil, err
	}
	consumer.SetLogger(quiet, nsq.LogLevelMax)
	consumer.AddHandler(nsq.HandlerFunc(func(m *nsq.Message) error {
		reader.Delivered(m.Body)
		return nil
	}))
	return consumer, consumer.ConnectToNSQD(tcp)
}

func produce(p int, book *ledger.Ledger) {
	producer, err := nsq.NewProducer(tcp, nsq.NewConfig())
	if err != nil {
		panic(err)
	}
	defer producer.Stop()
	producer.SetLogger(quiet, nsq.LogLevelMax)
	for n := 0; !stopping.Load(); n++ {
		count := 1
		if n%2 == 0 {
			count = 10
		}
		first, bodies := book.Attempt(p, count)
		if count == 1 {
			err = producer.Publish(topic, bodies[0])
		} else {
			err = producer.MultiPublish(topic, bodies)
		}
		if err == nil {
			book.Confirm(p, first, count)
		} else {
			time.Sleep(2 * time.Millisecond) // the broker is away
		}
	}
}

// drain waits until the channel is empty and every confirmed message has come.
func drain(channel string, reader *ledger.Reader) string {
	last, since := reader.Missing(), time.Now()
	for time.Since(since) < stuckMax && (last > 0 || !empty(channel)) {
		time.Sleep(20 * time.Millisecond)
		if missing := reader.Missing(); missing != last {
			last, since = missing, time.Now()
		}
	}
	return reader.Faults(*ordered)
}

// empty is true when the broker says that the channel holds nothing.
func empty(channel string) bool {
	url := "http://" + address + "/stats?format=json&topic=" + topic + "&channel=" + channel
	response, err := http.Get(url)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	var stats struct {
		Topics []struct {
			Channels []struct {
				Depth         int
				InFlightCount int `json:"in_flight_count"`
			}
		}
	}
	if json.NewDecoder(response.Body).Decode(&stats) != nil {
		return false
	}
	if len(stats.Topics) != 1 || len(stats.Topics[0].Channels) != 1 {
		return false
	}
	found := stats.Topics[0].Channels[0]
	return found.Depth == 0 && found.InFlightCount == 0
}
