//! The options that can be read, and the two that can be changed, through `/config/`.
//!
//! nsqd allows `nsqlookupd_tcp_addresses` and `log_level` to be set while it runs. Their values are
//! kept here, and watchers are notified of changes. A change lasts until the process ends: the
//! configuration file is not rewritten.

use std::fmt;

use parking_lot::{Mutex, RwLock};
use serde_json::Value;

use crate::http::{HttpError, Response};

/// Maximum number of nsqlookupd addresses: the broker keeps a connection to each.
pub const LOOKUPD_ADDRESSES_MAX: usize = 64;

/// nsqd's log levels, with its numbers, which `GET /config/log_level` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum LogLevel {
    /// Everything.
    Debug = 1,
    /// The default.
    Info = 2,
    /// Warnings and errors.
    Warn = 3,
    /// Only errors.
    Error = 4,
    /// Only errors that end the process.
    Fatal = 5,
}

impl LogLevel {
    /// The level of this name, in any case; `None` if there is no such level.
    pub fn parse(name: &str) -> Option<LogLevel> {
        match name.to_lowercase().as_str() {
            "debug" => Some(LogLevel::Debug),
            "info" => Some(LogLevel::Info),
            "warn" => Some(LogLevel::Warn),
            "error" => Some(LogLevel::Error),
            "fatal" => Some(LogLevel::Fatal),
            _ => None,
        }
    }
}

/// The values of the options that can be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeValues {
    /// TCP addresses, `host:port`, of the nsqlookupd processes to register with.
    pub lookupd_tcp_addresses: Vec<String>,
    /// The log level.
    pub log_level: LogLevel,
}

type Watcher = Box<dyn Fn(&RuntimeValues) + Send + Sync>;

/// The options that can be changed, and the watchers of changes.
pub struct RuntimeOptions {
    values: RwLock<RuntimeValues>,
    watchers: Mutex<Vec<Watcher>>,
}

impl fmt::Debug for RuntimeOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuntimeOptions")
            .field("values", &self.values)
            .finish_non_exhaustive()
    }
}

impl RuntimeOptions {
    /// The values as configured at start.
    pub fn new(lookupd_tcp_addresses: Vec<String>, log_level: LogLevel) -> RuntimeOptions {
        RuntimeOptions {
            values: RwLock::new(RuntimeValues {
                lookupd_tcp_addresses,
                log_level,
            }),
            watchers: Mutex::new(Vec::new()),
        }
    }

    /// The values as of now.
    pub fn values(&self) -> RuntimeValues {
        self.values.read().clone()
    }

    /// Calls `watcher` after every change, on the thread that made it. It must not block, and must
    /// not change options itself.
    pub fn on_change(&self, watcher: impl Fn(&RuntimeValues) + Send + Sync + 'static) {
        self.watchers.lock().push(Box::new(watcher));
    }

    fn change(&self, change: impl FnOnce(&mut RuntimeValues)) {
        let values = {
            let mut values = self.values.write();
            change(&mut values);
            values.clone()
        };
        for watcher in self.watchers.lock().iter() {
            watcher(&values);
        }
    }

    /// `PUT /config/<name>` with this body.
    ///
    /// # Errors
    /// [`HttpError::InvalidOption`] if no option of this name can be changed,
    /// [`HttpError::InvalidValue`] if the body is no valid value, and [`HttpError::ValueTooBig`] if
    /// it is empty: nsqd uses the same error for both.
    pub fn write(&self, name: &str, body: &[u8]) -> Result<(), HttpError> {
        if body.is_empty() {
            return Err(HttpError::ValueTooBig);
        }
        match name {
            "nsqlookupd_tcp_addresses" => {
                // Go decodes `null` as an empty list.
                let addresses: Option<Vec<String>> =
                    serde_json::from_slice(body).map_err(|_| HttpError::InvalidValue)?;
                let addresses = addresses.unwrap_or_default();
                if addresses.len() > LOOKUPD_ADDRESSES_MAX {
                    return Err(HttpError::InvalidValue);
                }
                self.change(|values| values.lookupd_tcp_addresses = addresses);
            }
            "log_level" => {
                let name = std::str::from_utf8(body).map_err(|_| HttpError::InvalidValue)?;
                let level = LogLevel::parse(name).ok_or(HttpError::InvalidValue)?;
                self.change(|values| values.log_level = level);
            }
            _ => return Err(HttpError::InvalidOption),
        }
        Ok(())
    }

    /// `GET /config/<name>`: text as it is, everything else as JSON, as nsqd shows it. `fixed` are
    /// the options that do not change, under nsqd's names.
    ///
    /// # Errors
    /// [`HttpError::InvalidOption`] if there is no such option.
    pub fn read(&self, name: &str, fixed: &[(&str, Value)]) -> Result<Response, HttpError> {
        let values = self.values.read();
        match name {
            "nsqlookupd_tcp_addresses" => Ok(Response::json(&values.lookupd_tcp_addresses)),
            "log_level" => Ok(Response::json(&(values.log_level as u8))),
            _ => match fixed.iter().find(|(known, _)| *known == name) {
                Some((_, Value::String(text))) => Ok(Response::text(text.clone())),
                Some((_, value)) => Ok(Response::json(value)),
                None => Err(HttpError::InvalidOption),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use std::sync::Arc;

    use super::*;

    fn read(options: &RuntimeOptions, name: &str) -> String {
        let fixed = [
            ("max_msg_size", Value::from(1_048_576)),
            ("broadcast_address", "b".into()),
        ];
        let response = options.read(name, &fixed).unwrap();
        String::from_utf8(response.body.to_vec()).unwrap()
    }

    #[test]
    fn lookupd_addresses_are_a_json_list() {
        let options = RuntimeOptions::new(Vec::new(), LogLevel::Info);
        assert_eq!(read(&options, "nsqlookupd_tcp_addresses"), "[]");
        options
            .write("nsqlookupd_tcp_addresses", br#"["a:4160","b:4160"]"#)
            .unwrap();
        assert_eq!(
            read(&options, "nsqlookupd_tcp_addresses"),
            r#"["a:4160","b:4160"]"#
        );
        options.write("nsqlookupd_tcp_addresses", b"null").unwrap();
        assert_eq!(read(&options, "nsqlookupd_tcp_addresses"), "[]");
        for bad in [&b"a:4160"[..], b"[1]", b"{}", b"["] {
            let result = options.write("nsqlookupd_tcp_addresses", bad);
            assert_eq!(result, Err(HttpError::InvalidValue));
        }
        let many = serde_json::to_vec(&vec!["a:1"; LOOKUPD_ADDRESSES_MAX + 1]).unwrap();
        let result = options.write("nsqlookupd_tcp_addresses", &many);
        assert_eq!(result, Err(HttpError::InvalidValue));
    }

    #[test]
    fn the_log_level_is_shown_as_nsqds_number() {
        let options = RuntimeOptions::new(Vec::new(), LogLevel::Info);
        assert_eq!(read(&options, "log_level"), "2");
        options.write("log_level", b"FATAL").unwrap();
        assert_eq!(read(&options, "log_level"), "5");
        assert_eq!(
            options.write("log_level", b"bad"),
            Err(HttpError::InvalidValue)
        );
        assert_eq!(
            options.write("log_level", b"\xff"),
            Err(HttpError::InvalidValue)
        );
        assert_eq!(options.write("log_level", b""), Err(HttpError::ValueTooBig));
    }

    #[test]
    fn other_options_can_be_read_only() {
        let options = RuntimeOptions::new(Vec::new(), LogLevel::Info);
        assert_eq!(read(&options, "max_msg_size"), "1048576");
        assert_eq!(read(&options, "broadcast_address"), "b");
        assert_eq!(
            options.write("max_msg_size", b"1"),
            Err(HttpError::InvalidOption)
        );
        assert_eq!(options.read("nothing", &[]), Err(HttpError::InvalidOption));
    }

    #[test]
    fn watchers_hear_of_each_change() {
        let options = RuntimeOptions::new(Vec::new(), LogLevel::Info);
        let heard = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&heard);
        options.on_change(move |values| sink.lock().push(values.log_level));
        options.write("log_level", b"debug").unwrap();
        options.write("log_level", b"nonsense").unwrap_err();
        options.write("log_level", b"warn").unwrap();
        assert_eq!(*heard.lock(), [LogLevel::Debug, LogLevel::Warn]);
    }
}
