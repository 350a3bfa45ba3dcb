// amqp091-go: publish, consume, confirms, errors, everything at once.
//
// The address comes from the environment: AMQP, and AMQP_TLS with AMQP_TLS_CA.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

var url = "amqp://guest:guest@" + os.Getenv("AMQP") + "/"

func main() {
	checks := []check{
		{"publish and consume", publishAndConsume},
		{"deferred confirms, many in flight", deferredConfirms},
		{"returns come before their confirms", returns},
		{"errors close the channel, and tell why", channelErrors},
		{"get, nack, reject, redelivered", getAndGiveBack},
		{"every kind of header value", headerValues},
		{"a message of 10 MB", large},
		{"transactions", transactions},
		{"cancellations, by us and by the broker", cancellations},
		{"twenty publishers and twenty consumers", everybodyAtOnce},
		{"channels opened and closed in a loop", channelChurn},
	}
	if os.Getenv("AMQP_TLS") != "" {
		checks = append(checks, check{"TLS", overTLS})
	}
	runAll(checks)
}

// open makes a connection and a channel on it.
func open() (*amqp.Connection, *amqp.Channel, error) {
	connection, err := amqp.Dial(url)
	if err != nil {
		return nil, nil, err
	}
	channel, err := connection.Channel()
	if err != nil {
		connection.Close()
		return nil, nil, err
	}
	return connection, channel, nil
}

// queue declares one that goes with its connection.
func queue(channel *amqp.Channel, arguments amqp.Table) (string, error) {
	declared, err := channel.QueueDeclare(name(), false, false, true, false, arguments)
	return declared.Name, err
}

func publish(ctx context.Context, channel *amqp.Channel, to string, body []byte) error {
	message := amqp.Publishing{Body: body}
	return channel.PublishWithContext(ctx, "", to, false, false, message)
}

func publishDeferred(
	ctx context.Context, channel *amqp.Channel, to string, mandatory bool, message amqp.Publishing,
) (*amqp.DeferredConfirmation, error) {
	return channel.PublishWithDeferredConfirmWithContext(ctx, "", to, mandatory, false, message)
}

func next(ctx context.Context, deliveries <-chan amqp.Delivery) (amqp.Delivery, error) {
	select {
	case delivery, ok := <-deliveries:
		if !ok {
			return delivery, errors.New("the deliveries have ended")
		}
		return delivery, nil
	case <-ctx.Done():
		return amqp.Delivery{}, errors.New("no delivery comes")
	}
}

func publishAndConsume(ctx context.Context) error {
	connection, channel, err := open()
	if err != nil {
		return err
	}
	defer connection.Close()
	exchange := name()
	err = channel.ExchangeDeclare(exchange, "topic", false, true, false, false, nil)
	if err != nil {
		return err
	}
	title, err := queue(channel, nil)
	if err != nil {
		return err
	}
	if err := channel.QueueBind(title, "a.*", exchange, false, nil); err != nil {
		return err
	}
	if err := channel.Qos(10, 0, false); err != nil {
		return err
	}
	deliveries, err := channel.ConsumeWithContext(ctx, title, "tag", false, false, false, false, nil)
	if err != nil {
		return err
	}
	for n := range 100 {
		message := amqp.Publishing{
			Body: fmt.Appendf(nil, "%d", n), ContentType: "text/plain", MessageId: fmt.Sprint(n),
			Headers: amqp.Table{"n": int32(n)}, Timestamp: time.Unix(1764000000, 0),
		}
		err := channel.PublishWithContext(ctx, exchange, "a.b", false, false, message)
		if err != nil {
			return err
		}
	}
	for n := range 100 {
		got, err := next(ctx, deliveries)
		if err != nil {
			return err
		}
		if string(got.Body) != fmt.Sprint(n) || got.Headers["n"] != int32(n) ||
			got.MessageId != fmt.Sprint(n) || got.RoutingKey != "a.b" || got.Exchange != exchange ||
			got.ConsumerTag != "tag" || got.Redelivered || got.Timestamp.Unix() != 1764000000 {
			return fmt.Errorf("message %d came as %+v", n, got)
		}
		if err := got.Ack(n%10 == 9); err != nil && n%10 == 9 {
			return err
		}
	}
	left, err := channel.QueueDeclarePassive(title, false, false, true, false, nil)
	if err != nil {
		return err
	}
	return same(left.Messages, 0, "messages left")
}

func deferredConfirms(ctx context.Context) error {
	connection, channel, err := open()
	if err != nil {
		return err
	}
	defer connection.Close()
	if err := channel.Confirm(false); err != nil {
		return err
	}
	title := name()
	if _, err := channel.QueueDeclare(title, true, false, false, false, nil); err != nil {
		return err
	}
	notified := channel.NotifyPublish(make(chan amqp.Confirmation, 3000))
	var confirms []*amqp.DeferredConfirmation
	for n := range 3000 {
		message := amqp.Publishing{Body: fmt.Appendf(nil, "%d", n), DeliveryMode: amqp.Persistent}
		confirm, err := publishDeferred(ctx, channel, title, false, message)
		if err != nil {
			return err
		}
		confirms = append(confirms, confirm)
	}
	for n, confirm := range confirms {
		acked, err := confirm.WaitContext(ctx)
		if err != nil || !acked {
			return fmt.Errorf("message %d: %v %v", n, acked, err)
		}
	}
	for n := range 3000 {
		confirmation := <-notified
		if confirmation.DeliveryTag != uint64(n+1) || !confirmation.Ack {
			return fmt.Errorf("confirmation %d is %+v", n, confirmation)
		}
	}
	purged, err := channel.QueuePurge(title, false)
	if err != nil {
		return err
	}
	if _, err := channel.QueueDelete(title, false, false, false); err != nil {
		return err
	}
	return same(purged, 3000, "messages in the queue")
}

func returns(ctx context.Context) error {
	connection, channel, err := open()
	if err != nil {
		return err
	}
	defer connection.Close()
	if err := channel.Confirm(false); err != nil {
		return err
	}
	returned := channel.NotifyReturn(make(chan amqp.Return, 1))
	message := amqp.Publishing{Body: []byte("lost"), MessageId: "m"}
	confirm, err := publishDeferred(ctx, channel, name(), true, message)
	if err != nil {
		return err
	}
	if acked, err := confirm.WaitContext(ctx); err != nil || !acked {
		return fmt.Errorf("the confirm: %v %v", acked, err)
	}
	select {
	case back := <-returned:
		if back.ReplyCode != amqp.NoRoute || string(back.Body) != "lost" || back.MessageId != "m" {
			return fmt.Errorf("it came back as %+v", back)
		}
		return nil
	default:
		return errors.New("it was confirmed, and had not come back")
	}
}

func channelErrors(context.Context) error {
	connection, _, err := open()
	if err != nil {
		return err
	}
	defer connection.Close()
	taken := name()
	cases := []struct {
		code int
		text string
		run  func(*amqp.Channel) error
	}{
		{404, "no queue 'missing' in vhost '/'", func(channel *amqp.Channel) error {
			_, err := channel.QueueDeclarePassive("missing", false, false, false, false, nil)
			return err
		}},
		{406, "inequivalent arg 'durable' for queue", func(channel *amqp.Channel) error {
			if _, err := channel.QueueDeclare(taken, false, true, false, false, nil); err != nil {
				return err
			}
			_, err := channel.QueueDeclare(taken, true, true, false, false, nil)
			return err
		}},
		{403, "contains reserved prefix 'amq.*'", func(channel *amqp.Channel) error {
			_, err := channel.QueueDeclare("amq.mine", false, false, false, false, nil)
			return err
		}},
		{404, "no exchange 'missing' in vhost '/'", func(channel *amqp.Channel) error {
			return channel.QueueBind(taken, "k", "missing", false, nil)
		}},
	}
	for _, each := range cases {
		channel, err := connection.Channel()
		if err != nil {
			return err
		}
		closed := channel.NotifyClose(make(chan *amqp.Error, 1))
		err = each.run(channel)
		var refused *amqp.Error
		if !errors.As(err, &refused) {
			return fmt.Errorf("%v where %d was due", err, each.code)
		}
		isRight := refused.Code == each.code && strings.Contains(refused.Reason, each.text)
		if !isRight || !refused.Server {
			return fmt.Errorf("%+v where %d %q was due", refused, each.code, each.text)
		}
		if told := <-closed; told == nil || told.Code != each.code {
			return fmt.Errorf("the channel was told %v", told)
		}
	}
	if connection.IsClosed() {
		return errors.New("the connection has ended too")
	}
	_, err = amqp.Dial(strings.Replace(url, "guest:guest", "guest:wrong", 1))
	isTold := strings.Contains(fmt.Sprint(err), "ACCESS_REFUSED")
	if !errors.Is(err, amqp.ErrCredentials) && !isTold {
		return fmt.Errorf("a wrong password: %v", err)
	}
	_, err = amqp.Dial(url + "missing")
	if err == nil {
		return errors.New("a virtual host that is not there was opened")
	}
	return nil
}

func getAndGiveBack(ctx context.Context) error {
	connection, channel, err := open()
	if err != nil {
		return err
	}
	defer connection.Close()
	title, err := queue(channel, nil)
	if err != nil {
		return err
	}
	for n := range 3 {
		message := amqp.Publishing{Body: fmt.Appendf(nil, "%d", n)}
		if err := channel.PublishWithContext(ctx, "", title, false, false, message); err != nil {
			return err
		}
	}
	get := func(expected string, redelivered bool) (amqp.Delivery, error) {
		got, ok, err := channel.Get(title, false)
		if err == nil && (!ok || string(got.Body) != expected || got.Redelivered != redelivered) {
			err = fmt.Errorf("%v %q %v where %q was due", ok, got.Body, got.Redelivered, expected)
		}
		return got, err
	}
	first, err := get("0", false)
	if err != nil {
		return err
	}
	second, err := get("1", false)
	if err != nil {
		return err
	}
	if err := first.Nack(false, true); err != nil {
		return err
	}
	if err := second.Reject(false); err != nil {
		return err
	}
	if first, err = get("0", true); err != nil {
		return err
	}
	if _, err = get("2", false); err != nil {
		return err
	}
	if _, ok, err := channel.Get(title, false); ok || err != nil {
		return fmt.Errorf("an empty queue gave %v %v", ok, err)
	}
	// All that this channel holds.
	return channel.Nack(0, true, true)
}

func headerValues(ctx context.Context) error {
	connection, channel, err := open()
	if err != nil {
		return err
	}
	defer connection.Close()
	title, err := queue(channel, nil)
	if err != nil {
		return err
	}
	sent := amqp.Table{
		"bool": true, "byte": uint8(200), "int8": int8(-5), "int16": int16(-300),
		"int32": int32(-70000), "int64": int64(-1) << 40, "float32": float32(1.5),
		"float64": 2.25, "string": "text", "nil": nil, "time": time.Unix(1764000000, 0),
		"decimal": amqp.Decimal{Scale: 2, Value: 314}, "bytes": []byte{0, 255},
		"table": amqp.Table{"inner": "x"}, "array": []any{int32(1), "two", nil},
	}
	message := amqp.Publishing{Headers: sent}
	if err := channel.PublishWithContext(ctx, "", title, false, false, message); err != nil {
		return err
	}
	got, ok, err := channel.Get(title, true)
	if err != nil || !ok {
		return fmt.Errorf("no message: %v", err)
	}
	for key, value := range sent {
		found := got.Headers[key]
		if fmt.Sprintf("%T %v", found, found) != fmt.Sprintf("%T %v", value, value) {
			return fmt.Errorf("%s: %T %v where %T %v was due", key, found, found, value, value)
		}
	}
	return same(len(got.Headers), len(sent), "headers")
}

func large(ctx context.Context) error {
	connection, channel, err := open()
	if err != nil {
		return err
	}
	defer connection.Close()
	title, err := queue(channel, nil)
	if err != nil {
		return err
	}
	deliveries, err := channel.Consume(title, "", true, false, false, false, nil)
	if err != nil {
		return err
	}
	body := bytes.Repeat([]byte("0123456789"), 1<<20)
	if err := publish(ctx, channel, title, body); err != nil {
		return err
	}
	got, err := next(ctx, deliveries)
	if err != nil {
		return err
	}
	return same(bytes.Equal(got.Body, body), true, "the body is the same")
}

func transactions(ctx context.Context) error {
	connection, channel, err := open()
	if err != nil {
		return err
	}
	defer connection.Close()
	title, err := queue(channel, nil)
	if err != nil {
		return err
	}
	if err := channel.Tx(); err != nil {
		return err
	}
	send := func(text string) error { return publish(ctx, channel, title, []byte(text)) }
	err = errors.Join(send("never"), channel.TxRollback(), send("kept"), channel.TxCommit())
	if err != nil {
		return err
	}
	got, ok, err := channel.Get(title, true)
	if err != nil || !ok || string(got.Body) != "kept" {
		return fmt.Errorf("%v %q %v", ok, got.Body, err)
	}
	if _, ok, _ := channel.Get(title, true); ok {
		return errors.New("what was undone is there")
	}
	return nil
}

func cancellations(ctx context.Context) error {
	connection, channel, err := open()
	if err != nil {
		return err
	}
	defer connection.Close()
	title, err := queue(channel, nil)
	if err != nil {
		return err
	}
	deliveries, err := channel.Consume(title, "mine", true, false, false, false, nil)
	if err != nil {
		return err
	}
	if err := channel.Cancel("mine", false); err != nil {
		return err
	}
	if _, open := <-deliveries; open {
		return errors.New("a cancelled consumer got a message")
	}
	cancelled := channel.NotifyCancel(make(chan string, 1))
	deliveries, err = channel.Consume(title, "theirs", true, false, false, false, nil)
	if err != nil {
		return err
	}
	if _, err := channel.QueueDelete(title, false, false, false); err != nil {
		return err
	}
	select {
	case tag := <-cancelled:
		if err := same(tag, "theirs", "the cancelled consumer"); err != nil {
			return err
		}
	case <-ctx.Done():
		return errors.New("it is not told that its queue has gone")
	}
	_, open := <-deliveries
	return same(open, false, "its deliveries go on")
}

func channelChurn(context.Context) error {
	connection, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	defer connection.Close()
	for range 2000 {
		channel, err := connection.Channel()
		if err != nil {
			return err
		}
		if err := channel.Close(); err != nil {
			return err
		}
	}
	return nil
}
