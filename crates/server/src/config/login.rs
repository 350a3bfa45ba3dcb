//! Users and their passwords as the value of an option, which is never shown with passwords.

use std::fmt;

use crate::config::value::OptionValue;

/// A user and the password, written `NAME:PASSWORD`.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// The name, which has no colon.
    pub name: String,
    /// The password, which may have colons.
    pub password: String,
}

impl fmt::Debug for Login {
    /// Shows only the name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Users with their passwords. The environment variable can give only one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Logins(pub Vec<Login>);

impl OptionValue for Logins {
    const KIND: &'static str = "list of texts";
    const LIST: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        match text.split_once(':') {
            Some((name, password)) if !name.is_empty() && !password.is_empty() => {
                Ok(Self(vec![Login {
                    name: name.to_owned(),
                    password: password.to_owned(),
                }]))
            }
            // The text may contain a password, so it is not repeated.
            _ => Err("this is no user: write NAME:PASSWORD".to_owned()),
        }
    }

    fn parse_all(texts: &[String]) -> Result<Self, String> {
        let mut all = Self::default();
        for text in texts {
            all.0.extend(Self::parse(text)?.0);
        }
        Ok(all)
    }

    /// Only the names, because this text is shown.
    fn text(&self) -> String {
        let names: Vec<&str> = self.0.iter().map(|login| &*login.name).collect();
        names.join(",")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn users_have_passwords_that_are_not_shown() {
        let texts = ["ann:secret".to_owned(), "bob:a:b,c".to_owned()];
        let users = Logins::parse_all(&texts).unwrap();
        assert_eq!(users.0[1].password, "a:b,c");
        assert_eq!(users.text(), "ann,bob");
        assert_eq!(format!("{users:?}"), "Logins([ann, bob])");
        for wrong in ["ann", "ann:", ":secret", ":"] {
            let error = Logins::parse(wrong).unwrap_err();
            assert!(!error.contains("secret"), "{error}");
        }
        assert_eq!(Logins::parse("").unwrap(), Logins::default());
    }
}
