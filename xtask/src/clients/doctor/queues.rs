//! The patients (client programs under test) of NSQ and AMQP.

use super::patients::{Expected, Patient, Program, Value};

pub(super) const GO_NSQ: Program = Program::Go("gonsq");
const PYNSQ: Program = Program::Python("pynsq_client.py");
const PYTHON_HTTP: Program = Program::Python("http_client.py");
pub(super) const NSQJS: Program = Program::Node("nsqjs_client.js");
pub(super) const PIKA: Program = Program::AmqpPython("pika_client.py");
const AIO_PIKA: Program = Program::AmqpPython("aio_pika_client.py");
const KOMBU: Program = Program::AmqpPython("kombu_client.py");
pub(super) const AMQPLIB: Program = Program::AmqpNode("amqplib_client.js");
const AMQP091: Program = Program::Go("amqp091");

/// A larger window, but not any.
const CREDIT: Value = Value::Between(2, 100);

/// One message at a time.
const fn window(client: &'static str, setting: &'static str, code: &'static str) -> Expected {
    Expected::new("window-too-small", client, setting)
        .value(CREDIT)
        .code(code)
}

/// A confirm after the other.
const fn sync(client: &'static str, setting: &'static str, code: &'static str) -> Expected {
    Expected::new("sync-produce", client, setting).code(code)
}

/// A connection that should be compressed.
const fn compression(
    client: &'static str,
    setting: &'static str,
    value: &'static str,
    code: &'static str,
) -> Expected {
    Expected::new("no-compression", client, setting)
        .value(Value::Is(value))
        .code(code)
}

/// NSQ's clients.
pub(super) const NSQ: &[Patient] = &[
    Patient::ill(
        "go-nsq waits for each message",
        GO_NSQ,
        "sync-produce",
        sync("go-nsq", "PublishAsync", "producer.PublishAsync("),
    ),
    Patient::ill(
        "go-nsq takes one message at a time",
        GO_NSQ,
        "window-too-small",
        window("go-nsq", "MaxInFlight", "config.MaxInFlight = "),
    ),
    Patient::ill(
        "go-nsq hoards",
        GO_NSQ,
        "hoarding",
        Expected::new("hoarding", "go-nsq", "AddConcurrentHandlers")
            .value(Value::Is("MaxInFlight"))
            .code("consumer.AddConcurrentHandlers("),
    ),
    Patient::ill(
        "go-nsq works longer than it asked for",
        GO_NSQ,
        "ack-deadline",
        Expected::new("ack-deadline", "go-nsq", "MsgTimeout")
            // Four handlers take 1.5 s; what came again meanwhile waits for them, and so on.
            .value(Value::Between(2, 9))
            .code("config.MsgTimeout = "),
    ),
    Patient::ill(
        "go-nsq connects for each message",
        GO_NSQ,
        "churn",
        Expected::new(
            "churn",
            "go-nsq",
            "one nsq.Producer for the life of the process",
        ),
    ),
    Patient::well("go-nsq", GO_NSQ),
    Patient::ill(
        "pynsq takes one message at a time",
        PYNSQ,
        "window-too-small",
        window("pynsq", "max_in_flight", "max_in_flight="),
    ),
    Patient::well("pynsq", PYNSQ),
    Patient::ill(
        "nsqjs takes one message at a time",
        NSQJS,
        "window-too-small",
        window("nsqjs", "maxInFlight", "maxInFlight: "),
    ),
    Patient::ill(
        "nsqjs works longer than it asked for",
        NSQJS,
        "ack-deadline",
        Expected::new("ack-deadline", "nsqjs", "messageTimeout")
            .value(Value::Between(2000, 9000))
            .code("messageTimeout: "),
    ),
    Patient::well("nsqjs", NSQJS),
];

/// Those of NSQ's HTTP interface. They are farther away: a start of curl is work of its own.
pub(super) const HTTP: &[Patient] = &[
    Patient::ill(
        "urllib connects for each message",
        PYTHON_HTTP,
        "urllib-each",
        Expected::new("churn", "urllib", "http.client.HTTPConnection")
            .code("connection.request(\"POST\", "),
    )
    .named(""),
    Patient::ill(
        "curl connects for each message",
        PYTHON_HTTP,
        "curl-each",
        Expected::new("churn", "curl", "one curl for many messages").code("/mpub?topic="),
    )
    .named(""),
    Patient::well("a scraper that publishes nothing", PYTHON_HTTP)
        .playing("scraper")
        .named(""),
    Patient::well("HTTP with a connection that stays", PYTHON_HTTP).named(""),
];

/// Publishers of text that compresses well. The link is as full for the one who compresses it.
pub(super) const NARROW: &[Patient] = &[
    Patient::ill(
        "go-nsq sends text as it is",
        GO_NSQ,
        "no-compression",
        compression("go-nsq", "Config.Deflate", "true", "config.Deflate = true"),
    ),
    Patient::ill(
        "pynsq sends text as it is",
        PYNSQ,
        "no-compression",
        compression("pynsq", "deflate", "True", "deflate=True"),
    ),
    Patient::ill(
        "nsqjs sends text as it is",
        NSQJS,
        "no-compression",
        compression("nsqjs", "deflate", "true", "deflate: true"),
    ),
    Patient::well("go-nsq compresses", GO_NSQ).playing("compression"),
    Patient::well("pynsq sends what does not compress", PYNSQ).playing("noise"),
];

/// AMQP's clients.
pub(super) const AMQP: &[Patient] = &[
    Patient::ill(
        "pika waits for each confirm",
        PIKA,
        "sync-produce",
        sync(
            "pika",
            "an asynchronous adapter",
            "channel.confirm_delivery(ack_nack_callback=",
        ),
    ),
    Patient::ill(
        "pika takes one message at a time",
        PIKA,
        "window-too-small",
        window(
            "pika",
            "basic_qos(prefetch_count)",
            "channel.basic_qos(prefetch_count=",
        ),
    ),
    Patient::ill(
        "pika hoards",
        PIKA,
        "hoarding",
        Expected::new("hoarding", "pika", "basic_qos(prefetch_count)")
            .value(Value::Is("1"))
            .code("channel.basic_qos(prefetch_count="),
    ),
    Patient::well("pika", PIKA),
    Patient::ill(
        "aio-pika waits for each confirm",
        AIO_PIKA,
        "sync-produce",
        sync(
            "aio-pika",
            "publish() without awaiting each",
            "asyncio.gather",
        ),
    )
    .named(""),
    Patient::well("aio-pika", AIO_PIKA),
    Patient::ill(
        "kombu waits for each confirm",
        KOMBU,
        "sync-produce",
        sync("kombu", "publishing from several threads", "").value(Value::Between(2, 10)),
    )
    .named(""),
    Patient::well("kombu", KOMBU),
    Patient::ill(
        "amqplib waits for each confirm",
        AMQPLIB,
        "sync-produce",
        sync(
            "amqplib",
            "waitForConfirms() once per batch",
            "await channel.waitForConfirms()",
        ),
    ),
    Patient::ill(
        "amqplib takes one message at a time",
        AMQPLIB,
        "window-too-small",
        window("amqplib", "prefetch", "channel.prefetch("),
    ),
    Patient::ill(
        "amqplib's acknowledgements are held back",
        AMQPLIB,
        "nagle",
        Expected::new("nagle", "amqplib", "noDelay")
            .value(Value::Is("true"))
            .code("amqp.connect(url, { noDelay: true })"),
    ),
    Patient::well("amqplib with a database as far away", AMQPLIB).playing("far-database"),
    Patient::well("amqplib", AMQPLIB),
    Patient::ill(
        "amqp091-go waits for each confirm",
        AMQP091,
        "sync-produce",
        sync(
            "amqp091-go",
            "PublishWithDeferredConfirm",
            "channel.PublishWithDeferredConfirm(",
        ),
    ),
    Patient::ill(
        "amqp091-go takes one message at a time",
        AMQP091,
        "window-too-small",
        window("amqp091-go", "Qos(prefetchCount)", "channel.Qos("),
    ),
    Patient::ill(
        "amqp091-go opens a channel for each message",
        AMQP091,
        "churn",
        Expected::new(
            "churn",
            "amqp091-go",
            "one connection, a channel per goroutine, for the life of the process",
        ),
    ),
    Patient::well("amqp091-go", AMQP091),
    Patient::ill(
        "Java waits for each confirm",
        Program::JavaAmqp,
        "sync-produce",
        sync("Java", "addConfirmListener", "channel.addConfirmListener("),
    ),
    Patient::ill(
        "Java takes one message at a time",
        Program::JavaAmqp,
        "window-too-small",
        window("Java", "basicQos", "channel.basicQos("),
    ),
    Patient::well("Java", Program::JavaAmqp),
];
