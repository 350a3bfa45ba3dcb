//! DescribeGroups, ListGroups, DeleteGroups.

use std::collections::BTreeSet;
use std::sync::Arc;

use cloverleaf_access::Operation;
use kafka_protocol::messages::GroupId;
use kafka_protocol::messages::delete_groups_response::{
    DeletableGroupResult, DeleteGroupsResponse,
};
use kafka_protocol::messages::describe_groups_response::{
    DescribeGroupsResponse, DescribedGroup, DescribedGroupMember,
};
use kafka_protocol::messages::list_groups_response::{ListGroupsResponse, ListedGroup};

use crate::answer::{Answer, body, promise};
use crate::error_code::ErrorCode;
use crate::groups::reply::DescribedMember;
use crate::wire::{Malformed, Reader};

use super::ControlCall;
use super::names::text;

/// The authorized operations on a group, as Kafka reports them without an authorizer: the bits of
/// READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS and ALTER_CONFIGS.
const OPERATIONS: i32 = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11;

/// The only group type that is supported (KIP-848 adds another one).
const CLASSIC: &str = "classic";

/// The names in a request, each once: a short request must not cause a huge answer.
fn names(reader: &mut Reader<'_>) -> Result<Vec<String>, Malformed> {
    let mut seen = BTreeSet::new();
    let mut names = reader.array(|name| name.string())?;
    names.retain(|name| seen.insert(*name));
    Ok(names.into_iter().map(str::to_owned).collect())
}

pub(super) fn describe(mut call: ControlCall<'_>) -> Result<Answer, Malformed> {
    let version = call.version;
    let names = names(&mut call.body)?;
    let wants_operations = version >= 3 && call.body.bool()?;
    call.body.skip_tagged()?;
    let mut response = DescribeGroupsResponse::default();
    for name in names {
        let mut one = DescribedGroup::default().with_group_id(GroupId(text(&name)));
        if let Err(error) = call.context.check_group(Operation::Describe, &name) {
            response.groups.push(one.with_error_code(error.code()));
            continue;
        }
        match call.context.groups.describe(&name) {
            Some(group) => {
                one = one
                    .with_group_state(text(group.state))
                    .with_protocol_type(text(&group.protocol_type))
                    .with_protocol_data(text(&group.protocol))
                    .with_members(
                        group
                            .members
                            .into_iter()
                            .map(|m| member(m, version))
                            .collect(),
                    );
                if wants_operations {
                    one.authorized_operations = OPERATIONS;
                }
            }
            None => {
                one.group_state = text("Dead");
                // Older versions have the state Dead and no error (KIP-1043).
                if version >= 6 {
                    one.error_code = ErrorCode::GroupIdNotFound.code();
                    one.error_message = Some(text(&format!("Group {name} not found.")));
                }
            }
        }
        response.groups.push(one);
    }
    Ok(Answer::Ready(body(&response, version)))
}

fn member(member: DescribedMember, version: i16) -> DescribedGroupMember {
    let mut one = DescribedGroupMember::default()
        .with_member_id(text(&member.id))
        .with_client_id(text(&member.client_id))
        .with_client_host(text(&member.client_host))
        .with_member_metadata(member.metadata)
        .with_member_assignment(member.assignment);
    if version >= 4 {
        one.group_instance_id = member.instance.as_deref().map(text);
    }
    one
}

/// Whether a value passes a filter. An empty filter lets everything pass.
fn passes(filter: &[String], value: &str) -> bool {
    filter.is_empty()
        || filter
            .iter()
            .any(|one| one.trim().eq_ignore_ascii_case(value))
}

pub(super) fn list(mut call: ControlCall<'_>) -> Result<Answer, Malformed> {
    let version = call.version;
    let mut filter = |from: i16| {
        if version >= from {
            names(&mut call.body)
        } else {
            Ok(Vec::new())
        }
    };
    let (states, types) = (filter(4)?, filter(5)?);
    call.body.skip_tagged()?;
    let mut response = ListGroupsResponse::default();
    if passes(&types, CLASSIC) {
        for group in call.context.groups.list() {
            let is_shown = call
                .context
                .check_group(Operation::Describe, &group.name)
                .is_ok();
            if !is_shown || !passes(&states, group.state) {
                continue;
            }
            let mut one = ListedGroup::default()
                .with_group_id(GroupId(text(&group.name)))
                .with_protocol_type(text(&group.protocol_type));
            if version >= 4 {
                one.group_state = text(group.state);
            }
            if version >= 5 {
                one.group_type = text(CLASSIC);
            }
            response.groups.push(one);
        }
    }
    Ok(Answer::Ready(body(&response, version)))
}

pub(super) fn delete(mut call: ControlCall<'_>) -> Result<Answer, Malformed> {
    let version = call.version;
    let names = names(&mut call.body)?;
    call.body.skip_tagged()?;
    let (promise, reply) = promise();
    let context = Arc::clone(call.context);
    call.context.groups.after_writes(move || {
        let delete = |name: String| {
            let error = match context.check_group(Operation::Declare, &name) {
                Ok(()) => context.groups.delete(&name),
                Err(error) => error,
            };
            DeletableGroupResult::default()
                .with_error_code(error.code())
                .with_group_id(GroupId(text(&name)))
        };
        let results = names.into_iter().map(delete).collect();
        let response = DeleteGroupsResponse::default().with_results(results);
        promise.keep(body(&response, version));
    });
    Ok(Answer::Later(Box::pin(reply)))
}
