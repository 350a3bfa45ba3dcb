//! Texts with placeholders: `{…}`, which are replaced by values.

/// Replaces each placeholder by the result of `value_of`. Braces for which it returns `None` are
/// code, and stay as they are.
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
