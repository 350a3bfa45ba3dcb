//! Namespaces separate names: topics, groups and protocol values of one namespace are invisible in
//! others.

use std::fmt;
use std::sync::Arc;

/// A namespace: AMQP's virtual host, NATS's account. Cheap to clone.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace(Option<Arc<str>>);

/// A name in a namespace. A plain string converts to a name in the default namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name<'a> {
    /// The namespace.
    pub namespace: &'a Namespace,
    /// The name within it.
    pub text: &'a str,
}

/// A [`Name`] that owns its text: the key of a table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct OwnedName {
    pub(crate) namespace: Namespace,
    pub(crate) text: String,
}

impl Namespace {
    /// The namespace with the empty name: it contains everything that was stored before there were
    /// namespaces.
    pub const DEFAULT: Self = Self(None);

    /// The namespace with that name.
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

    /// A name in this namespace.
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
