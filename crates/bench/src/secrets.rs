//! What nobody may read in a table, a report or an error: passwords and tokens.

use crate::url::Url;

/// Stands for a secret.
pub(crate) const HIDDEN: &str = "***";
/// The option of the command line whose value is one.
const TOKEN: &str = "--token";
/// Options of a URL whose names contain one of these have a secret as their value: librdkafka's
/// `sasl.password`, `ssl.key.pem`, `sasl.oauthbearer.client.secret` and others.
const NAMES: [&str; 7] = [
    "password",
    "passphrase",
    "passwd",
    "secret",
    "token",
    "key.pem",
    "oauthbearer.config",
];
/// A secret that is shorter stands in many words by chance.
const BYTES_MIN: usize = 3;

/// Whether the value of a URL's option of this name is a secret.
pub(crate) fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    NAMES.iter().any(|part| name.contains(part))
}

/// A sentence without these secrets, whoever has put them there: a library repeats in its errors
/// what it was told.
pub(crate) fn without<'s>(text: &str, secrets: impl Iterator<Item = &'s str>) -> String {
    let long = secrets.filter(|secret| secret.len() >= BYTES_MIN);
    long.fold(text.to_owned(), |text, secret| text.replace(secret, HIDDEN))
}

/// What should have been a URL, without what may be a password in it.
pub(crate) fn mask(text: &str) -> String {
    let begin = match (text.find("://"), text.find(':')) {
        (Some(at), _) => at + 3,
        (None, Some(at)) => at + 1,
        (None, None) => return text.to_owned(),
    };
    let (before, after) = text.split_at(begin);
    let Some((login, host)) = after.rsplit_once('@') else {
        return match after.split_once(':') {
            // A password to which no host was added.
            Some((user, rest)) if !rest.starts_with(|first: char| first.is_ascii_digit()) => {
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

/// A command line without secrets.
pub(crate) fn command(words: &[String]) -> Vec<String> {
    let mut shown = Vec::with_capacity(words.len());
    let mut is_token = false;
    for word in words {
        let (option, value) = match word.split_once('=') {
            Some((option, value)) if option.starts_with("--") => (Some(option), value),
            _ => (None, word.as_str()),
        };
        shown.push(match option {
            _ if is_token => HIDDEN.to_owned(),
            Some(TOKEN) => format!("{TOKEN}={HIDDEN}"),
            Some(option) => format!("{option}={}", argument(value)),
            None => argument(value),
        });
        is_token = !is_token && word == TOKEN;
    }
    shown
}

/// A word of a command line, which may be a URL, without its password and other secrets.
pub fn argument(word: &str) -> String {
    match word.parse::<Url>() {
        Ok(url) => url.written(),
        Err(_) if word.contains('@') || word.contains("://") => mask(word),
        Err(_) => word.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_shows_no_secret() {
        for (words, expected) in [
            ("bench --token t0psecret -q", "bench --token *** -q"),
            ("bench --token=t0psecret -q", "bench --token=*** -q"),
            (
                "--url amqp://me:t0psecret@h:1/v --count 5",
                "--url amqp://me:***@h:1/v --count 5",
            ),
            (
                "--url=a=amqp://me:t0p%2Fs@secret@h:1?prefetch=5",
                "--url=a=amqp://me:***@h:1?prefetch=5",
            ),
            (
                "--url kafka://h:1?sasl.password=t0psecret&linger.ms=0&ssl.key.pem=secret",
                "--url kafka://h:1?linger.ms=0&sasl.password=***&ssl.key.pem=***",
            ),
            // None that is understood.
            ("--url amqp:me:t0psecret@h", "--url amqp:me:***@h"),
            ("--url amqp://me:t0psecret", "--url amqp://me:***"),
            (
                "--url=kafka://me:t0p/secret@h?SASL.Password=t0psecret",
                "--url=kafka://me:***@h?SASL.Password=***",
            ),
            (
                "--url=nosuch://h?client_secret=t0psecret",
                "--url=nosuch://h?client_secret=***",
            ),
        ] {
            let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
            let shown = command(&words).join(" ");
            assert_eq!(shown, expected);
            assert!(!shown.contains("secret@") && !shown.contains("t0p"));
        }
    }

    #[test]
    fn a_sentence_loses_its_secrets() {
        let text = without("no such key t0psecret at x", ["t0psecret", "x"].into_iter());
        assert_eq!(text, "no such key *** at x");
    }
}
