//! `cloverleaf subscription …`

use std::io::{self, Write};

use clap::{Subcommand, ValueEnum};
use cloverleaf_server::admin_types::{
    CreateSubscription, SubscriptionDetails, TopicDetails, TopicSummary,
};

use crate::client::{Client, path_segment};
use crate::table;

/// The subcommands of `cloverleaf subscription`.
#[derive(Debug, Subcommand)]
pub(crate) enum SubscriptionCommand {
    /// List the subscriptions of a topic, or of all topics
    List {
        /// Name of the topic; all topics when left out
        topic: Option<String>,
        /// Print JSON, for scripts
        #[arg(long)]
        json: bool,
    },
    /// Create a subscription (the first consumer of a name creates it too)
    Create {
        /// Name of the topic
        topic: String,
        /// Name of the subscription
        subscription: String,
        /// Where to start: earliest or latest [default: everything for a topic's first
        /// subscription, else latest]
        #[arg(long)]
        from: Option<String>,
        /// Deliveries after which a message goes to the dead-letter topic; 0 for never
        #[arg(long, value_name = "NUMBER")]
        attempts_max: Option<u16>,
        /// Where messages go that failed too often
        #[arg(long, value_name = "TOPIC")]
        dead_letter_topic: Option<String>,
    },
    /// Delete a subscription; its consumers are disconnected from it
    Delete {
        /// Name of the topic
        topic: String,
        /// Name of the subscription
        subscription: String,
    },
    /// Show counts and consumers of a subscription
    Describe {
        /// Name of the topic
        topic: String,
        /// Name of the subscription
        subscription: String,
        /// Print JSON, for scripts
        #[arg(long)]
        json: bool,
    },
    /// Skip all messages that wait
    Empty {
        /// Name of the topic
        topic: String,
        /// Name of the subscription
        subscription: String,
    },
    /// Stop delivery; messages wait
    Pause {
        /// Name of the topic
        topic: String,
        /// Name of the subscription
        subscription: String,
    },
    /// Deliver again
    Unpause {
        /// Name of the topic
        topic: String,
        /// Name of the subscription
        subscription: String,
    },
    /// Change who gets the next message, from now on and after a restart
    Dispatch {
        /// Name of the topic; for AMQP, the name of the queue
        topic: String,
        /// Name of the subscription; for AMQP, `queue`
        subscription: String,
        /// Whom to prefer
        policy: DispatchPolicy,
    },
}

/// Which consumer gets the next message.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum DispatchPolicy {
    /// The consumer with the fewest unacknowledged messages
    LeastLoaded,
    /// One consumer until its credit is used up, then the next
    FillFirst,
}

pub(crate) fn run(client: &Client, command: &SubscriptionCommand) -> anyhow::Result<()> {
    match command {
        SubscriptionCommand::List { topic, json } => list(client, topic.as_deref(), *json),
        SubscriptionCommand::Create {
            topic,
            subscription,
            from,
            attempts_max,
            dead_letter_topic,
        } => {
            let body = CreateSubscription {
                name: subscription.clone(),
                from: from.clone(),
                attempts_max: *attempts_max,
                dead_letter_topic: dead_letter_topic.clone(),
            };
            let path = format!("/api/topics/{}/subscriptions", path_segment(topic));
            let _: SubscriptionDetails = client.post(&path, &body)?;
            Ok(())
        }
        SubscriptionCommand::Delete {
            topic,
            subscription,
        } => client.delete(&path(topic, subscription)),
        SubscriptionCommand::Describe {
            topic,
            subscription,
            json,
        } => {
            let details: SubscriptionDetails = client.get(&path(topic, subscription))?;
            if *json {
                table::print_json(&details)
            } else {
                describe(&details)
            }
        }
        SubscriptionCommand::Empty {
            topic,
            subscription,
        } => act(client, topic, subscription, "empty"),
        SubscriptionCommand::Pause {
            topic,
            subscription,
        } => act(client, topic, subscription, "pause"),
        SubscriptionCommand::Unpause {
            topic,
            subscription,
        } => act(client, topic, subscription, "unpause"),
        SubscriptionCommand::Dispatch {
            topic,
            subscription,
            policy,
        } => {
            let action = match policy {
                DispatchPolicy::LeastLoaded => "least-loaded",
                DispatchPolicy::FillFirst => "fill-first",
            };
            act(client, topic, subscription, action)
        }
    }
}

fn path(topic: &str, subscription: &str) -> String {
    format!(
        "/api/topics/{}/subscriptions/{}",
        path_segment(topic),
        path_segment(subscription)
    )
}

fn act(client: &Client, topic: &str, subscription: &str, action: &str) -> anyhow::Result<()> {
    let path = format!("{}/{action}", path(topic, subscription));
    let _: SubscriptionDetails = client.post(&path, &serde_json::json!({}))?;
    Ok(())
}

fn list(client: &Client, topic: Option<&str>, json: bool) -> anyhow::Result<()> {
    let topics = match topic {
        Some(topic) => vec![topic.to_owned()],
        None => {
            let topics: Vec<TopicSummary> = client.get("/api/topics")?;
            topics.into_iter().map(|topic| topic.name).collect()
        }
    };
    let mut all = Vec::new();
    for topic in topics {
        let details: TopicDetails = client.get(&format!("/api/topics/{}", path_segment(&topic)))?;
        all.extend(details.subscription_details);
    }
    if json {
        table::print_json(&all)
    } else {
        subscription_rows(&all)
    }
}

/// Prints one line per subscription.
pub(crate) fn subscription_rows(all: &[SubscriptionDetails]) -> anyhow::Result<()> {
    let rows: Vec<[String; 7]> = all
        .iter()
        .map(|subscription| {
            [
                subscription.topic.clone(),
                subscription.name.clone(),
                subscription.depth.to_string(),
                subscription.in_flight.to_string(),
                subscription.delayed.to_string(),
                subscription.consumers.len().to_string(),
                table::text_if(subscription.paused, "paused"),
            ]
        })
        .collect();
    let heading = [
        "TOPIC",
        "SUBSCRIPTION",
        "WAITING",
        "IN FLIGHT",
        "DELAYED",
        "CONSUMERS",
        "STATE",
    ];
    table::print(heading, &rows)?;
    Ok(())
}

fn describe(details: &SubscriptionDetails) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "subscription   {} of {}", details.name, details.topic)?;
    writeln!(out, "waiting        {}", details.depth)?;
    writeln!(out, "in flight      {}", details.in_flight)?;
    writeln!(out, "delayed        {}", details.delayed)?;
    writeln!(out, "delivered      {}", details.delivered)?;
    writeln!(out, "acknowledged   {}", details.acknowledged)?;
    writeln!(out, "requeued       {}", details.requeued)?;
    writeln!(out, "timed out      {}", details.timed_out)?;
    writeln!(out, "dead-lettered  {}", details.dead_lettered)?;
    match (&details.dead_letter_topic, details.attempts_max) {
        (_, 0) => writeln!(out, "attempts       without limit")?,
        (Some(topic), max) => writeln!(out, "attempts       at most {max}, then to {topic}")?,
        (None, max) => writeln!(out, "attempts       at most {max}, then dropped")?,
    }
    if details.paused {
        writeln!(out, "state          paused")?;
    }
    drop(out);
    if !details.consumers.is_empty() {
        writeln!(io::stdout().lock())?;
        let rows: Vec<[String; 4]> = details
            .consumers
            .iter()
            .map(|consumer| {
                [
                    consumer.label.clone(),
                    consumer.credit.to_string(),
                    consumer.in_flight.to_string(),
                    consumer.delivered.to_string(),
                ]
            })
            .collect();
        table::print(["CONSUMER", "CREDIT", "IN FLIGHT", "DELIVERED"], &rows)?;
    }
    Ok(())
}
