//! DescribeLogDirs: how large each partition is on the disk.

use std::collections::{BTreeMap, BTreeSet};

use kafka_protocol::messages::DescribeLogDirsResponse;
use kafka_protocol::messages::describe_log_dirs_response::{
    DescribeLogDirsPartition, DescribeLogDirsResult, DescribeLogDirsTopic,
};

use crate::answer::{Answer, body, later};
use crate::context::KafkaContext;
use crate::wire::{Malformed, Reader};

use super::names::{text, topic_name};
use super::{Call, topics};

/// The first version that tells how full the file system is; unknown is -1 (KIP-827).
const SPACE_FROM: i16 = 4;

fn bytes(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Which partitions of each topic are asked for; `None`: all of all topics.
type Wanted = Option<BTreeMap<String, BTreeSet<i32>>>;

fn read(reader: &mut Reader<'_>) -> Result<Wanted, Malformed> {
    let topics = reader.nullable_array(|reader| {
        let topic = (reader.string()?.to_owned(), reader.array(Reader::i32)?);
        reader.skip_tagged()?;
        Ok(topic)
    })?;
    reader.skip_tagged()?;
    Ok(topics.map(|topics| {
        let mut wanted: BTreeMap<String, BTreeSet<i32>> = BTreeMap::new();
        for (name, partitions) in topics {
            wanted.entry(name).or_default().extend(partitions);
        }
        wanted
    }))
}

pub(super) fn handle(mut call: Call<'_>) -> Result<Answer, Malformed> {
    let version = call.version;
    let wanted = read(&mut call.body)?;
    let context = call.context.clone();
    Ok(later(call.context, move || {
        let mut result = DescribeLogDirsResult::default()
            .with_log_dir(text(&context.options.log_dir))
            .with_topics(sizes(&context, wanted));
        if version >= SPACE_FROM
            && let Ok(space) = context.broker.disk_space()
        {
            result.total_bytes = bytes(space.total_bytes);
            result.usable_bytes = bytes(space.free_bytes);
        }
        body(
            &DescribeLogDirsResponse::default().with_results(vec![result]),
            version,
        )
    }))
}

/// What is not there is left out, as in Kafka.
fn sizes(context: &KafkaContext, wanted: Wanted) -> Vec<DescribeLogDirsTopic> {
    let topics = match &wanted {
        None => topics::all(context),
        Some(wanted) => wanted
            .keys()
            .filter_map(|name| topics::find(context, name))
            .collect(),
    };
    let size = |topic: std::sync::Arc<cloverleaf_broker::Topic>| {
        let only = wanted.as_ref().and_then(|wanted| wanted.get(topic.name()));
        let logs = topic.logs();
        let partitions = (0i32..)
            .zip(logs.iter())
            .filter(|(index, _)| only.is_none_or(|only| only.contains(index)))
            .map(|(index, log)| {
                DescribeLogDirsPartition::default()
                    .with_partition_index(index)
                    .with_partition_size(bytes(log.size_bytes()))
            });
        DescribeLogDirsTopic::default()
            .with_name(topic_name(topic.name()))
            .with_partitions(partitions.collect())
    };
    topics.into_iter().map(size).collect()
}
