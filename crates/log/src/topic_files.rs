//! The description of a topic (opaque bytes of the log's owner), stored in the topic's folder in
//! case the state journal is lost.
//!
//! The file `topic` is created with the folder, so a topic without messages has none. The owner's
//! [`Describer`] supplies the bytes, and the housekeeper writes changes. Little-endian:
//!
//! ```text
//!  byte  0            8           12           16
//!       +------------+-----------+------------+-------------+
//!       | "clvtopc1" | len u32   | crc32c u32 | description |
//!       +------------+-----------+------------+-------------+
//! ```
//!
//! The CRC covers length and description. The magic never changes for this layout.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind, IoSlice};

use uuid::Uuid;

use crate::batch::field;
use crate::disk::{Disk, OpenMode, read_whole};
use crate::housekeeping::Chore;
use crate::log::Log;
use crate::metrics::count;
use crate::partition::topic_dir;
use crate::shared::Shared;

const MAGIC: &[u8; 8] = b"clvtopc1";
const HEADER_BYTES: usize = 16;
/// Name of the file in the topic's folder.
pub(crate) const TOPIC_NAME: &str = "topic";
/// From this many files on, one sync of the file system replaces the syncs of the files.
const SYNCFS_MIN: usize = 8;

/// Returns the description of a topic for its folder; `None` if the topic is unknown.
pub type Describer = Box<dyn Fn(Uuid) -> Option<Vec<u8>> + Send + Sync>;

/// A topic with a folder, as recovery has found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredTopic {
    /// The topic's UUID.
    pub topic: Uuid,
    /// The description in the topic's folder, if it can be read.
    pub description: Option<Vec<u8>>,
    /// Whether the folder has partitions, so that messages were stored.
    pub has_partitions: bool,
}

/// Path of the file, relative to the data folder.
pub(crate) fn topic_file(topic: Uuid) -> String {
    format!("{}/{TOPIC_NAME}", topic_dir(topic))
}

/// The bytes of the file.
pub fn encode_topic_file(description: &[u8]) -> Vec<u8> {
    let len = (description.len() as u32).to_le_bytes();
    let crc = crc32c::crc32c_append(crc32c::crc32c(&len), description);
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&len);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes.extend_from_slice(description);
    bytes
}

/// The description in a file; `None` if the file is damaged.
pub fn decode_topic_file(bytes: &[u8]) -> Option<&[u8]> {
    let header: &[u8; HEADER_BYTES] = bytes.first_chunk()?;
    let len = u32::from_le_bytes(field(header, 8));
    let description = bytes.get(HEADER_BYTES..)?.get(..len as usize)?;
    let crc = crc32c::crc32c_append(crc32c::crc32c(&header[8..12]), description);
    let is_ours = header.starts_with(MAGIC) && u32::from_le_bytes(field(header, 12)) == crc;
    is_ours.then_some(description)
}

/// Reads the description in a topic's folder; `None` if it is missing or damaged.
pub(crate) fn read(disk: &dyn Disk, topic: Uuid) -> io::Result<Option<Vec<u8>>> {
    match read_whole(disk, &topic_file(topic)) {
        Ok(bytes) => Ok(decode_topic_file(&bytes).map(<[u8]>::to_vec)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl Shared {
    /// Syncs a path from [`UnsyncedFolders`](crate::partition::UnsyncedFolders): a folder, or the
    /// file of a topic.
    pub(crate) fn sync_name(&self, path: &str) -> io::Result<()> {
        if !path.ends_with(&format!("/{TOPIC_NAME}")) {
            return self.disk.sync_dir(path);
        }
        match self.disk.open(path, OpenMode::Existing) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            opened => opened?.sync_data(),
        }
    }

    /// Writes the file of a topic whose folder is new, without a sync. Returns whether the file
    /// exists. An append does not fail because of it: the journal has the description, too.
    pub(crate) fn describe_new(&self, topic: Uuid) -> bool {
        let describe = self.describer.get();
        let Some(description) = describe.and_then(|describe| describe(topic)) else {
            return false;
        };
        let path = topic_file(topic);
        let created = self.disk.open(&path, OpenMode::CreateNew);
        let written = created.and_then(|file| {
            let bytes = encode_topic_file(&description);
            file.write_all_at(&[IoSlice::new(&bytes)], 0)
        });
        match written {
            Ok(()) => true,
            // Another partition of the topic has created the file.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => true,
            Err(error) => {
                tracing::warn!(%path, %error, "cannot write what a topic is");
                false
            }
        }
    }

    /// Replaces the files of topics that have folders. Blocks on the disk.
    pub(crate) fn describe(&self, topics: &BTreeSet<Uuid>) {
        let Some(describe) = self.describer.get() else {
            return;
        };
        let mut written = Vec::new();
        for topic in topics {
            let Some(description) = describe(*topic) else {
                continue;
            };
            let path = topic_file(*topic);
            let fresh = format!("{path}.new");
            let opened = self.disk.open(&fresh, OpenMode::OpenOrCreate);
            let outcome = opened.and_then(|file| {
                let bytes = encode_topic_file(&description);
                file.set_len(bytes.len() as u64)?;
                file.write_all_at(&[IoSlice::new(&bytes)], 0)?;
                Ok(file)
            });
            match outcome {
                Ok(file) => written.push((*topic, fresh, path, file)),
                // There is no folder yet: the first message creates it, and this file with it.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => tracing::warn!(%path, %error, "cannot write what a topic is"),
            }
        }
        let at_once = written.len() >= SYNCFS_MIN && self.disk.sync_fs_reports_errors();
        let sync_all = || -> io::Result<()> {
            count(&self.counters.syncs, 1);
            self.disk.sync_fs()
        };
        let outcome = (|| {
            if at_once {
                sync_all()?;
            }
            for (topic, fresh, path, file) in &written {
                if !at_once {
                    count(&self.counters.syncs, 2);
                    file.sync_data()?;
                }
                // The topic was deleted meanwhile.
                match self.disk.rename(fresh, path) {
                    Err(error) if error.kind() == ErrorKind::NotFound => continue,
                    renamed => renamed?,
                }
                if !at_once {
                    self.disk.sync_dir(&topic_dir(*topic))?;
                }
            }
            if at_once { sync_all() } else { Ok(()) }
        })();
        if let Err(error) = outcome {
            tracing::warn!(%error, "cannot write what topics are");
        }
    }
}

impl Log {
    /// Sets the describer. Call it once, before the first append. The log calls the describer
    /// without a lock that its owner could wait for.
    pub fn describe_topics(&self, describer: Describer) {
        let _ = self.shared().describer.set(describer);
    }

    /// Notes that the description of a topic has changed. The housekeeper writes it to the topic's
    /// folder, if there is one.
    pub fn describe(&self, topic: Uuid) {
        let _ = self.shared().queues.chores.push(Chore::Describe(topic));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_description_is_read_as_it_was_written_or_not_at_all(
            description in proptest::collection::vec(any::<u8>(), 0..100),
            at in any::<prop::sample::Index>(),
        ) {
            let mut bytes = encode_topic_file(&description);
            prop_assert_eq!(decode_topic_file(&bytes).unwrap(), &description);
            let at = at.index(bytes.len());
            bytes[at] ^= 4;
            prop_assert_eq!(decode_topic_file(&bytes), None);
            prop_assert_eq!(decode_topic_file(&bytes[..at]), None);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            decode_topic_file(&bytes);
        }
    }
}
