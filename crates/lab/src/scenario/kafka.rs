//! The common part of the stories with librdkafka.

use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use tokio::runtime::{Builder, Runtime};

use super::{AppliedChange, ClientContext};

/// How librdkafka calls itself, whatever is built upon it.
pub(super) const LIBRARY: &str = "librdkafka";

/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(10);

/// A configuration for the broker there.
pub(super) fn config(client: &ClientContext) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", client.addresses.kafka.to_string())
        .set("client.id", format!("lab-{}", client.name));
    config
}

/// Sets what the finding has named.
pub(super) fn with_fix(mut config: ClientConfig, fix: Option<&AppliedChange>) -> ClientConfig {
    if let Some(AppliedChange {
        setting,
        value: Some(value),
    }) = fix
    {
        config.set(setting, value);
    }
    config
}

/// A runtime for one client.
pub(super) fn runtime() -> Result<Runtime, String> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())
}

/// Makes the client's topic.
pub(super) fn create_topic(
    runtime: &Runtime,
    client: &ClientContext,
    partitions: i32,
) -> Result<(), String> {
    let admin: AdminClient<DefaultClientContext> =
        config(client).create().map_err(|error| error.to_string())?;
    let topic = NewTopic::new(&client.name, partitions, TopicReplication::Fixed(1));
    let options = AdminOptions::new().operation_timeout(Some(ANSWER));
    let created = runtime.block_on(admin.create_topics([&topic], &options));
    for one in created.map_err(|error| error.to_string())? {
        one.map_err(|(name, error)| format!("{name}: {error}"))?;
    }
    Ok(())
}
