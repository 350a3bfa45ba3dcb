//! Kafka's error codes. Source: <https://kafka.apache.org/protocol#protocol_error_codes>.

use cloverleaf_broker::{CatalogError, PublishError};
use cloverleaf_log::{AppendError, BatchError, InflateError};

macro_rules! codes {
    ($($name:ident = $code:literal,)+) => {
        /// An error code of the protocol.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(i16)]
        #[allow(missing_docs)]
        pub enum ErrorCode { $($name = $code,)+ }
    };
}

codes! {
    UnknownServerError = -1,
    None = 0,
    OffsetOutOfRange = 1,
    CorruptMessage = 2,
    UnknownTopicOrPartition = 3,
    InvalidFetchSize = 4,
    LeaderNotAvailable = 5,
    NotLeaderOrFollower = 6,
    RequestTimedOut = 7,
    BrokerNotAvailable = 8,
    MessageTooLarge = 10,
    OffsetMetadataTooLarge = 12,
    NetworkException = 13,
    CoordinatorLoadInProgress = 14,
    CoordinatorNotAvailable = 15,
    NotCoordinator = 16,
    InvalidTopicException = 17,
    RecordListTooLarge = 18,
    InvalidRequiredAcks = 21,
    IllegalGeneration = 22,
    InconsistentGroupProtocol = 23,
    InvalidGroupId = 24,
    UnknownMemberId = 25,
    InvalidSessionTimeout = 26,
    RebalanceInProgress = 27,
    InvalidCommitOffsetSize = 28,
    TopicAuthorizationFailed = 29,
    GroupAuthorizationFailed = 30,
    ClusterAuthorizationFailed = 31,
    InvalidTimestamp = 32,
    UnsupportedVersion = 35,
    TopicAlreadyExists = 36,
    InvalidPartitions = 37,
    InvalidReplicationFactor = 38,
    InvalidReplicaAssignment = 39,
    InvalidConfig = 40,
    InvalidRequest = 42,
    UnsupportedForMessageFormat = 43,
    PolicyViolation = 44,
    OutOfOrderSequenceNumber = 45,
    DuplicateSequenceNumber = 46,
    InvalidProducerEpoch = 47,
    InvalidTxnState = 48,
    TransactionalIdAuthorizationFailed = 53,
    SecurityDisabled = 54,
    KafkaStorageError = 56,
    LogDirNotFound = 57,
    UnknownProducerId = 59,
    NonEmptyGroup = 68,
    GroupIdNotFound = 69,
    FetchSessionIdNotFound = 70,
    InvalidFetchSessionEpoch = 71,
    FencedLeaderEpoch = 74,
    UnknownLeaderEpoch = 75,
    UnsupportedCompressionType = 76,
    StaleBrokerEpoch = 77,
    OffsetNotAvailable = 78,
    MemberIdRequired = 79,
    GroupMaxSizeReached = 81,
    FencedInstanceId = 82,
    ElectionNotNeeded = 84,
    NoReassignmentInProgress = 85,
    GroupSubscribedToTopic = 86,
    InvalidRecord = 87,
    UnstableOffsetCommit = 88,
    ThrottlingQuotaExceeded = 89,
    ProducerFenced = 90,
    UnknownTopicId = 100,
    InconsistentTopicId = 103,
    FetchSessionTopicIdError = 106,
    MismatchedEndpointType = 114,
    UnknownSubscriptionId = 117,
    TelemetryTooLarge = 118,
}

impl ErrorCode {
    /// The number on the wire.
    pub fn code(self) -> i16 {
        self as i16
    }
}

/// The error code for a failed publish. The match is exhaustive, so a new reason has to choose its
/// code.
pub(crate) fn of_publish(error: &PublishError) -> ErrorCode {
    match error {
        PublishError::Log(error) => of_append(error),
        PublishError::TopicDeleted { .. } | PublishError::NoSuchPartition { .. } => {
            ErrorCode::UnknownTopicOrPartition
        }
        PublishError::QueueFull { .. }
        | PublishError::ScheduleFull { .. }
        | PublishError::NoSchedule { .. } => ErrorCode::KafkaStorageError,
        PublishError::Inflate(error) => match error {
            InflateError::TooLarge { .. } => ErrorCode::MessageTooLarge,
            InflateError::Malformed { .. } => ErrorCode::CorruptMessage,
            InflateError::Records(error) => of_batch(error),
        },
        PublishError::NotOneMessage | PublishError::NoKey { .. } => ErrorCode::InvalidRecord,
        PublishError::TooLarge { .. } => ErrorCode::MessageTooLarge,
        PublishError::Timestamp { .. } | PublishError::ForeignAppendTime => {
            ErrorCode::InvalidTimestamp
        }
        PublishError::Batch(error) => of_batch(error),
    }
}

fn of_append(error: &AppendError) -> ErrorCode {
    match error {
        AppendError::StorageFull { .. } | AppendError::Failed(_) => ErrorCode::KafkaStorageError,
        AppendError::Closed => ErrorCode::NotLeaderOrFollower,
        AppendError::TooLarge { .. } => ErrorCode::RecordListTooLarge,
        AppendError::OutOfOrderSequence { .. } => ErrorCode::OutOfOrderSequenceNumber,
        AppendError::ProducerFenced { .. } => ErrorCode::InvalidProducerEpoch,
        AppendError::DuplicateSequence { .. } => ErrorCode::DuplicateSequenceNumber,
    }
}

/// The error code for bytes that are not a valid record batch.
pub(crate) fn of_batch(error: &BatchError) -> ErrorCode {
    match error {
        BatchError::Magic(_) => ErrorCode::UnsupportedForMessageFormat,
        BatchError::Codec(_) | BatchError::Compressed => ErrorCode::UnsupportedCompressionType,
        BatchError::Count { .. } | BatchError::Record { .. } => ErrorCode::InvalidRecord,
        BatchError::Length { .. } | BatchError::Checksum { .. } | BatchError::BaseOffset(_) => {
            ErrorCode::CorruptMessage
        }
    }
}

/// The error code for a topic or subscription that cannot be created, changed or deleted.
pub(crate) fn of_catalog(error: &CatalogError) -> ErrorCode {
    match error {
        CatalogError::TopicDeleted { .. } | CatalogError::SubscriptionDeleted { .. } => {
            ErrorCode::UnknownTopicOrPartition
        }
        CatalogError::Name => ErrorCode::InvalidTopicException,
        CatalogError::Denied { .. } => ErrorCode::TopicAuthorizationFailed,
        CatalogError::Closed => ErrorCode::BrokerNotAvailable,
        CatalogError::Log { .. } => ErrorCode::KafkaStorageError,
        CatalogError::Partitions { .. } | CatalogError::PartitionsOnlyGrow { .. } => {
            ErrorCode::InvalidPartitions
        }
        CatalogError::PartitionsFull { .. } => ErrorCode::PolicyViolation,
        CatalogError::NoSuchPartition { .. } => ErrorCode::UnknownTopicOrPartition,
        CatalogError::OffsetAboveEnd { .. } => ErrorCode::OffsetOutOfRange,
    }
}
