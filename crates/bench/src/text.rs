//! Numbers as people read them.

/// `1,234,567`; below a hundred with the digits that matter.
pub(crate) fn count(value: f64) -> String {
    if value != 0.0 && value.abs() < 100.0 && value.fract() != 0.0 {
        return significant(value);
    }
    let digits = format!("{:.0}", value.abs());
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    match value < 0.0 {
        true => format!("-{grouped}"),
        false => grouped,
    }
}

/// `1.51 MiB`.
pub(crate) fn bytes(value: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (value, 0);
    while value >= 1_024.0 && unit + 1 < UNITS.len() {
        value /= 1_024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{value:.0} B"),
        _ => format!("{} {}", significant(value), UNITS[unit]),
    }
}

/// `850 ns`, `12.3 µs`, `4.56 ms`, `7.89 s`.
pub(crate) fn time(ns: u64) -> String {
    let ns = ns as f64;
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{} µs", significant(ns / 1e3)),
        ns if ns < 1e9 => format!("{} ms", significant(ns / 1e6)),
        ns => format!("{} s", significant(ns / 1e9)),
    }
}

/// Three digits that matter, and all before the point.
fn significant(value: f64) -> String {
    match value.abs() {
        value if value >= 99.95 => format!("{value:.0}"),
        value if value >= 9.995 => format!("{value:.1}"),
        value if value >= 0.9995 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(count(0.0), "0");
        assert_eq!(count(999.6), "1,000");
        assert_eq!(count(1_234_567.0), "1,234,567");
        assert_eq!(count(2.5), "2.50");
        assert_eq!(count(-1_000.0), "-1,000");
        assert_eq!(bytes(1_023.0), "1023 B");
        assert_eq!(bytes(1_581_056.0), "1.51 MiB");
        assert_eq!(time(850), "850 ns");
        assert_eq!(time(12_345), "12.3 µs");
        assert_eq!(time(4_560_000), "4.56 ms");
        assert_eq!(time(123_456_789_000), "123 s");
    }
}
