//! The table of scenarios: a client program, the link between it and the broker, and the finding
//! that is expected. It stands in `tests/clients/doctor/README.md`, which says what is in a column.

use super::programs::{PROGRAMS, Program};

const TABLE: &str = include_str!("../../../../tests/clients/doctor/README.md");

/// A client program, its link to the broker, and the expected finding.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scenario {
    pub(super) group: &'static str,
    pub(super) link: Link,
    /// Its name, which is unique in the group.
    pub(super) name: &'static str,
    pub(super) program: &'static Program,
    /// The program's argument: the mistake that it makes, or a behaviour without one.
    pub(super) behaviour: &'static str,
    /// The name that the client gives itself; empty: none.
    pub(super) client_id: &'static str,
    /// The one finding; `None`: the program makes no mistake.
    pub(super) expected: Option<Expectation>,
}

/// The network between a client and the broker.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Link {
    /// The round trip; `None`: the one of the lab's own scenario.
    pub(super) rtt: Option<&'static str>,
    /// The bandwidth each way, if it is low.
    pub(super) bandwidth: Option<&'static str>,
    /// The broker leaves TCP's acknowledgements to the kernel, as other brokers do.
    pub(super) acks_late: bool,
}

/// The one finding that is expected.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expectation {
    pub(super) rule: &'static str,
    /// A part of the name that the advice gives the client.
    pub(super) client: &'static str,
    /// The setting that is named first.
    pub(super) setting: &'static str,
    /// Its value, or minimum and maximum of it (`2..100`); empty: the change has no value.
    pub(super) value: &'static str,
    /// A part of one of the change's lines of code; empty: not checked.
    pub(super) code: &'static str,
}

/// All scenarios, in the order of the table.
///
/// # Panics
/// A row of the table cannot be read.
pub(super) fn scenarios() -> impl Iterator<Item = Scenario> + Clone {
    let groups = TABLE.split("\n## ").skip(1);
    groups.flat_map(|text| {
        let (heading, text) = text.split_once('\n').unwrap_or((text, ""));
        let (group, link) = heading.split_once(": ").unwrap_or((heading, ""));
        let rows = text.lines().filter(|line| line.starts_with("| "));
        let rows = rows.filter(|line| !line.starts_with("| scenario |"));
        rows.map(move |row| match scenario(group, Link::read(link), row) {
            Some(scenario) => scenario,
            None => panic!("tests/clients/doctor/README.md, {group}: {row}"),
        })
    })
}

fn scenario(group: &'static str, link: Link, row: &'static str) -> Option<Scenario> {
    let cells = row.strip_prefix("| ")?.strip_suffix('|')?.split('|');
    let cells: Vec<&str> = cells.map(|it| it.trim().trim_matches('`')).collect();
    let [
        name,
        program,
        behaviour,
        named,
        finding,
        setting,
        value,
        code,
    ] = *cells
    else {
        return None;
    };
    Some(Scenario {
        group,
        link,
        name,
        program: PROGRAMS.iter().find(|it| it.name == program)?,
        behaviour,
        client_id: match named {
            "" => behaviour,
            "nothing" => "",
            named => named,
        },
        expected: match finding.split_once(" of ") {
            None if finding == "nothing" => None,
            finding_of => {
                let (rule, client) = finding_of.unwrap_or((finding, ""));
                Some(Expectation {
                    rule,
                    client,
                    setting,
                    value,
                    code,
                })
            }
        },
    })
}

impl Link {
    /// Reads a link such as "10ms, 20Mbit, acks late".
    fn read(text: &'static str) -> Link {
        let mut link = Link::default();
        for part in text.split(", ").filter(|it| !it.is_empty()) {
            match part {
                "acks late" => link.acks_late = true,
                rate if rate.ends_with("bit") => link.bandwidth = Some(rate),
                rtt => link.rtt = Some(rtt),
            }
        }
        link
    }
}

impl Scenario {
    /// Its group and name. It is unique, and can be a file's name.
    pub(super) fn full_name(&self) -> String {
        let is_plain = |it: char| it.is_ascii_alphanumeric() || it == '.';
        let name: String = (self.name.chars())
            .map(|it| if is_plain(it) { it } else { '-' })
            .collect();
        format!("{}/{}", self.group, name.to_lowercase())
    }
}

impl Expectation {
    /// Whether this is the value that the finding names.
    pub(super) fn has_value(&self, found: Option<&str>) -> bool {
        let number = |text: &str| text.parse::<u64>().ok();
        match self.value.split_once("..") {
            Some((least, most)) => {
                let found = found.and_then(number);
                found.is_some_and(|it| Some(it) >= number(least) && Some(it) <= number(most))
            }
            None => found == Some(self.value).filter(|it| !it.is_empty()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_scenario_has_a_name_of_its_own_that_can_be_a_file_s() {
        let names: Vec<String> = scenarios().map(|it| it.full_name()).collect();
        let distinct: BTreeSet<&String> = names.iter().collect();
        assert_eq!(
            (distinct.len(), names.len()),
            (82, 82),
            "rows are read, and distinct"
        );
        let plain = |it: char| it.is_ascii_alphanumeric() || "-./".contains(it);
        assert!(names.iter().all(|it| it.chars().all(plain)), "{names:?}");
    }

    #[test]
    fn a_row_says_what_is_expected() {
        let named = |name: &str| scenarios().find(|it| it.full_name() == name).unwrap();
        let text = named("narrow/nsqjs-sends-text-as-it-is");
        assert_eq!(
            (text.link.rtt, text.link.bandwidth),
            (Some("10ms"), Some("20Mbit"))
        );
        let expected = text.expected.unwrap();
        assert_eq!(
            (expected.rule, expected.client),
            ("no-compression", "nsqjs")
        );
        assert!(expected.has_value(Some("true")) && !expected.has_value(None));
        assert_eq!(expected.code, "deflate: true");
        let slow = named("nsq/go-nsq-works-longer-than-it-asked-for")
            .expected
            .unwrap();
        assert!(slow.has_value(Some("2")) && slow.has_value(Some("9")));
        assert!(!slow.has_value(Some("10")) && !slow.has_value(Some("true")));
        assert!(named("seed-001/the-blog-post-s-loop").link.acks_late);
        let healthy = named("stories/healthy");
        assert!(healthy.expected.is_none() && healthy.link.rtt.is_none());
    }
}
