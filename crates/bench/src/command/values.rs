//! Values of the command line: sizes, counts, times, rates and the like.

use std::path::{Path, PathBuf};

use crate::payload::{PayloadKind, STAMP_BYTES};
use crate::plan::Acks;

/// How messages arrive in an open loop.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ArrivalsArg {
    /// Evenly.
    Constant,
    /// At random times.
    Poisson,
    /// So many at once.
    Burst(u32),
    /// At a rate that grows from the first to the second, in messages per second.
    Ramp(f64, f64),
}

/// The content of messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PayloadArg {
    /// Bytes that no compression makes smaller.
    Random,
    /// Text as of log lines.
    Compressible,
    /// The content of a file.
    File(PathBuf),
}

impl PayloadArg {
    /// Reads the file, if it is one.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn load(&self) -> Result<PayloadKind, (PathBuf, std::io::Error)> {
        match self {
            PayloadArg::Random => Ok(PayloadKind::Random),
            PayloadArg::Compressible => Ok(PayloadKind::Compressible),
            PayloadArg::File(path) => {
                let bytes = std::fs::read(path).map_err(|error| (path.clone(), error))?;
                Ok(PayloadKind::File(bytes))
            }
        }
    }
}

/// A number of messages: `500000`, `500_000`, `500k`, `1M`.
pub(super) fn count(text: &str) -> Result<u64, String> {
    let wrong = || format!("\"{text}\" is no number of messages: write 500000, 500k or 1M");
    let number = scaled(text).ok_or_else(wrong)?;
    let whole = number.fract() == 0.0 && (1.0..=1e15).contains(&number);
    whole.then_some(number as u64).ok_or_else(wrong)
}

/// Messages per second: `100000`, `100k`, `2.5`.
pub(super) fn rate(text: &str) -> Result<f64, String> {
    let text = text.trim_end_matches("/s");
    let number = scaled(text).filter(|rate| (0.001..=1e9).contains(rate));
    number.ok_or_else(|| format!("\"{text}\" is no rate: write 1000 or 100k, messages per second"))
}

fn scaled(text: &str) -> Option<f64> {
    let (digits, factor) = match text.char_indices().next_back()? {
        (at, 'k' | 'K') => (&text[..at], 1e3),
        (at, 'm' | 'M') => (&text[..at], 1e6),
        (at, 'g' | 'G') => (&text[..at], 1e9),
        _ => (text, 1.0),
    };
    let number: f64 = digits.replace('_', "").parse().ok()?;
    Some(number * factor).filter(|number| number.is_finite())
}

/// Bytes of a message: `128`, `5KiB`, `1MiB`.
pub(super) fn size(text: &str) -> Result<usize, String> {
    let lower = text.to_ascii_lowercase();
    let units = [
        ("mib", 1 << 20),
        ("kib", 1 << 10),
        ("m", 1 << 20),
        ("k", 1 << 10),
        ("b", 1),
    ];
    let unit = units.iter().find_map(|(unit, factor)| {
        let digits = lower.strip_suffix(unit)?;
        Some((digits, *factor))
    });
    let (digits, factor) = unit.unwrap_or((&lower, 1));
    let bytes = digits.trim().replace('_', "").parse::<usize>().ok();
    let bytes = bytes.and_then(|bytes| bytes.checked_mul(factor));
    const SIZE_BYTES_MAX: usize = 1 << 30;
    match bytes {
        None => Err(format!(
            "\"{text}\" is no message size: write 128, 5KiB or 1MiB"
        )),
        Some(bytes) if bytes < STAMP_BYTES => Err(format!(
            "messages of {bytes} bytes are too small: each carries {STAMP_BYTES} bytes by which \
             loss, order and latency are checked"
        )),
        Some(bytes) if bytes > SIZE_BYTES_MAX => Err(format!(
            "messages of {bytes} bytes are too large: at most 1 GiB"
        )),
        Some(bytes) => Ok(bytes),
    }
}

/// Seconds: `10`, `10s`, `500ms`, `2m`, `1h`.
pub(super) fn seconds(text: &str) -> Result<f64, String> {
    let units = [
        ("ms", 1e-3),
        ("us", 1e-6),
        ("s", 1.0),
        ("m", 60.0),
        ("h", 3_600.0),
    ];
    let unit = units.iter().find_map(|(unit, factor)| {
        let digits = text.strip_suffix(unit)?;
        Some((digits, *factor))
    });
    let (digits, factor) = unit.unwrap_or((text, 1.0));
    let number = digits
        .trim()
        .parse::<f64>()
        .ok()
        .map(|number| number * factor);
    const SECONDS_MAX: f64 = 30.0 * 24.0 * 3_600.0;
    number
        .filter(|seconds| (0.0..=SECONDS_MAX).contains(seconds))
        .ok_or_else(|| format!("\"{text}\" is no time: write 10s, 500ms, 2m or 1h"))
}

/// `constant`, `poisson`, `burst:N`, `ramp:FROM-TO`.
pub(super) fn arrivals(text: &str) -> Result<ArrivalsArg, String> {
    let wrong = || {
        format!("\"{text}\" is none of constant, poisson, burst:SIZE, ramp:FROM-TO (ramp:1k-50k)")
    };
    match text.split_once(':') {
        None if text == "constant" => Ok(ArrivalsArg::Constant),
        None if text == "poisson" => Ok(ArrivalsArg::Poisson),
        Some(("burst" | "bursts", size)) => match size.parse() {
            Ok(size) if size > 0 => Ok(ArrivalsArg::Burst(size)),
            _ => Err(wrong()),
        },
        Some(("ramp", rates)) => {
            let (from, to) = rates.split_once('-').ok_or_else(wrong)?;
            let from = match from {
                "0" => 0.0,
                from => rate(from)?,
            };
            Ok(ArrivalsArg::Ramp(from, rate(to)?))
        }
        _ => Err(wrong()),
    }
}

/// `random`, `compressible`, `file:PATH`.
pub(super) fn payload(text: &str) -> Result<PayloadArg, String> {
    match text.split_once(':') {
        None if text == "random" => Ok(PayloadArg::Random),
        None if text == "compressible" => Ok(PayloadArg::Compressible),
        Some(("file", path)) if !path.is_empty() => {
            Ok(PayloadArg::File(Path::new(path).to_path_buf()))
        }
        _ => Err(format!(
            "\"{text}\" is none of random, compressible, file:PATH"
        )),
    }
}

/// `none`, `one`, `all`, and Kafka's 0, 1, -1.
pub(super) fn acks(text: &str) -> Result<Acks, String> {
    match text {
        "none" | "0" => Ok(Acks::None),
        "one" | "1" => Ok(Acks::One),
        "all" | "-1" => Ok(Acks::All),
        _ => Err(format!("\"{text}\" is none of none, one, all")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn numbers_have_units() {
        assert_eq!((count("500k"), count("1_000")), (Ok(500_000), Ok(1_000)));
        assert_eq!(
            (size("5KiB"), size("128"), size("1m")),
            (Ok(5_120), Ok(128), Ok(1 << 20))
        );
        assert_eq!(
            (seconds("500ms"), seconds("2m"), seconds("3")),
            (Ok(0.5), Ok(120.0), Ok(3.0))
        );
        assert_eq!((rate("100k"), rate("2.5/s")), (Ok(100_000.0), Ok(2.5)));
    }

    #[test]
    fn choices_have_names() {
        assert_eq!(arrivals("burst:20"), Ok(ArrivalsArg::Burst(20)));
        assert_eq!(arrivals("ramp:0-5k"), Ok(ArrivalsArg::Ramp(0.0, 5_000.0)));
        assert_eq!(payload("file:a:b"), Ok(PayloadArg::File("a:b".into())));
        assert_eq!((acks("-1"), acks("none")), (Ok(Acks::All), Ok(Acks::None)));
        let (path, _) = PayloadArg::File("/there is none".into())
            .load()
            .unwrap_err();
        assert_eq!(path, Path::new("/there is none"));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let too_small = size("35").unwrap_err();
        assert!(too_small.contains("each carries 36 bytes"), "{too_small}");
        for wrong in ["", "-1", "x", "1e400", "99999999999999999999k", "k", "é"] {
            assert!(count(wrong).is_err(), "{wrong}");
            assert!(size(wrong).is_err(), "{wrong}");
            assert!(seconds(wrong).is_err(), "{wrong}");
            assert!(rate(wrong).is_err(), "{wrong}");
            assert!(arrivals(&format!("burst:{wrong}")).is_err(), "{wrong}");
            assert!(arrivals(&format!("ramp:1-{wrong}")).is_err(), "{wrong}");
        }
        assert!(count("0").is_err() && arrivals("burst:0").is_err() && payload("file:").is_err());
        assert!(size("2000MiB").unwrap_err().contains("too large"));
    }
}
