//! The HTML page: the picture, with its numbers under the pointer. It loads no other file.

use cloverleaf_page::{html_page, words};
use cloverleaf_server::timeline_types::Timeline;
use maud::{PreEscaped, html};

use super::lanes::LaneGroup;
use super::picture::{STYLE, draw, heading};

const PAGE_STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The whole page.
pub(super) fn html(timeline: &Timeline, groups: &[LaneGroup]) -> String {
    let title = heading(timeline);
    let body = html! {
        h1 { (title) }
        p {
            "What the broker saw, asked on " (words::date(timeline.until_us / 1000))
            ". Point at a bar for its numbers."
        }
        @for note in &timeline.notes { p { (note) } }
        figure { (draw(timeline, groups, false)) }
        div #tip {}
        script { (PreEscaped(SCRIPT)) }
    };
    html_page(&title, &[STYLE, PAGE_STYLE], &body)
}
