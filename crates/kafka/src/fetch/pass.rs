//! One pass over all partitions of a Fetch: collects the available data within the limits.

use cloverleaf_broker::Partition;
use cloverleaf_log::{Batch, Read};

use super::cold::{ColdReads, ColdResult};
use super::partition::{FetchPartition, PartitionResult};
use super::records::FetchedRecords;
use super::{FetchEnv, FetchState, PassResult, SessionMode};
use crate::error_code::ErrorCode;

/// A partition that has some data in the answer is read further from its files only if the budget
/// allows at least as many bytes.
const FILE_READ_BYTES_MIN: usize = 256 << 10;

/// Maximum number of file ranges in one answer.
const RANGES_MAX: usize = 16;

/// The remaining budget of an answer.
struct AnswerBudget {
    bytes: usize,
    /// The part of `bytes` that may be read from files into memory.
    file_bytes: usize,
    /// Number of file ranges that may be sent. Each keeps its file open until it is written.
    ranges: usize,
}

/// The state of a pass, apart from its partitions.
struct FetchPass<'a> {
    version: i16,
    budget: AnswerBudget,
    records: &'a mut Vec<FetchedRecords>,
    cold: &'a mut ColdReads,
    result: PassResult,
}

impl FetchState {
    /// Collects the available data, unless it is known to be less than `min_bytes`.
    pub(super) fn run_pass(&mut self, env: &FetchEnv<'_>, is_due: bool) -> PassResult {
        if !is_due && self.counted_bytes > 0 && !self.has_min_bytes() {
            return PassResult::default();
        }
        let options = &env.context.options;
        let bytes_max = self.request.max_bytes.min(options.fetch_bytes_max);
        self.request.min_bytes = self.request.min_bytes.min(bytes_max);
        let (version, next) = (self.request.version, self.next());
        self.records.clear();
        self.cold.forget_pending();
        let mut records = std::mem::take(&mut self.records);
        let mut cold = std::mem::take(&mut self.cold);
        let mut pass = FetchPass {
            version,
            budget: AnswerBudget {
                bytes: bytes_max,
                file_bytes: options.fetch_cold_bytes_max,
                ranges: RANGES_MAX,
            },
            records: &mut records,
            cold: &mut cold,
            result: PassResult::default(),
        };
        let partitions = self.partitions_mut();
        // Without partitions there is nothing to wait for.
        pass.result.ends_wait = partitions.is_empty();
        let (first, last) = partitions.split_at_mut(next.min(partitions.len()));
        let places = (next as u32..).zip(last).chain((0..).zip(first));
        for (place, partition) in places {
            pass.read(place, partition);
        }
        let result = pass.result;
        (self.records, self.cold) = (records, cold);
        self.counted_bytes = result.bytes;
        result
    }

    /// Index of the partition that is read first.
    fn next(&self) -> usize {
        match &self.mode {
            SessionMode::Incremental(lease) => lease.session().map_or(0, |session| session.next),
            SessionMode::Sessionless | SessionMode::NewSession | SessionMode::Refused(_) => 0,
        }
    }

    /// Counts the data that arrived since the last pass, without collecting it: a waiting client
    /// should not keep batches in memory.
    fn has_min_bytes(&mut self) -> bool {
        let min_bytes = self.request.min_bytes;
        let mut counted = self.counted_bytes;
        for partition in self.partitions_mut() {
            if partition.is_deleted() {
                // A deletion is reported at once.
                counted = min_bytes;
                break;
            }
            if counted >= min_bytes || !partition.has_data_from(partition.counted) {
                continue;
            }
            let Some(log) = &partition.log else { continue };
            let end = log.written_end();
            match log.read(partition.counted, min_bytes - counted) {
                Read::Batches(batches) => {
                    counted += batches
                        .iter()
                        .map(|batch| batch.bytes().len())
                        .sum::<usize>();
                    partition.counted = batches.last().map_or(end, Batch::end_offset);
                }
                Read::End => partition.counted = end,
                Read::Cold(_) => counted = min_bytes,
            }
        }
        self.counted_bytes = counted;
        counted >= min_bytes
    }

    /// Collects the results of the reader thread. Returns whether there is data or an error to
    /// answer with.
    pub(super) fn collect_cold_reads(&mut self) -> bool {
        let mut cold = std::mem::take(&mut self.cold);
        let mut has_error = false;
        for ColdResult {
            place,
            end,
            outcome,
        } in cold.take_pending()
        {
            let first = self.records.len();
            let result = match outcome {
                Some(Ok(batches)) => {
                    self.records
                        .extend(batches.into_iter().map(FetchedRecords::Batch));
                    partition_result(&self.records, first)
                }
                Some(Err(error)) => {
                    tracing::error!(%error, "a fetch cannot be read");
                    PartitionResult::failed(ErrorCode::KafkaStorageError)
                }
                None => PartitionResult::default(),
            };
            has_error |= result.error.is_some();
            if let Some(partition) = self.partitions_mut().get_mut(place as usize) {
                partition.result = PartitionResult {
                    is_cold: true,
                    ..result
                };
                // If nothing was read, the offsets up to `end` are a gap: the wait is for data
                // after it.
                partition.counted = partition.counted.max(end);
            }
        }
        self.cold = cold;
        has_error || !self.records.is_empty()
    }
}

impl FetchPass<'_> {
    fn read(&mut self, place: u32, partition: &mut FetchPartition) {
        partition.result = PartitionResult::default();
        partition.counted = u64::try_from(partition.requested.offset).unwrap_or(0);
        if let Some(error) = partition.refusal(self.version) {
            partition.result.error = Some(error);
            self.result.ends_wait = true;
            return;
        }
        let Some(log) = partition.log.clone() else {
            return;
        };
        if log.written_end() <= partition.counted {
            return;
        }
        if self.budget.bytes == 0 && self.result.bytes > 0 {
            self.result.ends_wait = true;
            return;
        }
        if let Some(ahead) = self.cold.take_ahead(&log, partition.counted) {
            self.cold.await_read_ahead(place, ahead);
            self.result.is_cold = true;
            return;
        }
        self.read_log(place, partition, &log);
        if partition.result.error.is_some() {
            self.result.ends_wait = true;
        }
    }

    fn read_log(&mut self, place: u32, partition: &mut FetchPartition, log: &Partition) {
        let first = self.records.len();
        let mut left = partition.requested.bytes_max.min(self.budget.bytes);
        let mut may_be_sent = true;
        let mut end;
        loop {
            end = log.written_end();
            let taken = self.records.len();
            let is_file = !log.is_in_memory(partition.counted);
            may_be_sent &= is_file && self.budget.ranges > 0;
            let stored = if may_be_sent {
                log.read_stored(partition.counted, left)
            } else {
                None
            };
            let is_sent = stored.is_some();
            // `read_stored` is not tried again after it has failed: an attempt takes time.
            may_be_sent = is_sent;
            let mut bytes_max = left;
            if let Some(stored) = stored {
                self.budget.ranges -= 1;
                self.records.push(FetchedRecords::Stored(stored));
            } else {
                let has_some = taken > first;
                if is_file {
                    bytes_max = left.min(self.budget.file_bytes);
                    let too_little = has_some && bytes_max < FILE_READ_BYTES_MIN;
                    if self.budget.file_bytes == 0 || too_little {
                        break;
                    }
                }
                match log.read(partition.counted, bytes_max) {
                    Read::Batches(batches) => {
                        self.records
                            .extend(batches.into_iter().map(FetchedRecords::Batch));
                    }
                    Read::End => {
                        partition.counted = end;
                        break;
                    }
                    Read::Cold(_) if has_some => break,
                    Read::Cold(read) => {
                        self.budget.file_bytes -= bytes_max;
                        self.cold.start_read(place, end, read);
                        self.result.is_cold = true;
                        return;
                    }
                }
            }
            let bytes = bytes_of(&self.records[taken..]);
            // The first batch of an answer is sent whatever its size, as in Kafka; others have to
            // fit.
            if bytes > bytes_max && self.result.bytes > 0 {
                self.records.truncate(taken);
                break;
            }
            if is_file && !is_sent {
                self.budget.file_bytes = self.budget.file_bytes.saturating_sub(bytes);
            }
            let last = self.records[taken..].last();
            partition.counted = last.map_or(end, FetchedRecords::end_offset);
            self.result.bytes += bytes;
            left = left.saturating_sub(bytes);
            self.budget.bytes = self.budget.bytes.saturating_sub(bytes);
            if !is_file || left == 0 || partition.counted >= end {
                break;
            }
        }
        // Available batches that did not fit will not fit in the next pass either, so waiting for
        // more data is useless.
        self.result.ends_wait |= partition.counted < end;
        partition.result = partition_result(self.records, first);
    }
}

/// The result for a partition, whose records are those from the index `first` on.
fn partition_result(records: &[FetchedRecords], first: usize) -> PartitionResult {
    PartitionResult {
        error: None,
        first: first as u32,
        count: (records.len() - first) as u32,
        bytes: bytes_of(&records[first..]),
        is_cold: false,
    }
}

fn bytes_of(records: &[FetchedRecords]) -> usize {
    records.iter().map(FetchedRecords::len_bytes).sum()
}
