//! Cache of a connection's routes, so that a stream of publishes looks its route up only once.

use std::collections::HashMap;

use cloverleaf_access::Operation;
use cloverleaf_session::Cached;

use crate::exception::Exception;
use crate::host::{Queue, Route, VirtualHost};
use crate::queue_arguments::Overflow;
use crate::routing::RoutedMessage;
use crate::session::rights::User;

/// Maximum number of cached routes of a connection.
const ROUTES_MAX: usize = 4096;

/// A route, with a summary of its queues.
#[derive(Clone)]
pub(super) struct FoundRoute {
    pub(super) route: Route,
    /// One of the queues may refuse a message when it is full, so each message needs a flush of its
    /// own.
    pub(super) may_refuse: bool,
}

/// The cached routes, dropped when the virtual host's generation changes.
#[derive(Default)]
pub(super) struct RouteCache {
    routes: Cached<RoutesByKey>,
}

/// Routes by exchange and routing key.
#[derive(Default)]
struct RoutesByKey {
    last: Option<(String, String, FoundRoute)>,
    /// Routes by exchange and then key. An exchange is in it if the user may publish to it.
    found: HashMap<String, HashMap<String, FoundRoute>>,
    count: usize,
}

impl RouteCache {
    /// The route of a message.
    ///
    /// # Errors
    /// No such exchange (404), an internal one, or one that the user may not publish to (403).
    pub(super) fn find(
        &mut self,
        host: &VirtualHost,
        user: &User<'_>,
        exchange: &str,
        message: &RoutedMessage<'_>,
    ) -> Result<FoundRoute, Exception> {
        let routes = self.routes.at(host.generation());
        if has_cc(message) {
            routes.check(user, exchange)?;
            let found = look_up(host, exchange, message)?;
            routes.found.entry(exchange.to_owned()).or_default();
            return Ok(found);
        }
        if let Some((last_exchange, last_key, found)) = &routes.last
            && last_key == message.key
            && last_exchange == exchange
        {
            return Ok(found.clone());
        }
        let known = routes.found.get(exchange);
        let found = match known.and_then(|keys| keys.get(message.key)) {
            Some(found) => found.clone(),
            None => {
                routes.check(user, exchange)?;
                let found = look_up(host, exchange, message)?;
                if !found.route.is_cacheable {
                    // Caches only that the user may publish to this exchange.
                    routes.found.entry(exchange.to_owned()).or_default();
                    return Ok(found);
                }
                routes.remember(exchange, message.key, &found);
                found
            }
        };
        routes.last = Some((exchange.to_owned(), message.key.to_owned(), found.clone()));
        Ok(found)
    }

    /// Drops the routes if they are of another generation.
    pub(super) fn refresh(&mut self, generation: u64) {
        self.routes.at(generation);
    }
}

impl RoutesByKey {
    fn remember(&mut self, exchange: &str, key: &str, found: &FoundRoute) {
        if self.count >= ROUTES_MAX {
            self.found.clear();
            self.count = 0;
        }
        let keys = self.found.entry(exchange.to_owned()).or_default();
        keys.insert(key.to_owned(), found.clone());
        self.count += 1;
    }

    /// Checks that the user may publish to an exchange, unless that is cached.
    fn check(&self, user: &User<'_>, exchange: &str) -> Result<(), Exception> {
        if self.found.contains_key(exchange) {
            Ok(())
        } else {
            user.exchange(Operation::Publish, exchange)
        }
    }
}

/// Whether the message has further routing keys, in `CC` or `BCC`.
fn has_cc(message: &RoutedMessage<'_>) -> bool {
    let is_copy = |name: &str| name == "CC" || name == "BCC";
    message.headers.fields().any(|(name, _)| is_copy(name))
}

fn look_up(
    host: &VirtualHost,
    exchange: &str,
    message: &RoutedMessage<'_>,
) -> Result<FoundRoute, Exception> {
    let route = host.route(exchange, message)?;
    let may_refuse = route.queues.iter().any(|queue| may_refuse(queue));
    Ok(FoundRoute { route, may_refuse })
}

fn may_refuse(queue: &Queue) -> bool {
    let arguments = &queue.arguments;
    let has_limit = arguments.length_max.is_some() || arguments.length_bytes_max.is_some();
    has_limit && arguments.overflow != Overflow::DropHead
}
