//! Pages for people: figures in [`words`], well-formed [`markup`], how wide a [`Terminal`] is,
//! prose in lines ([`wrap`]), and which [`secrets`] none of them shows.
//!
//! Architecture invariant: this crate knows no broker, no measurement and no command line.

pub mod markup;
mod prose;
pub mod secrets;
mod terminal;
pub mod words;

pub use prose::wrap;
pub use terminal::Terminal;
