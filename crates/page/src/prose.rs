//! Prose in lines, for a terminal or a file.

use textwrap::{Options, WordSeparator, WordSplitter, WrapAlgorithm};

/// A paragraph in lines of at most `columns_max` columns. Lines end only at spaces, so that
/// commands and names can be copied: a longer word has a line of its own. There is at least one
/// line.
pub fn wrap(paragraph: &str, columns_max: usize) -> Vec<String> {
    let options = Options::new(columns_max)
        .break_words(false)
        .word_separator(WordSeparator::AsciiSpace)
        .word_splitter(WordSplitter::NoHyphenation)
        .wrap_algorithm(WrapAlgorithm::FirstFit);
    let lines = textwrap::wrap(paragraph.trim(), options);
    lines.into_iter().map(String::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_at_spaces_and_count_what_a_terminal_shows() {
        assert_eq!(wrap("", 10), [""]);
        assert_eq!(wrap("one two three-four", 9), ["one two", "three-four"]);
        assert_eq!(
            wrap(" a --much-longer-word b  ", 6),
            ["a", "--much-longer-word", "b"]
        );
        assert_eq!(wrap("é … 12\u{a0}ms é", 9), ["é … 12\u{a0}ms", "é"]);
    }
}
