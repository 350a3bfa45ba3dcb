module cloverleaf/tests/doctor

go 1.24.0

require (
	github.com/nsqio/go-nsq v1.1.0
	github.com/rabbitmq/amqp091-go v1.16.0
	github.com/segmentio/kafka-go v0.4.50
	github.com/twmb/franz-go v1.20.6
)

require (
	github.com/golang/snappy v0.0.1 // indirect
	github.com/klauspost/compress v1.18.2 // indirect
	github.com/pierrec/lz4/v4 v4.1.22 // indirect
	github.com/twmb/franz-go/pkg/kmsg v1.12.0 // indirect
)
