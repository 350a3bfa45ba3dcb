//! Topic settings for the admin interface, which creates and changes topics with the same settings
//! as Kafka clients.

use std::collections::BTreeMap;

use cloverleaf_broker::TopicOptions;

use crate::context::KafkaContext;

use super::replicas::log_replicas_request;
use super::settings::{self, SettingRefused};

/// The options of a topic that is created without any settings.
pub fn topic_defaults(context: &KafkaContext, partitions: u32) -> TopicOptions {
    settings::defaults(context, partitions)
}

/// The settings that were set for a topic, by Kafka's names.
pub fn topic_settings(options: &TopicOptions) -> BTreeMap<String, String> {
    let known = |name: &String| settings::find(name).is_some();
    let own = options.settings.iter().filter(|(name, _)| known(name));
    own.map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// Sets settings of a topic to a value, or (`None`) to their default.
///
/// # Errors
/// A name is not a topic setting of Kafka, or a value is not valid for its setting. Then `options`
/// may be changed in part.
pub fn change_topic_settings(
    context: &KafkaContext,
    options: &mut TopicOptions,
    changes: &BTreeMap<String, Option<String>>,
) -> Result<(), SettingRefused> {
    let checked = changes
        .iter()
        .map(|(name, value)| settings::check(name, value.as_deref()));
    let changes = checked.collect::<Result<Vec<_>, _>>()?;
    settings::change(context, options, &changes)?;
    log_replicas_request(1, &changes);
    Ok(())
}
