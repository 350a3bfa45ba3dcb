//! `cloverleaf doctor explain RULE`: the pages of docs/doctor, built in.

use std::io::{self, Write};

use cloverleaf_doctor::Rule;
use cloverleaf_page::Terminal;

use crate::doctor_page_text::fitted;

/// The page of a rule.
pub(crate) fn page(rule: Rule) -> &'static str {
    macro_rules! pages {
        ($($rule:ident: $file:literal,)+) => {
            match rule {
                $(Rule::$rule => include_str!(concat!("../../../docs/doctor/", $file, ".md")),)+
            }
        };
    }
    pages! {
        SyncProduce: "sync-produce",
        Hoarding: "hoarding",
        WindowTooSmall: "window-too-small",
        Linger: "linger",
        Nagle: "nagle",
        AckDeadline: "ack-deadline",
        Partitions: "partitions",
        OneConnection: "one-connection",
        TooManyInFlight: "too-many-in-flight",
        TinyBatches: "tiny-batches",
        NoCompression: "no-compression",
        Churn: "churn",
        FetchRhythm: "fetch-rhythm",
    }
}

/// Prints the page of a rule; without a name, or with an unknown one, a list of all rules. Returns
/// false for an unknown name.
pub(crate) fn explain(name: Option<&str>) -> anyhow::Result<bool> {
    let terminal = Terminal::here();
    let rule = match name {
        Some(name) => named(&name.to_lowercase()),
        None => None,
    };
    let text = match (rule, name) {
        (Some(rule), _) => fitted(page(rule), terminal.width, terminal.with_colours),
        (None, None) => list(),
        (None, Some(name)) => {
            eprintln!("cloverleaf: there is no rule {name:?}; these are there:");
            eprint!("{}", list());
            return Ok(false);
        }
    };
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(true)
}

/// The rule of this name, or of a finding's id, which begins with the rule's name:
/// `hoarding-78257ef3`.
fn named(name: &str) -> Option<Rule> {
    let of_finding = || {
        let (rule, number) = name.rsplit_once('-')?;
        let is_number = number.len() == 8 && number.bytes().all(|it| it.is_ascii_hexdigit());
        Rule::named(rule).filter(|_| is_number)
    };
    Rule::named(name).or_else(of_finding)
}

/// All rules with their titles.
fn list() -> String {
    let widest = Rule::ALL.map(|rule| rule.name().len()).into_iter().max();
    let width = widest.unwrap_or_default();
    let mut text = String::new();
    for rule in Rule::ALL {
        text.push_str(&format!("  {:width$}  {}\n", rule.name(), title(rule)));
    }
    text
}

/// The rule's title, in the first line of its page.
fn title(rule: Rule) -> &'static str {
    let first = page(rule).lines().next().unwrap_or_default();
    first.split_once(": ").map_or(first, |(_, title)| title)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_found_by_the_id_of_a_finding_too() {
        assert_eq!(named("hoarding-78257ef3"), Some(Rule::Hoarding));
        assert_eq!(named("sync-produce-00000000"), Some(Rule::SyncProduce));
        assert_eq!(named("sync-produce"), Some(Rule::SyncProduce));
        for name in [
            "sync",
            "hoarding-",
            "hoarding-1",
            "hoarding-x8257ef3",
            "78257ef3",
        ] {
            assert_eq!(named(name), None, "{name}");
        }
    }

    #[test]
    fn each_rule_has_its_own_page_with_the_same_sections() {
        for rule in Rule::ALL {
            let page = page(rule);
            assert!(page.starts_with(&format!("# {rule}: ")), "{rule}");
            for section in ["How it is seen", "Why it costs", "How to fix it", "Sources"] {
                assert!(
                    page.contains(&format!("\n## {section}\n")),
                    "{rule}: {section}"
                );
            }
            assert!(
                page.contains("\n## How to check that it helped\n"),
                "{rule}"
            );
            assert!(list().contains(&format!("  {rule} ")), "{rule}");
            assert!(!title(rule).is_empty(), "{rule}");
        }
    }
}
