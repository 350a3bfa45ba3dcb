#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::*;
use crate::wire::table_bytes as table;

fn read(fields: &[(&str, Value<'_>)]) -> Result<QueueArguments, Exception> {
    QueueArguments::read("q", Table::check(&table(fields)).unwrap())
}

fn text(value: &str) -> Value<'_> {
    Value::String(value.as_bytes())
}

#[test]
fn each_argument_is_read() {
    assert_eq!(read(&[]), Ok(QueueArguments::default()));
    let all = read(&[
        ("x-queue-type", text("classic")),
        ("x-message-ttl", Value::I32(0)),
        ("x-expires", Value::I64(60_000)),
        ("x-max-length", Value::U8(5)),
        ("x-max-length-bytes", Value::I64(1 << 40)),
        ("x-overflow", text("reject-publish-dlx")),
        ("x-dead-letter-exchange", text("")),
        ("x-dead-letter-routing-key", text("dead")),
        ("x-max-priority", Value::I32(10)),
        ("x-single-active-consumer", Value::Bool(true)),
        ("x-queue-mode", text("lazy")),
        ("x-cloverleaf-dispatch", text("fill-first")),
        ("x-what-nobody-knows", Value::Void),
    ]);
    let dead_letter = DeadLetter {
        exchange: "".into(),
        key: Some("dead".into()),
    };
    let expected = QueueArguments {
        kind: QueueKind::Classic,
        message_ttl_ms: Some(0),
        expires_ms: Some(60_000),
        length_max: Some(5),
        length_bytes_max: Some(1 << 40),
        overflow: Overflow::RejectPublishDeadLetter,
        dead_letter: Some(dead_letter),
        priority_max: Some(10),
        single_active: true,
        attempts_max: 0,
        dispatch: DispatchArgument::FillFirst,
    };
    assert_eq!(all, Ok(expected));
}

#[test]
fn a_quorum_queue_limits_deliveries() {
    let limit = |fields: &[(&str, Value<'_>)]| {
        let fields = [&[("x-queue-type", text("quorum"))], fields].concat();
        read(&fields).map(|arguments| arguments.attempts_max)
    };
    assert_eq!(limit(&[]), Ok(QUORUM_ATTEMPTS_MAX));
    // The limit counts redeliveries, after the first delivery.
    assert_eq!(limit(&[("x-delivery-limit", Value::I32(3))]), Ok(4));
    assert_eq!(limit(&[("x-delivery-limit", Value::I32(-1))]), Ok(0));
}

#[test]
fn invalid_arguments_are_refused_with_rabbitmqs_texts() {
    let refused = |name: &'static str, value: Value<'_>| {
        let exception = read(&[(name, value)]).unwrap_err();
        exception.to_string()
    };
    let begin = "PRECONDITION_FAILED - invalid arg";
    assert_eq!(
        refused("x-message-ttl", Value::I32(-1)),
        format!("{begin} 'x-message-ttl' for queue 'q' in vhost '/': {{value_negative,-1}}")
    );
    assert_eq!(
        refused("x-expires", Value::I32(0)),
        format!("{begin} 'x-expires' for queue 'q' in vhost '/': {{value_zero,0}}")
    );
    assert_eq!(
        refused("x-overflow", text("spill")),
        format!("{begin} 'x-overflow' for queue 'q' in vhost '/': invalid_overflow")
    );
    assert_eq!(
        refused("x-delivery-limit", Value::I32(3)),
        format!(
            "{begin} 'x-delivery-limit' for queue 'q' in vhost '/' of queue type \
                 rabbit_classic_queue"
        )
    );
    assert_eq!(
        refused("x-dead-letter-routing-key", text("k")),
        format!(
            "{begin} 'x-dead-letter-routing-key' for queue 'q' in vhost '/': \
                 routing_key_but_no_dlx_defined"
        )
    );
    assert_eq!(
        refused("x-single-active-consumer", text("yes")),
        format!(
            "{begin} 'x-single-active-consumer' for queue 'q' in vhost '/': \
                 {{unacceptable_type,longstr}}"
        )
    );
    assert_eq!(
        refused("x-max-priority", Value::I32(256)),
        format!("{begin} 'x-max-priority' for queue 'q' in vhost '/': {{max_value_exceeded,256}}")
    );
    assert!(refused("x-queue-type", text("stream")).contains("streams are not supported"));
    assert!(refused("x-max-length", text("5")).contains("expected integer, got longstr"));
    assert!(refused("x-message-ttl", Value::I64(1 << 60)).contains("value_too_large"));
}

#[test]
fn a_second_declaration_must_say_the_same() {
    let check = |received: &[(&str, Value<'_>)], current: &[(&str, Value<'_>)]| {
        let (received, current) = (table(received), table(current));
        let outcome = check_equivalence(
            &Resource::queue("q"),
            Table::check(&received).unwrap(),
            Table::check(&current).unwrap(),
        );
        outcome.map_err(|exception| exception.explanation)
    };
    let ttl = |value| ("x-message-ttl", value);
    assert_eq!(check(&[ttl(Value::I32(5))], &[ttl(Value::I64(5))]), Ok(()));
    assert_eq!(check(&[("x-other", Value::Void)], &[]), Ok(()));
    assert_eq!(check(&[("x-queue-type", text("classic"))], &[]), Ok(()));
    let begin = "inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': received";
    assert_eq!(
        check(&[ttl(Value::I32(5))], &[ttl(Value::I32(6))]),
        Err(format!("{begin} '5' but current is '6'"))
    );
    assert_eq!(
        check(&[], &[ttl(Value::I32(6))]),
        Err(format!(
            "{begin} none but current is the value '6' of type 'signedint'"
        ))
    );
    assert_eq!(
        check(&[ttl(Value::I64(5))], &[]),
        Err(format!(
            "{begin} the value '5' of type 'long' but current is none"
        ))
    );
}
