//! Changes of the dynamic settings of the broker and of groups. When a default of topics changes,
//! the topics that use it change, too.

use std::collections::HashSet;
use std::sync::Arc;

use cloverleaf_access::Operation;
use cloverleaf_broker::{Topic, TopicOptionChanges, TopicOptions};

use crate::context::KafkaContext;
use crate::error_code::{ErrorCode, of_catalog};

use super::alter_configs::{AlteredResource, KnownSetting};
use super::dynamic_settings::{SettingOwner, SettingValues};
use super::settings::{
    self, BROKER_SETTINGS, BrokerSetting, GROUP_SETTINGS, INERT_SETTINGS, SETTINGS, SettingChange,
    TopicSetting, find,
};
use super::{ErrorWithReason, configs, topics};

/// Maximum length of the name of a group with settings, in bytes.
const GROUP_NAME_BYTES_MAX: usize = 1_000;

/// A topic, and the settings for which it uses the default.
type TopicOnDefaults = (Arc<Topic>, Vec<&'static TopicSetting>);

pub(super) fn change_broker(
    context: &Arc<KafkaContext>,
    resource: &AlteredResource,
    validate_only: bool,
) -> Result<(), ErrorWithReason> {
    let not_allowed = |error| (error, "not allowed".to_owned());
    context.check_administrator().map_err(not_allowed)?;
    let owner = configs::check_broker(context, &resource.name)?;
    // Kafka's error code for an invalid value of a broker setting.
    let invalid = ErrorCode::InvalidRequest;
    let values = new_values(context, resource, &owner, invalid, of_broker)?;
    let lag = |name: &str| {
        let text = find(name).map(|setting| match setting.broker_name {
            Some(name) if values.contains_key(name) => values[name].clone(),
            _ => setting.default_text(context),
        });
        text.and_then(|text| text.parse().ok()).unwrap_or(-1)
    };
    let lags = ["min.compaction.lag.ms", "max.compaction.lag.ms"].map(lag);
    if let Some(reason) = settings::lag_error(lags) {
        return Err((invalid, reason));
    }
    if validate_only {
        return Ok(());
    }
    let before = || (current_defaults(context), topics_on_defaults(context));
    // The new default and the options of all topics that use it are one journal entry, so that a
    // crash cannot separate them.
    store(context, owner, values, before, |(before, topics)| {
        let after = current_defaults(context);
        let pairs = SETTINGS.iter().zip(before.iter().zip(&after));
        let changed = pairs.filter(|(_, (before, after))| before != after);
        let changed: HashSet<&str> = changed.map(|(setting, _)| setting.name).collect();
        let options = |(topic, mut follows): TopicOnDefaults| {
            follows.retain(|setting| changed.contains(setting.name));
            let options = with_new_defaults(context, &topic, &follows)?;
            Some((topic, options))
        };
        topics.into_iter().filter_map(options).collect()
    })
}

pub(super) fn change_group(
    context: &Arc<KafkaContext>,
    resource: &AlteredResource,
    validate_only: bool,
) -> Result<(), ErrorWithReason> {
    let name = &resource.name;
    if name.is_empty() || name.len() > GROUP_NAME_BYTES_MAX {
        let reason = format!("a group's name has 1 to {GROUP_NAME_BYTES_MAX} bytes");
        return Err((ErrorCode::InvalidRequest, reason));
    }
    let not_allowed = |error| (error, "not allowed".to_owned());
    let checked = context.check_group(Operation::Declare, name);
    checked.map_err(not_allowed)?;
    let owner = SettingOwner::Group(name.clone());
    let values = new_values(
        context,
        resource,
        &owner,
        ErrorCode::InvalidConfig,
        of_group,
    )?;
    let groups = context.dynamic_settings.groups();
    if groups.len() >= context.options.groups_max && !groups.contains(name) {
        let reason = format!("{} groups have settings of their own", groups.len());
        return Err((ErrorCode::PolicyViolation, reason));
    }
    if validate_only {
        Ok(())
    } else {
        store(context, owner, values, || (), |()| Vec::new())
    }
}

fn store<T>(
    context: &KafkaContext,
    owner: SettingOwner,
    values: SettingValues,
    before: impl FnOnce() -> T,
    after: impl FnOnce(T) -> TopicOptionChanges,
) -> Result<(), ErrorWithReason> {
    let broker = &context.realm;
    let kept = context
        .dynamic_settings
        .set(broker, owner, values, before, after);
    kept.map_err(|error| (of_catalog(&error), error.to_string()))
}

/// The owner's values after all edits of the request. If one edit is invalid, none is applied.
fn new_values(
    context: &KafkaContext,
    resource: &AlteredResource,
    owner: &SettingOwner,
    invalid: ErrorCode,
    known: fn(&KafkaContext, &str) -> Result<KnownSetting, String>,
) -> Result<SettingValues, ErrorWithReason> {
    let mut values = if resource.replaces_all {
        SettingValues::new()
    } else {
        context.dynamic_settings.of(owner)
    };
    resource.check_names()?;
    let mut reasons = Vec::new();
    for edit in &resource.edits {
        let known = known(context, &edit.name).map(|known| KnownSetting {
            current: values.get(&edit.name).cloned().unwrap_or(known.current),
            ..known
        });
        let value = known.and_then(|known| {
            let value = edit.new_value(Some(&known)).map_err(|(_, reason)| reason)?;
            value.map(|value| known.check(&value)).transpose()
        });
        match value {
            Ok(Some(value)) => drop(values.insert(edit.name.clone(), value)),
            Ok(None) => drop(values.remove(&edit.name)),
            Err(reason) => reasons.push(reason),
        }
    }
    if reasons.is_empty() {
        Ok(values)
    } else {
        Err((invalid, reasons.join("; ")))
    }
}

/// A broker setting that can be changed at run time.
fn of_broker(context: &KafkaContext, name: &str) -> Result<KnownSetting, String> {
    let of_topics = SETTINGS.iter().find_map(|setting| {
        let known = setting.broker_name.filter(|known| *known == name)?;
        Some(KnownSetting::of(
            setting,
            known,
            setting.default_text(context),
        ))
    });
    if let Some(known) = of_topics {
        return Ok(known);
    }
    if BROKER_SETTINGS.iter().any(|setting| setting.name == name) {
        return Err(format!(
            "Cannot update these configs dynamically: {name} is changed in the broker's \
             configuration file or command line"
        ));
    }
    named(context, INERT_SETTINGS, name)
}

fn of_group(context: &KafkaContext, name: &str) -> Result<KnownSetting, String> {
    named(context, GROUP_SETTINGS, name)
}

fn named(
    context: &KafkaContext,
    settings: &'static [BrokerSetting],
    name: &str,
) -> Result<KnownSetting, String> {
    let setting = settings.iter().find(|setting| setting.name == name);
    let setting = setting.ok_or_else(|| format!("Unknown config name: {}", name.escape_debug()))?;
    let default = setting.value;
    Ok(KnownSetting {
        name: setting.name,
        kind: setting.kind,
        current: default.text(&context.options, context.realm.options()),
        setting: None,
    })
}

/// The defaults of all topic settings, in the order of [`SETTINGS`].
fn current_defaults(context: &KafkaContext) -> Vec<String> {
    let text = |setting: &TopicSetting| setting.default_text(context);
    SETTINGS.iter().map(text).collect()
}

/// The topics that use defaults, with the settings for which they do: they get a new default, as in
/// Kafka. Topics that another protocol has created are left out, because they keep its options.
fn topics_on_defaults(context: &KafkaContext) -> Vec<TopicOnDefaults> {
    let of_kafka = |options: &TopicOptions| {
        !options.retention.consumed && options.settings.keys().all(|name| find(name).is_some())
    };
    let topic_on_defaults = |topic: Arc<Topic>| {
        let options = topic.options();
        let follows = SETTINGS.iter().filter(|setting| {
            setting.broker_name.is_some() && !setting.shown(context, &options).is_own
        });
        let follows = follows.collect();
        of_kafka(&options).then_some((topic, follows))
    };
    let topics = topics::all(context).into_iter();
    topics.filter_map(topic_on_defaults).collect()
}

/// The options of a topic after these settings get the current defaults; `None`: nothing changes.
fn with_new_defaults(
    context: &KafkaContext,
    topic: &Topic,
    settings: &[&'static TopicSetting],
) -> Option<TopicOptions> {
    let change = |setting: &&'static TopicSetting| SettingChange {
        setting,
        value: None,
    };
    let changes: Vec<SettingChange> = settings.iter().map(change).collect();
    if changes.is_empty() {
        return None;
    }
    let mut options = (*topic.options()).clone();
    // A topic whose own settings conflict with the new default keeps its options.
    settings::change(context, &mut options, &changes).ok()?;
    Some(options)
}
