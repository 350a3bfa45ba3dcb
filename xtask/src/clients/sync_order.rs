//! Proof from the system calls that each answer of the disk class follows its sync. After the write
//! of a message to its segment file is done, a sync of that file (or file system) begins, and it is
//! done before the send of the message's OK begins.

use std::collections::HashMap;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::{Context, Report};
use crate::broker::Broker;
use crate::nsq::Connection;
use crate::wait;

/// Messages sent one after the other.
const SEQUENTIAL: usize = 100;
/// Connections that publish at the same time, and the messages of each.
const CONNECTIONS: usize = 8;
const EACH: usize = 25;
const CALLS: &str = "trace=write,writev,sendto,sendmsg,pwrite64,pwritev,pwritev2,fdatasync,fsync,\
                     syncfs";
/// How strace prints an answer frame: size 6, type 0, OK.
const OK_FRAME: &str = r"\0\0\0\6\0\0\0\0OK";

pub(super) fn run(context: &Context, report: &mut Report) -> Result<()> {
    let folder = context.workspace.temp_folder("sync")?;
    let trace = folder.path().join("trace");
    let mut options = context.options(folder.path())?;
    options.durability = Some("disk");
    let broker_command = options.command();
    let mut strace = Command::new("strace");
    // -D keeps the broker our own child, so that it ends with us; -yy names files and peers.
    strace
        .args(["-D", "-f", "-yy", "-qq", "-s", "65536", "-e", CALLS, "-o"])
        .arg(&trace);
    strace
        .arg(broker_command.get_program())
        .args(broker_command.get_args());
    std::fs::create_dir_all(&options.data)?;
    let mut broker = options.spawn_as(strace)?;
    broker.wait_ready()?;
    let mut published = HashMap::new();
    report.check("messages are answered", || {
        let mut one = Connection::open(broker.tcp())?;
        publish(&mut one, SEQUENTIAL, &mut published)?;
        concurrently(&broker, &mut published)
    });
    broker.terminate()?;
    wait::until("the trace is complete", wait::HANG, || {
        let trace = std::fs::read_to_string(&trace)?;
        Ok(trace.contains("+++ exited") || count_answers(&trace) >= messages(&published))
    })?;
    report.check("each answer follows its sync", || {
        let (answers, syncs) = follows(&std::fs::read_to_string(&trace)?, &published)?;
        println!("        {answers} answers, {syncs} syncs");
        Ok(())
    });
    Ok(())
}

/// Bodies by the client's port, in the order in which they were published there.
type Published = HashMap<u16, Vec<String>>;

fn messages(published: &Published) -> usize {
    published.values().map(Vec::len).sum()
}

fn publish(connection: &mut Connection, count: usize, published: &mut Published) -> Result<()> {
    let port = connection.stream().local_addr()?.port();
    for n in 0..count {
        // The full stop ends it: no body is the beginning of another.
        let body = format!("body-{port}-{n}.");
        connection.publish("synced", body.as_bytes())?;
        published.entry(port).or_default().push(body);
    }
    Ok(())
}

fn concurrently(broker: &Broker, published: &mut Published) -> Result<()> {
    let address = broker.tcp();
    let workers: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            std::thread::spawn(move || -> Result<Published> {
                let mut published = Published::new();
                publish(&mut Connection::open(address)?, EACH, &mut published)?;
                Ok(published)
            })
        })
        .collect();
    for worker in workers {
        match worker.join() {
            Ok(result) => published.extend(result?),
            Err(_) => bail!("a publishing thread has panicked"),
        }
    }
    Ok(())
}

/// A system call with the lines of the trace at which it began and was done.
struct Call {
    name: String,
    /// Its arguments and result, as strace printed them.
    text: String,
    began: usize,
    done: usize,
}

/// Returns how many answers were checked, and how many syncs there were.
fn follows(trace: &str, published: &Published) -> Result<(usize, usize)> {
    let calls = parse(trace);
    let syncs: Vec<&Call> = calls
        .iter()
        .filter(|call| matches!(call.name.as_str(), "fsync" | "fdatasync" | "syncfs"))
        .filter(|call| call.text.ends_with("= 0"))
        .collect();
    let writes: Vec<&Call> = calls
        .iter()
        .filter(|call| call.text.contains("/topics/") && is_write(call))
        .collect();
    let sends: Vec<&Call> = calls
        .iter()
        .filter(|call| call.text.contains(OK_FRAME))
        .collect();
    let mut checked = 0;
    for (port, bodies) in published {
        let peer = format!("->127.0.0.1:{port}]");
        let mut answers = sends
            .iter()
            .filter(|call| call.text.contains(&peer))
            .flat_map(|call| std::iter::repeat_n(call, call.text.matches(OK_FRAME).count()));
        for body in bodies {
            let answer = answers
                .next()
                .with_context(|| format!("no answer to {body}"))?;
            let write = writes.iter().find(|call| call.text.contains(body.as_str()));
            let write = write.with_context(|| format!("no write of {body}"))?;
            let file = path(&write.text).context("a write without a path")?;
            let synced = syncs.iter().any(|sync| {
                let covers = sync.name == "syncfs" || path(&sync.text) == Some(file);
                covers && sync.began > write.done && sync.done < answer.began
            });
            if !synced {
                bail!(
                    "{body}: written at line {}, answered at line {}, no sync of {file} between",
                    write.done + 1,
                    answer.began + 1
                );
            }
            checked += 1;
        }
    }
    Ok((checked, syncs.len()))
}

fn is_write(call: &Call) -> bool {
    matches!(
        call.name.as_str(),
        "write" | "writev" | "pwrite64" | "pwritev" | "pwritev2"
    )
}

/// The path of the first descriptor: `pwrite64(7</folder/file>, ...`.
fn path(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('<')?;
    rest.split_once('>').map(|(path, _)| path)
}

fn count_answers(trace: &str) -> usize {
    trace.matches(OK_FRAME).count()
}

/// Lines are `PID call(...) = result`, or in two parts when another thread came between:
/// `PID call(... <unfinished ...>` and `PID <... call resumed>...) = result`.
fn parse(trace: &str) -> Vec<Call> {
    let mut calls: Vec<Call> = Vec::new();
    let mut unfinished: HashMap<&str, usize> = HashMap::new();
    for (number, line) in trace.lines().enumerate() {
        let Some((pid, rest)) = line.split_once(char::is_whitespace) else {
            continue;
        };
        let rest = rest.trim_start();
        if let Some(resumed) = rest.strip_prefix("<... ") {
            if let Some(index) = unfinished.remove(pid) {
                calls[index].done = number;
                calls[index].text.push_str(resumed);
            }
            continue;
        }
        let Some((name, _)) = rest.split_once('(') else {
            continue;
        };
        if let Some(begun) = rest.strip_suffix("<unfinished ...>") {
            unfinished.insert(pid, calls.len());
            calls.push(Call {
                name: name.to_owned(),
                text: begun.to_owned(),
                began: number,
                done: usize::MAX,
            });
        } else {
            calls.push(Call {
                name: name.to_owned(),
                text: rest.to_owned(),
                began: number,
                done: number,
            });
        }
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: &str = "10 pwrite64(7</d/topics/x.log>, \"body-5-0.\", 9, 0) = 9\n";
    const SYNC: &str = "11 fdatasync(7</d/topics/x.log>) = 0\n";
    const OTHER_SYNC: &str = "11 fdatasync(8</d/topics/y.log>) = 0\n";
    const ANSWER: &str = concat!(
        "10 sendto(9<TCP:[127.0.0.1:4150->127.0.0.1:5]>, ",
        r#""\0\0\0\6\0\0\0\0OK", 10, MSG_NOSIGNAL, NULL, 0) = 10"#,
        "\n"
    );

    fn holds(lines: &[&str]) -> bool {
        let published = Published::from([(5, vec!["body-5-0.".to_owned()])]);
        follows(&lines.concat(), &published).is_ok()
    }

    #[test]
    fn only_a_sync_of_the_file_between_write_and_answer_counts() {
        assert!(holds(&[WRITE, SYNC, ANSWER]));
        assert!(!holds(&[WRITE, ANSWER]));
        assert!(!holds(&[WRITE, ANSWER, SYNC]));
        assert!(!holds(&[SYNC, WRITE, ANSWER]));
        assert!(!holds(&[WRITE, OTHER_SYNC, ANSWER]));
    }

    #[test]
    fn a_sync_that_began_before_the_write_was_done_does_not_count() {
        let began = "11 fdatasync(7</d/topics/x.log> <unfinished ...>\n";
        let done = "11 <... fdatasync resumed>) = 0\n";
        assert!(!holds(&[began, WRITE, done, ANSWER]));
        assert!(!holds(&[WRITE, began, ANSWER, done]));
        assert!(holds(&[WRITE, began, done, ANSWER]));
    }

    #[test]
    fn a_call_in_two_parts_is_one_call() {
        let trace = "10 pwrite64(7</d/topics/x.log>, \"a\", 1, 0 <unfinished ...>\n\
                     11 fdatasync(7</d/topics/x.log>) = 0\n\
                     10 <... pwrite64 resumed>) = 1\n";
        let calls = parse(trace);
        assert_eq!(calls.len(), 2);
        assert_eq!((calls[0].began, calls[0].done), (0, 2));
        assert_eq!(path(&calls[0].text), Some("/d/topics/x.log"));
        assert_eq!((calls[1].began, calls[1].done), (1, 1));
    }
}
