//! ListConfigResources: the resources whose settings can be described (KIP-714, KIP-1142).

use std::collections::BTreeSet;

use cloverleaf_access::Operation;
use kafka_protocol::messages::ListConfigResourcesResponse;
use kafka_protocol::messages::list_config_resources_response::ConfigResource;

use crate::answer::{Answer, body};
use crate::error_code::ErrorCode;
use crate::wire::{Malformed, Reader};

use super::configs::{BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC};
use super::names::text;
use super::{ControlCall, topics};

pub(super) fn list(mut call: ControlCall<'_>) -> Result<Answer, Malformed> {
    let version = call.version;
    let mut kinds: BTreeSet<i8> = match version {
        // Version 0 was named ListClientMetricsResources.
        0 => BTreeSet::from([CLIENT_METRICS]),
        _ => call.body.array(Reader::i8)?.into_iter().collect(),
    };
    call.body.skip_tagged()?;
    let known = [TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP];
    let mut response = ListConfigResourcesResponse::default();
    if !kinds.iter().all(|kind| known.contains(kind)) {
        response.error_code = ErrorCode::UnsupportedVersion.code();
        return Ok(Answer::Ready(body(&response, version)));
    }
    if kinds.is_empty() {
        kinds.extend(known);
    }
    for kind in kinds {
        let names: Vec<String> = match kind {
            TOPIC => {
                let all = topics::all(call.context);
                all.iter().map(|topic| topic.name().to_owned()).collect()
            }
            BROKER | BROKER_LOGGER => vec![call.context.options.node_id.to_string()],
            GROUP => {
                let mut groups = call.context.dynamic_settings.groups();
                let context = call.context;
                groups.retain(|name| context.check_group(Operation::Describe, name).is_ok());
                groups
            }
            // Subscriptions to client metrics cannot be configured.
            _ => Vec::new(),
        };
        let resource = |name: String| {
            ConfigResource::default()
                .with_resource_name(text(&name))
                .with_resource_type(kind)
        };
        let resources = names.into_iter().map(resource);
        response.config_resources.extend(resources);
    }
    Ok(Answer::Ready(body(&response, version)))
}
