//! DescribeCluster, and the values that describe a cluster of one broker.

use kafka_protocol::messages::describe_cluster_response::{
    DescribeClusterBroker, DescribeClusterResponse,
};
use kafka_protocol::protocol::StrBytes;

use crate::answer::{Answer, body};
use crate::context::KafkaContext;
use crate::error_code::ErrorCode;
use crate::wire::Malformed;

use super::ControlCall;
use super::advertised::Advertised;
use super::names::{message, text};

/// The authorized operations on the cluster, as Kafka reports them without an authorizer: the bits
/// of CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS and
/// IDEMPOTENT_WRITE.
pub(super) const OPERATIONS: i32 = 0b1_1111_1010_0000;

/// The operations in an answer to a request that did not ask for them.
pub(super) const OPERATIONS_UNKNOWN: i32 = i32::MIN;

/// The endpoint type of brokers. Type 2, controllers, has no endpoint here.
const BROKERS: i8 = 1;

/// The cluster's id, as Kafka writes UUIDs: base64 for URLs, without padding.
pub(super) fn id(context: &KafkaContext) -> StrBytes {
    text(&base64_url(context.realm.cluster_id().as_bytes()))
}

fn base64_url(bytes: &[u8; 16]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut out = String::with_capacity(22);
    for chunk in bytes.chunks(3) {
        let word = chunk
            .iter()
            .fold(0u32, |word, byte| word << 8 | u32::from(*byte));
        let word = word << (8 * (3 - chunk.len()));
        for sextet in 0..=chunk.len() {
            let at = word >> (18 - 6 * sextet) & 0x3f;
            out.push(char::from(ALPHABET[at as usize]));
        }
    }
    out
}

pub(super) fn describe(mut call: ControlCall<'_>) -> Result<Answer, Malformed> {
    let reader = &mut call.body;
    let wants_operations = reader.bool()?;
    let endpoints = match call.version {
        0 => BROKERS,
        _ => reader.i8()?,
    };
    // Since version 2: whether fenced brokers are wanted too. There are none.
    let _wants_fenced = call.version >= 2 && reader.bool()?;
    reader.skip_tagged()?;

    let options = &call.context.options;
    let mut response = DescribeClusterResponse::default()
        .with_error_message(None)
        .with_cluster_id(id(call.context))
        .with_controller_id(options.node_id.into());
    if endpoints == BROKERS {
        let Advertised { host, port } = Advertised::to(call.context, call.peer);
        response = response.with_brokers(vec![
            DescribeClusterBroker::default()
                .with_broker_id(options.node_id.into())
                .with_host(text(&host))
                .with_port(port)
                .with_rack(None),
        ]);
    } else {
        let reason = "this listener is one of brokers: ask it for brokers";
        response = response
            .with_error_code(ErrorCode::MismatchedEndpointType.code())
            .with_error_message(message(reason))
            .with_endpoint_type(BROKERS);
    }
    if wants_operations {
        response = response.with_cluster_authorized_operations(OPERATIONS);
    }
    Ok(Answer::Ready(body(&response, call.version)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_written_as_kafka_writes_them() {
        assert_eq!(base64_url(&[0; 16]), "AAAAAAAAAAAAAAAAAAAAAA");
        let bytes: [u8; 16] = std::array::from_fn(|at| 0xff - at as u8);
        assert_eq!(base64_url(&bytes), "__79_Pv6-fj39vX08_Lx8A");
    }
}
