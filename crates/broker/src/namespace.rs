//! Namespaces, in which names count: topics, groups and kept values of one are none of another's.

use std::fmt;
use std::sync::Arc;

/// A namespace: AMQP's virtual host, NATS's account. Cheap to clone.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace(Option<Arc<str>>);

/// A name in its namespace. A text alone is a name in the default one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name<'a> {
    /// Where it counts.
    pub namespace: &'a Namespace,
    /// The name there.
    pub text: &'a str,
}

/// A [`Name`] that is kept: a table's key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct OwnedName {
    pub(crate) namespace: Namespace,
    pub(crate) text: String,
}

impl Namespace {
    /// The one whose name is empty: all there was in it before there were others.
    pub const DEFAULT: Self = Self(None);

    /// The namespace of that name.
    pub fn new(name: &str) -> Self {
        Self((!name.is_empty()).then(|| name.into()))
    }

    /// Its name.
    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }

    /// Whether it is the default one.
    pub fn is_default(&self) -> bool {
        self.0.is_none()
    }

    /// A name in it.
    pub(crate) fn name<'a>(&'a self, text: &'a str) -> Name<'a> {
        Name {
            namespace: self,
            text,
        }
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl Name<'_> {
    pub(crate) fn owned(self) -> OwnedName {
        OwnedName {
            namespace: self.namespace.clone(),
            text: self.text.to_owned(),
        }
    }
}

impl<'a, T: AsRef<str> + ?Sized> From<&'a T> for Name<'a> {
    fn from(text: &'a T) -> Self {
        const { &Namespace::DEFAULT }.name(text.as_ref())
    }
}
