//! A report as a page: one HTML file that contains its charts and needs no network and no script.
//!
//! The charts are SVG that is drawn here, not by a library, because their colours are variables of
//! the style sheet: one file suits a light screen, a dark screen and paper (see `docs/decisions/`).

mod bars;
mod beside;
mod costs;
mod curves;
mod latency;
mod plot;
mod sections;
mod series;
mod tables;
mod view;

pub use beside::side_by_side;
use cloverleaf_page::html_page;
use maud::{Markup, html};
use view::{ReportView, colour};

use crate::outcome::Report;
use crate::{notes, words};

const STYLE: &str = include_str!("style.css");

/// The whole page as HTML.
pub fn page(report: &Report) -> String {
    let view = ReportView::new(report);
    let notes = notes::of(report);
    let body = html! {
        (head(report, &view))
        @for section in &view.sections { (sections::draw(&view, section)) }
        h2 { "All figures" }
        (tables::figures(&view))
        h2 { "Losses, duplicates, order" }
        (checks(&view))
        @if !notes.is_empty() {
            h2 { "Notes" }
            ul { @for note in &notes { li { (note) } } }
        }
        h2 { "Conditions" }
        (tables::conditions(report, &view))
    };
    html_page(&report.title, &[STYLE], &body)
}

/// The head of the page: title, brokers, date, and whether a measurement failed.
fn head(report: &Report, view: &ReportView<'_>) -> Markup {
    let runs = report.rows.iter().flat_map(|row| &row.runs);
    let started = runs.map(|run| run.started_unix_ms).min();
    let mut pairs = view.subjects.windows(2);
    let differ = pairs.any(|pair| pair[0].promise != pair[1].promise);
    html! {
        header {
            p.kicker {
                "Cloverleaf bench"
                @if let Some(at) = started { " · " (words::date(at)) }
            }
            h1 { (report.title) }
            ul.subjects {
                @for (at, subject) in view.subjects.iter().enumerate() {
                    @let versions = subject.versions.iter();
                    @let versions = versions.map(|(name, version)| format!("{name} {version}"));
                    li class=(colour(at)) {
                        b { (subject.label) }
                        small.promise { "durability: " (words::class(subject)) }
                        small { (words::promise_sentence(subject.promise)) }
                        small { (versions.collect::<Vec<_>>().join(" · ")) }
                        @if subject.url != subject.label { small { (subject.url) } }
                    }
                }
            }
            @if !report.conditions.is_release {
                p.bad {
                    "Compiled without optimisation: no figure on this page says anything about a "
                    "broker."
                }
            }
            @if differ {
                p.good {
                    "The durability classes differ: who promises less has less to do. Compare "
                    "within a class."
                }
            }
            @if !report.is_good() {
                p.bad { "Not everything went well: see the losses and the notes below." }
            }
        }
    }
}

/// The results of the checks: a sentence for each subject and kind of measurement.
fn checks(view: &ReportView<'_>) -> Markup {
    let each = view.sections.iter().flat_map(|section| {
        let kind = words::kind(section.kind).to_lowercase();
        let subjects = view.subjects.iter().enumerate();
        subjects.filter_map(move |(at, subject)| {
            let rows = section.rows().filter(|(of, _)| *of == at);
            let runs: Vec<_> = rows.flat_map(|(_, row)| &row.runs).collect();
            let found = words::findings(runs.iter().copied());
            let is_broken = runs
                .iter()
                .any(|run| run.findings.is_some_and(|it| it.is_broken()));
            let text = format!(", {kind}: {found}");
            (!runs.is_empty()).then_some((subject, is_broken, text))
        })
    });
    html! {
        ul {
            @for (subject, is_broken, text) in each {
                li.bad[is_broken] { b { (subject.label) } (text) }
            }
        }
    }
}
