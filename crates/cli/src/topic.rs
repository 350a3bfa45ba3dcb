//! `cloverleaf topic …`

use std::io::{self, Write};

use clap::{Args, Subcommand};
use cloverleaf_server::admin_types::{AlterTopic, CreateTopic, TopicDetails, TopicSummary};

use crate::client::{Client, path_segment};
use crate::subscription::subscription_rows;
use crate::table;

/// The subcommands of `cloverleaf topic`.
#[derive(Debug, Subcommand)]
pub(crate) enum TopicCommand {
    /// List all topics
    List {
        /// Print JSON, for scripts
        #[arg(long)]
        json: bool,
    },
    /// Create a topic (the first message for a name creates it too)
    Create {
        /// Name of the topic; a name that ends with #ephemeral does not survive a restart
        topic: String,
        /// Number of partitions; NSQ clients expect one
        #[arg(long, value_name = "NUMBER", default_value_t = 1)]
        partitions: u32,
        #[command(flatten)]
        kept: RetentionArgs,
    },
    /// Change how long a topic keeps messages, and its settings
    Alter {
        /// Name of the topic
        topic: String,
        #[command(flatten)]
        kept: RetentionArgs,
        /// A setting that goes back to its default
        #[arg(long, value_name = "NAME")]
        delete_config: Vec<String>,
    },
    /// Delete a topic with all its messages and subscriptions
    Delete {
        /// Name of the topic
        topic: String,
    },
    /// Show retention, settings, partitions, offsets and subscriptions of a topic
    Describe {
        /// Name of the topic
        topic: String,
        /// Print JSON, for scripts
        #[arg(long)]
        json: bool,
    },
}

/// How a topic is kept.
#[derive(Debug, Args)]
pub(crate) struct RetentionArgs {
    /// How long messages stay: a time (7d, 12h), forever, or consumed (until all subscriptions and
    /// groups have consumed them). A new topic without it: what --kafka-retention says, as in a
    /// topic that a Kafka client makes
    #[arg(long, value_name = "TIME")]
    retention: Option<String>,
    /// A setting by Kafka's name, like cleanup.policy=compact; docs/kafka-settings.md has all
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    config: Vec<(String, String)>,
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

pub(crate) fn run(client: &Client, command: &TopicCommand) -> anyhow::Result<()> {
    match command {
        TopicCommand::List { json } => {
            let topics: Vec<TopicSummary> = client.get("/api/topics")?;
            if *json {
                table::print_json(&topics)
            } else {
                print_list(&topics)
            }
        }
        TopicCommand::Create {
            topic,
            partitions,
            kept,
        } => {
            let body = CreateTopic {
                name: topic.clone(),
                partitions: Some(*partitions),
                retention: kept.retention.clone(),
                config: kept.config.iter().cloned().collect(),
            };
            let _: TopicDetails = client.post("/api/topics", &body)?;
            Ok(())
        }
        TopicCommand::Alter {
            topic,
            kept,
            delete_config,
        } => {
            let set = kept.config.iter().cloned();
            let set = set.map(|(name, value)| (name, Some(value)));
            let body = AlterTopic {
                retention: kept.retention.clone(),
                config: set
                    .chain(delete_config.iter().map(|name| (name.clone(), None)))
                    .collect(),
            };
            let _: TopicDetails =
                client.patch(&format!("/api/topics/{}", path_segment(topic)), &body)?;
            Ok(())
        }
        TopicCommand::Delete { topic } => {
            client.delete(&format!("/api/topics/{}", path_segment(topic)))
        }
        TopicCommand::Describe { topic, json } => {
            let details: TopicDetails =
                client.get(&format!("/api/topics/{}", path_segment(topic)))?;
            if *json {
                table::print_json(&details)
            } else {
                print_details(&details)
            }
        }
    }
}

fn print_list(topics: &[TopicSummary]) -> anyhow::Result<()> {
    let rows: Vec<[String; 5]> = topics
        .iter()
        .map(|topic| {
            [
                topic.name.clone(),
                topic.partitions.to_string(),
                table::bytes(topic.stored_bytes),
                topic.subscriptions.join(", "),
                table::text_if(topic.paused, "paused"),
            ]
        })
        .collect();
    table::print(
        ["TOPIC", "PARTITIONS", "STORED", "SUBSCRIPTIONS", "STATE"],
        &rows,
    )?;
    Ok(())
}

fn print_details(details: &TopicDetails) -> anyhow::Result<()> {
    let summary = &details.summary;
    let mut out = io::stdout().lock();
    writeln!(out, "topic     {}", summary.name)?;
    writeln!(out, "folder    topics/{}", details.uuid)?;
    writeln!(out, "stored    {}", table::bytes(summary.stored_bytes))?;
    writeln!(out, "kept      {}", kept(details))?;
    if !details.config.is_empty() {
        let settings = details.config.iter();
        let settings: Vec<_> = settings.map(|(name, it)| format!("{name}={it}")).collect();
        writeln!(out, "settings  {}", settings.join(", "))?;
    }
    if summary.ephemeral {
        writeln!(out, "lifetime  ephemeral: gone after a restart")?;
    }
    if summary.paused {
        writeln!(out, "state     paused")?;
    }
    writeln!(out)?;
    drop(out);
    let partitions: Vec<[String; 6]> = details
        .partition_details
        .iter()
        .map(|partition| {
            [
                partition.partition.to_string(),
                partition.start_offset.to_string(),
                partition.end_offset.to_string(),
                partition.synced_offset.to_string(),
                table::bytes(partition.stored_bytes),
                partition.segments.to_string(),
            ]
        })
        .collect();
    let heading = ["PARTITION", "START", "END", "SYNCED", "STORED", "SEGMENTS"];
    table::print(heading, &partitions)?;
    if !details.subscription_details.is_empty() {
        writeln!(io::stdout().lock())?;
        subscription_rows(&details.subscription_details)?;
    }
    Ok(())
}

/// The retention, in words.
fn kept(details: &TopicDetails) -> String {
    let retention = &details.retention;
    let policy = details.config.get("cleanup.policy");
    let mut words = Vec::new();
    if let Some(ms) = retention.ms {
        words.push(format!("for {}", duration(ms)));
    }
    if let Some(bytes) = retention.bytes {
        words.push(format!("up to {} a partition", table::bytes(bytes)));
    }
    if retention.consumed {
        words.push("until all subscriptions and groups have consumed it".to_owned());
    }
    if words.is_empty() {
        words.push("for ever".to_owned());
    }
    let words = words.join(", ");
    if policy.is_some_and(|policy| policy.contains("compact")) {
        format!("the newest message of each key, {words}")
    } else {
        words
    }
}

/// A time in the largest unit in which it is a whole number.
fn duration(ms: u64) -> String {
    const UNITS: [(&str, u64); 4] = [
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1_000),
    ];
    let whole = |(_, factor): &&(&str, u64)| ms > 0 && ms.is_multiple_of(*factor);
    match UNITS.iter().find(whole) {
        Some((unit, factor)) => format!("{}{unit}", ms / factor),
        None => format!("{ms}ms"),
    }
}
