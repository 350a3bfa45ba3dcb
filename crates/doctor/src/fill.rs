//! Texts with blanks: `{…}`, for which something is filled in.

/// A text in which each blank is replaced by what `value_of` says of it; braces of which it says
/// nothing are code, and stay.
pub(crate) fn fill(text: &str, mut value_of: impl FnMut(&str) -> Option<String>) -> String {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, from)) = rest.split_once('{') {
        filled.push_str(before);
        let blank = from.split_once('}');
        match blank.and_then(|(blank, behind)| Some((value_of(blank)?, behind))) {
            Some((value, behind)) => {
                filled.push_str(&value);
                rest = behind;
            }
            None => {
                filled.push('{');
                rest = from;
            }
        }
    }
    filled + rest
}
