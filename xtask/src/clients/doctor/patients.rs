//! The patients: client programs that each play a story, and the finding that is to be had of each.

/// A client program that plays a story.
#[derive(Clone, Copy)]
pub(super) struct Patient {
    /// Its name in the list of checks; each in a group has another.
    pub(super) name: &'static str,
    pub(super) program: Program,
    pub(super) story: &'static str,
    /// The name that it gives itself, which no other program of its library has.
    pub(super) client_id: &'static str,
    /// `None`: it is well.
    pub(super) expected: Option<Expected>,
}

/// A program in `tests/clients/doctor`, and what runs it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Program {
    KafkaPython(&'static str),
    OldLibrdkafka(&'static str),
    AmqpPython(&'static str),
    Python(&'static str),
    KafkaNode(&'static str),
    AmqpNode(&'static str),
    Node(&'static str),
    Go(&'static str),
    JavaKafka,
    JavaAmqp,
}

impl Program {
    /// The protocol that it speaks, as the doctor names it.
    pub(super) fn protocol(self) -> &'static str {
        match self {
            Program::KafkaPython(_) | Program::OldLibrdkafka(_) => "kafka",
            Program::KafkaNode(_) | Program::JavaKafka => "kafka",
            Program::AmqpPython(_) | Program::AmqpNode(_) | Program::JavaAmqp => "amqp",
            Program::Python("http_client.py") => "http",
            Program::Python(_) | Program::Node(_) => "nsq",
            Program::Go("gonsq") => "nsq",
            Program::Go("amqp091") => "amqp",
            Program::Go(_) => "kafka",
        }
    }
}

/// The one finding that is expected.
#[derive(Clone, Copy)]
pub(super) struct Expected {
    pub(super) rule: &'static str,
    /// A part of the name that the advice gives the client.
    pub(super) client: &'static str,
    /// The setting that is named first.
    pub(super) setting: &'static str,
    pub(super) value: Value,
    /// A part of one of the lines of code; empty: there is none.
    pub(super) code: &'static str,
}

/// The value that the finding names for the setting.
#[derive(Clone, Copy)]
pub(super) enum Value {
    None,
    Is(&'static str),
    Between(u64, u64),
}

impl Value {
    pub(super) fn holds(self, found: Option<&str>) -> bool {
        match (self, found) {
            (Value::None, found) => found.is_none(),
            (Value::Is(value), found) => found == Some(value),
            (Value::Between(least, most), found) => found
                .and_then(|it| it.parse().ok())
                .is_some_and(|it: u64| (least..=most).contains(&it)),
        }
    }
}

impl Patient {
    /// One that calls itself as its story.
    pub(super) const fn ill(
        name: &'static str,
        program: Program,
        story: &'static str,
        expected: Expected,
    ) -> Patient {
        Patient {
            name,
            program,
            story,
            client_id: story,
            expected: Some(expected),
        }
    }

    /// The well-configured program of a library.
    pub(super) const fn well(name: &'static str, program: Program) -> Patient {
        Patient {
            name,
            program,
            story: "good",
            client_id: "good",
            expected: None,
        }
    }

    /// The same with another story, whose name it bears.
    pub(super) const fn playing(self, story: &'static str) -> Patient {
        Patient {
            story,
            client_id: story,
            ..self
        }
    }

    /// The same under another name.
    pub(super) const fn named(self, client_id: &'static str) -> Patient {
        Patient { client_id, ..self }
    }
}

impl Expected {
    /// This rule, which names this setting of this library.
    pub(super) const fn new(
        rule: &'static str,
        client: &'static str,
        setting: &'static str,
    ) -> Expected {
        Expected {
            rule,
            client,
            setting,
            value: Value::None,
            code: "",
        }
    }

    pub(super) const fn value(self, value: Value) -> Expected {
        Expected { value, ..self }
    }

    pub(super) const fn code(self, code: &'static str) -> Expected {
        Expected { code, ..self }
    }
}
