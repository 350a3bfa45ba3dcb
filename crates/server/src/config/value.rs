//! The types of options' values, and how each is written as text.
//!
//! A value is text in every source (flag, environment, file, default) when it is parsed here, so
//! that it means the same in each.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::config::check::duration;

/// The type of an option's value.
pub trait OptionValue: Sized {
    /// The name of the type in the documentation.
    const KIND: &'static str;
    /// Whether the option may be given several times.
    const LIST: bool = false;
    /// Whether the flag may be given without a value, which means true.
    const SWITCH: bool = false;

    /// Parses one text.
    ///
    /// # Errors
    /// A sentence that says which form is expected.
    fn parse(text: &str) -> Result<Self, String>;

    /// Parses all texts given for the option; types other than lists use only the last one.
    ///
    /// # Errors
    /// See [`OptionValue::parse`].
    fn parse_all(texts: &[String]) -> Result<Self, String> {
        Self::parse(texts.last().map_or("", String::as_str))
    }

    /// The value as a text that [`OptionValue::parse`] reads back.
    fn text(&self) -> String;

    /// Checks the value of an option that has no check of its own.
    ///
    /// # Errors
    /// A sentence that says why the value is not allowed.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

/// A value that is a number.
pub(crate) trait Amount {
    /// The number: sizes in bytes, times in milliseconds.
    fn amount(&self) -> u64;
}

/// The conversion of a value to the type of the broker's or a protocol's own options.
pub(crate) trait Setting<T> {
    /// The value; the target type's largest number if it does not fit.
    fn setting(&self) -> T;
}

macro_rules! numbers {
    ($($type:ty),+) => {$(
        impl<A: Amount> Setting<$type> for A {
            fn setting(&self) -> $type {
                <$type>::try_from(self.amount()).unwrap_or(<$type>::MAX)
            }
        }
    )+};
}
numbers!(u16, u32, i32, u64, usize);

impl<A: Amount> Setting<Option<u64>> for Option<A> {
    fn setting(&self) -> Option<u64> {
        self.as_ref().map(Amount::amount)
    }
}

impl Setting<bool> for bool {
    fn setting(&self) -> bool {
        *self
    }
}

impl Setting<Option<(String, u16)>> for Option<HostPort> {
    fn setting(&self) -> Option<(String, u16)> {
        self.as_ref().map(|it| (it.host.clone(), it.port))
    }
}

/// A number of bytes, written `1048576`, `1MiB`, `64KiB` or `2GiB` (powers of 1024 only).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

impl Amount for ByteSize {
    fn amount(&self) -> u64 {
        self.0
    }
}

/// Milliseconds, the unit of the broker's and the protocols' own options.
pub(crate) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

const SIZE_UNITS: [(&str, u64); 4] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

impl OptionValue for ByteSize {
    const KIND: &'static str = "size";

    fn parse(text: &str) -> Result<Self, String> {
        let split = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        let (digits, unit) = (&text[..split], text[split..].trim());
        let factor = match unit {
            "" => Some(1),
            unit => SIZE_UNITS
                .iter()
                .find(|(name, _)| *name == unit)
                .map(|(_, factor)| *factor),
        };
        digits
            .parse::<u64>()
            .ok()
            .zip(factor)
            .and_then(|(number, factor)| number.checked_mul(factor))
            .map(ByteSize)
            .ok_or_else(|| {
                format!("`{text}` is not a size: write bytes, or a number with KiB, MiB or GiB")
            })
    }

    fn text(&self) -> String {
        let whole = |factor: u64| self.0 > 0 && self.0.is_multiple_of(factor);
        match SIZE_UNITS
            .iter()
            .find(|(_, factor)| *factor > 1 && whole(*factor))
        {
            Some((unit, factor)) => format!("{}{unit}", self.0 / factor),
            None => self.0.to_string(),
        }
    }
}

/// Accepted in input only: durations are still printed in hours, as before days were accepted.
const DAYS: (&str, u64) = ("d", 86_400_000);

const TIME_UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

impl Amount for Duration {
    fn amount(&self) -> u64 {
        ms(*self)
    }
}

impl OptionValue for Duration {
    const KIND: &'static str = "duration";

    fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("`{text}` is not a duration: write a number with ms, s, m, h or d, or 1h30m")
        };
        let mut rest = text;
        let mut total_ms = 0u64;
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
            let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
            rest = &rest[digits..];
            let letters = rest
                .find(|c: char| c.is_ascii_digit())
                .unwrap_or(rest.len());
            let mut units = TIME_UNITS.iter().chain([&DAYS]);
            let unit = units.find(|(name, _)| *name == &rest[..letters]);
            let (_, factor) = unit.ok_or_else(wrong)?;
            let added = number
                .checked_mul(*factor)
                .and_then(|ms| total_ms.checked_add(ms));
            total_ms = added.ok_or_else(wrong)?;
            rest = &rest[letters..];
        }
        if text.is_empty() {
            Err(wrong())
        } else {
            Ok(Duration::from_millis(total_ms))
        }
    }

    fn text(&self) -> String {
        let ms = ms(*self);
        match TIME_UNITS
            .iter()
            .find(|(_, factor)| ms > 0 && ms.is_multiple_of(*factor))
        {
            Some((unit, factor)) => format!("{}{unit}", ms / factor),
            None => format!("{ms}ms"),
        }
    }

    fn check(&self) -> Result<(), String> {
        duration(self)
    }
}

impl OptionValue for bool {
    const KIND: &'static str = "true or false";
    const SWITCH: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        text.parse()
            .map_err(|_| format!("`{text}` is neither `true` nor `false`"))
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

macro_rules! whole_numbers {
    ($($type:ty),+) => {$(
        impl OptionValue for $type {
            const KIND: &'static str = "number";

            fn parse(text: &str) -> Result<Self, String> {
                text.parse().map_err(|_| {
                    format!("`{text}` is not a whole number from 0 to {}", <$type>::MAX)
                })
            }

            fn text(&self) -> String {
                self.to_string()
            }
        }

        impl Amount for $type {
            fn amount(&self) -> u64 {
                u64::from(*self)
            }
        }
    )+};
}
whole_numbers!(u16, u32, u64);

impl OptionValue for String {
    const KIND: &'static str = "text";

    fn parse(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }

    fn text(&self) -> String {
        self.clone()
    }
}

impl OptionValue for PathBuf {
    const KIND: &'static str = "path";

    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            Err("a path is needed".to_owned())
        } else {
            Ok(PathBuf::from(text))
        }
    }

    fn text(&self) -> String {
        self.display().to_string()
    }
}

/// A value that may be missing, which is written as an empty text.
impl<T: OptionValue> OptionValue for Option<T> {
    const KIND: &'static str = T::KIND;

    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "" => Ok(None),
            text => T::parse(text).map(Some),
        }
    }

    fn text(&self) -> String {
        self.as_ref().map(OptionValue::text).unwrap_or_default()
    }
}

impl OptionValue for Vec<String> {
    const KIND: &'static str = "list of texts";
    const LIST: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        Ok(text
            .split(',')
            .map(str::trim)
            .filter(|t| !t.is_empty())
            .map(str::to_owned)
            .collect())
    }

    fn parse_all(texts: &[String]) -> Result<Self, String> {
        Self::parse(&texts.join(","))
    }

    fn text(&self) -> String {
        self.join(",")
    }
}

/// An address to listen on: `host:port`; port 0 is any free port; an empty text is none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListenAddress(pub String);

impl ListenAddress {
    /// Whether nothing listens here.
    pub fn is_off(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl OptionValue for ListenAddress {
    const KIND: &'static str = "address";

    fn parse(text: &str) -> Result<Self, String> {
        let port = text.rsplit_once(':').and_then(|(host, port)| {
            let port = port.parse::<u16>().ok()?;
            Some(port).filter(|_| !host.is_empty())
        });
        if text.is_empty() || port.is_some() {
            Ok(ListenAddress(text.to_owned()))
        } else {
            Err(format!(
                "`{text}` is not an address: write host:port, e.g. 127.0.0.1:4150"
            ))
        }
    }

    fn text(&self) -> String {
        self.0.clone()
    }
}

/// An address that is announced to clients: `host:port`, an IPv6 host in brackets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    /// A name or an address; an IPv6 address without brackets.
    pub host: String,
    /// Never 0.
    pub port: u16,
}

impl OptionValue for HostPort {
    const KIND: &'static str = "address";

    fn parse(text: &str) -> Result<Self, String> {
        let parts = text.rsplit_once(':').and_then(|(host, port)| {
            let inner = host
                .strip_prefix('[')
                .and_then(|host| host.strip_suffix(']'));
            let host = match inner {
                Some(inner) => inner,
                None if host.contains(':') => return None,
                None => host,
            };
            let port = port.parse::<u16>().ok().filter(|port| *port > 0)?;
            (!host.is_empty()).then(|| HostPort {
                host: host.to_owned(),
                port,
            })
        });
        parts.ok_or_else(|| {
            format!("`{text}` is not an address that clients can use: write host:port")
        })
    }

    fn text(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

macro_rules! choices {
    (
        $(#[doc = $doc:literal])+
        $name:ident {
            $($(#[doc = $variant_doc:literal])+ $variant:ident = $text:literal,)+
        }
    ) => {
        $(#[doc = $doc])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[doc = $variant_doc])+ $variant,)+ }

        impl OptionValue for $name {
            const KIND: &'static str = choices!(@kind $($text)+);

            fn parse(text: &str) -> Result<Self, String> {
                match text {
                    $($text => Ok($name::$variant),)+
                    _ => Err(format!("`{text}` is not one of: {}", Self::KIND)),
                }
            }

            fn text(&self) -> String {
                self.to_string()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $($name::$variant => $text,)+ })
            }
        }
    };
    (@kind $first:literal $($text:literal)*) => { concat!($first $(, ", ", $text)*) };
}

choices! {
    /// How durable a message is before its producer is answered.
    DurabilityMode {
        /// Each protocol keeps its own promise: NSQ's answers wait for the kernel.
        Protocol = "protocol",
        /// Every answer waits for the disk.
        Disk = "disk",
        /// No answer waits for more than the kernel.
        Kernel = "kernel",
    }
}

choices! {
    /// nsqd's `--tls-client-auth-policy`.
    ClientAuthPolicy {
        /// No certificate is asked for.
        None = "none",
        /// A certificate is needed, whichever authority signed it.
        Require = "require",
        /// A certificate is needed that one of the root authorities signed.
        RequireVerify = "require-verify",
    }
}

choices! {
    /// nsqd's `--tls-required`.
    TlsRequired {
        /// Clients may use plain text.
        No = "false",
        /// TCP clients must use TLS; HTTP may use plain text.
        TcpOnly = "tcp-https",
        /// TCP clients must use TLS, and HTTP is answered on the HTTPS address only.
        Yes = "true",
    }
}

choices! {
    /// The lowest TLS version that is accepted. TLS 1.0 and 1.1 have been withdrawn (RFC 8996).
    TlsVersion {
        /// TLS 1.2 and later.
        Tls12 = "tls1.2",
        /// TLS 1.3 only.
        Tls13 = "tls1.3",
    }
}

choices! {
    /// The log lines to write.
    LogLevel {
        /// Errors only.
        Error = "error",
        /// Warnings and errors.
        Warn = "warn",
        /// Also events that an operator needs to know.
        Info = "info",
        /// Also details for debugging.
        Debug = "debug",
    }
}

choices! {
    /// The form of requests to the auth service.
    AuthMethod {
        /// GET with a query string.
        Get = "get",
        /// POST with a JSON body.
        Post = "post",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn sizes_are_written_with_units_of_1024() {
        let check = |text, bytes| assert_eq!(ByteSize::parse(text), Ok(ByteSize(bytes)), "{text}");
        check("0", 0);
        check("1048576", 1 << 20);
        check("64MiB", 64 << 20);
        check("64 MiB", 64 << 20);
        check("3KiB", 3072);
        check("2GiB", 2 << 30);
        for wrong in ["", "MiB", "64MB", "-1", "1.5GiB", "99999999999GiB", "64mib"] {
            assert!(
                ByteSize::parse(wrong).unwrap_err().contains("not a size"),
                "{wrong}"
            );
        }
        assert_eq!(ByteSize(64 << 20).text(), "64MiB");
        assert_eq!(ByteSize(1000).text(), "1000");
    }

    #[test]
    fn durations_are_written_with_units() {
        let check = |text, ms| {
            assert_eq!(
                Duration::parse(text),
                Ok(Duration::from_millis(ms)),
                "{text}"
            )
        };
        check("500ms", 500);
        check("60s", 60_000);
        check("15m", 900_000);
        check("1h30m", 5_400_000);
        check("7d12h", 648_000_000);
        check("0s", 0);
        for wrong in ["", "60", "s", "1w", "-1s", "1.5s", "99999999999999999h"] {
            assert!(
                Duration::parse(wrong)
                    .unwrap_err()
                    .contains("not a duration"),
                "{wrong}"
            );
        }
        assert_eq!(Duration::from_secs(60).text(), "1m");
        assert_eq!(Duration::from_millis(250).text(), "250ms");
    }

    #[test]
    fn addresses_need_a_port() {
        for right in ["127.0.0.1:0", "localhost:4150", "[::1]:4150", ""] {
            assert_eq!(ListenAddress::parse(right).unwrap().text(), right);
        }
        for wrong in ["localhost", ":4150", "1.2.3.4:x", "1.2.3.4:99999"] {
            assert!(ListenAddress::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn addresses_for_clients_are_complete() {
        for right in ["kafka.example.com:9092", "10.0.0.7:1", "[fe80::1]:9092", ""] {
            assert_eq!(Option::<HostPort>::parse(right).unwrap().text(), right);
        }
        for wrong in ["localhost", ":9092", "h:0", "fe80::1:9092", "[]:9092"] {
            assert!(Option::<HostPort>::parse(wrong).is_err(), "{wrong}");
        }
        let parsed = HostPort::parse("[fe80::1]:9092").unwrap();
        assert_eq!((&*parsed.host, parsed.port), ("fe80::1", 9092));
    }

    #[test]
    fn errors_list_the_choices() {
        assert_eq!(TlsRequired::parse("tcp-https"), Ok(TlsRequired::TcpOnly));
        let error = DurabilityMode::parse("disc").unwrap_err();
        assert_eq!(error, "`disc` is not one of: protocol, disk, kernel");
    }

    #[test]
    fn lists_come_from_commas_and_from_repetition() {
        let texts = ["a:1,b:2".to_owned(), " c:3 ".to_owned()];
        assert_eq!(
            Vec::<String>::parse_all(&texts).unwrap(),
            ["a:1", "b:2", "c:3"]
        );
        assert!(Vec::<String>::parse("").unwrap().is_empty());
    }
}
