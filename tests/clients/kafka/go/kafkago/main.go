// segmentio/kafka-go: produce, consume, groups, administration. It speaks old versions of each API.
//
// The address comes from the environment: KAFKA.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"

	"cloverleaf/tests/kafka/report"
)

var address = os.Getenv("KAFKA")

func main() {
	report.Main([]report.Check{
		{Name: "kafka-go: produce and consume", Run: produceAndConsume},
		{Name: "kafka-go: each compression and each acks", Run: compressions},
		{Name: "kafka-go: a group commits and goes on", Run: commits},
		{Name: "kafka-go: two members share", Run: share},
		{Name: "kafka-go: administration", Run: administration},
	})
}

func create(ctx context.Context, partitions int) (string, error) {
	topic := report.Name()
	admin := kafka.Client{Addr: kafka.TCP(address)}
	config := kafka.TopicConfig{Topic: topic, NumPartitions: partitions, ReplicationFactor: 1}
	request := kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{config}}
	answer, err := admin.CreateTopics(ctx, &request)
	if err != nil {
		return "", err
	}
	return topic, answer.Errors[topic]
}

func produce(ctx context.Context, writer *kafka.Writer, count int) error {
	writer.Addr = kafka.TCP(address)
	writer.BatchTimeout = 5 * time.Millisecond
	defer writer.Close()
	var messages []kafka.Message
	for n := range count {
		header := kafka.Header{Key: "h", Value: []byte("1")}
		messages = append(messages, kafka.Message{
			Key: fmt.Appendf(nil, "%d", n%10), Value: fmt.Appendf(nil, "%d", n),
			Headers: []kafka.Header{header},
		})
	}
	return writer.WriteMessages(ctx, messages...)
}

func expect(ctx context.Context, reader *kafka.Reader, first, end int) error {
	for n := first; n < end; n++ {
		message, err := reader.FetchMessage(ctx)
		if err != nil {
			return fmt.Errorf("message %d: %w", n, err)
		}
		if string(message.Value) != fmt.Sprint(n) || len(message.Headers) != 1 {
			return fmt.Errorf("message %d is %s, %v", n, message.Value, message.Headers)
		}
	}
	return nil
}

// Without acknowledgements a batch is sent before the connection of the one before it is free again:
// then it goes over another connection, and may come first.
func expectAnyOrder(ctx context.Context, reader *kafka.Reader, count int) error {
	seen := map[string]bool{}
	for n := range count {
		message, err := reader.FetchMessage(ctx)
		if err != nil {
			return fmt.Errorf("message %d: %w", n, err)
		}
		value := string(message.Value)
		number, err := strconv.Atoi(value)
		if err != nil || number < 0 || number >= count || seen[value] || len(message.Headers) != 1 {
			return fmt.Errorf("message %d is %s, %v", n, value, message.Headers)
		}
		seen[value] = true
	}
	return nil
}

func roundTrip(ctx context.Context, topic string, writer *kafka.Writer) error {
	writer.Topic = topic
	if err := produce(ctx, writer, 500); err != nil {
		return err
	}
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{address}, Topic: topic, MaxWait: 200 * time.Millisecond,
	})
	defer reader.Close()
	if writer.RequiredAcks == kafka.RequireNone {
		return expectAnyOrder(ctx, reader, 500)
	}
	return expect(ctx, reader, 0, 500)
}

func produceAndConsume(ctx context.Context) error {
	topic, err := create(ctx, 1)
	if err != nil {
		return err
	}
	return roundTrip(ctx, topic, &kafka.Writer{RequiredAcks: kafka.RequireAll})
}

// compressions runs all at once: a writer and a reader of this library take seconds to close.
func compressions(ctx context.Context) error {
	var topics []string
	var writers []*kafka.Writer
	for _, codec := range []kafka.Compression{0, kafka.Gzip, kafka.Snappy, kafka.Lz4, kafka.Zstd} {
		for _, acks := range []kafka.RequiredAcks{kafka.RequireNone, kafka.RequireOne, kafka.RequireAll} {
			topic, err := create(ctx, 1)
			if err != nil {
				return err
			}
			topics = append(topics, topic)
			writers = append(writers, &kafka.Writer{Compression: codec, RequiredAcks: acks})
		}
	}
	results := make(chan error)
	for n, writer := range writers {
		go func() {
			if err := roundTrip(ctx, topics[n], writer); err != nil {
				err = fmt.Errorf("%v, acks %v: %w", writer.Compression, writer.RequiredAcks, err)
				results <- err
				return
			}
			results <- nil
		}()
	}
	var all error
	for range writers {
		all = errors.Join(all, <-results)
	}
	return all
}

func newReader(topic, group string) *kafka.Reader {
	return kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{address}, GroupID: group, Topic: topic, StartOffset: kafka.FirstOffset,
		HeartbeatInterval: 300 * time.Millisecond, MaxWait: 200 * time.Millisecond,
	})
}

func commits(ctx context.Context) error {
	topic, err := create(ctx, 1)
	if err != nil {
		return err
	}
	if err := produce(ctx, &kafka.Writer{Topic: topic}, 20); err != nil {
		return err
	}
	group := report.Name()
	first := newReader(topic, group)
	if err := expect(ctx, first, 0, 8); err != nil {
		return errors.Join(err, first.Close())
	}
	err = first.CommitMessages(ctx, kafka.Message{Topic: topic, Partition: 0, Offset: 7})
	if err = errors.Join(err, first.Close()); err != nil {
		return err
	}
	second := newReader(topic, group)
	defer second.Close()
	return expect(ctx, second, 8, 20)
}

func share(ctx context.Context) error {
	topic, err := create(ctx, 4)
	if err != nil {
		return err
	}
	group := report.Name()
	readers := []*kafka.Reader{newReader(topic, group), newReader(topic, group)}
	for _, reader := range readers {
		defer reader.Close()
	}
	admin := kafka.Client{Addr: kafka.TCP(address)}
	err = report.Until(ctx, "two members are in the group", func() bool {
		request := kafka.DescribeGroupsRequest{GroupIDs: []string{group}}
		answer, err := admin.DescribeGroups(ctx, &request)
		return err == nil && len(answer.Groups) == 1 && len(answer.Groups[0].Members) == 2 &&
			answer.Groups[0].GroupState == "Stable"
	})
	if err != nil {
		return err
	}
	if err := produce(ctx, &kafka.Writer{Topic: topic, Balancer: &kafka.Hash{}}, 400); err != nil {
		return err
	}
	type result struct {
		value string
		err   error
	}
	results := make(chan result)
	reading, stop := context.WithCancel(ctx)
	defer stop()
	for _, reader := range readers {
		go func() {
			for {
				message, err := reader.ReadMessage(reading)
				select {
				case results <- result{string(message.Value), err}:
				case <-reading.Done():
				}
				if err != nil {
					return
				}
			}
		}()
	}
	// A rebalance may bring some a second time.
	seen := map[string]bool{}
	for len(seen) < 400 {
		got := <-results
		if got.err != nil {
			return fmt.Errorf("%d different messages have come: %w", len(seen), got.err)
		}
		seen[got.value] = true
	}
	return nil
}

func administration(ctx context.Context) error {
	topic, err := create(ctx, 3)
	if err != nil {
		return err
	}
	connection, err := kafka.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer connection.Close()
	partitions, err := connection.ReadPartitions(topic)
	if err != nil {
		return err
	}
	if len(partitions) != 3 {
		return fmt.Errorf("%d partitions", len(partitions))
	}
	if _, err := connection.Controller(); err != nil {
		return err
	}
	return connection.DeleteTopics(topic)
}
