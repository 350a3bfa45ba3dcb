//! Entries decode to what was encoded.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

fn check(entry: Entry) {
    assert_eq!(Entry::decode(&entry.encode()).unwrap(), entry);
}

#[test]
fn round_trips() {
    let topic = Uuid::from_u128(7);
    check(Entry::Topic(TopicDefinition {
        id: topic,
        namespace: Namespace::DEFAULT,
        name: "orders".to_owned(),
        created_ms: 5,
        creation_order: (2, 7),
        options: TopicOptions::default(),
        paused_at: Some(vec![3, 4]),
        revision: 2,
    }));
    check(Entry::TopicDeleted(topic));
    check(Entry::Subscription(SubscriptionDefinition {
        id: 9,
        topic,
        name: "ch".to_owned(),
        options: SubscriptionOptions {
            attempts_max: 3,
            ..Default::default()
        },
        paused: true,
        floors: vec![1, 2],
    }));
    check(Entry::SubscriptionDeleted(9));
    let retry = Retry {
        word: 1,
        mask: 2,
        attempts: 3,
        due_ms: 4,
    };
    let cursor = CursorDelta {
        floor: 1,
        words: vec![(2, 3)],
        ranges: vec![(4, 5), (6, 7)],
    };
    let delta = PartitionDelta {
        partition: 1,
        cursor,
        retries: vec![retry],
    };
    check(Entry::Progress(9, delta.clone()));
    check(Entry::Moved(9, delta));
    check(Entry::GroupDeleted(Name::from("g").owned()));
    check(Entry::Start {
        topic,
        partition: 1,
        offset: 77,
    });
    check(Entry::Opened("boot".to_owned()));
    check(Entry::Closed);
    check(Entry::Next {
        topic,
        partition: 1,
        offset: 77,
    });
    for value in [None, Some(Vec::new()), Some(vec![1, 2])] {
        let key = Name::from("kafka/groups").owned();
        check(Entry::Kept { key, value });
    }
    check(Entry::OffsetsDeleted {
        group: Name::from("g").owned(),
        places: vec![(topic, 1), (topic, 2)],
    });
    check(Entry::Identity(Identity {
        cluster: topic,
        starts: 9,
    }));
    let commit = OffsetCommit {
        offset: 5,
        leader_epoch: -1,
        metadata: "note".into(),
        committed_ms: 6,
    };
    check(Entry::Offsets {
        group: Name::from("g").owned(),
        commits: vec![((topic, 1), commit)],
    });
    check(Entry::Delivered {
        subscription: 9,
        partition: 1,
        end: 77,
    });
}

#[test]
fn names_keep_their_namespace_and_the_default_one_has_no_wrapper() {
    let group = |namespace: &Namespace| Entry::GroupDeleted(namespace.name("g").owned());
    let default = group(&Namespace::DEFAULT).encode();
    assert_eq!(default, b"\x07g");
    let there = Namespace::new("there");
    let elsewhere = group(&there).encode();
    assert_eq!(elsewhere, b"\x13\0\0\0\x05there\x07g");
    check(group(&there));
    let key = there.name("key").owned();
    check(Entry::Kept { key, value: None });
    // Refused: a namespace within a namespace, one around an entry without a name, and an empty
    // one.
    let nested = [&elsewhere[..10], &elsewhere].concat();
    let closed = [&elsewhere[..10], &[10]].concat();
    for wrong in [&nested, &closed, &b"\x13\0\0\0\0\x07g".to_vec()] {
        assert!(Entry::decode(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn definitions_of_older_versions_load() {
    let old = r#"{"partitions":3,"ephemeral":false,"durability":null,"hidden":false,
        "retention":{"ms":5,"bytes":null,"consumed":false}}"#;
    let options: TopicOptions = serde_json::from_str(old).unwrap();
    let retention = crate::options::Retention {
        ms: Some(5),
        ..Default::default()
    };
    let expected = TopicOptions {
        partitions: 3,
        retention,
        ..TopicOptions::default()
    };
    assert_eq!(options, expected);
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..200),
                                           kind in 0u8..20) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = kind;
        }
        if let Ok(entry) = Entry::decode(&bytes) {
            prop_assert_eq!(Entry::decode(&entry.encode()).unwrap(), entry);
        }
    }
}
