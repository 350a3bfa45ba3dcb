//! A running client: a thread in the clients' network.

use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use super::ClientContext;
use crate::distance::{DistantBroker, LabError};

/// A client that runs until [`RunningClient::end`] or its drop.
pub(crate) struct RunningClient {
    pub(crate) context: Arc<ClientContext>,
    thread: Option<JoinHandle<Result<(), String>>>,
}

impl RunningClient {
    /// Starts `work` on a thread in the clients' network.
    pub(crate) fn begin(
        broker: &DistantBroker,
        context: ClientContext,
        work: impl FnOnce(&ClientContext) -> Result<(), String> + Send + 'static,
    ) -> Result<RunningClient, LabError> {
        let context = Arc::new(context);
        let there = Arc::clone(&context);
        let begin = || -> io::Result<_> {
            // A thread stays in the network namespace in which it is started.
            let thread = Builder::new().name("lab-client".to_owned());
            thread.spawn(move || work(&there))
        };
        let thread = broker.at_client(begin).flatten();
        let thread = thread.map_err(|error| LabError::system("no client can be started", error))?;
        Ok(RunningClient {
            context,
            thread: Some(thread),
        })
    }

    /// Whether the client still runs.
    pub(crate) fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|it| !it.is_finished())
    }

    /// Ends the client, and returns its error if it has failed.
    pub(crate) fn end(mut self) -> Result<(), String> {
        self.context.stop.set();
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(ended)) => ended,
            Some(Err(_)) => Err("the client has panicked".to_owned()),
            None => Ok(()),
        }
    }
}

impl Drop for RunningClient {
    fn drop(&mut self) {
        self.context.stop.set();
        if let Some(thread) = self.thread.take() {
            // The caller that drops it does not ask for the result.
            let _ = thread.join();
        }
    }
}
