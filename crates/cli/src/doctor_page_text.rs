//! Fits a page of docs/doctor to the terminal's width. It supports only the Markdown that these
//! pages use: headings, paragraphs, lists, tables, and drawings, which are indented and stay as
//! they are.

use cloverleaf_page::wrap;

/// The minimum width of lines, even on a narrower terminal.
const WIDTH_MIN: usize = 40;

/// The space between the columns of a table.
const GAP: &str = "  ";

/// The page in lines of at most `width` columns, except for drawings and longer words.
pub(crate) fn fitted(page: &str, width: usize, with_colours: bool) -> String {
    let mut writer = PageWriter {
        text: String::with_capacity(page.len()),
        width: width.max(WIDTH_MIN),
        paragraph: String::new(),
        is_item: false,
        table: Vec::new(),
    };
    for line in page.lines() {
        if line.starts_with('|') {
            writer.end_paragraph();
            writer.table.extend(cells(line));
            continue;
        }
        writer.end_table();
        if let Some(heading) = line.strip_prefix('#') {
            writer.end_paragraph();
            writer.heading(line, heading, with_colours);
        } else if line.starts_with("    ") || line.is_empty() {
            writer.end_paragraph();
            writer.line(line);
        } else if let Some(item) = line.strip_prefix("- ") {
            writer.end_paragraph();
            writer.is_item = true;
            writer.paragraph.push_str(item);
        } else {
            writer.extend_paragraph(line);
        }
    }
    writer.end_paragraph();
    writer.end_table();
    writer.text
}

/// The cells of a row; `None` for the line below a table's head.
fn cells(row: &str) -> Option<Vec<String>> {
    let row = row.trim().trim_matches('|');
    if row
        .chars()
        .all(|letter| matches!(letter, '-' | '|' | ':' | ' '))
        && row.contains('-')
    {
        return None;
    }
    Some(row.split('|').map(|cell| plain(cell.trim())).collect())
}

/// The text without the asterisks of bold words.
fn plain(text: &str) -> String {
    text.replace("**", "")
}

struct PageWriter {
    text: String,
    width: usize,
    /// The paragraph or list item that is being collected.
    paragraph: String,
    is_item: bool,
    table: Vec<Vec<String>>,
}

impl PageWriter {
    fn line(&mut self, line: &str) {
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    fn heading(&mut self, line: &str, heading: &str, with_colours: bool) {
        let heading = heading.trim_start_matches('#').trim();
        if !with_colours {
            return wrap(line, self.width).iter().for_each(|it| self.line(it));
        }
        for part in wrap(heading, self.width) {
            self.line(&format!("\u{1b}[1m{part}\u{1b}[0m"));
        }
    }

    fn extend_paragraph(&mut self, line: &str) {
        if !self.paragraph.is_empty() {
            self.paragraph.push(' ');
        }
        self.paragraph.push_str(line.trim());
    }

    fn end_paragraph(&mut self) {
        let text = plain(&std::mem::take(&mut self.paragraph));
        let is_item = std::mem::take(&mut self.is_item);
        if text.is_empty() {
            return;
        }
        let indent = if is_item { 2 } else { 0 };
        for (at, part) in wrap(&text, self.width - indent).iter().enumerate() {
            let before = match (is_item, at) {
                (false, _) => "",
                (true, 0) => "- ",
                (true, _) => "  ",
            };
            self.line(&format!("{before}{part}"));
        }
    }

    /// Each column is as wide as its widest cell, up to its share; the last one has the rest.
    fn end_table(&mut self) {
        let rows = std::mem::take(&mut self.table);
        let Some(columns) = rows.iter().map(Vec::len).max() else {
            return;
        };
        let available = self.width - GAP.len() * (columns - 1).min(self.width / 4);
        let share = (available / columns).max(1);
        let mut widths: Vec<usize> = (0..columns)
            .map(|column| {
                let cells = rows.iter().filter_map(|row| row.get(column));
                let widest = cells.map(|cell| cell.chars().count()).max();
                widest.unwrap_or(0).min(share)
            })
            .collect();
        let used: usize = widths.iter().rev().skip(1).sum();
        if let Some(last) = widths.last_mut() {
            *last = available.saturating_sub(used).max(1);
        }
        for row in rows {
            let parts: Vec<Vec<String>> = row
                .iter()
                .zip(&widths)
                .map(|(cell, width)| wrap(cell, *width))
                .collect();
            let height = parts.iter().map(Vec::len).max().unwrap_or(0);
            for at in 0..height {
                let cells = parts.iter().zip(&widths).map(|(part, width)| {
                    let text = part.get(at).map_or("", String::as_str);
                    format!("{text:width$}")
                });
                let line: Vec<String> = cells.collect();
                self.line(&line.join(GAP));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# a: some words

One two **three**
four five six seven eight nine ten.
- an item that is longer than forty columns
  and goes on
- another

    drawn  ==|==|==   and wider than forty columns

| library | setting |
|---|---|
| any client of all | `prefetch` down to what it works on at once |
| | or up |
";

    #[test]
    fn a_page_is_as_wide_as_the_terminal() {
        let expected = "# a: some words

One two three four five six seven eight
nine ten.
- an item that is longer than forty
  columns and goes on
- another

    drawn  ==|==|==   and wider than forty columns

library            setting
any client of all  `prefetch` down to
                   what it works on at
                   once
                   or up
";
        assert_eq!(fitted(PAGE, 10, false), expected);
        let wide = fitted(PAGE, 100, true);
        assert!(wide.starts_with("\u{1b}[1ma: some words\u{1b}[0m\n\nOne two three four"));
        assert!(
            wide.contains("\nany client of all  `prefetch` down to what it works on at once\n")
        );
    }

    #[test]
    fn each_page_fits_but_for_its_drawings() {
        for rule in cloverleaf_doctor::Rule::ALL {
            for width in [80, 100] {
                let text = fitted(crate::doctor_pages::page(rule), width, false);
                for line in text.lines().filter(|line| !line.starts_with("    ")) {
                    assert!(line.chars().count() <= width, "{rule} at {width}: {line}");
                }
                assert!(!text.contains("**") && !text.contains("|---"), "{rule}");
            }
        }
    }
}
