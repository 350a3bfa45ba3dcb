//! One pass over all partitions of a Fetch: collects the available data within the limits.

use cloverleaf_broker::Partition;
use cloverleaf_log::{Batch, Read};

use super::cold::{Brought, Cold};
use super::part::{Found, Part};
use super::records::Records;
use super::{FetchEnv, FetchState, Kind, Look};
use crate::error_code::ErrorCode;

/// A partition that has some data in the answer is read further from its files only if the budget
/// allows at least as many bytes.
const FILE_READ_BYTES_MIN: usize = 256 << 10;

/// Maximum number of file ranges in one answer.
const RANGES_MAX: usize = 16;

/// The rest of an answer's budget.
struct Budget {
    bytes: usize,
    /// The part of `bytes` that may be read from files into memory.
    file_bytes: usize,
    /// Number of file ranges that may be sent. Each keeps its file open until it is written.
    ranges: usize,
}

/// The state of a pass, beside the partitions.
struct Looking<'a> {
    version: i16,
    budget: Budget,
    records: &'a mut Vec<Records>,
    cold: &'a mut Cold,
    look: Look,
}

impl FetchState {
    /// Collects the available data, unless it is known to be less than `min_bytes`.
    pub(super) fn look(&mut self, env: &FetchEnv<'_>, is_due: bool) -> Look {
        if !is_due && self.counted_bytes > 0 && !self.is_enough_now() {
            return Look::default();
        }
        let options = &env.context.options;
        let bytes_max = self.request.max_bytes.min(options.fetch_bytes_max);
        self.request.min_bytes = self.request.min_bytes.min(bytes_max);
        let (version, next) = (self.request.version, self.next());
        self.records.clear();
        self.cold.forget_pending();
        let mut records = std::mem::take(&mut self.records);
        let mut cold = std::mem::take(&mut self.cold);
        let mut looking = Looking {
            version,
            budget: Budget {
                bytes: bytes_max,
                file_bytes: options.fetch_cold_bytes_max,
                ranges: RANGES_MAX,
            },
            records: &mut records,
            cold: &mut cold,
            look: Look::default(),
        };
        let parts = self.parts_mut();
        // Without partitions there is nothing to wait for.
        looking.look.ends_wait = parts.is_empty();
        let (first, last) = parts.split_at_mut(next.min(parts.len()));
        let places = (next as u32..).zip(last).chain((0..).zip(first));
        for (place, part) in places {
            looking.read(place, part);
        }
        let look = looking.look;
        (self.records, self.cold) = (records, cold);
        self.counted_bytes = look.bytes;
        look
    }

    /// Index of the partition that is read first.
    fn next(&self) -> usize {
        match &self.kind {
            Kind::Incremental(lease) => lease.session().map_or(0, |session| session.next),
            Kind::Sessionless | Kind::NewSession | Kind::Refused(_) => 0,
        }
    }

    /// Counts the data that arrived since the last pass, without collecting it: a waiting client
    /// should not keep batches in memory.
    fn is_enough_now(&mut self) -> bool {
        let min_bytes = self.request.min_bytes;
        let mut counted = self.counted_bytes;
        for part in self.parts_mut() {
            if part.is_deleted() {
                // A deletion is reported at once.
                counted = min_bytes;
                break;
            }
            if counted >= min_bytes || !part.has_data_from(part.counted) {
                continue;
            }
            let Some(log) = &part.log else { continue };
            let end = log.written_end();
            match log.read(part.counted, min_bytes - counted) {
                Read::Batches(batches) => {
                    counted += batches
                        .iter()
                        .map(|batch| batch.bytes().len())
                        .sum::<usize>();
                    part.counted = batches.last().map_or(end, Batch::end_offset);
                }
                Read::End => part.counted = end,
                Read::Cold(_) => counted = min_bytes,
            }
        }
        self.counted_bytes = counted;
        counted >= min_bytes
    }

    /// Collects the results of the reader thread. Returns whether there is data or an error to
    /// answer with.
    pub(super) fn take_cold(&mut self) -> bool {
        let mut cold = std::mem::take(&mut self.cold);
        let mut has_error = false;
        for Brought {
            place,
            end,
            outcome,
        } in cold.take_pending()
        {
            let first = self.records.len();
            let found = match outcome {
                Some(Ok(batches)) => {
                    self.records.extend(batches.into_iter().map(Records::Batch));
                    found(&self.records, first)
                }
                Some(Err(error)) => {
                    tracing::error!(%error, "a fetch cannot be read");
                    Found::refused(ErrorCode::KafkaStorageError)
                }
                None => Found::default(),
            };
            has_error |= found.error.is_some();
            if let Some(part) = self.parts_mut().get_mut(place as usize) {
                part.found = Found {
                    is_cold: true,
                    ..found
                };
                // If nothing was read, the offsets up to `end` are a gap: the wait is for data
                // after it.
                part.counted = part.counted.max(end);
            }
        }
        self.cold = cold;
        has_error || !self.records.is_empty()
    }
}

impl Looking<'_> {
    fn read(&mut self, place: u32, part: &mut Part) {
        part.found = Found::default();
        part.counted = u64::try_from(part.wanted.offset).unwrap_or(0);
        if let Some(error) = part.refusal(self.version) {
            part.found.error = Some(error);
            self.look.ends_wait = true;
            return;
        }
        let Some(log) = part.log.clone() else { return };
        if log.written_end() <= part.counted {
            return;
        }
        if self.budget.bytes == 0 && self.look.bytes > 0 {
            self.look.ends_wait = true;
            return;
        }
        if let Some(ahead) = self.cold.take_ahead(&log, part.counted) {
            self.cold.push(place, ahead);
            self.look.is_cold = true;
            return;
        }
        self.read_log(place, part, &log);
        if part.found.error.is_some() {
            self.look.ends_wait = true;
        }
    }

    fn read_log(&mut self, place: u32, part: &mut Part, log: &Partition) {
        let first = self.records.len();
        let mut left = part.wanted.bytes_max.min(self.budget.bytes);
        let mut may_be_sent = true;
        let mut end;
        loop {
            end = log.written_end();
            let taken = self.records.len();
            let is_file = !log.is_in_memory(part.counted);
            may_be_sent &= is_file && self.budget.ranges > 0;
            let stored = if may_be_sent {
                log.read_stored(part.counted, left)
            } else {
                None
            };
            let is_sent = stored.is_some();
            // A failed attempt takes time, so it is not repeated.
            may_be_sent = is_sent;
            let mut bytes_max = left;
            if let Some(stored) = stored {
                self.budget.ranges -= 1;
                self.records.push(Records::Stored(stored));
            } else {
                let has_some = taken > first;
                if is_file {
                    bytes_max = left.min(self.budget.file_bytes);
                    let too_little = has_some && bytes_max < FILE_READ_BYTES_MIN;
                    if self.budget.file_bytes == 0 || too_little {
                        break;
                    }
                }
                match log.read(part.counted, bytes_max) {
                    Read::Batches(batches) => {
                        self.records.extend(batches.into_iter().map(Records::Batch));
                    }
                    Read::End => {
                        part.counted = end;
                        break;
                    }
                    Read::Cold(_) if has_some => break,
                    Read::Cold(read) => {
                        self.budget.file_bytes -= bytes_max;
                        self.cold.run(place, end, read);
                        self.look.is_cold = true;
                        return;
                    }
                }
            }
            let bytes = bytes_of(&self.records[taken..]);
            // The first batch of an answer is sent whatever its size, as in Kafka; others have to
            // fit.
            if bytes > bytes_max && self.look.bytes > 0 {
                self.records.truncate(taken);
                break;
            }
            if is_file && !is_sent {
                self.budget.file_bytes = self.budget.file_bytes.saturating_sub(bytes);
            }
            let last = self.records[taken..].last();
            part.counted = last.map_or(end, Records::end_offset);
            self.look.bytes += bytes;
            left = left.saturating_sub(bytes);
            self.budget.bytes = self.budget.bytes.saturating_sub(bytes);
            if !is_file || left == 0 || part.counted >= end {
                break;
            }
        }
        // Available batches that did not fit will not fit in the next pass either, so waiting for
        // more data is useless.
        self.look.ends_wait |= part.counted < end;
        part.found = found(self.records, first);
    }
}

/// The result for a partition, whose records are those from the index `first` on.
fn found(records: &[Records], first: usize) -> Found {
    Found {
        error: None,
        first: first as u32,
        count: (records.len() - first) as u32,
        bytes: bytes_of(&records[first..]),
        is_cold: false,
    }
}

fn bytes_of(records: &[Records]) -> usize {
    records.iter().map(Records::len_bytes).sum()
}
