//! Hides secrets in a table, a report or an error: passwords and tokens.

/// The text that replaces a secret.
pub const HIDDEN: &str = "***";
/// Parts of names: an option of a URL whose name contains one of these has a secret as its value.
/// Examples are librdkafka's `sasl.password`, `ssl.key.pem` and `sasl.oauthbearer.client.secret`.
const SECRET_NAME_PARTS: [&str; 7] = [
    "password",
    "passphrase",
    "passwd",
    "secret",
    "token",
    "key.pem",
    "oauthbearer.config",
];
/// A shorter secret would occur in many words by chance, so it is not replaced.
const BYTES_MIN: usize = 3;

/// Whether the value of a URL's option of this name is a secret.
pub fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_NAME_PARTS.iter().any(|part| name.contains(part))
}

/// The text without these secrets. Other libraries may repeat a secret in their errors.
pub fn without_secrets<'s>(text: &str, secrets: impl Iterator<Item = &'s str>) -> String {
    let long = secrets.filter(|secret| secret.len() >= BYTES_MIN);
    long.fold(text.to_owned(), |text, secret| text.replace(secret, HIDDEN))
}

/// A text that should be a URL, without anything in it that may be a password.
pub fn mask(text: &str) -> String {
    let begin = match (text.find("://"), text.find(':')) {
        (Some(at), _) => at + 3,
        (None, Some(at)) => at + 1,
        (None, None) => return text.to_owned(),
    };
    let (before, after) = text.split_at(begin);
    let Some((login, host)) = after.rsplit_once('@') else {
        return match after.split_once(':') {
            // A user and a password without a host; it is not an IPv6 address or a port.
            Some((user, rest))
                if !user.starts_with('[')
                    && !rest.starts_with(|first: char| first.is_ascii_digit()) =>
            {
                format!("{before}{user}:{HIDDEN}")
            }
            _ => format!("{before}{}", mask_options(after)),
        };
    };
    let host = mask_options(host);
    match login.split_once(':') {
        None if !before.ends_with('/') => format!("{before}{HIDDEN}@{host}"),
        Some((user, _)) => format!("{before}{user}:{HIDDEN}@{host}"),
        None => format!("{before}{login}@{host}"),
    }
}

fn mask_options(text: &str) -> String {
    let Some((place, options)) = text.split_once('?') else {
        return text.to_owned();
    };
    let options = options.split('&').map(|pair| match pair.split_once('=') {
        Some((name, _)) if is_secret(name) => format!("{name}={HIDDEN}"),
        _ => pair.to_owned(),
    });
    format!("{place}?{}", options.collect::<Vec<_>>().join("&"))
}

/// A word of a command line, without its password if it looks like a URL.
pub fn masked(word: &str) -> String {
    if word.contains('@') || word.contains("://") {
        mask(word)
    } else {
        word.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_looks_like_a_url_loses_its_password() {
        for (word, expected) in [
            ("amqp://me:t0psecret@h", "amqp://me:***@h"),
            ("a=amqp://me:t0psecret@h:1?x=1", "a=amqp://me:***@h:1?x=1"),
            ("nosuch://h?client_secret=x", "nosuch://h?client_secret=***"),
            ("kafka://[::1]:9092", "kafka://[::1]:9092"),
            ("embedded:nsq", "embedded:nsq"),
            ("--flag=value", "--flag=value"),
        ] {
            assert_eq!(masked(word), expected);
        }
    }

    #[test]
    fn a_sentence_loses_its_secrets() {
        let text = without_secrets("no such key t0psecret at x", ["t0psecret", "x"].into_iter());
        assert_eq!(text, "no such key *** at x");
    }
}
