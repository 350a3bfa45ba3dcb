//! Routes that a connection has used: a stream of publishes asks the virtual host once.

use std::collections::HashMap;

use cloverleaf_access::Operation;
use cloverleaf_session::Cached;

use crate::exception::Exception;
use crate::host::{Queue, Route, VirtualHost};
use crate::queue_arguments::Overflow;
use crate::routing::Routed;
use crate::session::rights::User;

/// Most routes that a connection remembers.
const ROUTES_MAX: usize = 4096;

/// A route, and what of its queues matters for each message.
#[derive(Clone)]
pub(super) struct Found {
    pub(super) route: Route,
    /// One of the queues may refuse a message because it is full: each is asked by itself then.
    pub(super) may_refuse: bool,
}

/// Routes of one virtual host.
#[derive(Default)]
pub(super) struct RouteCache {
    routes: Cached<Routes>,
}

/// Routes by exchange and key.
#[derive(Default)]
struct Routes {
    last: Option<(String, String, Found)>,
    /// By exchange, those that the user may publish to.
    found: HashMap<String, HashMap<String, Found>>,
    count: usize,
}

impl RouteCache {
    /// Where a message goes.
    ///
    /// # Errors
    /// There is no such exchange, or the user may not publish to it, or no client may.
    pub(super) fn find(
        &mut self,
        host: &VirtualHost,
        user: &User<'_>,
        exchange: &str,
        message: &Routed<'_>,
    ) -> Result<Found, Exception> {
        let routes = self.routes.at(host.generation());
        if has_copies(message) {
            routes.check(user, exchange)?;
            let found = ask(host, exchange, message)?;
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
                let found = ask(host, exchange, message)?;
                if !found.route.is_cacheable {
                    // The exchange is there, and the user may publish to it.
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

    /// Forgets what was found at another generation.
    pub(super) fn refresh(&mut self, generation: u64) {
        self.routes.at(generation);
    }
}

impl Routes {
    fn remember(&mut self, exchange: &str, key: &str, found: &Found) {
        if self.count >= ROUTES_MAX {
            self.found.clear();
            self.count = 0;
        }
        let keys = self.found.entry(exchange.to_owned()).or_default();
        keys.insert(key.to_owned(), found.clone());
        self.count += 1;
    }

    /// Asks whether the user may publish to an exchange, unless it was allowed before.
    fn check(&self, user: &User<'_>, exchange: &str) -> Result<(), Exception> {
        if self.found.contains_key(exchange) {
            Ok(())
        } else {
            user.exchange(Operation::Publish, exchange)
        }
    }
}

/// Whether the message names further routing keys.
fn has_copies(message: &Routed<'_>) -> bool {
    let is_copy = |name: &str| name == "CC" || name == "BCC";
    message.headers.fields().any(|(name, _)| is_copy(name))
}

fn ask(host: &VirtualHost, exchange: &str, message: &Routed<'_>) -> Result<Found, Exception> {
    let route = host.route(exchange, message)?;
    let may_refuse = route.queues.iter().any(|queue| may_refuse(queue));
    Ok(Found { route, may_refuse })
}

fn may_refuse(queue: &Queue) -> bool {
    let arguments = &queue.arguments;
    let has_limit = arguments.length_max.is_some() || arguments.length_bytes_max.is_some();
    has_limit && arguments.overflow != Overflow::DropHead
}
