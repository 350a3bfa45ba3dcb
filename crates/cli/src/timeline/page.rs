//! The page: the picture with its numbers under the pointer. It needs nothing but itself.

use cloverleaf_page::markup::Markup;
use cloverleaf_page::words;
use cloverleaf_server::timeline_types::Timeline;

use super::lanes::Group;
use super::picture::{STYLE, draw, heading};

const PAGE_STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The whole page.
pub(super) fn html(timeline: &Timeline, groups: &[Group]) -> String {
    let mut page = Markup::default();
    let title = heading(timeline);
    page.open("html", &[("lang", &"en")]);
    page.open("head", &[]);
    page.leaf("meta", &[("charset", &"utf-8")]);
    let content = "width=device-width, initial-scale=1";
    page.leaf("meta", &[("name", &"viewport"), ("content", &content)]);
    page.element("title", &[], &title);
    page.open("style", &[]);
    page.verbatim(STYLE);
    page.verbatim(PAGE_STYLE);
    page.close();
    page.close();
    page.open("body", &[]);
    page.open("main", &[]);
    page.element("h1", &[], &title);
    let date = words::date(timeline.until_us / 1000);
    let lead = format!("What the broker saw, asked on {date}. Point at a bar for its numbers.");
    page.element("p", &[], lead);
    for note in &timeline.notes {
        page.element("p", &[], note);
    }
    page.open("figure", &[]);
    draw(&mut page, timeline, groups, false);
    page.close();
    page.close();
    page.element("div", &[("id", &"tip")], "");
    page.open("script", &[]);
    page.verbatim(SCRIPT);
    page.close();
    format!("<!DOCTYPE html>\n{}\n", page.finish())
}
