//! A report as a page: one HTML file with its charts in it, which needs no network and no script.
//!
//! The charts are SVG written here, not by a library, because their colours are variables of the
//! style sheet: so one file is read by day, by night and on paper (`docs/decisions/` says more).

mod bars;
mod beside;
mod costs;
mod curves;
mod latency;
mod plot;
mod scale;
mod sections;
mod series;
mod tables;
mod view;

pub use beside::side_by_side;
use cloverleaf_page::markup::Markup;
use view::{View, colour};

use crate::driver::Promise;
use crate::outcome::Report;
use crate::{notes, words};

const STYLE: &str = include_str!("style.css");

/// The page.
pub fn page(report: &Report) -> String {
    let view = View::new(report);
    let mut page = Markup::default();
    page.verbatim("<!DOCTYPE html>\n");
    let xml = "http://www.w3.org/1999/xhtml";
    page.open("html", &[("lang", &"en"), ("xmlns", &xml)]);
    page.open("head", &[]);
    page.leaf("meta", &[("charset", &"utf-8")]);
    let viewport = "width=device-width, initial-scale=1";
    page.leaf("meta", &[("name", &"viewport"), ("content", &viewport)]);
    page.element("title", &[], &report.title);
    page.open("style", &[]);
    page.verbatim(STYLE);
    page.close();
    page.close();
    page.open("body", &[]);
    page.open("main", &[]);
    head(&mut page, report, &view);
    for section in &view.sections {
        sections::draw(&mut page, &view, section);
    }
    page.element("h2", &[], "All figures");
    tables::throughput(&mut page, &view);
    tables::latency(&mut page, &view);
    page.element("h2", &[], "Losses, duplicates, order");
    checks(&mut page, &view);
    let notes = notes::of(report);
    if !notes.is_empty() {
        page.element("h2", &[], "Notes");
        page.open("ul", &[]);
        for note in &notes {
            page.element("li", &[], note);
        }
        page.close();
    }
    page.element("h2", &[], "Conditions");
    tables::conditions(&mut page, report, &view);
    page.finish()
}

/// The head of the page: what was measured, whom, when, and whether it went well.
fn head(page: &mut Markup, report: &Report, view: &View<'_>) {
    let runs = || report.rows.iter().flat_map(|row| &row.runs);
    let started = runs().map(|run| run.started_unix_ms).min();
    page.open("header", &[]);
    let date = started
        .map(|at| format!(" · {}", words::date(at)))
        .unwrap_or_default();
    page.element(
        "p",
        &[("class", &"kicker")],
        format!("Cloverleaf bench{date}"),
    );
    page.element("h1", &[], &report.title);
    page.open("ul", &[("class", &"subjects")]);
    for (at, subject) in view.subjects.iter().enumerate() {
        page.open("li", &[("class", &colour(at))]);
        page.element("b", &[], &subject.label);
        let durability = format!("durability: {}", words::class(subject));
        page.element("small", &[("class", &"promise")], durability);
        page.element("small", &[], words::promise_sentence(subject.promise));
        let versions = subject.versions.iter();
        let versions: Vec<_> = versions
            .map(|(name, version)| format!("{name} {version}"))
            .collect();
        page.element("small", &[], versions.join(" · "));
        if subject.url != subject.label {
            page.element("small", &[], &subject.url);
        }
        page.close();
    }
    page.close();
    if !report.conditions.is_release {
        let text = "Compiled without optimisation: no figure on this page says anything about a \
                    broker.";
        page.element("p", &[("class", &"bad")], text);
    }
    let mut promises: Vec<Promise> = Vec::new();
    for subject in &view.subjects {
        if !promises.contains(&subject.promise) {
            promises.push(subject.promise);
        }
    }
    if promises.len() > 1 {
        let text = "The durability classes differ: who promises less has less to do. Compare \
                    within a class.";
        page.element("p", &[("class", &"good")], text);
    }
    if !report.is_good() {
        let text = "Not everything went well: see the losses and the notes below.";
        page.element("p", &[("class", &"bad")], text);
    }
    page.close();
}

/// A sentence for each subject and kind of measurement.
fn checks(page: &mut Markup, view: &View<'_>) {
    page.open("ul", &[]);
    for section in &view.sections {
        for (at, subject) in view.subjects.iter().enumerate() {
            let rows = section.rows().filter(|(of, _)| *of == at);
            let runs: Vec<_> = rows.flat_map(|(_, row)| &row.runs).collect();
            if runs.is_empty() {
                continue;
            }
            let is_broken = runs
                .iter()
                .any(|run| run.findings.is_some_and(|it| it.is_broken()));
            page.open("li", &[("class", &if is_broken { "bad" } else { "" })]);
            let kind = words::kind(section.kind).to_lowercase();
            page.element("b", &[], &subject.label);
            page.text(format!(
                ", {kind}: {}",
                words::findings(runs.iter().copied())
            ));
            page.close();
        }
    }
    page.close();
}
