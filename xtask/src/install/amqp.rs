//! AMQP's clients.

use std::path::PathBuf;

use anyhow::Result;

use super::kafka::maven;
use super::{Clients, module_copy};

/// The client, and a silent logger.
const JARS: &[&str] = &[
    "com.rabbitmq:amqp-client:5.23.0",
    "org.slf4j:slf4j-nop:1.7.36",
];
/// RabbitMQ's own benchmark program.
const PERF_TEST: &[&str] = &["com.rabbitmq:perf-test:2.22.1"];
/// The version that `tests/clients/amqp/go` uses.
const AMQP091_GO_MODULE: &str = "github.com/rabbitmq/amqp091-go@v1.16.0";
/// With tests of its own against a broker.
const WATERMILL_AMQP_MODULE: &str = "github.com/ThreeDotsLabs/watermill-amqp/v3@v3.0.2";

impl Clients {
    /// The interpreter that has pika, aio-pika, Celery, confluent-kafka and pynsq.
    pub(crate) fn amqp_python_program(&self) -> PathBuf {
        self.folder.join("amqp-python/bin/python")
    }

    /// The folder that has `node_modules` with amqplib.
    pub(crate) fn amqp_node_folder(&self) -> PathBuf {
        self.folder.join("amqp-node")
    }

    pub(super) fn amqp_python(&self) -> Result<()> {
        let requirements = locked!("amqp-python", "requirements.txt");
        self.once("amqp-python", &[requirements], || {
            self.python_environment("amqp-python", requirements)
        })
    }

    pub(super) fn amqp_node(&self) -> Result<()> {
        let manifest = locked!("amqp-node", "package.json");
        let lock = locked!("amqp-node", "package-lock.json");
        self.node_packages("amqp-node", manifest, lock)
    }

    /// The folder with RabbitMQ's Java client and all that it needs.
    pub(crate) fn amqp_jars(&self) -> Result<PathBuf> {
        let folder = self.folder.join("amqp-jars");
        self.once("amqp-jars", JARS, || maven(JARS, &folder))?;
        Ok(folder)
    }

    /// The folder with PerfTest's jars.
    pub(crate) fn perf_test_jars(&self) -> Result<PathBuf> {
        let folder = self.folder.join("perf-test-jars");
        self.once("perf-test-jars", PERF_TEST, || maven(PERF_TEST, &folder))?;
        Ok(folder)
    }

    /// A copy of Watermill-amqp's source with its tests.
    pub(crate) fn watermill_amqp_source(&self) -> Result<PathBuf> {
        let source = self.folder.join("watermill-amqp");
        self.once("watermill-amqp", &[WATERMILL_AMQP_MODULE], || {
            module_copy(WATERMILL_AMQP_MODULE, &source)
        })?;
        Ok(source)
    }

    /// A copy of amqp091-go's source with its tests.
    pub(crate) fn amqp091_go_source(&self) -> Result<PathBuf> {
        let source = self.folder.join("amqp091-go");
        self.once("amqp091-go", &[AMQP091_GO_MODULE], || {
            module_copy(AMQP091_GO_MODULE, &source)
        })?;
        Ok(source)
    }
}
