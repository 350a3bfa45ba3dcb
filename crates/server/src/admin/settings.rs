//! How topics are kept: retention and settings, which the admin interface takes by Kafka's names.

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
        // Others may have changed the topic meanwhile: nothing of theirs may be lost.
        let mut current = options.clone();
        if change.apply(&context, &mut current).is_ok() {
            *options = current;
        }
    });
    set.map_err(refused)?;
    Ok(Json(details(&topic)))
}

/// The settings of topics, which have the names of one of the protocols.
///
/// # Errors
/// 501: the broker speaks no such protocol.
pub(crate) fn topic_settings_of(context: &ServerContext) -> Result<&dyn TopicSettings, Refused> {
    let found = context.fronts.iter().find_map(|it| it.topic_settings());
    let why = || "no protocol names settings of topics".to_owned();
    found.ok_or_else(|| Refused(StatusCode::NOT_IMPLEMENTED, why()))
}

/// How a topic is to be kept.
pub(crate) struct TopicSettingsChange {
    /// Until all have consumed it.
    consumed: bool,
    settings: BTreeMap<String, Option<String>>,
}

impl TopicSettingsChange {
    /// # Errors
    /// 400: the retention is none, or is said twice.
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

    /// Changes a topic's options so.
    ///
    /// # Errors
    /// 400: a setting is none, or they do not go together.
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
