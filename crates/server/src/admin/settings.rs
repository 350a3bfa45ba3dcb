//! Topics' retention and settings, which the admin interface takes under Kafka's names.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use cloverleaf_broker::{Retention, TopicOptions};

use crate::admin::topics::{details, find, refused};
use crate::admin::types::{AlterTopic, TopicDetails};
use crate::admin::{Context, Refused};
use crate::config::value::{OptionValue, ms};
use crate::context::ServerContext;
use crate::fronts::TopicSettings;

/// `PATCH /api/topics/TOPIC`
pub(crate) async fn alter(
    State(context): Context,
    Path(topic): Path<String>,
    Json(body): Json<AlterTopic>,
) -> Result<Json<TopicDetails>, Refused> {
    let topic = find(&context, &topic)?;
    let change = TopicSettingsChange::new(body.retention.as_deref(), body.config)?;
    change.apply(&context, &mut (*topic.options()).clone())?;
    let set = topic.set_options(|options| {
        // The topic may have been changed in the meantime: no such change may be lost.
        let mut current = options.clone();
        if change.apply(&context, &mut current).is_ok() {
            *options = current;
        }
    });
    set.map_err(refused)?;
    Ok(Json(details(&topic)))
}

/// Access to topics' settings, under the names of one of the protocols.
///
/// # Errors
/// 501: the broker speaks no protocol that has such names.
pub(crate) fn topic_settings_of(context: &ServerContext) -> Result<&dyn TopicSettings, Refused> {
    let found = context.fronts.iter().find_map(|it| it.topic_settings());
    let why = || "no protocol names settings of topics".to_owned();
    found.ok_or_else(|| Refused(StatusCode::NOT_IMPLEMENTED, why()))
}

/// A change of a topic's retention and settings.
pub(crate) struct TopicSettingsChange {
    /// Whether messages are deleted once all subscriptions and groups have consumed them.
    consumed: bool,
    settings: BTreeMap<String, Option<String>>,
}

impl TopicSettingsChange {
    /// # Errors
    /// 400: the retention is not valid, or is given twice.
    pub(crate) fn new(
        retention: Option<&str>,
        mut settings: BTreeMap<String, Option<String>>,
    ) -> Result<Self, Refused> {
        let consumed = retention == Some("consumed");
        let values: &[(&str, Option<String>)] = match retention {
            None => &[],
            Some("consumed") => &[("retention.ms", None), ("retention.bytes", None)],
            Some("forever") => &[("retention.ms", Some("-1".to_owned()))],
            Some(text) => {
                let time = Duration::parse(text).map_err(|fault| {
                    Refused::bad_request(format!("{fault}; or say forever, or consumed"))
                })?;
                &[("retention.ms", Some(ms(time).to_string()))]
            }
        };
        for (name, value) in values {
            if settings.insert((*name).to_owned(), value.clone()).is_some() {
                let why = format!("the retention is said twice, by itself and by {name}");
                return Err(Refused::bad_request(why));
            }
        }
        Ok(Self { consumed, settings })
    }

    /// Applies the change to a topic's options.
    ///
    /// # Errors
    /// 400: there is no such setting, its value is not valid, or settings contradict each other.
    pub(crate) fn apply(
        &self,
        context: &ServerContext,
        options: &mut TopicOptions,
    ) -> Result<(), Refused> {
        let changed = topic_settings_of(context)?.change(options, &self.settings);
        changed.map_err(Refused::bad_request)?;
        if !self.consumed {
            return Ok(());
        }
        if options.compaction.is_some() {
            let why = "a compacted topic keeps the newest message of each key, consumed or not";
            return Err(Refused::bad_request(why));
        }
        options.retention = Retention {
            consumed: true,
            min_ms: options.retention.min_ms,
            ..Retention::default()
        };
        Ok(())
    }
}
