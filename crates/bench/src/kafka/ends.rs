//! The end of a client of librdkafka: whether it has come.
//!
//! The library itself goes on for ever: it connects again, and tells on its way what goes wrong. A
//! measurement is over when it has nobody to speak to any more. That one broker of several goes
//! away is not the end: what waits for it is sent to the next one.

use rdkafka::types::RDKafkaErrorCode;

use crate::driver::DriverError;
use crate::url::Url;

use super::native::Trouble;

/// The errors that a client has reported.
#[derive(Debug, Default)]
pub(super) struct Ends {
    /// The last thing that went wrong with one broker.
    last: Option<String>,
    end: Option<Trouble>,
}

impl Ends {
    /// Something went wrong.
    pub(super) fn hear(&mut self, trouble: Trouble) {
        use RDKafkaErrorCode as Code;
        let is_it = matches!(trouble.code, Code::AllBrokersDown | Code::Authentication);
        if is_it || trouble.is_fatal {
            self.end.get_or_insert(trouble);
        } else {
            self.last = Some(trouble.text);
        }
    }

    /// Whether it is the end.
    ///
    /// # Errors
    /// It is.
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
