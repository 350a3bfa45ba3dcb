//! The common part of the stories with lapin.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use lapin::options::{
    BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions, QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use tokio::runtime::Builder;

use super::ClientContext;

/// How lapin calls itself.
pub(super) const LIBRARY: &str = "lapin";

/// How often it is looked whether it is over.
const LOOK: Duration = Duration::from_millis(50);

/// Runs a client until it has failed, or the story is over.
pub(super) fn run(
    client: &ClientContext,
    work: impl Future<Output = Outcome>,
) -> Result<(), String> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let until_the_end = async {
        let over = async {
            while client.goes_on() {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::select! {
            outcome = work => outcome.map_err(|error| error.to_string()),
            () = over => Ok(()),
        }
    };
    runtime.block_on(until_the_end)
}

/// How a client ends.
pub(super) type Outcome = Result<(), lapin::Error>;

/// A connection.
pub(super) async fn connect(client: &ClientContext) -> lapin::Result<Connection> {
    connect_to(client, client.addresses.amqp).await
}

/// A connection to somebody who passes it on.
pub(super) async fn connect_to(
    client: &ClientContext,
    address: SocketAddr,
) -> lapin::Result<Connection> {
    let url = format!("amqp://guest:guest@{address}/%2f");
    let name = format!("lab-{}", client.name);
    let properties = ConnectionProperties::default().with_connection_name(name.into());
    Connection::connect(&url, properties).await
}

/// The client's queue. Declared on each channel that uses it, as programs do.
pub(super) async fn declare(client: &ClientContext, channel: &Channel) -> Outcome {
    let (name, options) = (client.name.as_str().into(), QueueDeclareOptions::default());
    let declared = channel.queue_declare(name, options, FieldTable::default());
    declared.await.map(|_| ())
}

/// A channel with confirms, and the queue.
pub(super) async fn publisher(
    client: &ClientContext,
    connection: &Connection,
) -> lapin::Result<Channel> {
    let channel = connection.create_channel().await?;
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await?;
    declare(client, &channel).await?;
    Ok(channel)
}

/// Publishes so many messages, and waits until all of them are confirmed.
pub(super) async fn publish(client: &ClientContext, channel: &Channel, count: usize) -> Outcome {
    for _ in 0..count {
        let published = channel.basic_publish(
            "".into(),
            client.name.as_str().into(),
            BasicPublishOptions::default(),
            b"a message of the lab",
            BasicProperties::default(),
        );
        published.await?;
    }
    channel.wait_for_confirms().await.map(|_| ())
}

/// Publishes so many messages, then again after this time, without end.
pub(super) async fn publish_in_groups(
    client: &ClientContext,
    channel: &Channel,
    count: usize,
    pause: Duration,
) -> Outcome {
    let mut groups = tokio::time::interval(pause);
    loop {
        groups.tick().await;
        publish(client, channel, count).await?;
    }
}

/// A channel that takes so many messages at a time.
pub(super) async fn consumer(
    client: &ClientContext,
    connection: &Connection,
    prefetch: u16,
) -> lapin::Result<(Channel, lapin::Consumer)> {
    let channel = connection.create_channel().await?;
    declare(client, &channel).await?;
    channel
        .basic_qos(prefetch, BasicQosOptions::default())
        .await?;
    let consumer = channel.basic_consume(
        client.name.as_str().into(),
        "".into(),
        Default::default(),
        FieldTable::default(),
    );
    Ok((channel.clone(), consumer.await?))
}
