//! IDENTIFY: the client's description of itself, the settings that it asks for, and those that it
//! gets.

use std::fmt;

use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::error::{Code, ProtocolError};
use crate::options::{COMPATIBLE_VERSION, IDENTIFY_TEXT_BYTES_MAX, SessionOptions};

/// The body of IDENTIFY as Go reads it: a missing or null field is zero, unknown ones are ignored,
/// names match in any case, and the last of several values counts. Texts are cut off at
/// [`IDENTIFY_TEXT_BYTES_MAX`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identify {
    /// The name the client gives itself.
    pub client_id: String,
    /// The client's host.
    pub hostname: String,
    /// `client_id` as old clients send it.
    pub short_id: String,
    /// `hostname` as old clients send it.
    pub long_id: String,
    /// Library and version, such as `go-nsq/1.1.0`.
    pub user_agent: String,
    /// The client's zone, shown in the statistics.
    pub topology_zone: String,
    /// The client's region, shown in the statistics.
    pub topology_region: String,
    /// Heartbeat interval in ms; -1 for none, 0 for the default.
    pub heartbeat_interval: i64,
    /// Output buffer in bytes; -1 for none, 0 for the default.
    pub output_buffer_size: i64,
    /// How long output may be buffered, in ms; -1 for no buffering, 0 for the default.
    pub output_buffer_timeout: i64,
    /// Whether the client wants the JSON answer in place of OK.
    pub feature_negotiation: bool,
    /// Whether the client wants TLS.
    pub tls_v1: bool,
    /// Whether the client wants Deflate.
    pub deflate: bool,
    /// Deflate level; 0 for the default.
    pub deflate_level: i64,
    /// Whether the client wants Snappy.
    pub snappy: bool,
    /// Which share of the messages the client wants, in percent; 0 for all.
    pub sample_rate: i32,
    /// How long the client may hold a message, in ms; 0 for the default.
    pub msg_timeout: i64,
}

impl Identify {
    /// Reads the body.
    pub fn parse(body: &[u8]) -> Result<Identify, ProtocolError> {
        // Go puts the replacement character where the bytes are no UTF-8.
        let body = String::from_utf8_lossy(body);
        let parsed: Result<Option<Identify>, _> = serde_json::from_str(&body);
        let mut identify = parsed
            .map_err(|_| bad_body("failed to decode JSON body".into()))?
            .unwrap_or_default();
        if identify.client_id.is_empty() {
            identify.client_id = std::mem::take(&mut identify.short_id);
        }
        if identify.hostname.is_empty() {
            identify.hostname = std::mem::take(&mut identify.long_id);
        }
        Ok(identify)
    }
}

impl<'de> Deserialize<'de> for Identify {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Identify, D::Error> {
        deserializer.deserialize_map(Fields)
    }
}

/// Takes the fields of an object one by one.
struct Fields;

impl<'de> Visitor<'de> for Fields {
    type Value = Identify;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Identify, A::Error> {
        let mut identify = Identify::default();
        let it = &mut identify;
        while let Some(mut name) = map.next_key::<String>()? {
            name.make_ascii_lowercase();
            match name.as_str() {
                "client_id" => set_text(&mut map, &mut it.client_id)?,
                "hostname" => set_text(&mut map, &mut it.hostname)?,
                "short_id" => set_text(&mut map, &mut it.short_id)?,
                "long_id" => set_text(&mut map, &mut it.long_id)?,
                "user_agent" => set_text(&mut map, &mut it.user_agent)?,
                "topology_zone" => set_text(&mut map, &mut it.topology_zone)?,
                "topology_region" => set_text(&mut map, &mut it.topology_region)?,
                "heartbeat_interval" => set(&mut map, &mut it.heartbeat_interval)?,
                "output_buffer_size" => set(&mut map, &mut it.output_buffer_size)?,
                "output_buffer_timeout" => set(&mut map, &mut it.output_buffer_timeout)?,
                "feature_negotiation" => set(&mut map, &mut it.feature_negotiation)?,
                "tls_v1" => set(&mut map, &mut it.tls_v1)?,
                "deflate" => set(&mut map, &mut it.deflate)?,
                "deflate_level" => set(&mut map, &mut it.deflate_level)?,
                "snappy" => set(&mut map, &mut it.snappy)?,
                "sample_rate" => set(&mut map, &mut it.sample_rate)?,
                "msg_timeout" => set(&mut map, &mut it.msg_timeout)?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(identify)
    }
}

/// Takes a value; null leaves the field as it is.
fn set<'de, A, T>(map: &mut A, field: &mut T) -> Result<(), A::Error>
where
    A: MapAccess<'de>,
    T: Deserialize<'de>,
{
    if let Some(value) = map.next_value()? {
        *field = value;
    }
    Ok(())
}

/// Takes a text of bounded length.
fn set_text<'de, A: MapAccess<'de>>(map: &mut A, field: &mut String) -> Result<(), A::Error> {
    set(map, field)?;
    field.truncate(field.floor_char_boundary(IDENTIFY_TEXT_BYTES_MAX));
    field.shrink_to_fit();
    Ok(())
}

/// How a connection is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Snappy's framing format.
    Snappy,
    /// Raw Deflate of this level, 0 to 9.
    Deflate(u32),
}

/// The settings that a session works with, before and after IDENTIFY.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// How often a heartbeat is sent, in ms; `None` for never.
    pub heartbeat_interval_ms: Option<u64>,
    /// Output buffer in bytes.
    pub output_buffer_bytes: u32,
    /// How long output may be buffered, in ms; 0 for no buffering.
    pub output_buffer_timeout_ms: u64,
    /// Which share of the messages is delivered, in percent; 0 for all.
    pub sample_rate: u8,
    /// How long the client may hold a message, in ms.
    pub msg_timeout_ms: u64,
    /// Whether TLS comes next.
    pub tls: bool,
    /// Which compression comes next, after TLS.
    pub compression: Option<Compression>,
}

impl Negotiated {
    /// The settings of a client that asks for none.
    pub fn default_of(options: &SessionOptions) -> Negotiated {
        Negotiated {
            heartbeat_interval_ms: Some(default_heartbeat_interval_ms(options)),
            output_buffer_bytes: options.output_buffer_bytes,
            output_buffer_timeout_ms: options.output_buffer_timeout_ms,
            sample_rate: 0,
            msg_timeout_ms: options.msg_timeout_ms,
            tls: false,
            compression: None,
        }
    }

    /// The settings of a client that asks for these.
    pub fn of(identify: &Identify, options: &SessionOptions) -> Result<Negotiated, ProtocolError> {
        let mut negotiated = Negotiated::default_of(options);
        negotiated.heartbeat_interval_ms = heartbeat_interval_ms(identify, options)?;
        match identify.output_buffer_timeout {
            -1 => negotiated.output_buffer_timeout_ms = 0,
            0 => {}
            asked => {
                let range =
                    options.output_buffer_timeout_ms_min..=options.output_buffer_timeout_ms_max;
                negotiated.output_buffer_timeout_ms =
                    within(asked, range).ok_or_else(|| invalid("output buffer timeout", asked))?;
            }
        }
        match identify.output_buffer_size {
            -1 => {
                negotiated.output_buffer_bytes = 1;
                negotiated.output_buffer_timeout_ms = 0;
            }
            0 => {}
            asked => {
                let range = 64..=u64::from(options.output_buffer_bytes_max);
                let bytes = within(asked, range).and_then(|bytes| u32::try_from(bytes).ok());
                negotiated.output_buffer_bytes =
                    bytes.ok_or_else(|| invalid("output buffer size", asked))?;
            }
        }
        negotiated.sample_rate = match identify.sample_rate {
            asked @ 0..=99 => asked as u8,
            asked => return Err(invalid("sample rate", asked.into())),
        };
        if identify.msg_timeout != 0 {
            let range = 1000..=options.msg_timeout_ms_max;
            negotiated.msg_timeout_ms = within(identify.msg_timeout, range)
                .ok_or_else(|| invalid("msg timeout", identify.msg_timeout))?;
        }
        if identify.feature_negotiation {
            negotiated.tls = options.tls && identify.tls_v1;
            negotiated.compression = compression(identify, options)?;
        }
        Ok(negotiated)
    }

    /// The JSON answer to a client that negotiates features.
    pub fn answer(&self, identify: &Identify, options: &SessionOptions) -> Vec<u8> {
        let answer = Answer {
            max_rdy_count: options.rdy_count_max,
            version: COMPATIBLE_VERSION,
            max_msg_timeout: options.msg_timeout_ms_max,
            msg_timeout: self.msg_timeout_ms,
            tls_v1: self.tls,
            deflate: matches!(self.compression, Some(Compression::Deflate(_))),
            deflate_level: deflate_level(identify, options),
            max_deflate_level: options.deflate_level_max,
            snappy: self.compression == Some(Compression::Snappy),
            sample_rate: self.sample_rate,
            auth_required: options.auth_required,
            output_buffer_size: self.output_buffer_bytes,
            output_buffer_timeout: self.output_buffer_timeout_ms,
        };
        // A struct of numbers, truths and one plain text always has a JSON form.
        serde_json::to_vec(&answer).unwrap_or_default()
    }
}

/// The answer's fields, with nsqd's names and order.
#[derive(Serialize)]
struct Answer {
    max_rdy_count: u32,
    version: &'static str,
    max_msg_timeout: u64,
    msg_timeout: u64,
    tls_v1: bool,
    deflate: bool,
    deflate_level: u32,
    max_deflate_level: u32,
    snappy: bool,
    sample_rate: u8,
    auth_required: bool,
    output_buffer_size: u32,
    output_buffer_timeout: u64,
}

fn default_heartbeat_interval_ms(options: &SessionOptions) -> u64 {
    // Never 0: a heartbeat would be due at all times.
    (options.client_timeout_ms / 2).max(1)
}

fn heartbeat_interval_ms(
    identify: &Identify,
    options: &SessionOptions,
) -> Result<Option<u64>, ProtocolError> {
    match identify.heartbeat_interval {
        -1 => Ok(None),
        0 => Ok(Some(default_heartbeat_interval_ms(options))),
        asked => within(asked, 1000..=options.heartbeat_interval_ms_max)
            .map(Some)
            .ok_or_else(|| invalid("heartbeat interval", asked)),
    }
}

fn compression(
    identify: &Identify,
    options: &SessionOptions,
) -> Result<Option<Compression>, ProtocolError> {
    let deflate = options.deflate && identify.deflate;
    let snappy = options.snappy && identify.snappy;
    match (deflate, snappy) {
        (true, true) => Err(ProtocolError::new(
            Code::IdentifyFailed,
            "cannot enable both deflate and snappy compression",
        )),
        (true, false) => {
            let level = deflate_level(identify, options);
            Ok(Some(Compression::Deflate(level)))
        }
        (false, true) => Ok(Some(Compression::Snappy)),
        (false, false) => Ok(None),
    }
}

/// The level that a client gets; nsqd names one even if Deflate is not used.
fn deflate_level(identify: &Identify, options: &SessionOptions) -> u32 {
    const DEFAULT: u32 = 6;
    let used = options.deflate && identify.deflate;
    let asked = u32::try_from(identify.deflate_level).unwrap_or(0);
    let level = if used && asked > 0 { asked } else { DEFAULT };
    level.min(options.deflate_level_max)
}

fn within(asked: i64, range: std::ops::RangeInclusive<u64>) -> Option<u64> {
    u64::try_from(asked)
        .ok()
        .filter(|asked| range.contains(asked))
}

fn invalid(what: &str, asked: i64) -> ProtocolError {
    bad_body(format!("{what} ({asked}) is invalid"))
}

fn bad_body(text: String) -> ProtocolError {
    ProtocolError::new(Code::BadBody, format!("IDENTIFY {text}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    fn options() -> SessionOptions {
        SessionOptions {
            heartbeat_interval_ms_max: 300_000,
            output_buffer_bytes_max: 512 * 1024,
            output_buffer_timeout_ms_max: 1000,
            ..SessionOptions::default()
        }
    }

    fn negotiate(json: &str) -> Result<Negotiated, String> {
        Identify::parse(json.as_bytes())
            .and_then(|identify| Negotiated::of(&identify, &options()))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn settings_that_are_not_asked_for_have_defaults() {
        let expect = Negotiated::default_of(&options());
        assert_eq!(expect.heartbeat_interval_ms, Some(30_000));
        for json in [
            "{}",
            "null",
            r#"{"heartbeat_interval":0,"msg_timeout":null,"unknown":[1,{"a":2}]}"#,
            // Without negotiation of features nothing is upgraded.
            r#"{"tls_v1":true,"snappy":true,"deflate":true}"#,
        ] {
            assert_eq!(negotiate(json), Ok(expect.clone()), "{json}");
        }
    }

    #[test]
    fn errors_have_nsqds_texts() {
        let timeout = r#"{"output_buffer_size":0,"output_buffer_timeout":1001}"#;
        for (json, expect) in [
            (
                r#"{"heartbeat_interval":300001}"#,
                "heartbeat interval (300001) is invalid",
            ),
            (
                r#"{"heartbeat_interval":999}"#,
                "heartbeat interval (999) is invalid",
            ),
            (
                r#"{"heartbeat_interval":-2}"#,
                "heartbeat interval (-2) is invalid",
            ),
            (
                r#"{"output_buffer_size":524289}"#,
                "output buffer size (524289) is invalid",
            ),
            (timeout, "output buffer timeout (1001) is invalid"),
            (r#"{"sample_rate":100}"#, "sample rate (100) is invalid"),
            (
                r#"{"msg_timeout":900001}"#,
                "msg timeout (900001) is invalid",
            ),
            (
                r#"{"heartbeat_interval":"30s"}"#,
                "failed to decode JSON body",
            ),
            ("nonsense", "failed to decode JSON body"),
            ("[]", "failed to decode JSON body"),
        ] {
            let expect = Err(format!("E_BAD_BODY IDENTIFY {expect}"));
            assert_eq!(negotiate(json), expect, "{json}");
        }
        let both = r#"{"feature_negotiation":true,"snappy":true,"deflate":true}"#;
        let expect = "E_IDENTIFY_FAILED cannot enable both deflate and snappy compression";
        assert_eq!(negotiate(both), Err(expect.into()));
    }

    #[test]
    fn settings_that_are_asked_for_are_granted() {
        let json = r#"{"feature_negotiation":true,"deflate":true,"deflate_level":9,
            "heartbeat_interval":-1,"output_buffer_size":-1,"sample_rate":42,
            "msg_timeout":1000,"tls_v1":true}"#;
        let negotiated = negotiate(json).unwrap();
        assert_eq!(negotiated.heartbeat_interval_ms, None);
        assert_eq!(negotiated.output_buffer_bytes, 1);
        assert_eq!(negotiated.output_buffer_timeout_ms, 0);
        assert_eq!(negotiated.sample_rate, 42);
        assert_eq!(negotiated.msg_timeout_ms, 1000);
        assert_eq!(negotiated.compression, Some(Compression::Deflate(6)));
        assert!(!negotiated.tls, "no certificate is configured");
    }

    #[test]
    fn the_answer_is_nsqds() {
        let identify = Identify::parse(br#"{"feature_negotiation":true,"snappy":true}"#).unwrap();
        let options = SessionOptions::default();
        let negotiated = Negotiated::of(&identify, &options).unwrap();
        assert_eq!(
            String::from_utf8(negotiated.answer(&identify, &options)).unwrap(),
            "{\"max_rdy_count\":2500,\"version\":\"1.3.0\",\"max_msg_timeout\":900000,\
             \"msg_timeout\":60000,\"tls_v1\":false,\"deflate\":false,\"deflate_level\":6,\
             \"max_deflate_level\":6,\"snappy\":true,\"sample_rate\":0,\"auth_required\":false,\
             \"output_buffer_size\":16384,\"output_buffer_timeout\":250}"
        );
    }

    #[test]
    fn json_is_read_as_go_reads_it() {
        let body = b"{\"Client_ID\":\"a\",\"client_id\":\"b\xff\",\"SNAPPY\":true,
            \"snappy\":null,\"msg_timeout\":1,\"MSG_TIMEOUT\":2}";
        let identify = Identify::parse(body).unwrap();
        assert_eq!(identify.client_id, "b\u{fffd}");
        assert!(identify.snappy);
        assert_eq!(identify.msg_timeout, 2);
    }

    #[test]
    fn texts_are_cut_off_between_characters() {
        let long = format!("x{}", "ä".repeat(1_000_000));
        let json = serde_json::json!({"client_id": long, "long_id": long, "user_agent": long});
        let identify = Identify::parse(json.to_string().as_bytes()).unwrap();
        for text in [
            &identify.client_id,
            &identify.hostname,
            &identify.user_agent,
        ] {
            assert_eq!(text.len(), IDENTIFY_TEXT_BYTES_MAX - 1);
            assert!(text.capacity() <= IDENTIFY_TEXT_BYTES_MAX);
        }
    }

    #[test]
    fn old_names_are_understood() {
        let identify = Identify::parse(br#"{"short_id":"a","long_id":"a.b","hostname":"c"}"#);
        let identify = identify.unwrap();
        assert_eq!((&*identify.client_id, &*identify.hostname), ("a", "c"));
    }
}
