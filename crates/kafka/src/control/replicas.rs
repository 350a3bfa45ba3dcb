//! Requests for more than one replica: many programs ask for three, because Kafka's guides
//! recommend it.

use std::sync::atomic::{AtomicBool, Ordering};

use super::settings::{SettingChange, SettingHandling};

/// Logs once per process that a client asks for several replicas, by the replication factor `count`
/// or by a setting.
pub(super) fn log_replicas_request(count: i16, changes: &[SettingChange]) {
    static NOTED: AtomicBool = AtomicBool::new(false);
    let is_many = |change: &SettingChange| {
        let is_about_replicas = matches!(change.setting.handling, SettingHandling::OneReplica(_));
        is_about_replicas && change.value.as_deref().is_some_and(|value| value != "1")
    };
    let is_asked = count > 1 || changes.iter().any(is_many);
    if is_asked && !NOTED.swap(true, Ordering::Relaxed) {
        tracing::info!(
            "a Kafka client asks for several replicas (replication factor or \
             min.insync.replicas): taken, and there is one replica all the same; \
             acks=all is answered once it is synced to the disk. This is said once."
        );
    }
}
