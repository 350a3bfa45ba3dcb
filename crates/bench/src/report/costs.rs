//! The cost of a message: CPU time of the broker and of the generator, and the broker's memory.

use cloverleaf_page::Axis;
use cloverleaf_page::picture::{line, rect, svg, text};
use maud::{Markup, html};

use super::plot;
use super::view::{SettingsGroup, colour, label, shorten};
use crate::figures;
use crate::outcome::Row;
use crate::words;

const ROW_HEIGHT: f64 = 24.0;
const BAR_HEIGHT: f64 = 14.0;
const TITLE_HEIGHT: f64 = 24.0;
/// Margins for the subjects' names at the left and the values at the right.
const LEFT: f64 = 112.0;
const RIGHT: f64 = 150.0;
const LABEL_LETTERS: usize = 15;

/// One bar: its parts, of which the first has the strong colour, and the text beside it.
struct CostBar {
    parts: Vec<f64>,
    text: String,
}

/// Draws CPU time per message. `None`: no run has one.
pub(super) fn draw_cpu(groups: &[&SettingsGroup<'_>], width: f64) -> Option<Markup> {
    let cost = |row: &Row| {
        let client = row.median(figures::client_cpu_ns)?;
        let broker = row.median(figures::broker_cpu_ns);
        let broker_text = broker.map_or_else(|| "?".to_owned(), words::time);
        Some(CostBar {
            parts: vec![broker.unwrap_or(0.0), client],
            text: format!("{broker_text} + {}", words::time(client)),
        })
    };
    draw(groups, width, "CPU time per message", cost)
}

/// Draws the broker's memory. `None`: it is unknown for all runs.
pub(super) fn draw_memory(groups: &[&SettingsGroup<'_>], width: f64) -> Option<Markup> {
    let cost = |row: &Row| {
        let bytes = row.median(figures::memory_bytes)?;
        Some(CostBar {
            parts: vec![bytes],
            text: words::memory(bytes),
        })
    };
    draw(groups, width, "Memory of the broker", cost)
}

fn draw(
    groups: &[&SettingsGroup<'_>],
    width: f64,
    title: &str,
    cost: impl Fn(&Row) -> Option<CostBar>,
) -> Option<Markup> {
    let groups = groups.iter().map(|group| {
        let rows = group.rows.iter();
        let costs = rows.filter_map(|(subject, row)| Some((*subject, *row, cost(row)?)));
        (group.name.as_str(), costs.collect::<Vec<_>>())
    });
    let groups: Vec<_> = groups.filter(|(_, costs)| !costs.is_empty()).collect();
    let all = groups.iter().flat_map(|(_, costs)| costs);
    let sums = all.map(|(.., cost)| cost.parts.iter().sum());
    let most = sums.fold(0.0, f64::max);
    if most <= 0.0 {
        return None;
    }
    let has_titles = groups.len() > 1;
    let title_height = if has_titles { TITLE_HEIGHT } else { 4.0 };
    let x = Axis::from_zero(most, 4, (LEFT, width - RIGHT), words::tick);
    let letters = (width / plot::LETTER_WIDTH) as usize;
    let mut shapes = Vec::new();
    let mut y = 0.0;
    for (name, costs) in &groups {
        if has_titles {
            shapes.push(text("name", (0.0, y + 17.0), &shorten(name, letters)));
        }
        y += title_height;
        for (subject, row, cost) in costs {
            let label = label(row, LABEL_LETTERS);
            shapes.push(text("tick end", (LEFT - 8.0, y + 12.0), &label));
            let bar = draw_bar(cost, &x, y);
            shapes.push(html! { g class=(colour(*subject)) { (bar) } });
            y += ROW_HEIGHT;
        }
    }
    shapes.push(line("axis", (LEFT, 0.0), (LEFT, y)));
    let shapes = html! { @for shape in &shapes { (shape) } };
    Some(svg("", (width, y + 6.0), title, &shapes))
}

/// The parts of a bar side by side, and its text to their right.
fn draw_bar(cost: &CostBar, x: &Axis, y: f64) -> Markup {
    let mut end = LEFT;
    let parts = cost.parts.iter().enumerate().map(|(at, part)| {
        let (from, length) = (end, x.at(*part) - LEFT);
        end += length;
        let class = if at == 0 { "bar" } else { "bar faint" };
        rect(class, (from, y), (length, BAR_HEIGHT))
    });
    let parts: Vec<_> = parts.collect();
    html! {
        @for part in &parts { (part) }
        (text("value", (end + 7.0, y + 12.0), &cost.text))
    }
}
