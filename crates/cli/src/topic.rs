//! `cloverleaf topic …`

use std::io::{self, Write};

use clap::Subcommand;
use cloverleaf_server::admin_types::{CreateTopic, TopicDetails, TopicSummary};

use crate::client::{Client, segment};
use crate::subscription::subscription_rows;
use crate::table;

/// What to do with topics.
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
    },
    /// Delete a topic with all its messages and subscriptions
    Delete {
        /// Name of the topic
        topic: String,
    },
    /// Show partitions, offsets and subscriptions of a topic
    Describe {
        /// Name of the topic
        topic: String,
        /// Print JSON, for scripts
        #[arg(long)]
        json: bool,
    },
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
        TopicCommand::Create { topic, partitions } => {
            let body = CreateTopic {
                name: topic.clone(),
                partitions: Some(*partitions),
            };
            let _: TopicDetails = client.post("/api/topics", &body)?;
            Ok(())
        }
        TopicCommand::Delete { topic } => client.delete(&format!("/api/topics/{}", segment(topic))),
        TopicCommand::Describe { topic, json } => {
            let details: TopicDetails = client.get(&format!("/api/topics/{}", segment(topic)))?;
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
                table::mark(topic.paused, "paused"),
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
