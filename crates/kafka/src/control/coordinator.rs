//! FindCoordinator: the coordinator of every group is the only broker.

use kafka_protocol::messages::find_coordinator_response::{Coordinator, FindCoordinatorResponse};

use crate::answer::{Answer, body};
use crate::error_code::ErrorCode;
use crate::wire::Malformed;

use super::ControlCall;
use super::advertised::Advertised;
use super::names::text;
use super::producer_ids::log_transactional;

/// The key types. Only consumer groups are supported.
const GROUP: i8 = 0;
const TRANSACTION: i8 = 1;
const SHARE_GROUP: i8 = 2;

/// The first version with several keys (KIP-699).
const BATCHED_FROM: i16 = 4;

/// The error code and message for a key; `None`: the key is accepted.
type KeyRefusal = Option<(ErrorCode, &'static str)>;

fn refusal(key_type: i8) -> KeyRefusal {
    // None of these errors is retriable: with a retriable one, clients would retry for ever.
    match key_type {
        GROUP => None,
        TRANSACTION => Some((
            ErrorCode::TransactionalIdAuthorizationFailed,
            "there are no transactions here; use enable.idempotence without transactional.id",
        )),
        SHARE_GROUP => Some((ErrorCode::InvalidRequest, "share groups are not served")),
        _ => Some((ErrorCode::InvalidRequest, "this key type is not known")),
    }
}

pub(super) fn find(mut call: ControlCall<'_>) -> Result<Answer, Malformed> {
    let reader = &mut call.body;
    let is_batched = call.version >= BATCHED_FROM;
    let mut keys = Vec::new();
    if !is_batched {
        keys.push(reader.string()?);
    }
    let key_type = match call.version {
        0 => GROUP,
        _ => reader.i8()?,
    };
    if is_batched {
        keys = reader.array(|key| key.string())?;
    }
    reader.skip_tagged()?;

    if key_type == TRANSACTION {
        log_transactional(&call);
    }
    let refusal = refusal(key_type);
    let node_id = match refusal {
        None => call.context.options.node_id,
        Some(_) => -1,
    };
    let Advertised { host, port } = match refusal {
        None => Advertised::to(call.context, call.peer),
        Some(_) => Advertised {
            host: String::new(),
            port: -1,
        },
    };
    let code = refusal.map_or(ErrorCode::None, |(code, _)| code).code();
    let message = refusal.map(|(_, reason)| text(reason));
    let mut response = FindCoordinatorResponse::default();
    if is_batched {
        let host = text(&host);
        let coordinator = |key: &str| {
            Coordinator::default()
                .with_key(text(key))
                .with_node_id(node_id.into())
                .with_host(host.clone())
                .with_port(port)
                .with_error_code(code)
                .with_error_message(message.clone())
        };
        response.coordinators = keys.into_iter().map(coordinator).collect();
    } else {
        response = response
            .with_error_code(code)
            .with_node_id(node_id.into())
            .with_host(text(&host))
            .with_port(port);
        if call.version >= 1 {
            response.error_message = message;
        }
    }
    Ok(Answer::Ready(body(&response, call.version)))
}
