//! Topic folders that the journal does not know: which of two topics with the same name stays, and
//! folders that an earlier version has ignored.

use std::path::Path;
use std::sync::Arc;

use crate::common::World;
use crate::damage::{entries_with, read_file, write_file};
use crate::damage_crashes::{crash_everywhere, load, open_and_settle};
use crate::folders::check_folder;
use cloverleaf_broker::ManualClock;
use cloverleaf_log::SimDisk;
use uuid::Uuid;

/// The clock does not decide: it was wrong when the older topic was created.
#[test]
fn of_two_topics_with_one_name_the_later_one_stays() {
    let mut world = World::new();
    let old = world.topic("t").id();
    world.publish("t", &["old"]);
    world.settle();
    world.clock = Arc::new(ManualClock::new(1_600_000_000_000));
    world.kill_and_restart();
    world.broker.delete_topic("t").unwrap();
    let new = world.topic("t").id();
    let file = read_file(&world.disk, "state.0");
    let mut hit = entries_with(&file, old.as_bytes());
    hit.extend(entries_with(&file, old.to_string().as_bytes()));
    for range in hit {
        world.disk.corrupt("state.0", range.start as u64 + 26, b"#");
    }
    // Its files are still there and contain its name.
    world.kill_and_restart();
    assert_eq!(world.broker.topic("t").unwrap().id(), new);
    assert!(world.broker.topic_by_id(old).is_none());
}

#[test]
fn starts_are_counted_above_those_that_folders_know_of() {
    let mut world = World::new();
    world.clock = Arc::new(ManualClock::new(0));
    (0..4).for_each(|_| world.kill_and_restart());
    world.topic("t");
    world.publish("t", &["a"]);
    let before = world.broker.starts();
    for path in ["state.0", "state.1"] {
        write_file(&world.disk, path, &[]);
    }
    world.options.repair = true;
    world.kill_and_restart();
    assert!(world.broker.topic("t").is_some());
    let starts = world.broker.starts();
    assert!(starts > before, "{starts} after {before}");
}

/// The earlier version ignored the folder too, without recording that.
#[test]
fn a_nameless_folder_of_an_earlier_format_is_ignored() {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/folders/format-1");
    let orders = kept.join("topics/371f46bb-94c3-4ca1-90ff-44f6ae0d6422/0");
    let id = Uuid::from_u128(7);
    let nameless = format!("topics/{id}/0");
    let prepare = || {
        let mut world = World::new();
        world.disk = SimDisk::new();
        load(&world.disk, &kept, "");
        world.disk.mount().create_dir_all(&nameless).unwrap();
        load(&world.disk, &orders, &nameless);
        world
    };
    crash_everywhere(20, prepare, open_and_settle, |world, _| {
        world.kill_and_restart();
        check_folder(&world.broker);
        world.settle();
        world.kill_and_restart();
        assert!(world.broker.topic_by_id(id).is_none());
        world.options.repair = true;
        world.kill_and_restart();
        let topic = world.broker.topic_by_id(id).unwrap();
        assert_eq!(topic.partition(0).unwrap().written_end(), 4);
    });
}
