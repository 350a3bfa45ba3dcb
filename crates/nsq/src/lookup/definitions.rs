//! The broker's topics and channels, as registrations at nsqlookupd.

use std::collections::BTreeSet;

use cloverleaf_broker::Realm;

use crate::lookup::protocol::Registration;
use crate::stats::gather::{channels_by_name, topics_by_name};

/// Every topic and channel, including ephemeral ones, as in nsqd.
pub fn registrations(realm: &Realm) -> BTreeSet<Registration> {
    let mut all = BTreeSet::new();
    for topic in topics_by_name(realm) {
        let name = topic.name();
        for channel in channels_by_name(&topic) {
            let channel = Some(channel.name().to_owned());
            all.insert(Registration {
                topic: name.to_owned(),
                channel,
            });
        }
        all.insert(Registration {
            topic: name.to_owned(),
            channel: None,
        });
    }
    all
}
