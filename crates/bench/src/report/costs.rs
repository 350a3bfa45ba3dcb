//! The cost of a message: CPU time of the broker and of the generator, and the broker's memory.

use super::plot;
use super::scale::Scale;
use super::view::{Group, View, colour, shorten};
use crate::figures;
use crate::outcome::Row;
use crate::words;
use cloverleaf_page::markup::{Markup, Px};

const ROW_HEIGHT: f64 = 24.0;
const BAR_HEIGHT: f64 = 14.0;
const TITLE_HEIGHT: f64 = 24.0;
/// Room for subjects at the left and values at the right.
const LEFT: f64 = 112.0;
const RIGHT: f64 = 150.0;
const LABEL_LETTERS: usize = 15;

/// One bar: its parts, the first one strong, and what stands beside it.
struct Cost {
    parts: Vec<f64>,
    text: String,
}

/// Draws CPU time per message. `false`: none is known.
pub(super) fn draw_cpu(
    markup: &mut Markup,
    view: &View<'_>,
    groups: &[&Group<'_>],
    width: f64,
) -> bool {
    let cost = |row: &Row| {
        let client = row.median(figures::client_cpu_ns)?;
        Some(match row.median(figures::broker_cpu_ns) {
            Some(broker) => Cost {
                parts: vec![broker, client],
                text: format!("{} + {}", words::time(broker), words::time(client)),
            },
            None => Cost {
                parts: vec![0.0, client],
                text: format!("? + {}", words::time(client)),
            },
        })
    };
    draw(markup, view, groups, width, "CPU time per message", cost)
}

/// Draws the broker's memory. `false`: none is known.
pub(super) fn draw_memory(
    markup: &mut Markup,
    view: &View<'_>,
    groups: &[&Group<'_>],
    width: f64,
) -> bool {
    let cost = |row: &Row| {
        let bytes = row.median(figures::memory_bytes)?;
        Some(Cost {
            parts: vec![bytes],
            text: words::memory(bytes),
        })
    };
    draw(markup, view, groups, width, "Memory of the broker", cost)
}

fn draw(
    markup: &mut Markup,
    view: &View<'_>,
    groups: &[&Group<'_>],
    width: f64,
    title: &str,
    cost: impl Fn(&Row) -> Option<Cost>,
) -> bool {
    let groups: Vec<(&str, Vec<(usize, Cost)>)> = groups
        .iter()
        .map(|group| {
            let rows = group.rows.iter();
            let costs = rows.filter_map(|(subject, row)| Some((*subject, cost(row)?)));
            (group.name.as_str(), costs.collect::<Vec<_>>())
        })
        .filter(|(_, costs)| !costs.is_empty())
        .collect();
    let sums = groups.iter().flat_map(|(_, costs)| costs);
    let most = sums
        .map(|(_, cost)| cost.parts.iter().sum())
        .fold(0.0, f64::max);
    if most <= 0.0 {
        return false;
    }
    let has_titles = groups.len() > 1;
    let title_height = if has_titles { TITLE_HEIGHT } else { 4.0 };
    let heights = groups
        .iter()
        .map(|(_, costs)| title_height + costs.len() as f64 * ROW_HEIGHT);
    let height: f64 = heights.sum::<f64>() + 6.0;
    let x = Scale::from_zero(most, 4, (LEFT, width - RIGHT));
    plot::begin(markup, title, width, height);
    let mut y = 0.0;
    for (name, costs) in &groups {
        if has_titles {
            let letters = (width / plot::LETTER_WIDTH) as usize;
            plot::text(markup, (0.0, y + 17.0), "name", &shorten(name, letters));
        }
        y += title_height;
        for (subject, cost) in costs {
            let label = view.label(*subject, LABEL_LETTERS);
            plot::text(markup, (LEFT - 8.0, y + 12.0), "tick end", &label);
            markup.open("g", &[("class", &colour(*subject))]);
            let mut from = LEFT;
            for (at, part) in cost.parts.iter().enumerate() {
                let long = x.at(*part) - LEFT;
                markup.leaf(
                    "rect",
                    &[
                        ("class", &if at == 0 { "bar" } else { "bar faint" }),
                        ("x", &Px(from)),
                        ("y", &Px(y)),
                        ("width", &Px(long)),
                        ("height", &Px(BAR_HEIGHT)),
                    ],
                );
                from += long;
            }
            plot::text(markup, (from + 7.0, y + 12.0), "value", &cost.text);
            markup.close();
            y += ROW_HEIGHT;
        }
    }
    plot::line(markup, "axis", (LEFT, 0.0), (LEFT, height - 6.0));
    markup.close();
    true
}
