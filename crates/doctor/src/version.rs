//! Versions of client libraries, and ranges of them.

use std::cmp::Ordering;

/// Numbers with dots; missing ones count as 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Version(Vec<u64>);

impl Version {
    /// Reads `1.2.3`, `v1.2`, `2.0-rc1`: a leading `v` and anything after the numbers is ignored.
    /// `None` when there is no number.
    pub(crate) fn read(text: &str) -> Option<Version> {
        let text = text.trim();
        let text = text.strip_prefix(['v', 'V']).unwrap_or(text);
        let mut numbers = Vec::new();
        for part in text.split('.') {
            let digits = part.find(|it: char| !it.is_ascii_digit());
            let digits = &part[..digits.unwrap_or(part.len())];
            let Ok(number) = digits.parse() else { break };
            numbers.push(number);
            if digits.len() < part.len() {
                break;
            }
        }
        (!numbers.is_empty()).then_some(Version(numbers))
    }

    fn compare(&self, other: &Version) -> Ordering {
        let longest = self.0.len().max(other.0.len());
        let at = |version: &Version, place: usize| version.0.get(place).copied().unwrap_or(0);
        (0..longest)
            .map(|place| at(self, place).cmp(&at(other, place)))
            .find(|order| order.is_ne())
            .unwrap_or(Ordering::Equal)
    }
}

/// Comparisons that must all hold: `>=1.9, <2.2`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Range(Vec<(Comparison, Version)>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Less,
    AtMost,
    Equal,
    AtLeast,
    More,
}

impl Range {
    /// Reads a range; `None` if it is malformed.
    pub(crate) fn read(text: &str) -> Option<Range> {
        let signs = [
            ("<=", Comparison::AtMost),
            (">=", Comparison::AtLeast),
            ("<", Comparison::Less),
            (">", Comparison::More),
            ("=", Comparison::Equal),
        ];
        let one = |part: &str| {
            let part = part.trim();
            let (rest, comparison) = signs
                .iter()
                .find_map(|(sign, it)| Some((part.strip_prefix(sign)?, *it)))?;
            let is_plain = rest
                .trim()
                .chars()
                .all(|it| it.is_ascii_digit() || it == '.');
            Some((comparison, Version::read(rest).filter(|_| is_plain)?))
        };
        text.split(',').map(one).collect::<Option<_>>().map(Range)
    }

    /// Whether a version is in the range. An unknown version is, if the range has no upper bound.
    pub(crate) fn has(&self, version: Option<&Version>) -> bool {
        self.0.iter().all(|(comparison, bound)| {
            let Some(version) = version else {
                return matches!(comparison, Comparison::AtLeast | Comparison::More);
            };
            let order = version.compare(bound);
            match comparison {
                Comparison::Less => order.is_lt(),
                Comparison::AtMost => order.is_le(),
                Comparison::Equal => order.is_eq(),
                Comparison::AtLeast => order.is_ge(),
                Comparison::More => order.is_gt(),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn versions_are_read_as_people_write_them() {
        let read = |text| Version::read(text).map(|version| version.0);
        assert_eq!(read("1.9.2"), Some(vec![1, 9, 2]));
        assert_eq!(read(" v2.0-rc1"), Some(vec![2, 0]));
        assert_eq!(read("0.4.50.dev0"), Some(vec![0, 4, 50]));
        assert_eq!(read("3.7.1+build5"), Some(vec![3, 7, 1]));
        assert_eq!(["", "v", "x1", ".5"].map(read), [None, None, None, None]);
    }

    #[test]
    fn ranges_hold_what_all_comparisons_allow() {
        let has = |range: &str, version: &str| {
            let range = Range::read(range).unwrap();
            range.has(Version::read(version).as_ref())
        };
        assert!(has(">=1.9, <2.2", "1.9.0") && has(">=1.9, <2.2", "2.1.99"));
        assert!(!has(">=1.9, <2.2", "2.2") && !has(">=1.9, <2.2", "1.8.9"));
        assert!(has("=1.2", "1.2.0") && !has("=1.2", "1.2.1"));
        assert!(has("<=2", "2.0") && !has(">2", "2.0.0") && has(">2", "2.0.1"));
        // An unknown version is in ranges without an upper bound only.
        assert!(has(">=1.5", "") && !has("<2.10", "") && !has(">=1, <2", "") && !has("=1", ""));
        for wrong in ["", "1.2", ">=x", ">=1.2 <3", ">=1.2-rc1"] {
            assert_eq!(Range::read(wrong), None, "{wrong}");
        }
    }
}
