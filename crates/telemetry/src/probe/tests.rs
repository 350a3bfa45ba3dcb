//! Tests of the probe.

use super::*;
use crate::exchanges::{Exchange, Topics};

fn recorder() -> Recorder {
    let peer = SocketAddr::from(([127, 0, 0, 1], 9));
    Recorder::new(1, Protocol::Nsq, peer, 10, LaneMemory::new(1 << 20))
}

fn snapshot(recorder: &Recorder) -> ConnectionSnapshot {
    recorder.snapshot(|_| None)
}

#[test]
fn an_idle_connection_costs_little() {
    assert!(size_of::<Recorder>() < 1832, "{}", size_of::<Recorder>());
}

#[test]
fn gap_is_measured_from_the_answer_to_the_next_request_when_nothing_is_in_flight() {
    let probe = recorder();
    probe.request(1, 100, 1_000, 1_001);
    probe.request(1, 100, 1_010, 1_010);
    probe.answered(1, 2_000);
    probe.request(1, 100, 2_400, 2_400);
    probe.answered(2, 3_000);
    probe.request(1, 100, 3_500, 3_500);
    let seen = snapshot(&probe);
    assert_eq!(seen.histograms.request_gap_us.count(), 1);
    assert_eq!(seen.histograms.request_gap_us.max(), 500);
    assert_eq!(seen.gauges.requests_in_flight_max, 2);
    assert_eq!(seen.gauges.requests_in_flight, 1);
    assert_eq!((seen.counters.publishes, seen.counters.messages_in), (4, 4));
}

#[test]
fn rounds_are_counted_with_how_much_each_differs_from_the_one_before() {
    let probe = recorder();
    // The first round has none before it. The round with a pause is not counted as jitter, because
    // it differs by more than half of its length.
    for at_us in [1_000, 2_000, 3_100, 4_000, 9_000, 10_000] {
        probe.request(1, 100, at_us, at_us);
        probe.answered(1, at_us + 500);
    }
    let counters = snapshot(&probe).counters;
    assert_eq!((counters.rounds, counters.rounds_us), (4, 8_000));
    assert_eq!(counters.round_changes_us, 200);
}

#[test]
fn a_gap_lies_behind_an_answer_only_once() {
    let probe = recorder();
    probe.request(1, 100, 1_000, 1_000);
    probe.answered(1, 2_000);
    for at_us in [2_500, 9_000] {
        probe.request(1, 100, at_us, at_us);
        probe.unanswered(1);
    }
    let seen = snapshot(&probe);
    assert_eq!(seen.histograms.request_gap_us.count(), 1);
    assert_eq!(seen.histograms.request_gap_us.max(), 500);
    assert_eq!(seen.counters.requests_silent, 2);
}

#[test]
fn service_is_measured_for_one_request_at_a_time() {
    let probe = recorder();
    let services = || snapshot(&probe).histograms.service_us;
    probe.request(1, 100, 900, 1_000);
    // Not measured, because the first request is still being served.
    probe.request(1, 100, 1_200, 1_200);
    probe.answered(1, 1_500);
    assert_eq!((services().count(), services().sum()), (1, 500));
    probe.answered(1, 1_700);
    assert_eq!(services().count(), 1);
    // Two requests of one read, answered one after the other: the second answer ends the
    // measurement.
    probe.requests(2, 2, 200, 2_000, 2_000);
    probe.answered(1, 2_300);
    probe.answered(1, 2_400);
    assert_eq!((services().count(), services().sum()), (2, 900));
    // The client waits for no answer to these.
    probe.requests(2, 2, 200, 3_000, 3_000);
    probe.unanswered(2);
    probe.request(1, 100, 9_000, 9_000);
    probe.answered(1, 9_010);
    assert_eq!((services().count(), services().sum()), (3, 910));
}

#[test]
fn records_from_the_future_are_counted_apart() {
    let probe = recorder();
    probe.record_age(5_500);
    probe.record_age(-3_000);
    let seen = snapshot(&probe);
    assert_eq!(seen.histograms.record_age_us.sum(), 5_500);
    assert_eq!(seen.counters.records_ahead, 1);
}

#[test]
fn time_with_messages_in_flight_accumulates() {
    let probe = recorder();
    probe.credit_used(3, 100);
    probe.credit_used(1, 200);
    assert_eq!(snapshot(&probe).gauges.holding_since_us, 100);
    probe.credit_used(0, 450);
    probe.credit_used(0, 900);
    let seen = snapshot(&probe);
    assert_eq!(
        (seen.counters.holding_us, seen.gauges.holding_since_us),
        (350, 0)
    );
}

#[test]
fn the_first_acknowledgement_is_the_one_that_none_is_before() {
    let probe = recorder();
    let first_us = || snapshot(&probe).gauges.first_ack_us;
    probe.credit_used(3, 100);
    assert_eq!(first_us(), 0);
    probe.acks(1, 0, 150);
    probe.credit_used(3, 150);
    // Later acknowledgements do not change it.
    probe.acks(2, 0, 230);
    probe.credit_used(1, 230);
    probe.acks(1, 0, 400);
    probe.credit_used(0, 400);
    assert_eq!(first_us(), 50);
    // A new delivery at once, and one after a pause.
    for (since_us, at_us) in [(400, 460), (1_000, 1_070)] {
        probe.credit_used(1, since_us);
        probe.acks(1, 0, at_us);
        probe.credit_used(0, at_us);
        assert_eq!(first_us(), at_us - since_us);
    }
    // More microseconds than fit in 32 bits.
    probe.credit_used(1, 2_000);
    probe.acks(1, 0, 1 << 40);
    assert_eq!(first_us(), u64::from(u32::MAX));
}

#[test]
fn many_requests_of_one_read_are_recorded_by_their_mean() {
    let probe = recorder();
    probe.requests(4, 40, 4_000, 5, 25);
    let seen = snapshot(&probe);
    assert_eq!(seen.histograms.request_messages.count(), 4);
    assert_eq!(seen.histograms.request_messages.max(), 10);
    // The other requests came whole.
    assert_eq!(seen.histograms.split_request_bytes.count(), 1);
    assert_eq!(seen.histograms.split_request_bytes.max(), 1_000);
    assert_eq!(
        (seen.counters.publishes, seen.counters.messages_in),
        (4, 40)
    );
    assert_eq!(seen.counters.published_bytes, 4_000);
    let receive = seen.histograms.request_receive_us;
    assert_eq!((receive.count(), receive.sum(), receive.max()), (4, 20, 20));
}

#[test]
fn requests_that_come_whole_took_no_time() {
    let probe = recorder();
    probe.requests(3, 3, 300, 5, 5);
    probe.request(1, 20, 7, 47);
    probe.request(0, 20, 50, 50);
    probe.request(0, 20, 60, 70);
    let sizes = snapshot(&probe).histograms.request_messages;
    assert_eq!((sizes.count(), sizes.sum(), sizes.max()), (4, 4, 1));
    let receive = snapshot(&probe).histograms.request_receive_us;
    assert_eq!((receive.count(), receive.count_at_most(0)), (6, 4));
    assert_eq!((receive.sum(), receive.max()), (50, 40));
    assert_eq!(snapshot(&probe).histograms.split_request_bytes.count(), 1);
}

#[test]
fn time_without_credit_accumulates() {
    let probe = recorder();
    probe.no_credit_begins(100);
    probe.no_credit_begins(150);
    assert_eq!(snapshot(&probe).gauges.no_credit_since_us, 100);
    probe.no_credit_ends(200);
    probe.no_credit_ends(900);
    assert_eq!(snapshot(&probe).counters.no_credit_us, 100);
}

#[test]
fn acknowledgements_count_order_and_rhythm() {
    let probe = recorder();
    probe.acked_many(1, 70);
    probe.acked_many(2, 90);
    probe.acks(2, 1, 1_000);
    probe.acks(1, 0, 1_500);
    let seen = snapshot(&probe);
    assert_eq!(
        (seen.counters.acks, seen.counters.acks_out_of_order),
        (4, 1)
    );
    assert_eq!(seen.histograms.ack_latency_us.count(), 3);
    assert_eq!(seen.histograms.ack_gap_us.max(), 500);
}

fn to(number: u32) -> Topics {
    let mut topics = Topics::default();
    topics.add(number);
    topics
}

fn exchanges(probe: &Recorder) -> Vec<(u32, u64, u64, u64)> {
    let seen = probe.exchanges().snapshot(0).exchanges;
    let times = seen.iter().map(|it| {
        let messages = it.messages;
        (it.topic, messages, it.requested_us, it.answered_us)
    });
    times.collect()
}

#[test]
fn publishes_get_their_answers_in_order_and_not_those_of_others() {
    let probe = recorder();
    probe.publishes((1, 0), (1, 100), &to(7), 1_000, 1_010);
    // Other requests want answers too, before and after the next publishes.
    probe.request(0, 0, 1_100, 1_100);
    probe.publishes((2, 0), (20, 100), &to(8), 1_200, 1_200);
    probe.request(0, 0, 1_300, 1_300);
    assert_eq!(exchanges(&probe), [(7, 1, 1_000, 0), (8, 20, 1_200, 0)]);
    probe.answered(1, 2_000);
    probe.answered(2, 3_000);
    // Only one of the two publishes of one read is answered.
    assert_eq!(exchanges(&probe), [(7, 1, 1_000, 2_000), (8, 20, 1_200, 0)]);
    probe.answered(1, 4_000);
    assert_eq!(exchanges(&probe)[1], (8, 20, 1_200, 4_000));
    probe.answered(1, 5_000);
    probe.publishes((1, 0), (1, 100), &to(7), 6_000, 6_000);
    probe.answered(1, 6_100);
    assert_eq!(exchanges(&probe)[2], (7, 1, 6_000, 6_100));
}

#[test]
fn a_client_that_wants_no_answer_waits_for_none() {
    let probe = recorder();
    probe.publishes((3, 3), (3, 100), &to(7), 1_000, 1_000);
    probe.publishes((2, 1), (2, 100), &to(7), 1_100, 1_100);
    probe.answered(1, 2_000);
    let seen = probe.exchanges().snapshot(0).exchanges;
    let wants: Vec<_> = seen
        .iter()
        .map(|it| (it.wants_answer, it.answered_us))
        .collect();
    assert_eq!(wants, [(false, 0), (true, 2_000)]);
    let requests = snapshot(&probe);
    assert_eq!(requests.counters.requests_silent, 4);
    assert_eq!(requests.gauges.requests_in_flight, 0);
}

#[test]
fn messages_to_several_topics_are_seen_in_each() {
    let probe = recorder();
    let mut topics = Topics::default();
    for number in [4, 4, 5, 4, 6, 9, 10] {
        topics.add(number);
    }
    probe.publishes((7, 0), (7, 100), &topics, 1_000, 1_000);
    let seen = probe.exchanges().snapshot(0).exchanges;
    let numbers: Vec<_> = seen.iter().map(|it| (it.topic, it.topics)).collect();
    assert_eq!(numbers, [(4, 4), (5, 4), (6, 4)], "three are told apart");
}

#[test]
fn above_the_pace_publishes_are_counted_and_answers_still_find_theirs() {
    let probe = recorder();
    for at_us in 0..10_000 {
        probe.publishes((1, 0), (2, 100), &to(7), at_us, at_us);
        probe.answered(1, at_us + 1);
    }
    let seen = probe.exchanges().snapshot(0);
    assert_eq!(seen.exchanges.len(), 24);
    assert!(
        seen.exchanges
            .iter()
            .all(|it| it.answered_us == it.requested_us + 1)
    );
    assert_eq!(seen.left_out, (10_000 - 24) * 2);
    let later_us = 1_000_000;
    probe.publishes((1, 0), (2, 100), &to(7), later_us, later_us);
    let seen = probe.exchanges().snapshot(later_us);
    assert_eq!(seen.exchanges[0].left_out, (10_000 - 24) * 2);
    assert_eq!(seen.left_out, 0);
}

#[test]
fn a_reader_asks_from_its_first_question_to_the_answer_with_messages() {
    let probe = recorder();
    let answer = |at_us| {
        if probe.may_record_fetch(5, at_us) {
            let exchange = Exchange::fetch(7, 0, 100, 5, 500);
            probe.fetch_answered(std::iter::once(exchange), at_us);
        }
    };
    probe.fetch_begun(1_000);
    // Two fetches end without a message.
    assert!(!probe.may_record_fetch(0, 1_500));
    probe.fetch_begun(1_600);
    probe.fetch_begun(2_100);
    answer(2_500);
    probe.fetch_begun(9_000);
    answer(9_100);
    probe.committed("billing", Exchange::commit(7, 0, 105), 9_500);
    let times = [
        (7, 5, 1_000, 2_500),
        (7, 5, 9_000, 9_100),
        (7, 0, 9_500, 9_500),
    ];
    assert_eq!(exchanges(&probe), times);
    let group = probe.exchanges().snapshot(0).group;
    assert_eq!(group.as_deref(), Some("billing"));
}

#[test]
fn exchanges_of_closed_connections_are_kept_for_a_while() {
    let registry = crate::Registry::new();
    let peer = SocketAddr::from(([127, 0, 0, 1], 9));
    for port in 0..100 {
        let probe = registry.open(Protocol::Nsq, peer, port);
        probe.publishes((1, 0), (1, 100), &to(7), port + 1, port + 1);
        probe.answered(1, port + 2);
    }
    drop(registry.open(Protocol::Nsq, peer, 1));
    let seen = registry.exchanges(0);
    assert_eq!(seen.len(), 64);
    assert!(seen.iter().all(|(connection, _)| !connection.is_open));
    assert_eq!(registry.exchanges(101).len(), 1);
    assert!(registry.lanes().used_bytes() > 0);
    registry.forget_exchanges(1_000);
    assert_eq!(
        (registry.exchanges(0).len(), registry.lanes().used_bytes()),
        (0, 0)
    );
    assert_eq!(registry.connections(|id| id == 100)[0].peer, peer);
}
