//! Topics and subscriptions in the admin interface.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use cloverleaf_broker::{CatalogError, Dispatch, StartAt, Subscription, Topic, TopicOptions};
use cloverleaf_kafka::control::topic_settings;

use crate::admin::settings::{TopicSettingsChange, topic_settings_of};
use crate::admin::types::{
    ConsumerDetails, CreateSubscription, CreateTopic, PartitionDetails, SubscriptionDetails,
    TopicDetails, TopicSummary,
};
use crate::admin::{Context, Refused};
use crate::context::ServerContext;

/// `GET /api/topics`
pub(crate) async fn list(State(context): Context) -> Json<Vec<TopicSummary>> {
    let mut topics: Vec<TopicSummary> = context
        .broker
        .topics()
        .iter()
        .map(|topic| summary(topic))
        .collect();
    topics.sort_by(|a, b| a.name.cmp(&b.name));
    Json(topics)
}

/// `POST /api/topics`
pub(crate) async fn create(
    State(context): Context,
    Json(body): Json<CreateTopic>,
) -> Result<(StatusCode, Json<TopicDetails>), Refused> {
    check_name("topic", &body.name)?;
    if context.broker.topic(&body.name).is_some() {
        return Err(Refused::conflict(format!(
            "topic {} exists already",
            body.name
        )));
    }
    let mut options = TopicOptions {
        ephemeral: cloverleaf_nsq::definitions::topic_options(&body.name).ephemeral,
        ..topic_settings_of(&context)?.defaults(body.partitions.unwrap_or(1))
    };
    let config = body.config.into_iter();
    let config = config.map(|(name, value)| (name, Some(value))).collect();
    TopicSettingsChange::new(body.retention.as_deref(), config)?.apply(&context, &mut options)?;
    let topic = context
        .broker
        .topic_or_create(&body.name, || options)
        .map_err(refused)?;
    Ok((StatusCode::CREATED, Json(details(&topic))))
}

/// `GET /api/topics/TOPIC`
pub(crate) async fn describe(
    State(context): Context,
    Path(topic): Path<String>,
) -> Result<Json<TopicDetails>, Refused> {
    Ok(Json(details(&*find(&context, &topic)?)))
}

/// `DELETE /api/topics/TOPIC`
pub(crate) async fn delete(
    State(context): Context,
    Path(topic): Path<String>,
) -> Result<StatusCode, Refused> {
    find(&context, &topic)?;
    context.broker.delete_topic(&topic).map_err(refused)?;
    Ok(StatusCode::NO_CONTENT)
}

/// `POST /api/topics/TOPIC/subscriptions`
pub(crate) async fn create_subscription(
    State(context): Context,
    Path(topic): Path<String>,
    Json(body): Json<CreateSubscription>,
) -> Result<(StatusCode, Json<SubscriptionDetails>), Refused> {
    check_name("subscription", &body.name)?;
    if let Some(name) = &body.dead_letter_topic {
        check_name("dead-letter topic", name)?;
    }
    let topic = find(&context, &topic)?;
    if topic.subscription(&body.name).is_some() {
        let why = format!(
            "subscription {} of {} exists already",
            body.name,
            topic.name()
        );
        return Err(Refused::conflict(why));
    }
    let fronts = context.fronts.iter();
    let options = fronts.map(|it| it.subscription_options(topic.name(), &body.name));
    let mut options = options.flatten().next().unwrap_or_default();
    options.start = match body.from.as_deref() {
        None => StartAt::Delivery,
        Some("earliest") => StartAt::Earliest,
        Some("latest") => StartAt::Latest,
        Some(other) => {
            let why = format!("`{other}` is no start: say earliest or latest, or nothing");
            return Err(Refused::bad_request(why));
        }
    };
    if let Some(attempts_max) = body.attempts_max {
        options.attempts_max = attempts_max;
    }
    if body.dead_letter_topic.is_some() {
        options.dead_letter = body.dead_letter_topic;
    }
    let subscription = topic
        .subscription_or_create(&body.name, || options)
        .map_err(refused)?;
    Ok((
        StatusCode::CREATED,
        Json(subscription_details(&subscription)),
    ))
}

/// `GET /api/topics/TOPIC/subscriptions/NAME`
pub(crate) async fn describe_subscription(
    State(context): Context,
    Path((topic, subscription)): Path<(String, String)>,
) -> Result<Json<SubscriptionDetails>, Refused> {
    let subscription = find_subscription(&context, &topic, &subscription)?.1;
    Ok(Json(subscription_details(&subscription)))
}

/// `DELETE /api/topics/TOPIC/subscriptions/NAME`
pub(crate) async fn delete_subscription(
    State(context): Context,
    Path((topic, subscription)): Path<(String, String)>,
) -> Result<StatusCode, Refused> {
    let (topic, subscription) = find_subscription(&context, &topic, &subscription)?;
    topic
        .delete_subscription(subscription.name())
        .map_err(refused)?;
    Ok(StatusCode::NO_CONTENT)
}

/// `POST /api/topics/TOPIC/subscriptions/NAME/ACTION`
pub(crate) async fn act_on_subscription(
    State(context): Context,
    Path((topic, subscription, action)): Path<(String, String, String)>,
) -> Result<Json<SubscriptionDetails>, Refused> {
    let subscription = find_subscription(&context, &topic, &subscription)?.1;
    match action.as_str() {
        "empty" => subscription.discard_all(),
        "pause" => subscription.pause().map_err(refused)?,
        "unpause" => subscription.unpause().map_err(refused)?,
        "least-loaded" => change_dispatch(&subscription, Dispatch::LeastLoaded)?,
        "fill-first" => change_dispatch(&subscription, Dispatch::FillFirst)?,
        _ => {
            let why = format!(
                "`{action}` is no action: say empty, pause, unpause, least-loaded or fill-first"
            );
            return Err(Refused::not_found(why));
        }
    }
    Ok(Json(subscription_details(&subscription)))
}

/// Changes how the consumer of each message is chosen, from now on.
fn change_dispatch(subscription: &Arc<Subscription>, dispatch: Dispatch) -> Result<(), Refused> {
    subscription.set_dispatch(dispatch).map_err(refused)
}

/// Maximum length of the name of a topic or subscription; NSQ's own limit is far lower.
const NAME_BYTES_MAX: usize = 255;

/// Names appear on terminals, in log lines and as labels of metrics, so they have no control
/// characters.
fn check_name(of: &str, name: &str) -> Result<(), Refused> {
    let why = if name.is_empty() {
        "cannot be empty".to_owned()
    } else if name.len() > NAME_BYTES_MAX {
        format!("cannot be longer than {NAME_BYTES_MAX} bytes")
    } else if name.chars().any(char::is_control) {
        "cannot contain control characters".to_owned()
    } else {
        return Ok(());
    };
    Err(Refused::bad_request(format!("the name of a {of} {why}")))
}

/// The status for each of the catalog's errors.
pub(crate) fn refused(error: CatalogError) -> Refused {
    let status = match error {
        CatalogError::Partitions { .. }
        | CatalogError::PartitionsOnlyGrow { .. }
        | CatalogError::OffsetAboveEnd { .. }
        | CatalogError::Name => StatusCode::BAD_REQUEST,
        CatalogError::PartitionsFull { .. } => StatusCode::CONFLICT,
        CatalogError::Denied { .. } => StatusCode::FORBIDDEN,
        CatalogError::TopicDeleted { .. }
        | CatalogError::NoSuchPartition { .. }
        | CatalogError::SubscriptionDeleted { .. } => StatusCode::NOT_FOUND,
        CatalogError::Log { .. } | CatalogError::Closed => StatusCode::SERVICE_UNAVAILABLE,
    };
    Refused(status, error.to_string())
}

/// Finds a topic by name.
///
/// # Errors
/// 404: there is none.
pub(crate) fn find(context: &ServerContext, name: &str) -> Result<Arc<Topic>, Refused> {
    let topic = context.broker.topic(name);
    topic.ok_or_else(|| Refused::not_found(format!("there is no topic {name}")))
}

fn find_subscription(
    context: &ServerContext,
    topic: &str,
    name: &str,
) -> Result<(Arc<Topic>, Arc<Subscription>), Refused> {
    let topic = find(context, topic)?;
    match topic.subscription(name) {
        Some(subscription) => Ok((topic, subscription)),
        None => {
            let why = format!("topic {} has no subscription {name}", topic.name());
            Err(Refused::not_found(why))
        }
    }
}

fn summary(topic: &Topic) -> TopicSummary {
    let mut subscriptions: Vec<String> = topic
        .subscriptions()
        .iter()
        .map(|s| s.name().to_owned())
        .collect();
    subscriptions.sort();
    TopicSummary {
        name: topic.name().to_owned(),
        partitions: topic.partition_count(),
        ephemeral: topic.is_ephemeral(),
        paused: topic.is_paused(),
        messages: topic.message_count(),
        stored_bytes: topic.stored_bytes(),
        subscriptions,
    }
}

pub(crate) fn details(topic: &Topic) -> TopicDetails {
    let partition_details = (0..)
        .zip(topic.partitions().iter())
        .map(|(partition, log)| (partition, log.status()))
        .map(|(partition, status)| PartitionDetails {
            partition,
            start_offset: status.start_offset,
            end_offset: status.written_end,
            synced_offset: status.synced_end,
            stored_bytes: status.stored_bytes,
            segments: status.segments,
        })
        .collect();
    let mut subscription_details: Vec<SubscriptionDetails> = topic
        .subscriptions()
        .iter()
        .map(|s| self::subscription_details(s))
        .collect();
    subscription_details.sort_by(|a, b| a.name.cmp(&b.name));
    let options = topic.options();
    TopicDetails {
        summary: summary(topic),
        uuid: topic.id().to_string(),
        created_ms: topic.created_ms(),
        retention: options.retention.clone(),
        config: topic_settings(&options),
        partition_details,
        subscription_details,
    }
}

fn subscription_details(subscription: &Subscription) -> SubscriptionDetails {
    let stats = subscription.stats();
    let options = subscription.options();
    SubscriptionDetails {
        name: subscription.name().to_owned(),
        topic: subscription.topic_name().to_owned(),
        ephemeral: subscription.is_ephemeral(),
        paused: subscription.is_paused(),
        depth: stats.depth,
        in_flight: stats.in_flight,
        delayed: stats.delayed,
        delivered: stats.delivered,
        acknowledged: stats.acknowledged,
        requeued: stats.requeued,
        timed_out: stats.timed_out,
        dead_lettered: stats.dead_lettered,
        attempts_max: u32::from(options.attempts_max),
        dead_letter_topic: options.dead_letter.clone(),
        consumers: stats
            .consumers
            .into_iter()
            .map(|consumer| ConsumerDetails {
                label: consumer.label,
                credit: consumer.window,
                in_flight: consumer.in_flight,
                delivered: consumer.delivered,
            })
            .collect(),
    }
}
