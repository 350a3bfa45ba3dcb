//! The command line. The flags of `serve` come from the definitions of the options.

use std::path::PathBuf;

use clap::{Arg, ArgAction, Args, Command, Subcommand, ValueHint, value_parser};
use cloverleaf_program::{BENCH, LAB, VERSION};
use cloverleaf_server::{OPTIONS, OptionDef};

use crate::doctor::DoctorArgs;
use crate::subscription::SubscriptionCommand;
use crate::tail::TailArgs;
use crate::timeline::TimelineArgs;
use crate::topic::TopicCommand;

const ABOUT: &str =
    "A message broker in one small binary: Kafka, AMQP and NSQ programs connect to it unchanged";

const EXAMPLES: &str = "\
Examples:
  cloverleaf serve                              start a broker; data in ./cloverleaf-data
  curl -d 'hello' 'http://127.0.0.1:4151/pub?topic=greetings'
  cloverleaf tail greetings                     look at messages without consuming them
  cloverleaf topic list                         what there is
  cloverleaf subscription describe greetings archive

  cloverleaf doctor                             which clients are slow, and why
  cloverleaf bench producer                     how fast is it here?

Configuration: `cloverleaf serve --help`, or `cloverleaf options` for the whole page.";

const SERVE_EXAMPLES: &str = "\
Examples:
  cloverleaf serve
  cloverleaf serve --data-dir /var/lib/cloverleaf --durability disk
  cloverleaf serve --config /etc/cloverleaf.toml --nsq-max-msg-size 4MiB
  CLOVERLEAF_NSQ_MSG_TIMEOUT=30s cloverleaf serve
  cloverleaf serve --nsq-tcp-address 0.0.0.0:4150 --allow-anonymous-remote   # in a container
  cloverleaf serve --kafka-address 0.0.0.0:9092 --kafka-advertised-address localhost:9092 \\
      --allow-anonymous-remote                  # in a container, port 9092 forwarded

Flags go before the environment, the environment before the file, the file before the defaults.
SIGTERM, SIGHUP and Ctrl-C let clients finish what is pending, for at most --drain-timeout; a
second SIGTERM or Ctrl-C ends the broker at once.";

/// Name of the flag that has no key in the file and no environment variable.
pub(crate) const REPAIR: &str = "repair";

const TOPIC_EXAMPLES: &str = "\
Examples:
  cloverleaf topic list
  cloverleaf topic create orders
  cloverleaf topic create events --partitions 4 --retention 30d
  cloverleaf topic create prices --config cleanup.policy=compact
  cloverleaf topic alter orders --retention forever
  cloverleaf topic describe orders
  cloverleaf topic delete orders               with all its messages and subscriptions";

const SUBSCRIPTION_EXAMPLES: &str = "\
A subscription is what NSQ calls a channel: it hands each message to one of its consumers.

Examples:
  cloverleaf subscription list                 of all topics
  cloverleaf subscription create orders billing --attempts-max 5
  cloverleaf subscription describe orders billing
  cloverleaf subscription pause orders billing
  cloverleaf subscription empty orders billing skip all that waits
  cloverleaf subscription dispatch orders queue fill-first    an AMQP queue, unlike RabbitMQ";

const TAIL_EXAMPLES: &str = "\
Nothing is consumed and no consumer is disturbed.

Examples:
  cloverleaf tail orders                       all that is stored, then end
  cloverleaf tail orders --count 10 --from 5000
  cloverleaf tail orders --follow              from now on, until Ctrl-C
  cloverleaf tail orders --follow --from earliest --meta";

const DOCTOR_EXAMPLES: &str = "\
Examples:
  cloverleaf doctor                            what is found at present
  cloverleaf doctor --watch --client billing   while one changes a setting
  cloverleaf doctor --since 10m --json         also what has ended since, for a script
  cloverleaf doctor explain hoarding           how it is seen, why it costs, how to fix it
  cloverleaf doctor explain                    all rules

The exit status is 0 without findings, 1 with some, and 2 if the broker cannot be asked.";

const TIMELINE_EXAMPLES: &str = "\
A lane for each consumer, with a bar for each message from its delivery to its acknowledgement, and
a lane for each producer, with its requests and the gaps between them. The broker has been watching
all the time: nothing has to be switched on.

Examples:
  cloverleaf timeline --topic orders --out orders.html
  cloverleaf timeline --topic external_jobs --topic internal_jobs --last 3m --out jobs.svg
  cloverleaf timeline --topic orders --subscription billing --last 10s --out billing.html";

/// The whole command line.
pub(crate) fn command() -> Command {
    // The `about` texts come last, because the derived ones describe the argument types.
    let topic = TopicCommand::augment_subcommands(Command::new("topic"))
        .about("List, create, alter, delete and describe topics");
    let subscription = SubscriptionCommand::augment_subcommands(Command::new("subscription"))
        .about("List, create, delete, describe, empty, pause and unpause subscriptions");
    let tail = TailArgs::augment_args(Command::new("tail"))
        .about("Print the messages of a topic without consuming them");
    let timeline = TimelineArgs::augment_args(Command::new("timeline"))
        .about("Draw who held which messages, and who published them, in the last seconds");
    let doctor = DoctorArgs::augment_args(Command::new("doctor"))
        .about("Which clients are slow, why, and which setting to change");
    let doctor = with_admin(doctor, DOCTOR_EXAMPLES)
        .subcommand_required(false)
        .arg_required_else_help(false);
    let options = Command::new("options").about("Print the documentation of all options");
    Command::new("cloverleaf")
        .version(VERSION)
        .about(ABOUT)
        .after_help(EXAMPLES)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(serve())
        .subcommand(with_admin(topic, TOPIC_EXAMPLES))
        .subcommand(with_admin(subscription, SUBSCRIPTION_EXAMPLES))
        .subcommand(with_admin(tail, TAIL_EXAMPLES))
        .subcommand(doctor)
        .subcommand(with_admin(timeline, TIMELINE_EXAMPLES))
        .subcommand(Command::new(BENCH.name).about(BENCH.about))
        .subcommand(Command::new(LAB.name).about(LAB.about))
        .subcommand(options)
}

fn with_admin(command: Command, examples: &'static str) -> Command {
    let subcommands = command.has_subcommands();
    let admin = Arg::new("admin")
        .long("admin")
        .value_name("ADDRESS")
        .env("CLOVERLEAF_ADMIN_ADDRESS")
        .default_value("127.0.0.1:8080")
        .global(true)
        .help("Admin address of the running broker");
    command
        .arg(admin)
        .after_help(examples)
        .subcommand_required(subcommands)
        .arg_required_else_help(subcommands)
}

fn serve() -> Command {
    let config = Arg::new("config")
        .long("config")
        .value_name("FILE")
        .env("CLOVERLEAF_CONFIG")
        .value_parser(value_parser!(PathBuf))
        .value_hint(ValueHint::FilePath)
        .help("Configuration file (TOML); `cloverleaf options` says what can be in it");
    let repair = Arg::new(REPAIR)
        .long(REPAIR)
        .action(ArgAction::SetTrue)
        .help("For one start, when a damaged data folder is refused: keep what can be found")
        .long_help(
            "For one start, when the broker refuses a damaged data folder and names this flag: \
             it keeps all messages, topics that cannot be named any more as recovered-ID, and \
             gives up what is lost; the log says both",
        );
    let command = Command::new("serve")
        .about("Start a broker")
        .after_help(SERVE_EXAMPLES)
        .arg(config)
        .arg(repair);
    OPTIONS
        .iter()
        .fold(command, |command, option| command.arg(flag(option)))
}

fn flag(option: &OptionDef) -> Arg {
    let heading = option.heading().unwrap_or("Broker");
    let doc = option.doc.trim();
    let short = doc.split(". ").next().unwrap_or(doc).trim_end_matches('.');
    let default = if option.default.is_empty() {
        String::new()
    } else {
        format!(" [default: {}]", option.default)
    };
    let arg = Arg::new(option.flag())
        .long(option.flag())
        .value_name(option.kind.to_uppercase())
        .help_heading(heading)
        .help(format!("{short}{default}"))
        .long_help(format!("{doc}{default} [env: {}]", option.variable()));
    if option.switch {
        let arg = arg
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true");
        arg.value_name("true|false").action(ArgAction::Set)
    } else {
        arg.action(ArgAction::Append)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        command().debug_assert();
    }

    #[test]
    fn help_of_serve_names_every_option_its_default_and_its_variable() {
        let help = serve().render_long_help().to_string();
        for option in OPTIONS {
            assert!(
                help.contains(&format!("--{}", option.flag())),
                "{}",
                option.name()
            );
            assert!(help.contains(&option.variable()), "{}", option.name());
        }
        assert!(help.contains("[default: 127.0.0.1:4150]"));
    }

    #[test]
    fn switches_may_stand_alone_or_have_a_value() {
        let value = |args: &[&str]| {
            let matches = serve().try_get_matches_from(args).unwrap();
            matches.get_one::<String>("nsq-deflate").cloned()
        };
        assert_eq!(value(&["serve"]), None);
        assert_eq!(value(&["serve", "--nsq-deflate"]).as_deref(), Some("true"));
        assert_eq!(
            value(&["serve", "--nsq-deflate=false"]).as_deref(),
            Some("false")
        );
    }
}
