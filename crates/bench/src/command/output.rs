//! Where figures go.

use std::io::{self, Write};
use std::path::Path;

use super::BenchError;
use super::args::OutputArgs;
use crate::outcome::Report;
use crate::{json, report, table};

/// Columns where the output is no terminal.
const WIDTH_ELSEWHERE: u16 = 200;
/// Below this, lines that are too long are easier to read than cells that are cut into pieces.
const WIDTH_MIN: u16 = 100;

impl OutputArgs {
    /// Prints a report and writes the files that are asked for. `false`: something was lost, out
    /// of order or cut short.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn finish(&self, report: &Report) -> Result<bool, BenchError> {
        self.finish_as(report, table::render)
    }

    /// The same with another table.
    ///
    /// # Errors
    /// As [`OutputArgs::finish`].
    pub fn finish_as(
        &self,
        report: &Report,
        render: fn(&Report, u16) -> String,
    ) -> Result<bool, BenchError> {
        let is_json_printed = self.json.as_deref() == Some(Path::new("-"));
        if let Some(path) = &self.json {
            let mut text = json::text(report);
            text.push('\n');
            if is_json_printed {
                print(&text)?
            } else {
                write(path, text.as_bytes())?
            }
        }
        if !is_json_printed {
            print(&render(report, width()))?;
        }
        if let Some(path) = &self.report {
            write(path, report::page(report).as_bytes())?;
        }
        Ok(report.is_good())
    }
}

/// Columns that a table may have.
fn width() -> u16 {
    let size = rustix::termios::tcgetwinsize(io::stdout());
    let columns = size.map_or(0, |size| size.ws_col);
    match columns {
        0 => WIDTH_ELSEWHERE,
        columns => columns.max(WIDTH_MIN),
    }
}

pub(super) fn print(text: &str) -> Result<(), BenchError> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    match written {
        // `cloverleaf bench … | head` is no error.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(BenchError::file(("standard output".into(), error))),
        Ok(()) => Ok(()),
    }
}

pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), BenchError> {
    std::fs::write(path, bytes).map_err(|error| BenchError::file((path.to_path_buf(), error)))
}
