//! The original RabbitMQ: one node on the loopback device, with a plain and a TLS listener.
//! The client tests run against it too.
//!
//! It comes from a folder that holds a Debian with the package `rabbitmq-server`, as debootstrap
//! makes it, and runs in namespaces of its own: what it starts beside itself (epmd) ends with it.
//! Needs root.

use std::fmt::Write;
use std::process::Command;

use anyhow::Result;

use crate::broker::Options;

/// Where the data folder is seen by the node.
const DATA: &str = "/srv";
/// `$1` is the Debian, `$2` the data folder.
const START: &str = "mount -t proc proc \"$1/proc\"; mount --bind \"$2\" \"$1/srv\"; \
                     exec chroot \"$1\" sh -c \
                     'exec /usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server'";

/// The command that runs the broker; [`prepare`] has made its folder. It can only be killed: it
/// is not handed SIGTERM.
pub(crate) fn command(options: &Options) -> Command {
    let mut command = Command::new("env");
    let [port, epmd, distribution] = [options.amqp, options.tcp, options.http].map(|a| a.port());
    let data = |name: &str| format!("{DATA}/{name}");
    for (name, value) in [
        ("HOME", DATA.to_owned()),
        ("LANG", "C.UTF-8".to_owned()),
        ("ERL_EPMD_ADDRESS", "127.0.0.1".to_owned()),
        ("ERL_EPMD_PORT", epmd.to_string()),
        ("RABBITMQ_NODENAME", "checks@localhost".to_owned()),
        ("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1".to_owned()),
        ("RABBITMQ_NODE_PORT", port.to_string()),
        ("RABBITMQ_DIST_PORT", distribution.to_string()),
        (
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
            "-kernel inet_dist_use_interface {127,0,0,1}".to_owned(),
        ),
        ("RABBITMQ_MNESIA_BASE", data("mnesia")),
        ("RABBITMQ_LOG_BASE", data("log")),
        ("RABBITMQ_PID_FILE", data("pid")),
        ("RABBITMQ_ENABLED_PLUGINS_FILE", data("enabled_plugins")),
        ("RABBITMQ_CONFIG_FILE", data("rabbitmq")),
        ("RABBITMQ_CONF_ENV_FILE", data("env.conf")),
    ] {
        command.arg(format!("{name}={value}"));
    }
    command.args(["unshare", "--mount", "--pid", "--fork", "--kill-child"]);
    command.args(["sh", "-ec", START, "sh"]);
    command.arg(&options.binary).arg(&options.data);
    command
}

/// Writes the configuration.
pub(crate) fn prepare(options: &Options) -> Result<()> {
    let mut text = "log.console = false\n".to_owned();
    if let Some((certificate, key)) = &options.tls {
        std::fs::copy(certificate, options.data.join("server.pem"))?;
        std::fs::copy(key, options.data.join("server.key"))?;
        writeln!(text, "listeners.ssl.1 = {}", options.amqp_tls)?;
        writeln!(text, "ssl_options.certfile = {DATA}/server.pem")?;
        writeln!(text, "ssl_options.keyfile = {DATA}/server.key")?;
    }
    for line in &options.more {
        writeln!(text, "{line}")?;
    }
    std::fs::write(options.data.join("rabbitmq.conf"), text)?;
    std::fs::write(options.data.join("enabled_plugins"), "[].\n")?;
    std::fs::write(options.data.join("env.conf"), "")?;
    Ok(())
}
