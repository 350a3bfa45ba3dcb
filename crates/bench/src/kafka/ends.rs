//! Decides when a client of librdkafka has lost its brokers.
//!
//! The library reconnects forever, and reports errors meanwhile. A measurement ends when no broker
//! is left. If one of several brokers fails, the measurement goes on with the others.

use rdkafka::types::RDKafkaErrorCode;

use crate::driver::DriverError;
use crate::url::Url;

use super::native::Trouble;

/// The errors that a client has reported.
#[derive(Debug, Default)]
pub(super) struct Ends {
    /// The text of the last error that concerned one broker only.
    last: Option<String>,
    end: Option<Trouble>,
}

impl Ends {
    /// Records an error.
    pub(super) fn hear(&mut self, trouble: Trouble) {
        use RDKafkaErrorCode as Code;
        let is_it = matches!(trouble.code, Code::AllBrokersDown | Code::Authentication);
        if is_it || trouble.is_fatal {
            self.end.get_or_insert(trouble);
        } else {
            self.last = Some(trouble.text);
        }
    }

    /// Checks that the client can go on.
    ///
    /// # Errors
    /// All brokers are down, the login was refused, or the library reported a fatal error.
    pub(super) fn check(&self, url: &Url) -> Result<(), DriverError> {
        let Some(end) = &self.end else {
            return Ok(());
        };
        if end.code == RDKafkaErrorCode::Authentication {
            return Err(url.refused(&end.text));
        }
        Err(url.gone(match &self.last {
            Some(last) => format!("{last}; {}", end.text),
            None => end.text.clone(),
        }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn trouble(code: RDKafkaErrorCode, text: &str) -> Trouble {
        Trouble {
            code,
            text: text.to_owned(),
            is_fatal: false,
        }
    }

    #[test]
    fn one_broker_of_several_is_not_the_end() {
        let url = "kafka://a".parse().unwrap();
        let mut ends = Ends::default();
        ends.hear(trouble(
            RDKafkaErrorCode::BrokerTransportFailure,
            "a: Connection refused",
        ));
        ends.check(&url).unwrap();
        ends.hear(trouble(
            RDKafkaErrorCode::AllBrokersDown,
            "1/1 brokers are down",
        ));
        assert_eq!(
            ends.check(&url).unwrap_err().to_string(),
            "kafka://a:9092 went away: a: Connection refused; 1/1 brokers are down"
        );
    }
}
