//! AMQP's clients.

use std::path::PathBuf;

use anyhow::Result;

use super::kafka::maven;
use super::{Clients, module_copy, npm, pip, venv};
use crate::workspace::output;

const PYTHON_PACKAGES: &[&str] = &[
    "pika==1.4.4",
    "aio-pika==10.2.1",
    "celery==5.7.0",
    "kombu==5.7.0",
    "confluent-kafka==2.16.1",
    "pynsq==0.9.1",
    "tornado==6.5.10",
];
const NODE_PACKAGES: &[&str] = &["amqplib@2.3.1"];
/// The client, and a silent logger.
const JARS: &[&str] = &[
    "com.rabbitmq:amqp-client:5.23.0",
    "org.slf4j:slf4j-nop:1.7.36",
];
/// RabbitMQ's own benchmark program.
const PERF_TEST: &[&str] = &["com.rabbitmq:perf-test:2.22.1"];
/// The version that `tests/clients/amqp/go` uses.
const AMQP091_GO_MODULE: &str = "github.com/rabbitmq/amqp091-go@v1.16.0";

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
        self.once("amqp-python", PYTHON_PACKAGES, || {
            venv(&self.folder.join("amqp-python"))?;
            output(pip(&self.amqp_python_program()).args(PYTHON_PACKAGES)).map(drop)
        })
    }

    pub(super) fn amqp_node(&self) -> Result<()> {
        self.once("amqp-node", NODE_PACKAGES, || {
            npm(&self.amqp_node_folder(), NODE_PACKAGES)
        })
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

    /// A copy of amqp091-go's source with its tests.
    pub(crate) fn amqp091_go_source(&self) -> Result<PathBuf> {
        let source = self.folder.join("amqp091-go");
        self.once("amqp091-go", &[AMQP091_GO_MODULE], || {
            module_copy(AMQP091_GO_MODULE, &source)
        })?;
        Ok(source)
    }
}
