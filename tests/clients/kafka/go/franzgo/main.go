// franz-go: produce, consume, groups, administration. It asks for the newest version of each API.
//
// The address comes from the environment: KAFKA, and KAFKA_TLS with KAFKA_TLS_CA.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"cloverleaf/tests/kafka/report"
)

func main() {
	checks := []report.Check{
		{Name: "produce and consume", Run: produceAndConsume},
		{Name: "each compression and each acks", Run: compressions},
		{Name: "keys, headers and tombstones", Run: headers},
		{Name: "eight partitions", Run: partitions},
		{Name: "a group commits and goes on", Run: commits},
		{Name: "members share, each balancer", Run: share},
		{Name: "regular expressions", Run: expressions},
		{Name: "offsets and times", Run: offsets},
		{Name: "administration", Run: administration},
	}
	if os.Getenv("KAFKA_TLS") != "" {
		checks = append(checks, report.Check{Name: "TLS", Run: overTLS})
	}
	report.Main(checks)
}

func client(options ...kgo.Opt) (*kgo.Client, error) {
	defaults := []kgo.Opt{
		kgo.SeedBrokers(os.Getenv("KAFKA")), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		// A member hears of a rebalance with it, by default only after three seconds.
		kgo.HeartbeatInterval(300 * time.Millisecond),
	}
	return kgo.NewClient(append(defaults, options...)...)
}

func create(ctx context.Context, partitions int32) (string, error) {
	made, err := client()
	if err != nil {
		return "", err
	}
	defer made.Close()
	topic := report.Name()
	answer, err := kadm.NewClient(made).CreateTopic(ctx, partitions, 1, nil, topic)
	return topic, errors.Join(err, answer.Err)
}

func numbered(topic string, count int) []*kgo.Record {
	var records []*kgo.Record
	for n := range count {
		value := fmt.Appendf(nil, "%d", n)
		key := fmt.Appendf(nil, "%d", n%100)
		records = append(records, &kgo.Record{Topic: topic, Key: key, Value: value})
	}
	return records
}

func produce(ctx context.Context, records []*kgo.Record, options ...kgo.Opt) error {
	producer, err := client(options...)
	if err != nil {
		return err
	}
	defer producer.Close()
	return producer.ProduceSync(ctx, records...).FirstErr()
}

func take(ctx context.Context, consumer *kgo.Client, count int) ([]*kgo.Record, error) {
	var records []*kgo.Record
	for len(records) < count {
		fetches := consumer.PollRecords(ctx, count-len(records))
		if err := fetches.Err(); err != nil {
			return nil, fmt.Errorf("%d of %d records have come: %w", len(records), count, err)
		}
		records = append(records, fetches.Records()...)
	}
	return records, nil
}

func consume(ctx context.Context, topic string, count int, options ...kgo.Opt) ([]*kgo.Record, error) {
	consumer, err := client(append(options, kgo.ConsumeTopics(topic))...)
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	return take(ctx, consumer, count)
}

func roundTrip(ctx context.Context, producing, consuming []kgo.Opt) error {
	topic, err := create(ctx, 1)
	if err != nil {
		return err
	}
	if err := produce(ctx, numbered(topic, 1000), producing...); err != nil {
		return err
	}
	records, err := consume(ctx, topic, 1000, consuming...)
	if err != nil {
		return err
	}
	for n, record := range records {
		if string(record.Value) != fmt.Sprint(n) || record.Offset != int64(n) {
			return fmt.Errorf("record %d is %s at offset %d", n, record.Value, record.Offset)
		}
	}
	return nil
}

func produceAndConsume(ctx context.Context) error {
	return roundTrip(ctx, nil, nil)
}

func compressions(ctx context.Context) error {
	codecs := []kgo.CompressionCodec{
		kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(),
		kgo.ZstdCompression(),
	}
	for _, codec := range codecs {
		for _, acks := range []kgo.Acks{kgo.NoAck(), kgo.LeaderAck(), kgo.AllISRAcks()} {
			options := []kgo.Opt{kgo.ProducerBatchCompression(codec), kgo.RequiredAcks(acks)}
			if acks != kgo.AllISRAcks() {
				options = append(options, kgo.DisableIdempotentWrite())
			}
			if err := roundTrip(ctx, options, nil); err != nil {
				return fmt.Errorf("%v, %v: %w", codec, acks, err)
			}
		}
	}
	return nil
}

func headers(ctx context.Context) error {
	topic, err := create(ctx, 1)
	if err != nil {
		return err
	}
	header := []kgo.RecordHeader{{Key: "h", Value: []byte("1")}, {Key: "h", Value: []byte("2")}}
	records := []*kgo.Record{
		{Topic: topic, Key: []byte("k"), Value: []byte("v"), Headers: header},
		{Topic: topic, Key: []byte("k")},
	}
	if err := produce(ctx, records); err != nil {
		return err
	}
	got, err := consume(ctx, topic, 2)
	if err != nil {
		return err
	}
	if fmt.Sprint(got[0].Headers) != fmt.Sprint(header) || string(got[0].Key) != "k" {
		return fmt.Errorf("headers %v, key %s", got[0].Headers, got[0].Key)
	}
	if got[1].Value != nil {
		return fmt.Errorf("the tombstone has the value %q", got[1].Value)
	}
	return nil
}

func partitions(ctx context.Context) error {
	topic, err := create(ctx, 8)
	if err != nil {
		return err
	}
	if err := produce(ctx, numbered(topic, 8000)); err != nil {
		return err
	}
	records, err := consume(ctx, topic, 8000)
	if err != nil {
		return err
	}
	last := map[string]int{}
	for _, record := range records {
		var value int
		if _, err := fmt.Sscan(string(record.Value), &value); err != nil {
			return err
		}
		if before, ok := last[string(record.Key)]; ok && before+100 != value {
			return fmt.Errorf("key %s: %d after %d", record.Key, value, before)
		}
		last[string(record.Key)] = value
	}
	return nil
}

func commits(ctx context.Context) error {
	topic, err := create(ctx, 1)
	if err != nil {
		return err
	}
	group := kgo.ConsumerGroup(report.Name())
	if err := produce(ctx, numbered(topic, 20)); err != nil {
		return err
	}
	first, err := client(group, kgo.ConsumeTopics(topic), kgo.DisableAutoCommit())
	if err != nil {
		return err
	}
	defer first.Close()
	records, err := take(ctx, first, 8)
	if err != nil {
		return err
	}
	if err := first.CommitRecords(ctx, records...); err != nil {
		return err
	}
	first.LeaveGroup()
	rest, err := consume(ctx, topic, 12, group)
	if err == nil && rest[0].Offset != 8 {
		err = fmt.Errorf("the group goes on at %d", rest[0].Offset)
	}
	return err
}

// member is a group member that polls in the background.
type member struct {
	client *kgo.Client
	lock   sync.Mutex
	held   map[int32]bool
}

func newMember(ctx context.Context, topic, group string, balancer kgo.GroupBalancer) (*member, error) {
	self := &member{held: map[int32]bool{}}
	change := func(is bool) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, changed map[string][]int32) {
			self.lock.Lock()
			defer self.lock.Unlock()
			for _, number := range changed[topic] {
				if is {
					self.held[number] = true
				} else {
					delete(self.held, number)
				}
			}
		}
	}
	made, err := client(
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.Balancers(balancer),
		kgo.OnPartitionsAssigned(change(true)), kgo.OnPartitionsRevoked(change(false)),
		kgo.OnPartitionsLost(change(false)))
	self.client = made
	go func() {
		for err == nil && !made.PollFetches(ctx).IsClientClosed() && ctx.Err() == nil {
		}
	}()
	return self, err
}

func (m *member) count() int {
	m.lock.Lock()
	defer m.lock.Unlock()
	return len(m.held)
}

func share(ctx context.Context) error {
	balancers := []kgo.GroupBalancer{
		kgo.RangeBalancer(), kgo.RoundRobinBalancer(), kgo.StickyBalancer(),
		kgo.CooperativeStickyBalancer(),
	}
	for _, balancer := range balancers {
		topic, err := create(ctx, 6)
		if err != nil {
			return err
		}
		group := report.Name()
		var members []*member
		for _, share := range []int{6, 3, 2} {
			one, err := newMember(ctx, topic, group, balancer)
			if err != nil {
				return err
			}
			members = append(members, one)
			err = report.Until(ctx, fmt.Sprintf("%d each", share), func() bool {
				for _, one := range members {
					if one.count() != share {
						return false
					}
				}
				return true
			})
			if err != nil {
				return fmt.Errorf("%s: %w", balancer.ProtocolName(), err)
			}
		}
		members[2].client.Close()
		members[1].client.Close()
		err = report.Until(ctx, "the first has all", func() bool { return members[0].count() == 6 })
		members[0].client.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func expressions(ctx context.Context) error {
	topic, err := create(ctx, 2)
	if err != nil {
		return err
	}
	if err := produce(ctx, numbered(topic, 10)); err != nil {
		return err
	}
	_, err = consume(ctx, "^"+topic[:len(topic)-1]+"["+topic[len(topic)-1:]+"]$", 10, kgo.ConsumeRegex())
	return err
}

func offsets(ctx context.Context) error {
	topic, err := create(ctx, 1)
	if err != nil {
		return err
	}
	if err := produce(ctx, numbered(topic, 50)); err != nil {
		return err
	}
	made, err := client()
	if err != nil {
		return err
	}
	defer made.Close()
	admin := kadm.NewClient(made)
	starts, err := admin.ListStartOffsets(ctx, topic)
	if err != nil {
		return err
	}
	ends, err := admin.ListEndOffsets(ctx, topic)
	if err != nil {
		return err
	}
	start, _ := starts.Lookup(topic, 0)
	end, _ := ends.Lookup(topic, 0)
	if start.Offset != 0 || end.Offset != 50 {
		return fmt.Errorf("starts at %d, ends at %d", start.Offset, end.Offset)
	}
	at := kgo.NewOffset().At(45)
	partition := map[string]map[int32]kgo.Offset{topic: {0: at}}
	consumer, err := client(kgo.ConsumePartitions(partition))
	if err != nil {
		return err
	}
	defer consumer.Close()
	records, err := take(ctx, consumer, 5)
	if err == nil && records[0].Offset != 45 {
		err = fmt.Errorf("reads from %d", records[0].Offset)
	}
	return err
}

func administration(ctx context.Context) error {
	made, err := client()
	if err != nil {
		return err
	}
	defer made.Close()
	admin := kadm.NewClient(made)
	topic, err := create(ctx, 2)
	if err != nil {
		return err
	}
	again, err := admin.CreateTopic(ctx, 1, 1, nil, topic)
	if !errors.Is(err, kerr.TopicAlreadyExists) && !errors.Is(again.Err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("a topic made twice: %w", errors.Join(err, again.Err))
	}
	if more, err := admin.UpdatePartitions(ctx, 4, topic); err != nil || more.Error() != nil {
		return errors.Join(err, more.Error())
	}
	value := "60000"
	change := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &value}}
	if _, err := admin.AlterTopicConfigs(ctx, change, topic); err != nil {
		return err
	}
	config, err := admin.DescribeTopicConfigs(ctx, topic)
	if err != nil {
		return err
	}
	described := map[string]string{}
	for _, entry := range config[0].Configs {
		described[entry.Key] = entry.MaybeValue()
	}
	if described["retention.ms"] != value {
		return fmt.Errorf("retention.ms is %s", described["retention.ms"])
	}
	if _, err := admin.BrokerMetadata(ctx); err != nil {
		return err
	}
	if _, err := admin.DescribeAllLogDirs(ctx, nil); err != nil {
		return err
	}
	if _, err := admin.ListGroups(ctx); err != nil {
		return err
	}
	deleted, err := admin.DeleteTopics(ctx, topic)
	return errors.Join(err, deleted.Error())
}

func overTLS(ctx context.Context) error {
	pem, err := os.ReadFile(os.Getenv("KAFKA_TLS_CA"))
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	options := []kgo.Opt{
		kgo.SeedBrokers(os.Getenv("KAFKA_TLS")), kgo.DialTLSConfig(&tls.Config{RootCAs: pool}),
	}
	return roundTrip(ctx, options, options)
}
