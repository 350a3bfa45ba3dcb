//! Matching of a message's headers with the bindings of a headers exchange.

use std::hash::{Hash, Hasher};

use crate::wire::{Table, Value};

/// The argument that says how the others are compared.
const X_MATCH: &str = "x-match";

/// How a binding's arguments are compared with the headers (`x-match`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MatchRule {
    /// One matching argument is enough.
    pub(super) any: bool,
    /// Arguments whose names begin with `x-` are compared, too.
    includes_x_names: bool,
}

impl MatchRule {
    /// Reads the rule from a binding's arguments; `all` by default.
    pub(super) fn of(arguments: Table<'_>) -> Self {
        let said = match arguments.get(X_MATCH) {
            Some(Value::String(word)) => parse_rule(word),
            _ => None,
        };
        said.unwrap_or(MatchRule {
            any: false,
            includes_x_names: false,
        })
    }

    /// The arguments that are compared with the headers.
    pub(super) fn compared<'t>(
        self,
        arguments: Table<'t>,
    ) -> impl Iterator<Item = (&'t str, Value<'t>)> {
        arguments
            .fields()
            .filter(move |(name, _)| match self.includes_x_names {
                true => *name != X_MATCH,
                false => !name.starts_with("x-"),
            })
    }
}

/// Checks a binding's `x-match`.
///
/// # Errors
/// It is none of the four words; with RabbitMQ's text.
pub(super) fn check(arguments: Table<'_>) -> Result<(), String> {
    match arguments.get(X_MATCH) {
        None => Ok(()),
        Some(Value::String(word)) if parse_rule(word).is_some() => Ok(()),
        Some(Value::String(word)) => Err(format!(
            "Invalid x-match field value {}; expected all, any, all-with-x, or any-with-x",
            String::from_utf8_lossy(word)
        )),
        Some(value) => Err(format!(
            "Invalid x-match field type (value {value:?}); expected longstr"
        )),
    }
}

fn parse_rule(word: &[u8]) -> Option<MatchRule> {
    let (any, includes_x_names) = match word {
        b"all" => (false, false),
        b"any" => (true, false),
        b"all-with-x" => (false, true),
        b"any-with-x" => (true, true),
        _ => return None,
    };
    Some(MatchRule {
        any,
        includes_x_names,
    })
}

/// A message's headers, sorted by name, because many bindings look many of them up.
#[derive(Debug)]
pub(super) struct SortedHeaders<'h> {
    /// Of several headers with the same name, only the first.
    fields: Vec<(&'h str, Value<'h>)>,
}

impl<'h> SortedHeaders<'h> {
    pub(super) fn new(headers: Table<'h>) -> Self {
        let mut fields: Vec<_> = headers.fields().collect();
        // The sort is stable: the first of several headers with the same name stays first.
        fields.sort_by_key(|(name, _)| *name);
        fields.dedup_by_key(|(name, _)| *name);
        Self { fields }
    }

    /// The headers, each name once.
    pub(super) fn fields(&self) -> &[(&'h str, Value<'h>)] {
        &self.fields
    }

    fn search(&self) -> HeaderSearch<'_, 'h> {
        HeaderSearch {
            fields: &self.fields,
            from: 0,
        }
    }
}

/// Looks names up, starting where the last one was found: a binding's arguments are sorted, too.
struct HeaderSearch<'s, 'h> {
    fields: &'s [(&'h str, Value<'h>)],
    /// Names before this index are smaller than the last one looked up.
    from: usize,
}

impl<'h> HeaderSearch<'_, 'h> {
    fn find(&mut self, name: &str) -> Option<Value<'h>> {
        let is_smaller = |field: &(&str, Value<'_>)| field.0 < name;
        let last = self.from.checked_sub(1);
        if last.is_some_and(|last| !is_smaller(&self.fields[last])) {
            // Unsorted arguments take longer, but are found as well.
            self.from = 0;
        }
        let rest = &self.fields[self.from..];
        // Usually the next header is the right one.
        let is_next = rest.first().is_none_or(|next| !is_smaller(next));
        if !is_next {
            self.from += rest.partition_point(is_smaller);
        }
        let (found, value) = self.fields.get(self.from)?;
        (*found == name).then_some(*value)
    }
}

/// Whether a message with these headers matches a binding with these arguments.
pub(super) fn is_match(arguments: Table<'_>, headers: &SortedHeaders<'_>) -> bool {
    let rule = MatchRule::of(arguments);
    let mut compared = rule.compared(arguments);
    let mut search = headers.search();
    let is_there = |(name, value): (&str, Value<'_>)| {
        let found = search.find(name);
        match value {
            // An argument without a value asks for the header's presence only.
            Value::Void => found.is_some(),
            value => found.is_some_and(|found| is_same(found, value)),
        }
    };
    match rule.any {
        true => compared.any(is_there),
        false => compared.all(is_there),
    }
}

/// Hashes a value consistently with [`is_same`].
pub(super) fn hash_value(value: Value<'_>, hasher: &mut impl Hasher) {
    if let Some(number) = value.as_integer() {
        return (0, number).hash(hasher);
    }
    // 0.0 and -0.0 are equal.
    let bits = |number: f64| (number + 0.0).to_bits();
    match value {
        Value::Bool(truth) => (1, truth).hash(hasher),
        Value::F32(number) => (2, bits(number.into())).hash(hasher),
        Value::F64(number) => (3, bits(number)).hash(hasher),
        Value::Decimal(scale, digits) => (4, scale, digits).hash(hasher),
        Value::String(bytes) => (5, bytes).hash(hasher),
        Value::Bytes(bytes) => (6, bytes).hash(hasher),
        Value::Array(array) => (7, array.bytes()).hash(hasher),
        Value::Timestamp(seconds) => (8, seconds).hash(hasher),
        Value::Table(table) => (9, table.bytes()).hash(hasher),
        // Only `Void` is left: integers were hashed above.
        _ => 10.hash(hasher),
    }
}

/// Whether two values are equal; integers are, whatever their types.
fn is_same(a: Value<'_>, b: Value<'_>) -> bool {
    match (a.as_integer(), b.as_integer()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use std::time::{Duration, Instant};

    use proptest::prelude::*;

    use super::*;
    use crate::wire::table_bytes as table;

    fn matches(arguments: &[(&str, Value<'_>)], headers: &[(&str, Value<'_>)]) -> bool {
        let (arguments, headers) = (table(arguments), table(headers));
        is_match(
            Table::check(&arguments).unwrap(),
            &SortedHeaders::new(Table::check(&headers).unwrap()),
        )
    }

    fn names() -> impl Strategy<Value = Vec<String>> {
        prop::collection::vec("[a-d]{0,2}", 0..12)
    }

    proptest! {
        #[test]
        fn a_header_is_found_whatever_the_order(asked in names(), there in names()) {
            let numbered = (0i32..).zip(&there);
            let fields: Vec<_> = numbered.map(|(n, name)| (&**name, Value::I32(n))).collect();
            let bytes = table(&fields);
            let headers = Table::check(&bytes).unwrap();
            let sorted = SortedHeaders::new(headers);
            let mut search = sorted.search();
            for name in asked {
                prop_assert_eq!(search.find(&name), headers.get(&name));
            }
        }
    }

    #[test]
    fn many_arguments_and_many_headers_take_no_quadratic_time() {
        let names: Vec<String> = (0..400_000).map(|n| format!("{n:06}")).collect();
        let mut fields: Vec<_> = names.iter().map(|name| (&**name, Value::Void)).collect();
        let arguments = table(&fields);
        fields.reverse();
        let headers = table(&fields);
        let begin = Instant::now();
        let sorted = SortedHeaders::new(Table::check(&headers).unwrap());
        assert!(is_match(Table::check(&arguments).unwrap(), &sorted));
        assert!(is_match(Table::check(&headers).unwrap(), &sorted));
        // Comparing each with each would be 80,000 million steps, which take many times as long.
        assert!(begin.elapsed() < Duration::from_secs(60));
    }

    const COLOUR: (&str, Value<'_>) = ("colour", Value::String(b"red"));
    const SIZE: (&str, Value<'_>) = ("size", Value::I32(7));

    fn x_match(word: &str) -> (&str, Value<'_>) {
        ("x-match", Value::String(word.as_bytes()))
    }

    #[test]
    fn all_and_any_mean_what_they_say() {
        let both = [COLOUR, SIZE];
        assert!(matches(&both, &[SIZE, COLOUR, ("more", Value::Void)]));
        assert!(!matches(&both, &[COLOUR]));
        assert!(!matches(&[x_match("all"), COLOUR, SIZE], &[COLOUR]));
        assert!(matches(&[x_match("any"), COLOUR, SIZE], &[COLOUR]));
        assert!(!matches(
            &[x_match("any"), COLOUR, SIZE],
            &[("size", Value::I32(8))]
        ));
        assert!(matches(&[], &[COLOUR]), "no argument to match");
        assert!(
            !matches(&[x_match("any")], &[COLOUR]),
            "no argument can match"
        );
    }

    #[test]
    fn numbers_are_compared_by_value_and_void_is_presence() {
        assert!(matches(&[SIZE], &[("size", Value::I64(7))]));
        assert!(!matches(&[SIZE], &[("size", Value::String(b"7"))]));
        assert!(matches(
            &[("size", Value::Void)],
            &[("size", Value::String(b"7"))]
        ));
        assert!(!matches(&[("size", Value::Void)], &[COLOUR]));
    }

    #[test]
    fn names_with_x_count_only_where_asked() {
        let compared = ("x-kind", Value::String(b"a"));
        assert!(matches(&[compared], &[]));
        assert!(!matches(&[x_match("all-with-x"), compared], &[]));
        assert!(matches(&[x_match("any-with-x"), compared], &[compared]));
        assert!(!matches(&[x_match("any"), compared], &[compared]));
    }

    #[test]
    fn other_words_are_refused() {
        let bytes = table(&[x_match("some")]);
        let why = check(Table::check(&bytes).unwrap()).unwrap_err();
        assert!(
            why.starts_with("Invalid x-match field value some;"),
            "{why}"
        );
        let bytes = table(&[("x-match", Value::Bool(true))]);
        assert!(check(Table::check(&bytes).unwrap()).is_err());
        let bytes = table(&[x_match("any-with-x")]);
        assert_eq!(check(Table::check(&bytes).unwrap()), Ok(()));
    }
}
