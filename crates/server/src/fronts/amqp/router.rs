//! The thread of AMQP's router: it takes dead-lettered messages out of their queues and delayed
//! ones out of their hidden topic, routes them by the bindings of that moment, and deletes queues
//! that have expired.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use cloverleaf_amqp::host::VirtualHost;

use crate::context::ServerContext;
use crate::health::VitalThreadGuard;

/// The name of the thread.
const NAME: &str = "amqp-router";

/// The router's thread. Dropping this ends it.
pub(crate) struct AmqpRouter {
    host: Arc<VirtualHost>,
    thread: Option<JoinHandle<()>>,
}

impl AmqpRouter {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(super) fn start(
        host: &Arc<VirtualHost>,
        context: &Arc<ServerContext>,
    ) -> io::Result<AmqpRouter> {
        let running = Arc::clone(host);
        let vital = VitalThreadGuard::new(context, NAME);
        let thread = thread::Builder::new()
            .name(NAME.to_owned())
            .spawn(move || {
                let _vital = vital;
                running.run_router();
            })?;
        Ok(AmqpRouter {
            host: Arc::clone(host),
            thread: Some(thread),
        })
    }

    /// Ends the thread and waits for that. Messages that are not routed yet are routed after the
    /// next start.
    pub(crate) fn stop(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        self.host.close();
        if thread.join().is_err() {
            tracing::error!("a thread of the broker ended by a fault");
        }
    }
}

impl Drop for AmqpRouter {
    fn drop(&mut self) {
        self.stop();
    }
}
