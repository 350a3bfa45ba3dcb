//! Numbers as people read them.

/// A time in microseconds: `850 µs`, `10.9 ms`, `43 ms`, `2.5 s`, `90 s`, `12 min`.
pub(crate) fn time(us: f64) -> String {
    match us {
        us if us < 0.0 => format!("-{}", time(-us)),
        us if us < 999.5 => format!("{us:.0} µs"),
        us if us < 19_950.0 => format!("{:.1} ms", us / 1e3),
        us if us < 999_500.0 => format!("{:.0} ms", us / 1e3),
        us if us < 19_950_000.0 => format!("{:.1} s", us / 1e6),
        us if us < 300e6 => format!("{:.0} s", us / 1e6),
        us => format!("{:.0} min", us / 60e6),
    }
}

/// A count or a rate: `0.05`, `3.2`, `43`, `1,250`, `1.2 M`.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        size if !size.is_finite() => "-".to_owned(),
        size if size >= 10e6 => format!("{:.0} M", value / 1e6),
        size if size >= 999_999.5 => format!("{:.1} M", value / 1e6),
        size if size >= 19.95 => with_commas(value.round() as i64),
        size if size == size.round() => format!("{value:.0}"),
        size if size >= 1.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// A number of messages: `1 message`, `250 messages`.
pub(crate) fn messages(count: f64) -> String {
    counted(count, "message", "messages")
}

/// A number of something, with its name for one and for many.
pub(crate) fn counted(count: f64, one: &str, many: &str) -> String {
    let number = number(count);
    let name = if number == "1" { one } else { many };
    format!("{number} {name}")
}

/// A share: `97 %`.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// A number of bytes: `512 B`, `16 KB`, `1.5 MB`.
pub(crate) fn bytes(count: f64) -> String {
    match count {
        count if count < 1000.0 => format!("{count:.0} B"),
        count if count < 19_950.0 => format!("{:.1} KB", count / 1e3),
        count if count < 999_500.0 => format!("{:.0} KB", count / 1e3),
        count => format!("{:.1} MB", count / 1e6),
    }
}

/// How many times as much: `1.4 x`, `25 x`.
pub(crate) fn times(factor: f64) -> String {
    match factor {
        factor if factor < 9.95 => format!("{factor:.1} x"),
        factor => format!("{} x", number(factor)),
    }
}

fn with_commas(value: i64) -> String {
    let digits = value.unsigned_abs().to_string();
    let mut text = String::new();
    if value < 0 {
        text.push('-');
    }
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let times_of = [850.0, 10_900.0, 43_000.0, 2_500_000.0, 90e6, 720e6].map(time);
        let expect = ["850 µs", "10.9 ms", "43 ms", "2.5 s", "90 s", "12 min"];
        assert_eq!(times_of, expect);
        let numbers = [0.05, 3.0, 3.21, 43.0, 1250.4, 1_234_567.0, -1500.0].map(number);
        let expect = ["0.05", "3", "3.2", "43", "1,250", "1.2 M", "-1,500"];
        assert_eq!(numbers, expect);
        assert_eq!(number(f64::NAN), "-");
        let counts = [0.5, 1.0, 2.0].map(messages);
        assert_eq!(counts, ["0.50 messages", "1 message", "2 messages"]);
        assert_eq!(counted(0.0, "box", "boxes"), "0 boxes");
        assert_eq!([0.97, 1.0].map(percent), ["97 %", "100 %"]);
        assert_eq!([1.44, 24.8].map(times), ["1.4 x", "25 x"]);
        let sizes = [512.0, 2_219.0, 64_400.0, 1.5e6].map(bytes);
        assert_eq!(sizes, ["512 B", "2.2 KB", "64 KB", "1.5 MB"]);
    }
}
