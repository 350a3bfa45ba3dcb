//! Aligned columns for the terminal.

use std::io::{self, Write};

/// Prints rows below a heading; columns are as wide as their widest cell.
pub(crate) fn print<const N: usize>(heading: [&str; N], rows: &[[String; N]]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let mut widths = heading.map(str::len);
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let heading = heading.map(str::to_owned);
    for row in std::iter::once(&heading).chain(rows) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            line.push_str(cell);
            line.push_str(&" ".repeat(width + 2 - cell.chars().count()));
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    out.flush()
}

/// Prints a value as JSON, for scripts.
pub(crate) fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    writeln!(
        io::stdout().lock(),
        "{}",
        serde_json::to_string_pretty(value)?
    )?;
    Ok(())
}

/// A number of bytes for people.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["B", "KiB", "MiB", "GiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes} B")
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// The text if `value` is true, otherwise nothing.
pub(crate) fn text_if(value: bool, text: &str) -> String {
    if value {
        text.to_owned()
    } else {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_readable() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(5 << 30), "5.0 GiB");
        assert_eq!(bytes(5 << 40), "5120.0 GiB");
    }
}
