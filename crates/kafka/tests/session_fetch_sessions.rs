//! Fetch sessions (KIP-227): what they remember, when they end, and that no partition starves.

use crate::common::fetch::{FetchCall, From, publish, results, strings};
use crate::common::{Peer, World};
use cloverleaf_kafka::error_code::ErrorCode;

#[test]
fn a_session_names_only_what_has_changed() {
    for version in [7, 12, 13, 18] {
        let world = World::new();
        let topic = world.topic("t", 3);
        publish(&topic, 0, &["a"]);
        let mut peer = world.connect();
        let all = [(0, 0), (1, 0), (2, 0)];
        let response = FetchCall::new(version)
            .of(&topic, &all)
            .session(0, 0)
            .call(&mut peer);
        let id = response.session_id;
        assert!(id > 0);
        assert_eq!(results(&response).len(), 3);
        // The client has advanced in partition 0; there is nothing new.
        let ask = FetchCall::new(version).of(&topic, &[(0, 1)]).session(id, 1);
        let response = ask.empty(&mut peer);
        assert_eq!((response.error_code, response.session_id), (0, id));
        assert_eq!(results(&response), []);
        publish(&topic, 2, &["b"]);
        let response = FetchCall::new(version).session(id, 2).call(&mut peer);
        assert_eq!(results(&response), [(2, 0, strings(&["b"]))]);
        // The client has not advanced, so it gets the same data again. A forgotten partition is
        // left out.
        publish(&topic, 1, &["c"]);
        let ask = FetchCall::new(version).forget(&topic, 2).session(id, 3);
        assert_eq!(results(&ask.call(&mut peer)), [(1, 0, strings(&["c"]))]);
        let ask = FetchCall::new(version)
            .of(&topic, &[(2, 0), (1, 1)])
            .session(id, 4);
        assert_eq!(results(&ask.call(&mut peer)), [(2, 0, strings(&["b"]))]);
        // All partitions are forgotten: the session ends.
        let ask = FetchCall::new(version).session(id, 5);
        let ask = [0, 1, 2]
            .into_iter()
            .fold(ask, |ask, partition| ask.forget(&topic, partition));
        let response = ask.call(&mut peer);
        assert_eq!((response.session_id, results(&response).len()), (0, 0));
        let response = FetchCall::new(version).session(id, 6).call(&mut peer);
        assert_eq!(
            response.error_code,
            ErrorCode::FetchSessionIdNotFound.code()
        );
    }
}

#[test]
fn wrong_session_ids_and_epochs_are_refused() {
    let world = World::new();
    let topic = world.topic("t", 1);
    publish(&topic, 0, &["a"]);
    let mut peer = world.connect();
    let open = |peer: &mut Peer<'_>| {
        let ask = FetchCall::new(13).of(&topic, &[(0, 0)]).session(0, 0);
        ask.call(peer).session_id
    };
    let refused = |peer: &mut Peer<'_>, ask: FetchCall| {
        let response = ask.call(peer);
        assert_eq!((response.session_id, response.responses.len()), (0, 0));
        response.error_code
    };
    let id = open(&mut peer);
    let wrong_epoch = FetchCall::new(13).session(id, 5);
    assert_eq!(
        refused(&mut peer, wrong_epoch),
        ErrorCode::InvalidFetchSessionEpoch.code()
    );
    let wrong_id = FetchCall::new(13).session(id ^ 1, 1);
    assert_eq!(
        refused(&mut peer, wrong_id),
        ErrorCode::FetchSessionIdNotFound.code()
    );
    let by_name = FetchCall::new(12).session(id, 1);
    assert_eq!(
        refused(&mut peer, by_name),
        ErrorCode::FetchSessionTopicIdError.code()
    );
    // The session still exists: it answers once, then a final request closes it.
    assert_eq!(
        results(&FetchCall::new(13).session(id, 1).call(&mut peer)).len(),
        1
    );
    let last = FetchCall::new(13)
        .of(&topic, &[(0, 0)])
        .session(id, -1)
        .call(&mut peer);
    assert_eq!((last.session_id, results(&last).len()), (0, 1));
    let gone = FetchCall::new(13).session(id, 2);
    assert_eq!(
        refused(&mut peer, gone),
        ErrorCode::FetchSessionIdNotFound.code()
    );
    // A full request with an old id opens a new session in its place.
    let (old, new) = (open(&mut peer), FetchCall::new(13).of(&topic, &[(0, 0)]));
    let new = new.session(old, 0).call(&mut peer).session_id;
    assert!(new != 0 && new != old);
    let gone = FetchCall::new(13).session(old, 1);
    assert_eq!(
        refused(&mut peer, gone),
        ErrorCode::FetchSessionIdNotFound.code()
    );
}

#[test]
fn a_connection_that_ends_during_a_fetch_ends_its_session() {
    let world = World::new();
    let topic = world.topic("t", 1);
    let mut peer = world.connect();
    let mut open = FetchCall::new(13).of(&topic, &[(0, 0)]).session(0, 0);
    open.request.max_wait_ms = 0;
    let id = open.call(&mut peer).session_id;
    FetchCall::new(13).session(id, 1).send(&mut peer);
    peer.pump();
    let mut other = world.connect();
    let busy = FetchCall::new(13).session(id, 2).call(&mut other);
    assert_eq!(busy.error_code, ErrorCode::InvalidFetchSessionEpoch.code());
    drop(peer);
    let gone = FetchCall::new(13).session(id, 2).call(&mut other);
    assert_eq!(gone.error_code, ErrorCode::FetchSessionIdNotFound.code());
}

#[test]
fn the_oldest_idle_session_is_evicted() {
    let options = cloverleaf_kafka::KafkaOptions {
        fetch_sessions_max: 2,
        ..Default::default()
    };
    let world = World::with(options);
    let topic = world.topic("t", 1);
    publish(&topic, 0, &["a"]);
    let mut peer = world.connect();
    let open = |peer: &mut Peer<'_>| {
        let ask = FetchCall::new(13).of(&topic, &[(0, 0)]).session(0, 0);
        ask.call(peer).session_id
    };
    let first = open(&mut peer);
    peer.advance(60_000);
    let second = open(&mut peer);
    assert_eq!(open(&mut peer), 0, "both are in use");
    peer.advance(70_000);
    let third = open(&mut peer);
    assert!(third != 0);
    let error = |peer: &mut Peer<'_>, id| FetchCall::new(13).session(id, 1).call(peer).error_code;
    assert_eq!(
        error(&mut peer, first),
        ErrorCode::FetchSessionIdNotFound.code()
    );
    assert_eq!(error(&mut peer, second), 0);
    assert_eq!(error(&mut peer, third), 0);
}

#[test]
fn no_partition_of_a_session_starves() {
    let world = World::new();
    let topic = world.topic("t", 4);
    for partition in 0..4 {
        for _ in 0..8 {
            publish(&topic, partition, &["12345678901234567890"]);
        }
    }
    let mut peer = world.connect();
    let mut at = [0; 4];
    let all: Vec<From> = (0..4).map(|partition| (partition, 0)).collect();
    let ask = FetchCall::new(13)
        .of(&topic, &all)
        .session(0, 0)
        .limits(1, 1, 1);
    let mut response = ask.call(&mut peer);
    let id = response.session_id;
    for epoch in 1..8 {
        let mut moved = Vec::new();
        for (partition, _, values) in results(&response) {
            at[partition as usize] += values.len() as i64;
            if !values.is_empty() {
                moved.push((partition, at[partition as usize]));
            }
        }
        let ask = FetchCall::new(13)
            .of(&topic, &moved)
            .session(id, epoch)
            .limits(1, 1, 1);
        response = ask.call(&mut peer);
    }
    assert!(at.iter().all(|read| *read >= 1), "{at:?}");
}

#[test]
fn a_partition_that_appears_later_is_found_by_its_session() {
    let world = World::new();
    let topic = world.topic("t", 1);
    let mut peer = world.connect();
    let ask = FetchCall::new(13)
        .of(&topic, &[(0, 0), (1, 0)])
        .session(0, 0);
    let response = ask.call(&mut peer);
    let unknown = ErrorCode::UnknownTopicOrPartition.code();
    assert_eq!(results(&response), [(0, 0, vec![]), (1, unknown, vec![])]);
    topic.add_partitions(2).unwrap();
    publish(&topic, 1, &["a"]);
    let response = FetchCall::new(13)
        .session(response.session_id, 1)
        .call(&mut peer);
    assert_eq!(results(&response), [(1, 0, strings(&["a"]))]);
}
