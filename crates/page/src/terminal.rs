//! The properties of standard output: its width, and whether it supports colours.

use std::io::{self, IsTerminal as _};

/// The columns if the width is unknown, as in a pipe or a file.
const WIDTH_DEFAULT: usize = 100;

/// Longer lines are hard to read, even on a wide terminal.
const WIDTH_MAX: usize = 120;

/// How to print a page on standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terminal {
    /// The width in columns.
    pub width: usize,
    /// Whether it supports colours.
    pub with_colours: bool,
    /// Whether it is a terminal, not a file or a pipe.
    pub is_terminal: bool,
}

impl Terminal {
    /// The current properties of standard output.
    pub fn here() -> Terminal {
        let is_terminal = io::stdout().is_terminal();
        let columns = if is_terminal {
            rustix::termios::tcgetwinsize(io::stdout()).map_or(0, |size| size.ws_col)
        } else {
            0
        };
        let variable = |name| std::env::var(name).unwrap_or_default();
        Terminal {
            width: width(columns, &variable("COLUMNS")),
            with_colours: is_terminal && takes_colours(&variable("NO_COLOR"), &variable("TERM")),
            is_terminal,
        }
    }
}

fn width(columns: u16, variable: &str) -> usize {
    let told = match columns {
        0 => variable.parse().unwrap_or(0),
        columns => usize::from(columns),
    };
    match told {
        0 => WIDTH_DEFAULT,
        width => width.min(WIDTH_MAX),
    }
}

/// As no-color.org defines: a variable that is set and not empty turns colours off.
fn takes_colours(no_color: &str, term: &str) -> bool {
    no_color.is_empty() && term != "dumb"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_width_is_that_of_the_terminal_or_the_environment() {
        assert_eq!(width(80, "132"), 80);
        assert_eq!(width(0, "64"), 64);
        assert_eq!(width(0, "wide"), WIDTH_DEFAULT);
        assert_eq!(width(300, ""), WIDTH_MAX);
    }

    #[test]
    fn colours_can_be_turned_off() {
        assert!(takes_colours("", "xterm"));
        assert!(!takes_colours("1", "xterm"));
        assert!(!takes_colours("", "dumb"));
    }
}
