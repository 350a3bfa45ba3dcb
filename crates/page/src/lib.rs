//! Pages for people: figures in [`words`], the shapes of a [`picture`] with its [`Axis`], the frame
//! of a page ([`html_page`]), the width of a [`Terminal`], prose in lines ([`wrap`]), and the
//! [`secrets`] that none of them shows.
//!
//! Architecture invariant: this crate knows no broker, no measurement and no command line.

mod axis;
mod document;
pub mod picture;
mod prose;
pub mod secrets;
mod terminal;
pub mod words;

pub use axis::{Axis, spread};
pub use document::{html_page, plain_style, svg_file};
pub use prose::wrap;
pub use terminal::Terminal;
