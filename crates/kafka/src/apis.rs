//! The table of the requests and versions that are served.
//!
//! A version is advertised only once it is served correctly. Produce is the exception: it is
//! advertised from version 0 on although versions below 3 are not served, as in Kafka 4, because
//! older librdkafka otherwise turns compression off (KAFKA-18659).
//!
//! Source: <https://kafka.apache.org/protocol#protocol_api_keys> and the message definitions of
//! Kafka 4 (`validVersions`, `flexibleVersions`).

macro_rules! apis {
    ($($name:ident = $key:literal, $min:literal..=$max:literal, flexible $flexible:literal;)+) => {
        /// A request type, with its API key.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(i16)]
        pub enum Api {
            $(#[allow(missing_docs)] $name = $key,)+
        }

        /// All requests that are served, in the order of their API keys.
        pub const APIS: &[ApiVersions] = &[
            $(ApiVersions { api: Api::$name, min: $min, max: $max, flexible_from: $flexible },)+
        ];
    };
}

apis! {
    Produce = 0, 3..=13, flexible 9;
    Fetch = 1, 4..=18, flexible 12;
    ListOffsets = 2, 1..=11, flexible 6;
    Metadata = 3, 0..=13, flexible 9;
    OffsetCommit = 8, 2..=9, flexible 8;
    OffsetFetch = 9, 1..=9, flexible 6;
    FindCoordinator = 10, 0..=6, flexible 3;
    JoinGroup = 11, 0..=9, flexible 6;
    Heartbeat = 12, 0..=4, flexible 4;
    LeaveGroup = 13, 0..=5, flexible 4;
    SyncGroup = 14, 0..=5, flexible 4;
    DescribeGroups = 15, 0..=6, flexible 5;
    ListGroups = 16, 0..=5, flexible 3;
    ApiVersions = 18, 0..=4, flexible 3;
    CreateTopics = 19, 2..=7, flexible 5;
    DeleteTopics = 20, 1..=6, flexible 4;
    DeleteRecords = 21, 0..=2, flexible 2;
    InitProducerId = 22, 0..=5, flexible 2;
    OffsetForLeaderEpoch = 23, 2..=4, flexible 4;
    DescribeAcls = 29, 1..=3, flexible 2;
    DescribeConfigs = 32, 1..=4, flexible 4;
    AlterConfigs = 33, 0..=2, flexible 2;
    AlterReplicaLogDirs = 34, 1..=2, flexible 2;
    DescribeLogDirs = 35, 1..=5, flexible 2;
    CreatePartitions = 37, 0..=3, flexible 2;
    DeleteGroups = 42, 0..=2, flexible 2;
    ElectLeaders = 43, 0..=2, flexible 2;
    IncrementalAlterConfigs = 44, 0..=1, flexible 1;
    AlterPartitionReassignments = 45, 0..=1, flexible 0;
    ListPartitionReassignments = 46, 0..=0, flexible 0;
    OffsetDelete = 47, 0..=0, flexible 32767;
    DescribeClientQuotas = 48, 0..=1, flexible 1;
    DescribeQuorum = 55, 0..=2, flexible 0;
    DescribeCluster = 60, 0..=2, flexible 0;
    DescribeProducers = 61, 0..=0, flexible 0;
    GetTelemetrySubscriptions = 71, 0..=0, flexible 0;
    PushTelemetry = 72, 0..=0, flexible 0;
    ListConfigResources = 74, 0..=1, flexible 0;
    DescribeTopicPartitions = 75, 0..=0, flexible 0;
}

/// The versions of one request type that are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApiVersions {
    /// The request type.
    pub api: Api,
    /// The oldest version served.
    pub min: i16,
    /// The newest version served.
    pub max: i16,
    /// The first version with compact lengths and tagged fields (KIP-482).
    pub flexible_from: i16,
}

impl ApiVersions {
    /// The oldest version that is advertised.
    pub fn advertised_min(&self) -> i16 {
        if self.api == Api::Produce {
            0
        } else {
            self.min
        }
    }

    /// Whether requests of this version have compact lengths and tagged fields.
    pub fn is_flexible(&self, version: i16) -> bool {
        version >= self.flexible_from
    }

    /// Whether this version is served.
    pub fn serves(&self, version: i16) -> bool {
        (self.min..=self.max).contains(&version)
    }

    /// Whether the answer has response header version 1, with tagged fields. ApiVersions always has
    /// version 0, because its client does not know the broker's versions yet (KIP-511).
    pub fn answer_header_is_flexible(&self, version: i16) -> bool {
        self.api != Api::ApiVersions && self.is_flexible(version)
    }
}

/// The versions of the request with this key, if it is known.
pub fn find(key: i16) -> Option<&'static ApiVersions> {
    let at = APIS
        .binary_search_by_key(&key, |known| known.api as i16)
        .ok()?;
    APIS.get(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_order_so_that_each_is_found() {
        for known in APIS {
            assert_eq!(find(known.api as i16), Some(known));
        }
        assert_eq!(find(4), None);
        assert_eq!(find(-1), None);
    }
}
