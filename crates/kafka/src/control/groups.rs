//! JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

use bytes::Bytes;
use kafka_protocol::messages::join_group_response::{JoinGroupResponse, JoinGroupResponseMember};
use kafka_protocol::messages::leave_group_response::{LeaveGroupResponse, MemberResponse};
use kafka_protocol::messages::{HeartbeatResponse, SyncGroupResponse};

use cloverleaf_access::Operation;

use crate::answer::{Answer, Body, body};
use crate::context::KafkaContext;
use crate::error_code::ErrorCode;
use crate::groups::GroupProtocol;
use crate::groups::reply::{JoinAnswer, JoinRequest, MemberIdentity, SyncAnswer, SyncRequest};
use crate::options::KafkaOptions;
use crate::wire::{Malformed, Reader};

use super::ControlCall;
use super::names::text;

fn owned(text: Option<&str>) -> Option<String> {
    text.map(str::to_owned)
}

/// A timeout in milliseconds; a negative one counts as 0.
fn millis(timeout_ms: i32) -> u64 {
    u64::try_from(timeout_ms).unwrap_or(0)
}

/// Reads the `group.instance.id`, if the version has one.
fn instance(reader: &mut Reader<'_>, has_one: bool) -> Result<Option<String>, Malformed> {
    Ok(if has_one {
        owned(reader.nullable_string()?)
    } else {
        None
    })
}

pub(super) fn join(mut call: ControlCall<'_>) -> Result<Answer, Malformed> {
    let version = call.version;
    let (group, join) = read_join(&mut call)?;
    let checked = check_join(group, &join, &call.context.options)
        .and_then(|()| call.context.check_group(Operation::Consume, group));
    if let Err(error) = checked {
        let joined = JoinAnswer::refused(&join.member_id, error);
        return Ok(Answer::Ready(write_joined(joined, version)));
    }
    let groups = &call.context.groups;
    let reply = groups.join(group, join, groups.at(call.now));
    Ok(Answer::Later(Box::pin(async move {
        write_joined(reply.await, version)
    })))
}

fn read_join<'a>(call: &mut ControlCall<'a>) -> Result<(&'a str, JoinRequest), Malformed> {
    let version = call.version;
    let reader = &mut call.body;
    let group = reader.string()?;
    let session_timeout_ms = millis(reader.i32()?);
    let rebalance_timeout_ms = match version {
        0 => session_timeout_ms,
        _ => millis(reader.i32()?),
    };
    let member_id = reader.string()?.to_owned();
    let instance = instance(reader, version >= 5)?;
    let protocol_type = reader.string()?.to_owned();
    let mut protocols: Vec<GroupProtocol> = reader.array(|reader| {
        let name = reader.string()?.to_owned();
        let metadata = Bytes::copy_from_slice(reader.bytes()?);
        reader.skip_tagged()?;
        Ok(GroupProtocol { name, metadata })
    })?;
    let mut names = std::collections::HashSet::new();
    protocols.retain(|protocol| names.insert(protocol.name.clone()));
    let reason = match version {
        8.. => owned(reader.nullable_string()?),
        _ => None,
    };
    reader.skip_tagged()?;
    let join = JoinRequest {
        member_id,
        instance,
        client_id: call.client_id.unwrap_or_default().to_owned(),
        // With a slash, as Kafka stores and shows it.
        client_host: format!("/{}", call.peer.remote.ip().to_canonical()),
        session_timeout_ms,
        rebalance_timeout_ms,
        protocol_type,
        protocols,
        reason,
        needs_member_id: version >= 4,
        skips_assignment: version >= 9,
    };
    Ok((group, join))
}

fn check_join(group: &str, join: &JoinRequest, options: &KafkaOptions) -> Result<(), ErrorCode> {
    let timeouts = options.session_timeout_ms_min..=options.session_timeout_ms_max;
    if group.is_empty() {
        Err(ErrorCode::InvalidGroupId)
    } else if !timeouts.contains(&join.session_timeout_ms) {
        Err(ErrorCode::InvalidSessionTimeout)
    } else {
        Ok(())
    }
}

/// Checks that the group has a name, and the client's right to be a member of it.
fn check_member(context: &KafkaContext, group: &str) -> Result<(), ErrorCode> {
    match group {
        "" => Err(ErrorCode::InvalidGroupId),
        _ => context.check_group(Operation::Consume, group),
    }
}

fn write_joined(joined: JoinAnswer, version: i16) -> Body {
    let members = joined.members.into_iter().map(|member| {
        let mut one = JoinGroupResponseMember::default()
            .with_member_id(text(&member.id))
            .with_metadata(member.metadata);
        if version >= 5 {
            one.group_instance_id = member.instance.as_deref().map(text);
        }
        one
    });
    let mut response = JoinGroupResponse::default()
        .with_error_code(joined.error.code())
        .with_generation_id(joined.generation)
        .with_leader(text(&joined.leader))
        .with_member_id(text(&joined.member_id))
        .with_members(members.collect())
        .with_protocol_name(joined.protocol.as_deref().map(text));
    if version >= 7 {
        response.protocol_type = joined.protocol_type.as_deref().map(text);
    } else if response.protocol_name.is_none() {
        response.protocol_name = Some(text(""));
    }
    if version >= 9 {
        response.skip_assignment = joined.skip_assignment;
    }
    body(&response, version)
}

pub(super) fn sync(mut call: ControlCall<'_>) -> Result<Answer, Malformed> {
    let version = call.version;
    let reader = &mut call.body;
    let group = reader.string()?;
    let generation = reader.i32()?;
    let member_id = reader.string()?.to_owned();
    let instance = instance(reader, version >= 3)?;
    let (mut protocol_type, mut protocol) = (None, None);
    if version >= 5 {
        protocol_type = owned(reader.nullable_string()?);
        protocol = owned(reader.nullable_string()?);
    }
    let assignments = reader.array(|reader| {
        let id = reader.string()?.to_owned();
        let assignment = Bytes::copy_from_slice(reader.bytes()?);
        reader.skip_tagged()?;
        Ok((id, assignment))
    })?;
    reader.skip_tagged()?;
    let sync = SyncRequest {
        member_id,
        instance,
        generation,
        protocol_type,
        protocol,
        assignments,
    };
    if let Err(error) = check_member(call.context, group) {
        return Ok(Answer::Ready(write_synced(
            SyncAnswer::refused(error),
            version,
        )));
    }
    let reply = call.context.groups.sync(group, sync);
    Ok(Answer::Later(Box::pin(async move {
        write_synced(reply.await, version)
    })))
}

fn write_synced(synced: SyncAnswer, version: i16) -> Body {
    let mut response = SyncGroupResponse::default()
        .with_error_code(synced.error.code())
        .with_assignment(synced.assignment);
    if version >= 5 {
        response.protocol_type = synced.protocol_type.as_deref().map(text);
        response.protocol_name = synced.protocol.as_deref().map(text);
    }
    body(&response, version)
}

pub(super) fn heartbeat(mut call: ControlCall<'_>) -> Result<Answer, Malformed> {
    let reader = &mut call.body;
    let group = reader.string()?;
    let generation = reader.i32()?;
    let member_id = reader.string()?.to_owned();
    let instance = instance(reader, call.version >= 3)?;
    reader.skip_tagged()?;
    let who = MemberIdentity {
        member_id,
        instance,
    };
    let groups = &call.context.groups;
    let error = match check_member(call.context, group) {
        Err(error) => error,
        Ok(()) => groups.heartbeat(group, &who, generation, groups.at(call.now)),
    };
    let response = HeartbeatResponse::default().with_error_code(error.code());
    Ok(Answer::Ready(body(&response, call.version)))
}

pub(super) fn leave(mut call: ControlCall<'_>) -> Result<Answer, Malformed> {
    let version = call.version;
    let reader = &mut call.body;
    let group = reader.string()?;
    let is_batched = version >= 3;
    let members: Vec<(MemberIdentity, Option<String>)> = if is_batched {
        reader.array(|reader| {
            let who = MemberIdentity {
                member_id: reader.string()?.to_owned(),
                instance: owned(reader.nullable_string()?),
            };
            let reason = match version {
                5.. => owned(reader.nullable_string()?),
                _ => None,
            };
            reader.skip_tagged()?;
            Ok((who, reason))
        })?
    } else {
        let member_id = reader.string()?.to_owned();
        let who = MemberIdentity {
            member_id,
            instance: None,
        };
        vec![(who, None)]
    };
    reader.skip_tagged()?;

    let groups = &call.context.groups;
    let outcome = check_member(call.context, group)
        .and_then(|()| groups.leave(group, &members, groups.at(call.now)));
    let mut response = LeaveGroupResponse::default();
    match outcome {
        Err(error) => response.error_code = error.code(),
        // Before version 3 the request has one member; its error is the top-level error.
        Ok(errors) if !is_batched => {
            response.error_code = errors.first().map_or(0, |error| error.code());
        }
        Ok(errors) => {
            let pairs = members.into_iter().zip(errors);
            let answer = |((who, _), error): ((MemberIdentity, Option<String>), ErrorCode)| {
                MemberResponse::default()
                    .with_member_id(text(&who.member_id))
                    .with_group_instance_id(who.instance.as_deref().map(text))
                    .with_error_code(error.code())
            };
            response.members = pairs.map(answer).collect();
        }
    }
    Ok(Answer::Ready(body(&response, version)))
}
