//! Topics and channels as NSQ defines them: by their first use, with nothing but a name.

use cloverleaf_broker::{SubscriptionOptions, TopicOptions};

use crate::names::is_ephemeral;

/// The options of a topic that NSQ creates: one partition, kept until consumed.
pub fn topic_options(topic: &str) -> TopicOptions {
    TopicOptions {
        ephemeral: is_ephemeral(topic),
        ..TopicOptions::default()
    }
}

/// The options of a channel that NSQ creates, before dead-letter rules are added.
pub fn channel_options(channel: &str) -> SubscriptionOptions {
    SubscriptionOptions {
        ephemeral: is_ephemeral(channel),
        ..SubscriptionOptions::default()
    }
}

/// Returns the options of a channel, given the names of topic and channel. The server adds its
/// dead-letter rules to [`channel_options`] here.
pub type ChannelPolicy = dyn Fn(&str, &str) -> SubscriptionOptions + Send + Sync;
