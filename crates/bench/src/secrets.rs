//! A command line as it may be shown: without passwords and tokens.

use cloverleaf_page::secrets::{HIDDEN, masked};

use crate::url::Url;

/// The option of the command line whose value is one.
const TOKEN: &str = "--token";

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
fn argument(word: &str) -> String {
    match word.parse::<Url>() {
        Ok(url) => url.written(),
        Err(_) => masked(word),
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
}
