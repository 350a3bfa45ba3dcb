//! Files: a page, or a picture on its own.
//!
//! The markup comes from `maud`, which escapes every text and closes every element. The output is
//! HTML and XML at once, so that a test can check it with an XML parser: elements without content
//! are closed too.

use maud::{Markup, PreEscaped, html};

const STYLE: &str = include_str!("page.css");
const HEAD: &str = "<meta charset=\"utf-8\"/>\
    <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>";
const DARK: &str = "@media screen and (prefers-color-scheme: dark)";

/// Names of colours with their values in light and dark mode. People with any kind of colour
/// blindness can tell `s0` to `s7` apart.
const COLOURS: [(&str, &str, &str); 15] = [
    ("paper", "#ffffff", "#14171b"),
    ("ink", "#1b1f24", "#e8eaed"),
    ("muted", "#59626d", "#a0a9b4"),
    ("faint", "#e3e6ea", "#2d3339"),
    ("band", "#f6f7f9", "#1a1e23"),
    ("bad", "#b3261e", "#ff8a80"),
    ("wait", "#e8a33d", "#b97f26"),
    ("s0", "#0b62a8", "#5fb0f0"),
    ("s1", "#c8500a", "#ff9450"),
    ("s2", "#007d5c", "#3fcf9f"),
    ("s3", "#a8447f", "#ee93c7"),
    ("s4", "#8a6d00", "#e5c340"),
    ("s5", "#2b8cc4", "#9cd6f7"),
    ("s6", "#5b4bb5", "#b3a5ff"),
    ("s7", "#4d4d4d", "#c4c4c4"),
];

/// A page that loads no other file. `styles` follow the style sheet of all pages.
pub fn html_page(title: &str, styles: &[&'static str], body: &Markup) -> String {
    let colours = |value: fn(&(&str, &'static str, &'static str)) -> &'static str| {
        let each = COLOURS
            .iter()
            .map(|colour| format!("--{}: {}; ", colour.0, value(colour)));
        format!(":root {{ {}}}\n", each.collect::<String>())
    };
    let (light, dark) = (colours(|it| it.1), colours(|it| it.2));
    let page = html! {
        (PreEscaped("<!DOCTYPE html>\n"))
        html lang="en" {
            head {
                (PreEscaped(HEAD))
                title { (title) }
                style {
                    (light) (DARK) " {\n" (dark) "}\n" (PreEscaped(STYLE))
                    @for style in styles { (PreEscaped(style)) }
                }
            }
            body { main { (body) } }
        }
    };
    sanitized(page)
}

/// A picture as a file.
pub fn svg_file(picture: Markup) -> String {
    sanitized(picture)
}

/// A style sheet without variables, because many programs that draw an SVG do not support them. The
/// dark colours are in a media query, for programs that support that.
pub fn plain_style(style: &str) -> String {
    let (mut light, mut dark) = (style.to_owned(), style.to_owned());
    for (name, by_day, by_night) in COLOURS {
        let variable = format!("var(--{name})");
        light = light.replace(&variable, by_day);
        dark = dark.replace(&variable, by_night);
    }
    format!("{light}{DARK} {{\n{dark}}}\n")
}

/// Replaces characters that are not allowed in XML or not readable.
fn sanitized(markup: Markup) -> String {
    let letters = markup.0.chars();
    let shown = letters.map(|letter| match letter {
        '\n' => letter,
        _ if letter.is_control() || is_unreadable(letter) => char::REPLACEMENT_CHARACTER,
        _ => letter,
    });
    shown.collect::<String>() + "\n"
}

/// Characters that XML does not allow, or that change the direction of the text around them.
fn is_unreadable(letter: char) -> bool {
    matches!(letter, '\u{fffe}' | '\u{ffff}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped() {
        let evil = "a & b </p>\u{0}\u{202e}";
        let markup = html! { p title="\"><script>" { b { (evil) } } };
        let expected = "<p title=\"&quot;&gt;&lt;script&gt;\"><b>a &amp; b &lt;/p&gt;\
                        \u{fffd}\u{fffd}</b></p>\n";
        assert_eq!(svg_file(markup), expected);
    }

    #[test]
    fn a_picture_that_stands_alone_has_colours_for_day_and_night() {
        let plain = plain_style(".a { fill: var(--ink); }\n");
        let expected = format!(".a {{ fill: #1b1f24; }}\n{DARK} {{\n.a {{ fill: #e8eaed; }}\n}}\n");
        assert_eq!(plain, expected);
    }
}
