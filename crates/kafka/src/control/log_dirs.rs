//! DescribeLogDirs: the size of each partition on the disk.
//!
//! ```text
//! answer    throttle time i32, [3+: error i16], array of { error i16, folder,
//!             array of { topic, array of { partition i32, bytes i64, lag i64, is future bool } },
//!             [4+: total bytes i64, usable bytes i64], [5+: is cordoned bool] }
//! ```
//!
//! Source: <https://kafka.apache.org/protocol#The_Messages_DescribeLogDirs>.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cloverleaf_access::Operation;
use cloverleaf_broker::Topic;

use crate::answer::{Answer, Body, later};
use crate::context::KafkaContext;
use crate::error_code::ErrorCode;
use crate::wire::{Malformed, Reader};
use crate::wire_out::Writer;

use super::{ControlCall, topics};

/// The first versions with the flexible encoding, with a top-level error, with total and usable
/// bytes of the file system (KIP-827; -1: unknown), and with cordoned folders (KIP-1066).
const FLEXIBLE_FROM: i16 = 2;
const ERROR_FROM: i16 = 3;
const SPACE_FROM: i16 = 4;
const CORDON_FROM: i16 = 5;

fn bytes(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// The requested partitions of each topic.
type RequestedTopics = BTreeMap<String, BTreeSet<i32>>;

fn read(reader: &mut Reader<'_>) -> Result<Option<RequestedTopics>, Malformed> {
    let topics = reader.nullable_array(|reader| {
        let topic = (reader.string()?.to_owned(), reader.array(Reader::i32)?);
        reader.skip_tagged()?;
        Ok(topic)
    })?;
    reader.skip_tagged()?;
    Ok(topics.map(|topics| {
        let mut wanted = RequestedTopics::new();
        for (name, partitions) in topics {
            wanted.entry(name).or_default().extend(partitions);
        }
        wanted
    }))
}

pub(super) fn handle(mut call: ControlCall<'_>) -> Result<Answer, Malformed> {
    let version = call.version;
    let wanted = read(&mut call.body)?;
    let context = call.context.clone();
    Ok(later(call.context, move || {
        answer(&context, wanted.as_ref(), version)
    }))
}

fn answer(context: &KafkaContext, wanted: Option<&RequestedTopics>, version: i16) -> Body {
    let topics = find(context, wanted);
    let mut out = Vec::new();
    let mut writer = Writer::new(&mut out, version >= FLEXIBLE_FROM);
    writer.i32(0);
    if version >= ERROR_FROM {
        writer.i16(ErrorCode::None.code());
    }
    writer.len(1);
    writer.i16(ErrorCode::None.code());
    writer.string(&context.options.log_dir);
    writer.len(topics.len());
    for topic in topics {
        let only = wanted.and_then(|wanted| wanted.get(topic.name()));
        write_topic(&mut writer, &topic, only);
    }
    if version >= SPACE_FROM {
        let space = context.realm.disk_space();
        let space = space.map(|space| (bytes(space.total_bytes), bytes(space.free_bytes)));
        let (total, usable) = space.unwrap_or((-1, -1));
        writer.i64(total);
        writer.i64(usable);
    }
    if version >= CORDON_FROM {
        writer.bool(false);
    }
    // The tagged fields of the folder and of the answer.
    writer.no_tags();
    writer.no_tags();
    out
}

/// The requested topics. Topics that do not exist are left out, as in Kafka.
fn find(context: &KafkaContext, wanted: Option<&RequestedTopics>) -> Vec<Arc<Topic>> {
    match wanted {
        None => topics::all(context),
        Some(wanted) => wanted
            .keys()
            .filter_map(|name| topics::find(context, Operation::Describe, name).ok())
            .collect(),
    }
}

/// Writes a topic with its partitions; `only`: those that were requested, `None`: all.
fn write_topic(writer: &mut Writer<'_>, topic: &Topic, only: Option<&BTreeSet<i32>>) {
    let all = topic.partitions();
    let partitions = (0i32..).zip(all.iter());
    let partitions: Vec<_> = partitions
        .filter(|(index, _)| only.is_none_or(|only| only.contains(index)))
        .collect();
    writer.string(topic.name());
    writer.len(partitions.len());
    for (index, log) in partitions {
        writer.i32(index);
        writer.i64(bytes(log.stored_bytes()));
        // Offset lag, and whether it is a future replica: replicas never move between folders.
        writer.i64(0);
        writer.bool(false);
        writer.no_tags();
    }
    writer.no_tags();
}
