//! A crash in each disk operation of a start that handles damage, upgrades a folder of an earlier
//! format, or creates a new folder; and of writing a topic's description into its folder.

use std::fs;
use std::io::IoSlice;
use std::path::Path;

use crate::common::{World, ack_all, consumer, receive, try_open};
use crate::damage::{entries_with, read_file, write_file};
use crate::folders::check_folder;
use cloverleaf_broker::{BrokerOptions, ManualClock, TopicOptions};
use cloverleaf_log::{OpenMode, SimDisk, decode_topic_file};

/// Lets the machine die at the n-th change of the disk in `work`, for each n, by kill and by power
/// loss.
pub(crate) fn crash_everywhere(
    changes_min: u64,
    prepare: impl Fn() -> World,
    work: impl Fn(&World) -> bool,
    check: impl Fn(&mut World, bool),
) {
    for changes in 0.. {
        let mut survived = false;
        for power in [false, true] {
            let mut world = prepare();
            world.disk.crash_after(changes);
            survived = work(&world);
            if power {
                world.disk.power_loss(changes)
            } else {
                world.disk.kill()
            }
            check(&mut world, survived);
        }
        if survived {
            assert!(changes > changes_min, "only {changes} changes");
            return;
        }
    }
}

/// Opens the broker and lets it settle. `false`: the disk died.
pub(crate) fn open_and_settle(world: &World) -> bool {
    let Ok((log, broker)) = try_open(&world.disk, &world.clock, &world.options) else {
        return false;
    };
    for _ in 0..4 {
        log.step();
        broker.tick();
    }
    broker.sync_definitions().is_ok()
}

/// Three topics. The one in the middle has no messages, so only the journal has its definition.
/// `snapshot`: the journal has been replaced by a snapshot.
fn world_with_topics(snapshot: bool) -> World {
    let world = World::new();
    for name in ["a", "b", "c"] {
        world.topic(name);
    }
    world.publish("a", &["1", "2", "3"]);
    world.publish("c", &["1"]);
    let gone = world.topic("gone");
    world.publish("gone", &["1"]);
    let reader = consumer(&world.subscription("a", "s"), 10);
    world.settle();
    let got = receive(&reader).unwrap();
    ack_all(&reader, &got[..1]);
    drop(reader);
    world.broker.delete_topic(gone.name()).unwrap();
    world.advance(100);
    if snapshot {
        for round in 0..12u8 {
            let filler = Some(vec![round; 4 << 10]);
            world.broker.put_value("filler", filler).unwrap();
        }
        world.advance(2_000);
    }
    // This entry records that the entries before it were synced.
    world.advance(2_000);
    world
        .broker
        .put_value("key", Some(b"value".to_vec()))
        .unwrap();
    world.log.sync_all().unwrap();
    world.disk.kill();
    world
}

fn check_topics(world: &mut World, has_b: bool) {
    (world.log, world.broker) = try_open(&world.disk, &world.clock, &world.options).unwrap();
    let topics = world.broker.topics();
    let names: Vec<&str> = topics.iter().map(|topic| topic.name()).collect();
    let expected: &[&str] = if has_b { &["a", "b", "c"] } else { &["a", "c"] };
    assert_eq!(names, expected);
    assert_eq!(world.broker.value("key").unwrap(), b"value");
    let subscription = world.broker.topic("a").unwrap().subscription("s").unwrap();
    let reader = consumer(&subscription, 10);
    world.settle();
    let got = receive(&reader).unwrap();
    let offsets: Vec<u64> = got.iter().map(|got| got.id.offset).collect();
    assert!(offsets.ends_with(&[1, 2]), "{offsets:?}");
}

fn wreck_definition(disk: &SimDisk, path: &str) {
    let file = read_file(disk, path);
    let hit = entries_with(&file, br#""name":"b""#);
    assert_eq!(hit.len(), 1);
    disk.corrupt(path, hit[0].start as u64 + 40, b"#");
}

#[test]
fn a_crash_while_damage_is_handled_costs_nothing_more() {
    let prepare = || {
        let world = world_with_topics(false);
        wreck_definition(&world.disk, "state.0");
        world
    };
    crash_everywhere(20, prepare, open_and_settle, |world, _| {
        check_topics(world, false);
        let aside = read_file(&world.disk, "state.0.damaged-1");
        assert!(!aside.is_empty(), "nothing was set aside");
        assert!(
            read_file(&world.disk, "state.0.damaged-2").is_empty(),
            "set aside twice"
        );
    });
}

#[test]
fn a_damaged_snapshot_is_replaced_by_the_file_before_it() {
    for header in [false, true] {
        let prepare = || {
            let world = world_with_topics(true);
            wreck_definition(&world.disk, "state.1");
            if header {
                world.disk.corrupt("state.1", 0, &[0; 1024]);
            }
            world
        };
        crash_everywhere(20, prepare, open_and_settle, |world, _| {
            check_topics(world, true)
        });
    }
}

#[test]
fn a_crash_in_an_orderly_start_loses_nothing() {
    let prepare = || world_with_topics(true);
    crash_everywhere(3, prepare, open_and_settle, |world, _| {
        check_topics(world, true)
    });
}

#[test]
fn a_new_folder_opens_after_a_crash_in_its_first_start() {
    let prepare = || {
        let mut world = World::new();
        world.disk = SimDisk::new();
        world
    };
    let work = |world: &World| {
        let Ok((log, broker)) = try_open(&world.disk, &world.clock, &world.options) else {
            return false;
        };
        let made = broker.topic_or_create("t", TopicOptions::default).is_ok();
        log.step();
        made && broker.sync_definitions().is_ok()
    };
    crash_everywhere(8, prepare, work, |world, survived| {
        (world.log, world.broker) = try_open(&world.disk, &world.clock, &world.options).unwrap();
        assert!(!survived || world.broker.topic("t").is_some());
    });
}

#[test]
fn a_topics_description_is_written_whole_or_not_at_all() {
    let prepare = || {
        let world = World::new();
        let topic = world.topic("t");
        world.publish("t", &["a"]);
        let change = |options: &mut TopicOptions| options.retention.ms = Some(1 << 40);
        topic.set_options(change).unwrap();
        world.advance(2_000);
        world.log.sync_all().unwrap();
        world
    };
    let work = |world: &World| {
        let topic = world.broker.topic("t").unwrap();
        let change = |options: &mut TopicOptions| options.retention.ms = Some(2 << 40);
        let changed = topic.set_options(change).is_ok();
        world.log.step();
        changed && world.broker.sync_definitions().is_ok()
    };
    crash_everywhere(5, prepare, work, |world, survived| {
        let topics = world.disk.mount().list("topics").unwrap();
        let path = format!("topics/{}/topic", topics[0].name);
        let file = read_file(&world.disk, &path);
        let said = String::from_utf8_lossy(decode_topic_file(&file).unwrap()).into_owned();
        let has = |ms: u64| said.contains(&ms.to_string());
        assert!(has(2 << 40) || (has(1 << 40) && !survived), "{said}");
        (world.log, world.broker) = try_open(&world.disk, &world.clock, &world.options).unwrap();
        let ms = world
            .broker
            .topic("t")
            .unwrap()
            .options()
            .retention
            .ms
            .unwrap();
        world.settle();
        let file = read_file(&world.disk, &path);
        let said = String::from_utf8_lossy(decode_topic_file(&file).unwrap()).into_owned();
        assert!(
            said.contains(&ms.to_string()),
            "the next start puts it right"
        );
    });
}

pub(crate) fn load(disk: &SimDisk, folder: &Path, name: &str) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let inside = entry.file_name().into_string().unwrap();
        let name = format!("{name}{}{inside}", if name.is_empty() { "" } else { "/" });
        if entry.file_type().unwrap().is_dir() {
            disk.mount().create_dir_all(&name).unwrap();
            load(disk, &entry.path(), &name);
        } else {
            write_file(disk, &name, &fs::read(entry.path()).unwrap());
        }
    }
    disk.mount().sync_fs().unwrap();
}

#[test]
fn a_crash_while_a_folder_is_upgraded_loses_nothing() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/folders/format-1");
    let prepare = || {
        let mut world = World::new();
        world.disk = SimDisk::new();
        load(&world.disk, &folder, "");
        world
    };
    crash_everywhere(20, prepare, open_and_settle, |world, _| {
        (world.log, world.broker) = try_open(&world.disk, &world.clock, &world.options).unwrap();
        check_folder(&world.broker);
    });
}

#[test]
fn a_folder_of_a_later_format_is_refused_by_both_its_numbers() {
    let clock = std::sync::Arc::new(ManualClock::new(1));
    let options = BrokerOptions::default();
    let disk = SimDisk::new();
    let text = "a data folder of Cloverleaf\nformat 3\nleast version 9.8.7\nmore\n";
    let text = format!("{text}crc32c {:08x}\n", crc32c::crc32c(text.as_bytes()));
    write_file(&disk, "format", text.as_bytes());
    let refused = try_open(&disk, &clock, &options).err().unwrap();
    assert!(
        refused.contains("format 3") && refused.contains("9.8.7"),
        "{refused}"
    );
    assert!(
        disk.mount().open("state.0", OpenMode::Existing).is_err(),
        "nothing was written"
    );
    // A damaged format file is not taken for a later format.
    let mut world = World::new();
    world.topic("t");
    world.disk.corrupt("format", 3, b"#");
    world.kill_and_restart();
    assert!(world.broker.topic("t").is_some());
    let file = world
        .disk
        .mount()
        .open("format", OpenMode::Existing)
        .unwrap();
    file.write_all_at(&[IoSlice::new(text.as_bytes())], 0)
        .unwrap();
}
