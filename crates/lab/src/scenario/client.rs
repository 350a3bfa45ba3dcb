//! A client that plays, on threads on its side of the distance.

use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use cloverleaf_bench::Stop;

use super::context::{ClientContext, Meter};
use super::{AppliedChange, Scenario};
use crate::distance::{DistantBroker, LabError};

/// A client that plays until this is ended or dropped.
pub(crate) struct RunningClient {
    pub(crate) client: Arc<ClientContext>,
    thread: Option<JoinHandle<Result<(), String>>>,
}

impl RunningClient {
    /// Begins. `number` tells it from others at this broker.
    pub(crate) fn begin(
        place: &DistantBroker,
        story: &Scenario,
        (fix, authority): (Option<AppliedChange>, Option<&str>),
        number: u32,
    ) -> Result<RunningClient, LabError> {
        let client = Arc::new(ClientContext {
            addresses: *place.reached(),
            stop: Stop::default(),
            meter: Meter::new(),
            name: format!("{}-{number}", story.name()),
            authority: authority.map(str::to_owned),
        });
        let play = story.play;
        RunningClient::begin_with(place, client, move |client| play(client, fix.as_ref()))
    }

    /// Begins to play whatever it is.
    pub(crate) fn begin_with(
        place: &DistantBroker,
        client: Arc<ClientContext>,
        play: impl FnOnce(&ClientContext) -> Result<(), String> + Send + 'static,
    ) -> Result<RunningClient, LabError> {
        let there = Arc::clone(&client);
        let begin = || -> io::Result<_> {
            // Threads are where they were made.
            let thread = Builder::new().name("lab-client".to_owned());
            thread.spawn(move || play(&there))
        };
        let thread = place.at_client(begin).flatten();
        let thread = thread.map_err(|error| LabError::system("no client can be started", error))?;
        Ok(RunningClient {
            client,
            thread: Some(thread),
        })
    }

    /// Whether it still plays.
    pub(crate) fn goes_on(&self) -> bool {
        self.thread.as_ref().is_some_and(|it| !it.is_finished())
    }

    /// Ends it, and says what went wrong.
    pub(crate) fn end(mut self) -> Result<(), String> {
        self.client.stop.set();
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(ended)) => ended,
            Some(Err(_)) => Err("the client has panicked".to_owned()),
            None => Ok(()),
        }
    }
}

impl Drop for RunningClient {
    fn drop(&mut self) {
        self.client.stop.set();
        if let Some(thread) = self.thread.take() {
            // The thread's result is asked for by nobody.
            let _ = thread.join();
        }
    }
}
