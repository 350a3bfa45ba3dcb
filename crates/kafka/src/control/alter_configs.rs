//! AlterConfigs and IncrementalAlterConfigs: changing the settings of topics, of the broker and of
//! groups.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kafka_protocol::messages::alter_configs_response::{
    AlterConfigsResourceResponse, AlterConfigsResponse,
};
use kafka_protocol::messages::incremental_alter_configs_response::{
    AlterConfigsResourceResponse as IncrementalResourceResponse, IncrementalAlterConfigsResponse,
};

use crate::answer::{Answer, Body, body, later};
use crate::context::KafkaContext;
use crate::error_code::{ErrorCode, of_catalog};
use crate::wire::{Malformed, Reader};

use super::names::{message, text};
use super::replicas::log_replicas_request;
use super::settings::{self, SettingChange, SettingType, TopicSetting, find};
use super::{ControlCall, ErrorWithReason, alter_dynamic, configs, topics};

/// The kind of change of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EditOperation {
    Set,
    /// Resets the setting to its default.
    Delete,
    /// Adds values to a list.
    Append,
    /// Removes values from a list.
    Subtract,
    Unknown(i8),
}

impl From<i8> for EditOperation {
    fn from(code: i8) -> Self {
        match code {
            0 => Self::Set,
            1 => Self::Delete,
            2 => Self::Append,
            3 => Self::Subtract,
            _ => Self::Unknown(code),
        }
    }
}

/// The changes of one resource.
#[derive(Debug)]
pub(super) struct AlteredResource {
    kind: i8,
    pub(super) name: String,
    pub(super) edits: Vec<SettingEdit>,
    /// AlterConfigs: a setting that is not named is reset to its default.
    pub(super) replaces_all: bool,
}

/// The change of one setting.
#[derive(Debug)]
pub(super) struct SettingEdit {
    pub(super) name: String,
    operation: EditOperation,
    value: Option<String>,
}

/// A known setting of a topic, of the broker or of a group.
pub(super) struct KnownSetting {
    pub(super) name: &'static str,
    pub(super) kind: SettingType,
    /// The current value.
    pub(super) current: String,
    /// The topic setting, if it is one: its handling may restrict the values further.
    pub(super) setting: Option<&'static TopicSetting>,
}

/// The result for one resource.
struct ResourceOutcome {
    kind: i8,
    name: String,
    error: ErrorCode,
    reason: Option<String>,
}

fn read(
    reader: &mut Reader<'_>,
    is_incremental: bool,
) -> Result<(Vec<AlteredResource>, bool), Malformed> {
    let resources = reader.array(|reader| {
        let (kind, name) = (reader.i8()?, reader.string()?.to_owned());
        let edits = reader.array(|reader| {
            let name = reader.string()?.to_owned();
            let operation = if is_incremental {
                EditOperation::from(reader.i8()?)
            } else {
                EditOperation::Set
            };
            let value = reader.nullable_string()?.map(str::to_owned);
            reader.skip_tagged()?;
            Ok(SettingEdit {
                name,
                operation,
                value,
            })
        })?;
        reader.skip_tagged()?;
        Ok(AlteredResource {
            kind,
            name,
            edits,
            replaces_all: !is_incremental,
        })
    })?;
    let validate_only = reader.bool()?;
    reader.skip_tagged()?;
    Ok((resources, validate_only))
}

pub(super) fn alter(call: ControlCall<'_>) -> Result<Answer, Malformed> {
    run(call, false, |outcomes, version| {
        let one = |outcome: ResourceOutcome| {
            AlterConfigsResourceResponse::default()
                .with_error_code(outcome.error.code())
                .with_error_message(outcome.reason.as_deref().and_then(message))
                .with_resource_type(outcome.kind)
                .with_resource_name(text(&outcome.name))
        };
        let responses = outcomes.into_iter().map(one).collect();
        body(
            &AlterConfigsResponse::default().with_responses(responses),
            version,
        )
    })
}

pub(super) fn alter_incrementally(call: ControlCall<'_>) -> Result<Answer, Malformed> {
    run(call, true, |outcomes, version| {
        let one = |outcome: ResourceOutcome| {
            IncrementalResourceResponse::default()
                .with_error_code(outcome.error.code())
                .with_error_message(outcome.reason.as_deref().and_then(message))
                .with_resource_type(outcome.kind)
                .with_resource_name(text(&outcome.name))
        };
        let responses = outcomes.into_iter().map(one).collect();
        let response = IncrementalAlterConfigsResponse::default().with_responses(responses);
        body(&response, version)
    })
}

fn run(
    mut call: ControlCall<'_>,
    is_incremental: bool,
    answer: fn(Vec<ResourceOutcome>, i16) -> Body,
) -> Result<Answer, Malformed> {
    let (resources, validate_only) = read(&mut call.body, is_incremental)?;
    let (context, version) = (call.context.clone(), call.version);
    Ok(later(call.context, move || {
        let mut mentions: HashMap<(i8, String), u32> = HashMap::new();
        for resource in &resources {
            *mentions
                .entry((resource.kind, resource.name.clone()))
                .or_default() += 1;
        }
        let outcome = |resource: AlteredResource| {
            let AlteredResource { kind, name, .. } = &resource;
            let (kind, name) = (*kind, name.clone());
            let changed = match mentions.get(&(kind, name.clone())) {
                Some(2..) => Err((
                    ErrorCode::InvalidRequest,
                    "the request names this resource more than once".to_owned(),
                )),
                _ => change(&context, &resource, validate_only),
            };
            let (error, reason) = match changed {
                Ok(()) => (ErrorCode::None, None),
                Err((error, reason)) => (error, Some(reason)),
            };
            ResourceOutcome {
                kind,
                name,
                error,
                reason,
            }
        };
        let outcomes = resources.into_iter().map(outcome).collect();
        answer(outcomes, version)
    }))
}

fn change(
    context: &Arc<KafkaContext>,
    resource: &AlteredResource,
    validate_only: bool,
) -> Result<(), ErrorWithReason> {
    match resource.kind {
        configs::TOPIC => change_topic(context, resource, validate_only),
        configs::BROKER => alter_dynamic::change_broker(context, resource, validate_only),
        configs::GROUP => alter_dynamic::change_group(context, resource, validate_only),
        kind => Err((
            ErrorCode::InvalidRequest,
            format!(
                "resources of type {kind} have no settings here: topics, brokers and groups have"
            ),
        )),
    }
}

fn change_topic(
    context: &Arc<KafkaContext>,
    resource: &AlteredResource,
    validate_only: bool,
) -> Result<(), ErrorWithReason> {
    let topic = topics::find_or_say(
        context,
        cloverleaf_access::Operation::Declare,
        &resource.name,
    )?;
    let invalid = |refused: settings::SettingRefused| (ErrorCode::InvalidConfig, refused.reason);
    let mut changes = Vec::new();
    let options = topic.options();
    let named = resource.check_names()?;
    for edit in &resource.edits {
        let known = find(&edit.name).map(|setting| {
            KnownSetting::of(
                setting,
                setting.name,
                setting.shown(context, &options).value,
            )
        });
        let value = edit.new_value(known.as_ref())?;
        changes.push(settings::check(&edit.name, value.as_deref()).map_err(invalid)?);
    }
    if resource.replaces_all {
        let others = options
            .settings
            .keys()
            .filter(|name| !named.contains(name.as_str()));
        let unset = |name: &String| {
            find(name).map(|setting| SettingChange {
                setting,
                value: None,
            })
        };
        changes.extend(others.filter_map(unset));
    }
    let mut changed = (*options).clone();
    settings::change(context, &mut changed, &changes).map_err(invalid)?;
    log_replicas_request(1, &changes);
    if validate_only {
        return Ok(());
    }
    let set = topic.set_options(|options| {
        // The topic may have been changed concurrently. Applying the changes to its current options
        // loses no other change. They are validated again, and dropped if they are no longer valid.
        let mut current = options.clone();
        if settings::change(context, &mut current, &changes).is_ok() {
            *options = current;
        }
    });
    set.map_err(|error| (of_catalog(&error), error.to_string()))
}

impl AlteredResource {
    /// The names of the settings that are changed.
    ///
    /// # Errors
    /// A setting is named twice.
    pub(super) fn check_names(&self) -> Result<HashSet<&str>, ErrorWithReason> {
        let mut named = HashSet::new();
        match self.edits.iter().find(|edit| !named.insert(&*edit.name)) {
            None => Ok(named),
            Some(SettingEdit { name, .. }) => {
                let reason = format!("the request names {} more than once", name.escape_debug());
                Err((ErrorCode::InvalidRequest, reason))
            }
        }
    }
}

impl KnownSetting {
    /// A topic setting, under its own name or the name of its default in the broker.
    pub(super) fn of(setting: &'static TopicSetting, name: &'static str, current: String) -> Self {
        Self {
            name,
            kind: setting.kind,
            current,
            setting: Some(setting),
        }
    }

    /// Validates a value; returns it in the form in which it is stored.
    pub(super) fn check(&self, value: &str) -> Result<String, String> {
        let kept = settings::check_kind(self.name, self.kind, value);
        let kept = kept.and_then(|kept| match self.setting {
            Some(setting) => setting.check(&kept),
            None => Ok(kept),
        });
        kept.map_err(|refused| refused.reason)
    }
}

impl SettingEdit {
    /// The value after the edit; `None`: the default.
    pub(super) fn new_value(
        &self,
        known: Option<&KnownSetting>,
    ) -> Result<Option<String>, ErrorWithReason> {
        let name = self.name.escape_debug();
        let is_add = match self.operation {
            EditOperation::Delete => return Ok(None),
            EditOperation::Set => match &self.value {
                Some(value) => return Ok(Some(value.clone())),
                None => {
                    let reason = format!("{name} is set to null: delete it instead");
                    return Err((ErrorCode::InvalidConfig, reason));
                }
            },
            EditOperation::Append => true,
            EditOperation::Subtract => false,
            EditOperation::Unknown(code) => {
                let reason = format!("there is no operation {code}");
                return Err((ErrorCode::InvalidRequest, reason));
            }
        };
        let Some(known) = known.filter(|known| known.kind.is_list()) else {
            let reason = format!("{name} is no list: it can be set or deleted");
            return Err((ErrorCode::InvalidConfig, reason));
        };
        let words = known.current.split(',').filter(|word| !word.is_empty());
        let mut words: Vec<&str> = words.collect();
        let value = self.value.as_deref().unwrap_or_default();
        for word in value.split(',').map(str::trim) {
            match is_add {
                true if !words.contains(&word) => words.push(word),
                true => {}
                false => words.retain(|other| *other != word),
            }
        }
        Ok(Some(words.join(",")))
    }
}
