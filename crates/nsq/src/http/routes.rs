//! The paths of nsqd's HTTP interface, and the methods that each allows.

use crate::http::HttpError;

/// An action on a topic or channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Creates it, if it does not exist.
    Create,
    /// Removes it and its messages.
    Delete,
    /// Removes its messages.
    Empty,
    /// Stops delivery.
    Pause,
    /// Resumes delivery.
    Unpause,
}

/// One operation of nsqd's HTTP interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// Whether the broker is healthy.
    Ping,
    /// The broker's identity.
    Info,
    /// The statistics of its topics and channels.
    Stats,
    /// One message.
    Publish,
    /// Several messages.
    PublishMany,
    /// A change of a topic.
    Topic(Change),
    /// A change of a channel.
    Channel(Change),
    /// The value of the option of this name.
    ReadConfig(String),
    /// A new value for the option of this name.
    WriteConfig(String),
}

impl Route {
    /// The route of a method and a path.
    ///
    /// # Errors
    /// [`HttpError::NotFound`], or [`HttpError::MethodNotAllowed`] if the path has other methods.
    pub fn find(method: &str, path: &str) -> Result<Route, HttpError> {
        let (allowed, route) = match path {
            "/ping" => ("GET", Route::Ping),
            "/info" => ("GET", Route::Info),
            "/stats" => ("GET", Route::Stats),
            "/pub" => ("POST", Route::Publish),
            "/mpub" => ("POST", Route::PublishMany),
            "/topic/create" => ("POST", Route::Topic(Change::Create)),
            "/topic/delete" => ("POST", Route::Topic(Change::Delete)),
            "/topic/empty" => ("POST", Route::Topic(Change::Empty)),
            "/topic/pause" => ("POST", Route::Topic(Change::Pause)),
            "/topic/unpause" => ("POST", Route::Topic(Change::Unpause)),
            "/channel/create" => ("POST", Route::Channel(Change::Create)),
            "/channel/delete" => ("POST", Route::Channel(Change::Delete)),
            "/channel/empty" => ("POST", Route::Channel(Change::Empty)),
            "/channel/pause" => ("POST", Route::Channel(Change::Pause)),
            "/channel/unpause" => ("POST", Route::Channel(Change::Unpause)),
            _ => return Route::find_config(method, path),
        };
        if method == allowed {
            Ok(route)
        } else {
            Err(HttpError::MethodNotAllowed(allowed))
        }
    }

    fn find_config(method: &str, path: &str) -> Result<Route, HttpError> {
        let name = path
            .strip_prefix("/config/")
            .filter(|name| !name.is_empty() && !name.contains('/'))
            .ok_or(HttpError::NotFound)?;
        match method {
            "GET" => Ok(Route::ReadConfig(name.to_owned())),
            "PUT" => Ok(Route::WriteConfig(name.to_owned())),
            _ => Err(HttpError::MethodNotAllowed("GET, PUT")),
        }
    }

    /// The error for a body that is longer than allowed.
    pub fn body_too_long(&self) -> HttpError {
        match self {
            Route::Publish => HttpError::MsgTooBig,
            Route::WriteConfig(_) => HttpError::ValueTooBig,
            _ => HttpError::BodyTooBig,
        }
    }

    /// The error for a body that cannot be read.
    pub fn body_broken(&self) -> HttpError {
        match self {
            Route::Publish | Route::PublishMany | Route::WriteConfig(_) => HttpError::Internal,
            _ => HttpError::InvalidRequest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_its_method() {
        for (method, path, route) in [
            ("GET", "/ping", Route::Ping),
            ("GET", "/info", Route::Info),
            ("GET", "/stats", Route::Stats),
            ("POST", "/pub", Route::Publish),
            ("POST", "/mpub", Route::PublishMany),
            ("POST", "/topic/create", Route::Topic(Change::Create)),
            ("POST", "/topic/delete", Route::Topic(Change::Delete)),
            ("POST", "/topic/empty", Route::Topic(Change::Empty)),
            ("POST", "/topic/pause", Route::Topic(Change::Pause)),
            ("POST", "/topic/unpause", Route::Topic(Change::Unpause)),
            ("POST", "/channel/create", Route::Channel(Change::Create)),
            ("POST", "/channel/delete", Route::Channel(Change::Delete)),
            ("POST", "/channel/empty", Route::Channel(Change::Empty)),
            ("POST", "/channel/pause", Route::Channel(Change::Pause)),
            ("POST", "/channel/unpause", Route::Channel(Change::Unpause)),
            (
                "GET",
                "/config/log_level",
                Route::ReadConfig("log_level".into()),
            ),
            (
                "PUT",
                "/config/log_level",
                Route::WriteConfig("log_level".into()),
            ),
        ] {
            assert_eq!(Route::find(method, path), Ok(route), "{method} {path}");
            let other = if method == "GET" { "POST" } else { "GET" };
            if !path.starts_with("/config/") {
                assert_eq!(
                    Route::find(other, path),
                    Err(HttpError::MethodNotAllowed(method))
                );
            }
        }
        let result = Route::find("DELETE", "/config/log_level");
        assert_eq!(result, Err(HttpError::MethodNotAllowed("GET, PUT")));
    }

    #[test]
    fn other_paths_are_not_found() {
        for path in [
            "/",
            "/nothing",
            "/config/",
            "/config/a/b",
            "/debug/pprof/",
            "/topic",
        ] {
            assert_eq!(Route::find("GET", path), Err(HttpError::NotFound), "{path}");
        }
    }
}
