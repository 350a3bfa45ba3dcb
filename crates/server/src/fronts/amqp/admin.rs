//! AMQP's queues, exchanges and bindings in the admin interface.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::routing::get;
use axum::{Json, Router};
use cloverleaf_amqp::host::{Queue, VirtualHost};
use cloverleaf_amqp::queue_arguments::QueueKind;
use cloverleaf_amqp::routing::Destination;
use cloverleaf_amqp::wire::{Table, Value};
use cloverleaf_broker::Dispatch;
use serde_json::{Map, json};

use crate::admin::Refused;
use crate::admin::types::{AmqpBinding, AmqpExchange, AmqpQueue, Bytes};
use crate::fronts::AdminPart;

/// Handlers get the virtual host.
type Host = State<Arc<VirtualHost>>;

/// The router and the paths of this part.
pub(super) fn part(host: &Arc<VirtualHost>) -> AdminPart {
    let router = Router::new()
        .route("/api/amqp/queues", get(queues))
        .route("/api/amqp/queues/{queue}", get(queue))
        .route("/api/amqp/exchanges", get(exchanges))
        .route("/api/amqp/bindings", get(bindings))
        .with_state(Arc::clone(host));
    AdminPart {
        router,
        paths: &[
            "/api/amqp/queues",
            "/api/amqp/exchanges",
            "/api/amqp/bindings",
        ],
    }
}

/// `GET /api/amqp/queues`
async fn queues(State(host): Host) -> Json<Vec<AmqpQueue>> {
    let queues = host.queues();
    Json(queues.iter().map(|queue| summary(queue)).collect())
}

/// `GET /api/amqp/queues/QUEUE`
async fn queue(State(host): Host, Path(name): Path<String>) -> Result<Json<AmqpQueue>, Refused> {
    let queues = host.queues();
    match queues.iter().find(|queue| *queue.name == *name) {
        Some(queue) => Ok(Json(summary(queue))),
        None => Err(Refused::not_found(format!("there is no queue {name}"))),
    }
}

/// `GET /api/amqp/exchanges`
async fn exchanges(State(host): Host) -> Json<Vec<AmqpExchange>> {
    let exchanges = host.exchanges().into_iter();
    let exchanges = exchanges.map(|facts| AmqpExchange {
        name: facts.name.to_string(),
        kind: facts.kind.to_owned(),
        durable: facts.durable,
        auto_delete: facts.auto_delete,
        internal: facts.internal,
        arguments: object_of(&facts.arguments),
    });
    Json(exchanges.collect())
}

/// `GET /api/amqp/bindings`
async fn bindings(State(host): Host) -> Json<Vec<AmqpBinding>> {
    let bindings = host.bindings().into_iter();
    let bindings = bindings.map(|facts| AmqpBinding {
        source: facts.source.to_string(),
        destination: facts.destination.name().to_string(),
        destination_type: match facts.destination {
            Destination::Queue(_) => "queue".to_owned(),
            Destination::Exchange(_) => "exchange".to_owned(),
        },
        routing_key: facts.key.to_string(),
        arguments: object_of(&facts.arguments),
    });
    Json(bindings.collect())
}

fn summary(queue: &Queue) -> AmqpQueue {
    let counts = queue.subscription.counts();
    AmqpQueue {
        name: queue.name.to_string(),
        kind: match queue.arguments.kind {
            QueueKind::Classic => "classic".to_owned(),
            QueueKind::Quorum => "quorum".to_owned(),
        },
        durable: queue.durable,
        auto_delete: queue.auto_delete,
        exclusive: queue.exclusive.is_some(),
        arguments: object(queue.table()),
        topic: queue.topic.name().to_owned(),
        dispatch: match queue.subscription.dispatch_policy() {
            Dispatch::LeastLoaded => "least-loaded".to_owned(),
            Dispatch::FillFirst => "fill-first".to_owned(),
        },
        ready: counts.depth,
        unacknowledged: counts.in_flight,
        consumers: counts.consumers,
    }
}

/// A field table's bytes as JSON.
fn object_of(bytes: &[u8]) -> serde_json::Value {
    // The bytes were checked to be a table when the exchange, queue or binding was declared.
    object(Table::check(bytes).unwrap_or_default())
}

fn object(table: Table<'_>) -> serde_json::Value {
    let fields = table.fields();
    let fields = fields.map(|(name, value)| (name.to_owned(), field(value)));
    serde_json::Value::Object(fields.collect::<Map<_, _>>())
}

/// A value as JSON. Tables are not nested deeper than the wire format allows.
fn field(value: Value<'_>) -> serde_json::Value {
    if let Some(number) = value.as_integer() {
        return json!(number);
    }
    match value {
        Value::Bool(value) => json!(value),
        Value::F32(value) => json!(value),
        Value::F64(value) => json!(value),
        Value::Decimal(scale, digits) => json!(f64::from(digits) / 10_f64.powi(scale.into())),
        Value::String(bytes) | Value::Bytes(bytes) => match Bytes::new(bytes) {
            Bytes::Text(text) | Bytes::Hex(text) => json!(text),
        },
        Value::Array(array) => array.values().map(field).collect(),
        Value::Timestamp(seconds) => json!(seconds),
        Value::Table(table) => object(table),
        _ => serde_json::Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use cloverleaf_amqp::wire::table_bytes;

    use super::*;

    #[test]
    fn tables_are_objects() {
        let inner = table_bytes(&[("x-match", Value::String(b"any"))]);
        let inner = Table::check(&inner).unwrap_or_default();
        let bytes = table_bytes(&[
            ("x-max-length", Value::I64(5)),
            ("durable", Value::Bool(true)),
            ("half", Value::F64(0.5)),
            ("nothing", Value::Void),
            ("bytes", Value::Bytes(&[0xff])),
            ("table", Value::Table(inner)),
        ]);
        let expected = json!({
            "x-max-length": 5, "durable": true, "half": 0.5, "nothing": null, "bytes": "ff",
            "table": {"x-match": "any"},
        });
        assert_eq!(object_of(&bytes), expected);
        assert_eq!(object_of(b"no table"), json!({}));
    }
}
