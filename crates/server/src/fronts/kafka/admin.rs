//! Kafka's consumer groups, and the client metrics that clients push (KIP-714), in the admin
//! interface.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::routing::get;
use axum::{Json, Router};
use cloverleaf_kafka::control::PushedMetrics;
use cloverleaf_kafka::groups::GroupView;

use super::KafkaFront;
use crate::admin::Refused;
use crate::admin::types::{
    ClientDetails, ClientFigure, GroupDetails, GroupMember, GroupPartition, GroupSummary,
};
use crate::context::ServerContext;
use crate::fronts::AdminPart;

/// The state of the handlers.
#[derive(Clone)]
struct KafkaAdminState {
    front: Arc<KafkaFront>,
    context: Arc<ServerContext>,
}

/// The router and the paths of this part.
pub(super) fn part(front: Arc<KafkaFront>, context: Arc<ServerContext>) -> AdminPart {
    let router = Router::new()
        .route("/api/groups", get(groups))
        .route("/api/groups/{group}", get(group))
        .route("/api/clients", get(clients))
        .with_state(KafkaAdminState { front, context });
    AdminPart {
        router,
        paths: &["/api/groups", "/api/clients"],
    }
}

/// `GET /api/groups`
async fn groups(State(state): State<KafkaAdminState>) -> Json<Vec<GroupSummary>> {
    let groups = state.front.kafka.groups.views();
    let groups = groups.into_iter();
    Json(
        groups
            .map(|group| details(&state.context, group).summary)
            .collect(),
    )
}

/// `GET /api/groups/GROUP`
async fn group(
    State(state): State<KafkaAdminState>,
    Path(name): Path<String>,
) -> Result<Json<GroupDetails>, Refused> {
    match state.front.kafka.groups.view(&name) {
        Some(group) => Ok(Json(details(&state.context, group))),
        None => Err(Refused::not_found(format!("there is no group {name}"))),
    }
}

/// `GET /api/clients`
async fn clients(State(state): State<KafkaAdminState>) -> Json<Vec<ClientDetails>> {
    let now_us = state.context.now_us();
    let clients = state.front.kafka.client_metrics.list();
    let clients = clients.iter();
    Json(
        clients
            .map(|client| client_details(client, now_us))
            .collect(),
    )
}

/// A group with its committed offsets.
pub(crate) fn details(context: &ServerContext, group: GroupView) -> GroupDetails {
    let mut partition_details: Vec<GroupPartition> = context
        .broker
        .committed_offsets(&group.name)
        .into_iter()
        .filter_map(|committed| {
            let topic = context.broker.topic_by_id(committed.topic)?;
            let log = topic.partition(committed.partition)?;
            Some(GroupPartition {
                topic: topic.name().to_owned(),
                partition: committed.partition,
                committed_offset: committed.offset,
                end_offset: log.written_end(),
                lag: log.lag_from(committed.offset),
            })
        })
        .collect();
    partition_details.sort_by(|a, b| (&a.topic, a.partition).cmp(&(&b.topic, b.partition)));
    let mut topics: Vec<String> = partition_details
        .iter()
        .map(|partition| partition.topic.clone())
        .collect();
    topics.dedup();
    let member = |member: cloverleaf_kafka::groups::MemberView| GroupMember {
        id: member.id,
        instance: member.instance,
        client_id: member.client_id,
        host: member.host,
    };
    GroupDetails {
        summary: GroupSummary {
            name: group.name,
            state: group.state.to_owned(),
            members: group.members.len(),
            lag: partition_details
                .iter()
                .map(|partition| partition.lag)
                .sum(),
            topics,
        },
        member_details: group.members.into_iter().map(member).collect(),
        partition_details,
    }
}

fn client_details(client: &PushedMetrics, now_us: u64) -> ClientDetails {
    let (library, version) = client.software.clone().unzip();
    ClientDetails {
        instance: client.instance.to_string(),
        client_id: client.client_id.clone(),
        library,
        version,
        remote: client.remote.to_string(),
        age_ms: now_us.saturating_sub(client.received_us) / 1000,
        figures: client
            .figures
            .iter()
            .map(|figure| ClientFigure {
                name: figure.name.clone(),
                node: figure.node.clone(),
                value: figure.value,
            })
            .collect(),
    }
}
