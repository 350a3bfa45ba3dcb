//! A broker in this process, which is started where no other is named.

use std::any::Any;
use std::collections::BTreeMap;
use std::net::SocketAddr;

use cloverleaf_telemetry::Protocol;

use super::BenchError;
use crate::url::Url;

/// A broker in this process.
pub struct EmbeddedBroker {
    /// Where it speaks which protocol.
    pub doors: BTreeMap<Protocol, EmbeddedDoor>,
    /// A sentence that belongs to its figures.
    pub remark: Option<String>,
    /// Ends it when dropped.
    pub guard: Box<dyn Any + Send>,
}

/// Where a broker in this process speaks a protocol.
#[derive(Debug, Clone, Copy)]
pub struct EmbeddedDoor {
    /// The protocol itself.
    pub address: SocketAddr,
    /// The address for requests over HTTP, where its clients make some.
    pub http: Option<SocketAddr>,
}

/// Starts a broker in this process, or says why it cannot.
pub type Embed<'e> = dyn Fn(&EmbedOptions) -> Result<EmbeddedBroker, String> + Sync + 'e;

/// How a broker in this process is started: by the options of a URL such as
/// `embedded:nsq?durability=disk&quick-ack=false`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbedOptions {
    /// `protocol`, `kernel` or `disk`; `None`: as the broker has it.
    pub durability: Option<String>,
    /// The broker's option of this name.
    pub quick_ack: bool,
}

/// The option of a URL that only an embedded broker has.
pub(super) const QUICK_ACK: &str = "quick-ack";

impl EmbedOptions {
    /// The options that a URL names.
    pub(super) fn of(url: &Url) -> Result<EmbedOptions, BenchError> {
        let durability = url.option("durability");
        check_mode(durability)?;
        let quick_ack = match url.option(QUICK_ACK) {
            None | Some("true") => true,
            Some("false") => false,
            Some(other) => {
                let text = format!("?{QUICK_ACK}={other} is neither true nor false");
                return Err(BenchError::Settings(text));
            }
        };
        Ok(EmbedOptions {
            durability: durability.map(str::to_owned),
            quick_ack,
        })
    }
}

fn check_mode(mode: Option<&str>) -> Result<(), BenchError> {
    match mode {
        None | Some("protocol" | "kernel" | "disk") => Ok(()),
        Some(mode) => {
            let text = format!("?durability={mode} is none of protocol, kernel, disk");
            Err(BenchError::Settings(text))
        }
    }
}
