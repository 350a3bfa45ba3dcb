//! Figures as people read them: the same words in a table, a report and a picture.
//!
//! A number and its unit are joined by a non-breaking space.

use jiff::Timestamp;

/// The text for a missing figure.
pub const NOTHING: &str = "–";
/// The non-breaking space between a number and its unit.
pub const SPACE: char = '\u{a0}';

/// A whole number with separators: "1,234,567".
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A measured number, with at least three digits: "0.0123", "1.24", "12.4", "1,234,567".
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return NOTHING.to_owned();
    }
    let size = value.abs();
    let decimals = match size {
        0.0 => 0,
        _ if size >= 99.95 => 0,
        _ if size >= 9.995 => 1,
        _ if size >= 0.9995 => 2,
        // As many as needed for three digits, down to a billionth.
        _ => (2 - size.log10().floor().max(-9.0) as i32).unsigned_abs() as usize,
    };
    if decimals > 0 {
        return format!("{value:.decimals$}");
    }
    let sign = if value.round() < 0.0 { "-" } else { "" };
    format!("{sign}{}", count(size.round() as u64))
}

/// A number in the largest unit that is not larger than the number. `units` are sizes with names.
fn scaled(value: f64, units: &[(f64, &str)], smallest: &str) -> String {
    // A unit is used from 99.95 % of its size on: 999.6 of a smaller unit would be rounded to
    // 1,000.
    let is_one = |(size, _): &&(f64, &str)| value.abs() >= size * 0.9995;
    match units.iter().find(is_one).unwrap_or(&(1.0, smallest)) {
        (_, "") => number(value),
        (size, unit) => format!("{}{SPACE}{unit}", number(value / size)),
    }
}

/// A number for a narrow place: "950", "12.3 k", "1.23 M".
pub fn short(value: f64) -> String {
    scaled(value, &[(1e9, "G"), (1e6, "M"), (1e3, "k")], "")
}

/// A tick of an axis: as short as possible without loss ("0", "2.5 k", "100 k").
pub fn tick(value: f64) -> String {
    without_zeros(&short(value))
}

/// A number with its unit, without zeros at the end of its decimals.
fn without_zeros(text: &str) -> String {
    let end = text.find(SPACE).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let digits = if digits.contains('.') {
        digits.trim_end_matches('0').trim_end_matches('.')
    } else {
        digits
    };
    format!("{digits}{unit}")
}

/// A time of `ns` nanoseconds, with three digits: "950 ns", "1.24 ms", "12.4 s".
pub fn time(ns: f64) -> String {
    if ns.is_finite() {
        scaled(ns, &[(1e9, "s"), (1e6, "ms"), (1e3, "µs")], "ns")
    } else {
        NOTHING.to_owned()
    }
}

/// A time on an axis: "100 µs", "1 ms".
pub fn time_tick(ns: f64) -> String {
    without_zeros(&time(ns))
}

/// Bytes of memory: "512 B", "1.5 KiB", "123 MiB".
pub fn memory(bytes: f64) -> String {
    const KIB: f64 = 1024.0;
    let units = [(KIB * KIB * KIB, "GiB"), (KIB * KIB, "MiB"), (KIB, "KiB")];
    scaled(bytes, &units, "B")
}

/// Bytes per second in millions: "123 MB/s".
pub fn byte_rate(bytes_per_second: f64) -> String {
    format!("{}{SPACE}MB/s", number(bytes_per_second / 1e6))
}

/// Messages per second: "1,234,567/s".
pub fn rate(messages_per_second: f64) -> String {
    format!("{}/s", number(messages_per_second))
}

/// A number; a whole one is shown with all of its digits.
pub fn whole_or_number(value: f64) -> String {
    if value >= 0.0 && value.fract() == 0.0 && value < 1e15 {
        count(value as u64)
    } else {
        number(value)
    }
}

/// A time in milliseconds since 1970 as "2026-11-22 04:40 UTC".
pub fn date(unix_ms: u64) -> String {
    let ms = i64::try_from(unix_ms).unwrap_or(i64::MAX);
    let time = Timestamp::from_millisecond(ms).unwrap_or(Timestamp::MAX);
    time.strftime("%Y-%m-%d %H:%M UTC").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_at_a_glance() {
        let plain = |text: String| text.replace(SPACE, " ");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!([count(0), count(999), count(1_000)], ["0", "999", "1,000"]);
        assert_eq!(number(0.012_34), "0.0123");
        assert_eq!(number(0.262), "0.262");
        assert_eq!([number(9.996), number(99.96)], ["10.0", "100"]);
        assert_eq!([number(-1_234.4), number(-0.2)], ["-1,234", "-0.200"]);
        assert_eq!([number(f64::NAN), number(0.0)], ["–", "0"]);
        assert_eq!(plain(short(1_234_567.0)), "1.23 M");
        assert_eq!(plain(tick(2_500.0)), "2.5 k");
        assert_eq!([tick(0.0), tick(100.0)], ["0", "100"]);
        assert_eq!(plain(tick(100_000.0)), "100 k");
        assert_eq!(plain(time(999_600.0)), "1.00 ms");
        assert_eq!(plain(time(950.0)), "950 ns");
        assert_eq!(plain(time(12_345_000_000.0)), "12.3 s");
        assert_eq!(plain(time_tick(10_000.0)), "10 µs");
        assert_eq!(plain(memory(1_536.0)), "1.50 KiB");
        assert_eq!(plain(byte_rate(123_456_789.0)), "123 MB/s");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400_000), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_795_322_460_000), "2026-11-22 04:41 UTC");
        assert_eq!(date(4_107_542_399_999), "2100-02-28 23:59 UTC");
    }
}
