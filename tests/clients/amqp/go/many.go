package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	amqp "github.com/rabbitmq/amqp091-go"
)

// everybodyAtOnce: nothing is lost, nothing comes twice, and what a consumer gets of a publisher
// comes in its order.
func everybodyAtOnce(ctx context.Context) error {
	const publishers, consumers, each = 20, 20, 500
	connection, channel, err := open()
	if err != nil {
		return err
	}
	defer connection.Close()
	title := name()
	if _, err := channel.QueueDeclare(title, true, false, false, false, nil); err != nil {
		return err
	}
	var seen sync.Map
	var count atomic.Int64
	failures := make(chan error, publishers+consumers)
	done := make(chan struct{})
	for range consumers {
		go func() {
			failures <- func() error {
				connection, channel, err := open()
				if err != nil {
					return err
				}
				defer connection.Close()
				if err := channel.Qos(50, 0, false); err != nil {
					return err
				}
				deliveries, err := channel.Consume(title, "", false, false, false, false, nil)
				if err != nil {
					return err
				}
				next := [publishers]int{}
				for {
					select {
					case <-done:
						return nil
					case got, ok := <-deliveries:
						if !ok {
							return errors.New("a consumer's deliveries have ended")
						}
						if _, twice := seen.LoadOrStore(string(got.Body), true); twice {
							return fmt.Errorf("%s came twice", got.Body)
						}
						var publisher, number int
						if _, err := fmt.Sscanf(string(got.Body), "%d-%d", &publisher, &number); err != nil {
							return err
						}
						if number < next[publisher] {
							return fmt.Errorf("%s came after %d of the same", got.Body, next[publisher]-1)
						}
						next[publisher] = number + 1
						if err := got.Ack(false); err != nil {
							return err
						}
						if count.Add(1) == publishers*each {
							close(done)
						}
					}
				}
			}()
		}()
	}
	for publisher := range publishers {
		go func() {
			failures <- func() error {
				connection, channel, err := open()
				if err != nil {
					return err
				}
				defer connection.Close()
				if err := channel.Confirm(false); err != nil {
					return err
				}
				var last *amqp.DeferredConfirmation
				for n := range each {
					message := amqp.Publishing{
						Body: fmt.Appendf(nil, "%d-%d", publisher, n), DeliveryMode: amqp.Persistent,
					}
					last, err = publishDeferred(ctx, channel, title, false, message)
					if err != nil {
						return err
					}
				}
				if acked, err := last.WaitContext(ctx); err != nil || !acked {
					return fmt.Errorf("the last confirm: %v %v", acked, err)
				}
				return nil
			}()
		}()
	}
	for range publishers + consumers {
		select {
		case err := <-failures:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return fmt.Errorf("%d of %d messages came", count.Load(), publishers*each)
		}
	}
	_, err = channel.QueueDelete(title, false, true, false)
	return err
}

func overTLS(ctx context.Context) error {
	authority, err := os.ReadFile(os.Getenv("AMQP_TLS_CA"))
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	url := "amqps://guest:guest@" + os.Getenv("AMQP_TLS") + "/"
	connection, err := amqp.DialTLS(url, &tls.Config{RootCAs: roots})
	if err != nil {
		return err
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	title, err := queue(channel, nil)
	if err != nil {
		return err
	}
	deliveries, err := channel.Consume(title, "", true, false, false, false, nil)
	if err != nil {
		return err
	}
	body := bytes.Repeat([]byte("x"), 300_000)
	if err := publish(ctx, channel, title, body); err != nil {
		return err
	}
	got, err := next(ctx, deliveries)
	if err != nil {
		return err
	}
	return same(bytes.Equal(got.Body, body), true, "the body is the same")
}
