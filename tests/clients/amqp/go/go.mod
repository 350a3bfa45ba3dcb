module cloverleaf/tests/amqp

go 1.24.0

require github.com/rabbitmq/amqp091-go v1.16.0
