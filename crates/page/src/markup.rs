//! Writes well-formed markup: every text and every value escaped, every element closed.
//!
//! The output is HTML and XML at once, so that a parser can judge it in a test.

use std::fmt::{self, Display, Write};

/// A document, or a piece of one, that grows at its end.
#[derive(Debug, Default)]
pub struct Markup {
    text: String,
    open: Vec<&'static str>,
}

/// The attributes of an element.
pub type Attributes<'a> = &'a [(&'a str, &'a dyn Display)];

impl Markup {
    /// Begins an element.
    pub fn open(&mut self, name: &'static str, attributes: Attributes<'_>) {
        self.begin(name, attributes);
        self.text.push('>');
        self.open.push(name);
    }

    /// Ends the element that was begun last.
    pub fn close(&mut self) {
        if let Some(name) = self.open.pop() {
            self.put(format_args!("</{name}>"));
        }
    }

    /// An element without content.
    pub fn leaf(&mut self, name: &'static str, attributes: Attributes<'_>) {
        self.begin(name, attributes);
        self.text.push_str("/>");
    }

    /// An element with a text.
    pub fn element(&mut self, name: &'static str, attributes: Attributes<'_>, text: impl Display) {
        self.open(name, attributes);
        self.text(text);
        self.close();
    }

    /// A text.
    pub fn text(&mut self, text: impl Display) {
        let _ = write!(Escaped(&mut self.text), "{text}");
    }

    /// Markup as it is, which holds nothing of a user: a style sheet.
    pub fn verbatim(&mut self, text: &'static str) {
        self.text.push_str(text);
    }

    /// A piece that was written apart.
    pub fn piece(&mut self, piece: Markup) {
        self.text.push_str(&piece.finish());
    }

    /// The whole markup, all elements closed.
    pub fn finish(mut self) -> String {
        while !self.open.is_empty() {
            self.close();
        }
        self.text
    }

    fn begin(&mut self, name: &'static str, attributes: Attributes<'_>) {
        self.put(format_args!("<{name}"));
        for (name, value) in attributes {
            self.put(format_args!(" {name}=\""));
            let _ = write!(Escaped(&mut self.text), "{value}");
            self.text.push('"');
        }
    }

    /// A string takes everything.
    fn put(&mut self, arguments: fmt::Arguments<'_>) {
        let _ = self.text.write_fmt(arguments);
    }
}

/// Escapes for texts and for values in double quotes.
struct Escaped<'t>(&'t mut String);

impl Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for letter in text.chars() {
            match letter {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                '\n' => self.0.push('\n'),
                // Neither XML nor a reader can make anything of these.
                letter if letter.is_control() || is_unreadable(letter) => {
                    self.0.push(char::REPLACEMENT_CHARACTER);
                }
                letter => self.0.push(letter),
            }
        }
        Ok(())
    }
}

/// Characters that no XML may hold, or that would turn the direction of the text around them.
fn is_unreadable(letter: char) -> bool {
    matches!(letter, '\u{fffe}' | '\u{ffff}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A length or a place in a picture: one decimal. Not a number becomes 0, which a picture shows.
#[derive(Debug, Clone, Copy)]
pub struct Px(pub f64);

impl Display for Px {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_assert!(self.0.is_finite(), "a place in a picture is a number");
        if self.0.is_finite() {
            write!(f, "{}", (self.0 * 10.0).round() / 10.0)
        } else {
            f.write_str("0")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_cannot_leave_their_place() {
        let mut markup = Markup::default();
        markup.open("p", &[("title", &"\"><script>")]);
        markup.element("b", &[], "a & b </p>\u{0}\u{202e}");
        markup.leaf("br", &[]);
        let expected = "<p title=\"&quot;&gt;&lt;script&gt;\"><b>a &amp; b &lt;/p&gt;\
                        \u{fffd}\u{fffd}</b><br/></p>";
        assert_eq!(markup.finish(), expected);
    }

    #[test]
    fn places_are_short() {
        assert_eq!(Px(12.345).to_string(), "12.3");
        assert_eq!(Px(-0.01).to_string().trim_start_matches('-'), "0");
    }
}
