//! A client that plays, on threads on its side of the distance.

use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use cloverleaf_bench::Stop;

use super::stage::{Meter, Stage};
use super::{Fix, Story};
use crate::place::{LabError, Place};

/// A client that plays until this is ended or dropped.
pub(crate) struct Playing {
    pub(crate) stage: Arc<Stage>,
    thread: Option<JoinHandle<Result<(), String>>>,
}

impl Playing {
    /// Begins. `number` tells it from others at this broker.
    pub(crate) fn begin(
        place: &Place,
        story: &Story,
        (fix, authority): (Option<Fix>, Option<&str>),
        number: u32,
    ) -> Result<Playing, LabError> {
        let stage = Arc::new(Stage {
            addresses: *place.reached(),
            stop: Stop::default(),
            meter: Meter::new(),
            name: format!("{}-{number}", story.name()),
            authority: authority.map(str::to_owned),
        });
        let play = story.play;
        Playing::begin_with(place, stage, move |stage| play(stage, fix.as_ref()))
    }

    /// Begins to play whatever it is.
    pub(crate) fn begin_with(
        place: &Place,
        stage: Arc<Stage>,
        play: impl FnOnce(&Stage) -> Result<(), String> + Send + 'static,
    ) -> Result<Playing, LabError> {
        let there = Arc::clone(&stage);
        let begin = || -> io::Result<_> {
            // Threads are where they were made.
            let thread = Builder::new().name("lab-client".to_owned());
            thread.spawn(move || play(&there))
        };
        let thread = place.at_client(begin).flatten();
        let thread = thread.map_err(|error| LabError::system("no client can be started", error))?;
        Ok(Playing {
            stage,
            thread: Some(thread),
        })
    }

    /// Whether it still plays.
    pub(crate) fn goes_on(&self) -> bool {
        self.thread.as_ref().is_some_and(|it| !it.is_finished())
    }

    /// Ends it, and says what went wrong.
    pub(crate) fn end(mut self) -> Result<(), String> {
        self.stage.stop.set();
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(ended)) => ended,
            Some(Err(_)) => Err("the client has panicked".to_owned()),
            None => Ok(()),
        }
    }
}

impl Drop for Playing {
    fn drop(&mut self) {
        self.stage.stop.set();
        if let Some(thread) = self.thread.take() {
            // The thread's result is asked for by nobody.
            let _ = thread.join();
        }
    }
}
