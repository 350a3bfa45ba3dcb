//! Requests about features that are not supported: reassignment of partitions, ACLs, client quotas.
//!
//! Kafka's tools send them as a part of other operations, and go on if the answer is empty or an
//! expected error.

use std::collections::BTreeSet;

use kafka_protocol::messages::{
    DescribeAclsResponse, DescribeClientQuotasResponse, ListPartitionReassignmentsResponse,
};

use crate::answer::{Answer, body};
use crate::error_code::ErrorCode;
use crate::wire::{Malformed, Reader};

use super::ControlCall;
use super::names::{message, text};

/// ListPartitionReassignments: always empty, because a partition has one replica.
pub(super) fn list_reassignments(mut call: ControlCall<'_>) -> Result<Answer, Malformed> {
    let reader = &mut call.body;
    let _timeout_ms = reader.i32()?;
    reader.nullable_array(|reader| {
        reader.string()?;
        reader.array(Reader::i32)?;
        reader.skip_tagged()
    })?;
    reader.skip_tagged()?;
    let response = ListPartitionReassignmentsResponse::default().with_error_message(None);
    Ok(Answer::Ready(body(&response, call.version)))
}

/// DescribeAcls: as Kafka answers without an authorizer.
pub(super) fn describe_acls(mut call: ControlCall<'_>) -> Result<Answer, Malformed> {
    let reader = &mut call.body;
    let _resource_type = reader.i8()?;
    reader.nullable_string()?;
    let _pattern_type = reader.i8()?;
    let _principal = reader.nullable_string()?;
    let _host = reader.nullable_string()?;
    let _operation = reader.i8()?;
    let _permission = reader.i8()?;
    reader.skip_tagged()?;
    let response = DescribeAclsResponse::default()
        .with_error_code(ErrorCode::SecurityDisabled.code())
        .with_error_message(message("No Authorizer is configured on the broker"));
    Ok(Answer::Ready(body(&response, call.version)))
}

/// DescribeClientQuotas: always empty, because quotas cannot be set.
pub(super) fn describe_quotas(mut call: ControlCall<'_>) -> Result<Answer, Malformed> {
    let reader = &mut call.body;
    let components = reader.array(|reader| {
        let kind = reader.string()?;
        let _match_type = reader.i8()?;
        reader.nullable_string()?;
        reader.skip_tagged()?;
        Ok(kind)
    })?;
    let _strict = reader.bool()?;
    reader.skip_tagged()?;
    let response = DescribeClientQuotasResponse::default();
    let response = match quota_fault(&components) {
        None => response
            .with_error_message(None)
            .with_entries(Some(Vec::new())),
        Some((code, reason)) => response
            .with_error_code(code.code())
            .with_error_message(Some(text(&reason)))
            .with_entries(None),
    };
    Ok(Answer::Ready(body(&response, call.version)))
}

/// The error with which Kafka refuses a quota filter, if it does.
fn quota_fault(kinds: &[&str]) -> Option<(ErrorCode, String)> {
    let invalid = |reason: &str| Some((ErrorCode::InvalidRequest, reason.to_owned()));
    let mut seen = BTreeSet::new();
    for kind in kinds {
        match *kind {
            "" => return invalid("Unexpected empty filter component entity type"),
            "user" | "client-id" | "ip" if seen.insert(kind) => {}
            "user" | "client-id" | "ip" => {
                return invalid(&format!("Duplicate {kind} filter component entity type"));
            }
            _ => {
                return Some((
                    ErrorCode::UnsupportedVersion,
                    "Custom entity types are not supported".to_owned(),
                ));
            }
        }
    }
    if seen.contains(&"ip") && seen.len() > 1 {
        return invalid("IP filter component should not be used with user or clientId ones");
    }
    None
}
