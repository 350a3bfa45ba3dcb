//! Variables in texts of advice.

use crate::fill::fill;
use crate::rules::Variables;

/// Names that are allowed in braces, besides `value`. `advice/README.md` describes them.
pub(super) const NAMES: &[&str] = &[
    "in_flight",
    "messages",
    "credit",
    "prefetch",
    "at_once",
    "consumers",
    "linger_ms",
    "batch_bytes",
    "batch_messages",
    "deadline_s",
    "deadline_ms",
    "partitions",
    "connections",
    "topic",
    "subscription",
];

/// The values of one finding.
pub(super) struct Filled<'a> {
    variables: &'a Variables,
    place: Option<&'a (String, String)>,
}

impl<'a> Filled<'a> {
    pub(super) fn new(variables: &'a Variables, place: Option<&'a (String, String)>) -> Filled<'a> {
        Filled { variables, place }
    }

    /// The consumer's present limit of messages in flight, if the broker sees it.
    pub(super) fn prefetch(&self) -> Option<String> {
        self.variables.get("prefetch").map(|it| prefetch(*it))
    }

    /// A text with its variables filled in; variables without a value become capitals.
    pub(super) fn fill(&self, text: &str, value: Option<&str>) -> String {
        fill(text, |name| match (name, value) {
            ("value", Some(value)) => Some(value.to_owned()),
            _ => is_variable(name).then(|| self.value_of(name)),
        })
    }

    fn value_of(&self, name: &str) -> String {
        let place = |of: fn(&(String, String)) -> &String| {
            // Lines of code are copied into a shell or a program, where a name must not be
            // interpreted.
            self.place.map(of).filter(|name| is_plain(name)).cloned()
        };
        let known = match name {
            "topic" => place(|it| &it.0),
            "subscription" => place(|it| &it.1),
            // Rounded to milliseconds, because a deadline above the broker's limit is refused.
            "deadline_s" => self.variables.get(name).map(|value| {
                let ms = (value * 1e3).round() / 1e3;
                format!("{ms}")
            }),
            "prefetch" => self.prefetch(),
            name => self.variables.get(name).map(|value| format!("{value:.0}")),
        };
        known.unwrap_or_else(|| name.to_uppercase())
    }
}

/// A limit of messages in flight; 0 stands for no limit.
fn prefetch(messages: f64) -> String {
    match messages {
        0.0 => "no limit".to_owned(),
        messages => format!("{messages:.0}"),
    }
}

/// Whether a name is one word to every shell and language.
fn is_plain(name: &str) -> bool {
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "._-:/@#+".contains(it);
    !name.is_empty() && !name.starts_with(['-', '#']) && name.chars().all(is_plain)
}

/// Whether this may be a variable: a `lower_case_word`. Other braces are code.
pub(super) fn is_variable(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|it| it.is_ascii_lowercase() || it == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_be_more_than_a_word_are_left_out() {
        let variables = Variables::new();
        for name in [
            "a b",
            "a;b",
            "$(a)",
            "a'b",
            "--all",
            "a\n",
            "\u{1b}[2J",
            "\u{f6}",
        ] {
            let place = (name.to_owned(), "x#ephemeral".to_owned());
            let fill = Filled::new(&variables, Some(&place));
            assert_eq!(
                fill.fill("{topic} {subscription}", None),
                "TOPIC x#ephemeral"
            );
        }
    }

    #[test]
    fn variables_are_filled_in_and_braces_of_code_are_left_alone() {
        let variables = Variables::from([("in_flight", 10.4)]);
        let place = ("orders".to_owned(), "billing".to_owned());
        let fill = Filled::new(&variables, Some(&place));
        let text = "{'a': {in_flight}, {Linger: {value}}, {} {topic}/{subscription} {credit} {";
        let filled = fill.fill(text, Some("5"));
        assert_eq!(filled, "{'a': 10, {Linger: 5}, {} orders/billing CREDIT {");
        assert_eq!(fill.fill("{ a } {A} {a1}", None), "{ a } {A} {a1}");
    }
}
