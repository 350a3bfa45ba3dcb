//! Commands from bytes. No I/O, no clock, no allocation except for an error's text.
//!
//! A connection starts with the four bytes `"  V2"`. Then commands follow, each a line, some with
//! a body (numbers are signed 32 bit, big endian):
//!
//! ```text
//! IDENTIFY\n                  | size | JSON |
//! AUTH\n                      | size | secret |
//! SUB <topic> <channel>\n
//! PUB <topic>\n               | size | body |
//! MPUB <topic>\n              | size | count | size | body | size | body | ...
//! DPUB <topic> <delay ms>\n   | size | body |
//! RDY <count>\n   FIN <id>\n   REQ <id> <delay ms>\n   TOUCH <id>\n   CLS\n   NOP\n
//! ```
//!
//! Every size is checked against its limit as soon as its four bytes are there. So no input is
//! buffered for a body that will be refused, and no memory is allocated for a size that was only
//! announced. Source: nsq.io/clients/tcp_protocol_spec.html and nsqd 1.3, whose error texts these
//! are.

use crate::error::{Code, ProtocolError};
use crate::message_id::ID_BYTES;
use crate::names::{quoted, valid_name};
use crate::options::{AUTH_SECRET_BYTES_MAX, LINE_BYTES_MAX, SessionOptions};

/// The first four bytes of every connection.
pub const MAGIC: &[u8; 4] = b"  V2";

/// Bytes of a size or a count.
const SIZE_BYTES: usize = 4;

/// One command, borrowed from the read buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// The client's description of itself and of the features it wants: JSON.
    Identify(&'a [u8]),
    /// The secret to show to the auth service.
    Auth(&'a [u8]),
    /// Become a consumer.
    Sub {
        /// A valid topic name.
        topic: &'a str,
        /// A valid channel name.
        channel: &'a str,
    },
    /// Publish one message.
    Pub {
        /// A valid topic name.
        topic: &'a str,
        /// The message, neither empty nor too big.
        body: &'a [u8],
    },
    /// Publish several messages, all or none.
    Mpub {
        /// A valid topic name.
        topic: &'a str,
        /// The messages.
        messages: Messages<'a>,
    },
    /// Publish one message for later.
    Dpub {
        /// A valid topic name.
        topic: &'a str,
        /// Delay in ms, at most `req_timeout_ms_max`.
        delay_ms: u64,
        /// The message, neither empty nor too big.
        body: &'a [u8],
    },
    /// How many messages the client accepts in flight. The session parses the count, not the codec:
    /// after CLS it ignores RDY, whatever the count.
    Rdy(Option<&'a [u8]>),
    /// A message was processed.
    Fin(&'a [u8; ID_BYTES]),
    /// A message could not be processed: deliver it again after this many ms, at most
    /// `req_timeout_ms_max`.
    Req(&'a [u8; ID_BYTES], u64),
    /// A message takes longer: its timeout starts again.
    Touch(&'a [u8; ID_BYTES]),
    /// Close the subscription: no further messages.
    Cls,
    /// No operation: the answer to a heartbeat.
    Nop,
}

impl Command<'_> {
    /// The command's word.
    pub fn name(&self) -> &'static str {
        match self {
            Command::Identify(_) => "IDENTIFY",
            Command::Auth(_) => "AUTH",
            Command::Sub { .. } => "SUB",
            Command::Pub { .. } => "PUB",
            Command::Mpub { .. } => "MPUB",
            Command::Dpub { .. } => "DPUB",
            Command::Rdy(_) => "RDY",
            Command::Fin(_) => "FIN",
            Command::Req(..) => "REQ",
            Command::Touch(_) => "TOUCH",
            Command::Cls => "CLS",
            Command::Nop => "NOP",
        }
    }
}

/// The messages of an MPUB, whose sizes have been checked. Iterates over the bodies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Messages<'a> {
    count: u32,
    rest: &'a [u8],
}

impl Messages<'_> {
    /// How many messages are left.
    pub fn left(&self) -> u32 {
        self.count
    }

    /// Bytes of the messages left, including their size prefixes.
    pub fn bytes(&self) -> usize {
        self.rest.len()
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let (size, rest) = self.rest.split_first_chunk::<SIZE_BYTES>()?;
        let (body, rest) = rest.split_at_checked(u32::from_be_bytes(*size) as usize)?;
        self.rest = rest;
        self.count -= 1;
        Some(body)
    }
}

/// The result of [`parse_command`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// A whole command, which took this many bytes.
    Complete(Command<'a>, usize),
    /// The beginning of a command.
    Incomplete(Incomplete),
}

/// A command of which not all bytes are there yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incomplete {
    /// Total bytes of input that parsing needs to get further. Already checked against the limits.
    pub needed_bytes: usize,
    /// nsqd's error if the peer stops sending here; `None` within the command's line.
    at_end: Option<(Code, &'static str)>,
}

impl Incomplete {
    /// The error if the input ends here.
    pub fn at_end(&self) -> Option<ProtocolError> {
        let (code, text) = self.at_end?;
        Some(ProtocolError::new(code, text))
    }
}

/// A command or its beginning, or the error to answer.
type Outcome<'a> = Result<Parsed<'a>, ProtocolError>;

/// Parses the command at the start of `input`. Never panics, whatever the bytes (there is a fuzz
/// target).
#[inline]
pub fn parse_command<'a>(input: &'a [u8], options: &SessionOptions) -> Outcome<'a> {
    if let Some(id) = plain_fin(input) {
        return Ok(Parsed::Complete(Command::Fin(id), FIN_BYTES));
    }
    let scanned = &input[..input.len().min(LINE_BYTES_MAX)];
    let Some(end) = scanned.iter().position(|byte| *byte == b'\n') else {
        if input.len() >= LINE_BYTES_MAX {
            let text = format!("command line longer than {LINE_BYTES_MAX} bytes");
            return Err(invalid(text));
        }
        return Ok(Parsed::Incomplete(Incomplete {
            needed_bytes: input.len() + 1,
            at_end: None,
        }));
    };
    let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
    let reader = Reader {
        input,
        used: end + 1,
    };
    parse_line(line, reader, options)
}

/// The first word of the line at the start of `input`, for a command that could not be parsed.
pub(crate) fn command_word(input: &[u8]) -> &[u8] {
    let scanned = &input[..input.len().min(LINE_BYTES_MAX)];
    let mut lines = scanned.split(|byte| *byte == b'\n');
    let line = lines.next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    line.split(|byte| *byte == b' ').next().unwrap_or_default()
}

/// Bytes of a FIN as every client library sends it.
const FIN_BYTES: usize = "FIN ".len() + ID_BYTES + 1;

/// The id of a FIN with a single parameter, which half of a consumer's commands are.
#[inline]
fn plain_fin(input: &[u8]) -> Option<&[u8; ID_BYTES]> {
    let command = input.first_chunk::<FIN_BYTES>()?;
    if &command[..4] != b"FIN " || command[FIN_BYTES - 1] != b'\n' {
        return None;
    }
    let id = command[4..].first_chunk::<ID_BYTES>()?;
    // A blank or a line feed within the id is left to the general parser.
    let plain = id.iter().fold(true, |plain, byte| plain & (*byte > b' '));
    plain.then_some(id)
}

fn parse_line<'a>(line: &'a [u8], reader: Reader<'a>, options: &SessionOptions) -> Outcome<'a> {
    let mut words = line.split(|byte| *byte == b' ');
    let command = words.next().unwrap_or_default();
    let complete = |command| Ok(Parsed::Complete(command, reader.used));
    match command {
        b"PUB" => parse_pub(words, reader, options),
        b"MPUB" => parse_mpub(words, reader, options),
        b"DPUB" => parse_dpub(words, reader, options),
        b"FIN" => complete(Command::Fin(message_id("FIN", words.next())?)),
        b"REQ" => {
            let (Some(id), Some(delay)) = (words.next(), words.next()) else {
                return Err(invalid("REQ insufficient number of params"));
            };
            let id = message_id("REQ", Some(id))?;
            let Some(delay_ms) = decimal(delay) else {
                return Err(invalid_with("REQ could not parse timeout ", delay));
            };
            let delay_ms = go_milliseconds(delay_ms).unwrap_or(0);
            complete(Command::Req(id, delay_ms.min(options.req_timeout_ms_max)))
        }
        b"TOUCH" => complete(Command::Touch(message_id("TOUCH", words.next())?)),
        b"RDY" => complete(Command::Rdy(words.next())),
        b"NOP" => complete(Command::Nop),
        b"CLS" => complete(Command::Cls),
        b"SUB" => {
            let (Some(topic), Some(channel)) = (words.next(), words.next()) else {
                return Err(invalid("SUB insufficient number of parameters"));
            };
            let topic = topic_name("SUB", topic)?;
            let Some(channel) = valid_name(channel) else {
                let text = format!("SUB channel name {} is not valid", quoted(channel));
                return Err(ProtocolError::new(Code::BadChannel, text));
            };
            complete(Command::Sub { topic, channel })
        }
        b"IDENTIFY" => Ok(match reader.body(&IDENTIFY_BODY, options.body_bytes_max)? {
            Ok((body, used)) => Parsed::Complete(Command::Identify(body), used),
            Err(incomplete) => Parsed::Incomplete(incomplete),
        }),
        b"AUTH" => {
            if words.next().is_some() {
                return Err(invalid("AUTH invalid number of parameters"));
            }
            let bytes_max = options.body_bytes_max.min(AUTH_SECRET_BYTES_MAX);
            Ok(match reader.body(&AUTH_BODY, bytes_max)? {
                Ok((body, used)) => Parsed::Complete(Command::Auth(body), used),
                Err(incomplete) => Parsed::Incomplete(incomplete),
            })
        }
        _ => Err(invalid_with("invalid command ", command)),
    }
}

/// The parameters after the command's word.
trait Words<'a>: Iterator<Item = &'a [u8]> {}

impl<'a, T: Iterator<Item = &'a [u8]>> Words<'a> for T {}

fn parse_pub<'a>(
    mut words: impl Words<'a>,
    reader: Reader<'a>,
    options: &SessionOptions,
) -> Outcome<'a> {
    let Some(topic) = words.next() else {
        return Err(invalid("PUB insufficient number of parameters"));
    };
    let topic = topic_name("PUB", topic)?;
    Ok(match reader.body(&PUB_BODY, options.msg_bytes_max)? {
        Ok((body, used)) => Parsed::Complete(Command::Pub { topic, body }, used),
        Err(incomplete) => Parsed::Incomplete(incomplete),
    })
}

fn parse_dpub<'a>(
    mut words: impl Words<'a>,
    reader: Reader<'a>,
    options: &SessionOptions,
) -> Outcome<'a> {
    let (Some(topic), Some(delay)) = (words.next(), words.next()) else {
        return Err(invalid("DPUB insufficient number of parameters"));
    };
    let topic = topic_name("DPUB", topic)?;
    let Some(asked) = decimal(delay) else {
        return Err(invalid_with("DPUB could not parse timeout ", delay));
    };
    let max = options.req_timeout_ms_max;
    let Some(delay_ms) = go_milliseconds(asked).filter(|delay_ms| *delay_ms <= max) else {
        return Err(invalid(format!(
            "DPUB timeout {asked} out of range 0-{max}"
        )));
    };
    Ok(match reader.body(&DPUB_BODY, options.msg_bytes_max)? {
        Ok((body, used)) => {
            let command = Command::Dpub {
                topic,
                delay_ms,
                body,
            };
            Parsed::Complete(command, used)
        }
        Err(incomplete) => Parsed::Incomplete(incomplete),
    })
}

fn parse_mpub<'a>(
    mut words: impl Words<'a>,
    reader: Reader<'a>,
    options: &SessionOptions,
) -> Outcome<'a> {
    let Some(topic) = words.next() else {
        return Err(invalid("MPUB insufficient number of parameters"));
    };
    let topic = topic_name("MPUB", topic)?;
    let (body, used) = match reader.body(&MPUB_BODY, options.body_bytes_max)? {
        Ok(body) => body,
        Err(incomplete) => {
            check_begun(reader.begun_body(), options)?;
            return Ok(Parsed::Incomplete(incomplete));
        }
    };
    let messages = check_messages(body, options)?;
    Ok(Parsed::Complete(Command::Mpub { topic, messages }, used))
}

/// Refuses an incomplete MPUB by its count and by the size of its first message, as nsqd does,
/// without waiting for the rest. The sizes of later messages are checked once the body is complete,
/// because checking them here would walk all of them again with each read.
fn check_begun(body: &[u8], options: &SessionOptions) -> Result<(), ProtocolError> {
    let Some((count, messages)) = body.split_first_chunk() else {
        return Ok(());
    };
    check_count(*count, options)?;
    match messages.first_chunk() {
        Some(size) => check_size(0, *size, options).map(drop),
        None => Ok(()),
    }
}

/// How many messages an MPUB has.
fn check_count(count: [u8; SIZE_BYTES], options: &SessionOptions) -> Result<u32, ProtocolError> {
    let count = i32::from_be_bytes(count);
    // The count itself, then at least a size and one byte for each.
    let count_max = i64::from(options.body_bytes_max).saturating_sub(4) / 5;
    if count > 0 && i64::from(count) <= count_max {
        Ok(count as u32)
    } else {
        let text = format!("MPUB invalid message count {count}");
        Err(ProtocolError::new(Code::BadBody, text))
    }
}

/// Checks the size of the message with this index.
fn check_size(
    index: u32,
    size: [u8; SIZE_BYTES],
    options: &SessionOptions,
) -> Result<usize, ProtocolError> {
    let (size, max) = (i32::from_be_bytes(size), options.msg_bytes_max);
    let text = match size {
        ..=0 => format!("MPUB invalid message({index}) body size {size}"),
        _ if size as u32 > max => format!("MPUB message too big {size} > {max}"),
        _ => return Ok(size as usize),
    };
    Err(ProtocolError::new(Code::BadMessage, text))
}

/// Checks count and sizes within an MPUB's body, so that its messages can be stored without further
/// checks.
fn check_messages<'a>(
    body: &'a [u8],
    options: &SessionOptions,
) -> Result<Messages<'a>, ProtocolError> {
    let bad_body = |text: String| ProtocolError::new(Code::BadBody, text);
    let bad_message = |text: String| ProtocolError::new(Code::BadMessage, text);
    let Some((count, messages)) = body.split_first_chunk::<SIZE_BYTES>() else {
        return Err(bad_body("MPUB failed to read message count".into()));
    };
    let count = check_count(*count, options)?;
    let mut rest = messages;
    for index in 0..count {
        let Some((size, after)) = rest.split_first_chunk::<SIZE_BYTES>() else {
            let text = format!("MPUB failed to read message({index}) body size");
            return Err(bad_message(text));
        };
        let size = check_size(index, *size, options)?;
        let Some(after) = after.get(size..) else {
            return Err(bad_message("MPUB failed to read message body".into()));
        };
        rest = after;
    }
    if !rest.is_empty() {
        // nsqd would parse the remaining bytes as the next command. An error about the size shows
        // the cause.
        return Err(bad_body(format!("MPUB invalid body size {}", body.len())));
    }
    Ok(Messages {
        count,
        rest: messages,
    })
}

/// nsqd's error texts for the body of one command.
struct BodyTexts {
    code: Code,
    too_big: &'static str,
    invalid: &'static str,
    no_size: &'static str,
    no_body: &'static str,
}

static IDENTIFY_BODY: BodyTexts = BodyTexts {
    code: Code::BadBody,
    too_big: "IDENTIFY body too big",
    invalid: "IDENTIFY invalid body size",
    no_size: "IDENTIFY failed to read body size",
    no_body: "IDENTIFY failed to read body",
};

static AUTH_BODY: BodyTexts = BodyTexts {
    code: Code::BadBody,
    too_big: "AUTH body too big",
    invalid: "AUTH invalid body size",
    no_size: "AUTH failed to read body size",
    no_body: "AUTH failed to read body",
};

static PUB_BODY: BodyTexts = BodyTexts {
    code: Code::BadMessage,
    too_big: "PUB message too big",
    invalid: "PUB invalid message body size",
    no_size: "PUB failed to read message body size",
    no_body: "PUB failed to read message body",
};

static DPUB_BODY: BodyTexts = BodyTexts {
    code: Code::BadMessage,
    too_big: "DPUB message too big",
    invalid: "DPUB invalid message body size",
    no_size: "DPUB failed to read message body size",
    no_body: "DPUB failed to read message body",
};

static MPUB_BODY: BodyTexts = BodyTexts {
    code: Code::BadBody,
    too_big: "MPUB body too big",
    invalid: "MPUB invalid body size",
    no_size: "MPUB failed to read body size",
    no_body: "MPUB failed to read message body",
};

/// The input after the command's line.
#[derive(Clone, Copy)]
struct Reader<'a> {
    input: &'a [u8],
    used: usize,
}

impl<'a> Reader<'a> {
    /// The part of the body that has arrived so far, without its size prefix.
    fn begun_body(self) -> &'a [u8] {
        let begin = self.used.saturating_add(SIZE_BYTES);
        self.input.get(begin..).unwrap_or_default()
    }

    /// The body after the line and the bytes used up to its end, or what is missing.
    #[inline]
    fn body(
        self,
        texts: &'static BodyTexts,
        bytes_max: u32,
    ) -> Result<Result<(&'a [u8], usize), Incomplete>, ProtocolError> {
        let start = self.used + SIZE_BYTES;
        let Some((size, rest)) = self.input[self.used..].split_first_chunk::<SIZE_BYTES>() else {
            return Ok(Err(Incomplete {
                needed_bytes: start,
                at_end: Some((texts.code, texts.no_size)),
            }));
        };
        let size = i32::from_be_bytes(*size);
        if size <= 0 {
            let text = format!("{} {size}", texts.invalid);
            return Err(ProtocolError::new(texts.code, text));
        }
        if size as u32 > bytes_max {
            let text = format!("{} {size} > {bytes_max}", texts.too_big);
            return Err(ProtocolError::new(texts.code, text));
        }
        let end = start + size as usize;
        Ok(match rest.get(..size as usize) {
            Some(body) => Ok((body, end)),
            None => Err(Incomplete {
                needed_bytes: end,
                at_end: Some((texts.code, texts.no_body)),
            }),
        })
    }
}

fn topic_name<'a>(command: &str, name: &'a [u8]) -> Result<&'a str, ProtocolError> {
    valid_name(name).ok_or_else(|| {
        // nsqd 1.3 repeats the code in the text for MPUB, and programs may depend on it.
        let twice = if command == "MPUB" {
            "E_BAD_TOPIC "
        } else {
            ""
        };
        let text = format!("{twice}{command} topic name {} is not valid", quoted(name));
        ProtocolError::new(Code::BadTopic, text)
    })
}

fn message_id<'a>(
    command: &str,
    word: Option<&'a [u8]>,
) -> Result<&'a [u8; ID_BYTES], ProtocolError> {
    let Some(word) = word else {
        return Err(invalid(format!("{command} insufficient number of params")));
    };
    word.try_into().map_err(|_| invalid("invalid message ID"))
}

fn invalid(text: impl Into<Vec<u8>>) -> ProtocolError {
    ProtocolError::new(Code::Invalid, text)
}

/// An error whose text ends with the client's own bytes, as nsqd's `%s` prints them.
pub(crate) fn invalid_with(text: &str, word: &[u8]) -> ProtocolError {
    let mut text = Vec::from(text);
    text.extend_from_slice(word);
    ProtocolError::new(Code::Invalid, text)
}

/// Parses decimal digits as nsqd does: a sign is refused, an empty string is 0, overflow wraps.
pub(crate) fn decimal(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0_u64, |value, digit| {
        digit.is_ascii_digit().then(|| {
            let digit = u64::from(digit - b'0');
            value.wrapping_mul(10).wrapping_add(digit)
        })
    })
}

/// Milliseconds after nsqd's conversion to 64-bit nanoseconds, which wraps; `None` if the result is
/// negative.
fn go_milliseconds(milliseconds: u64) -> Option<u64> {
    let nanoseconds = (milliseconds as i64).wrapping_mul(1_000_000);
    u64::try_from(nanoseconds).ok().map(|ns| ns / 1_000_000)
}

#[cfg(test)]
#[path = "codec_tests.rs"]
mod tests;
