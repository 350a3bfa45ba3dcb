//! The parts that both distances have in common, the [proxy](crate::proxy) and the
//! [network](crate::network): the link with its delay, a line that holds back what is sent over it,
//! and a thread that does nothing else.

mod alarm;
mod direction;
mod line;
mod link;
mod thread;

pub(crate) use alarm::Alarm;
pub(crate) use direction::LinkDirection;
pub(crate) use line::DelayLine;
pub use link::{Bandwidth, BandwidthError, Link};
pub use thread::PROXY_THREADS;
pub(crate) use thread::{DelayThread, registered};
