//! The admin HTTP interface: metrics, health, the doctor's report, and the data for the command
//! line.
//!
//! ```text
//! GET    /metrics                                   Prometheus text
//! GET    /healthz                                   200 ok, or 503 with the reason
//! GET    /debug/connections                         telemetry snapshot
//! GET    /api/doctor?since=SECONDS&client=TEXT      findings about slow clients
//! GET    /api/doctor/clients?client=TEXT            the advice for each client
//! GET    /api/topics                                list
//! POST   /api/topics                                create
//! GET    /api/topics/TOPIC                          describe
//! PATCH  /api/topics/TOPIC                          change retention and settings
//! DELETE /api/topics/TOPIC                          delete
//! GET    /api/topics/TOPIC/messages?from=&count=…   read by offset, see `messages`
//! POST   /api/topics/TOPIC/subscriptions            create
//! GET    /api/topics/TOPIC/subscriptions/NAME       describe
//! DELETE /api/topics/TOPIC/subscriptions/NAME       delete
//! POST   /api/topics/TOPIC/subscriptions/NAME/ACTION   empty, pause, unpause,
//!                                                   least-loaded, fill-first
//! GET    /api/timeline?topic=&subscription=&last=   deliveries and requests: see `timeline`
//! GET    /api/groups                                Kafka's consumer groups with their lag
//! GET    /api/groups/GROUP                          members, and the lag of each partition
//! GET    /api/clients                               metrics that Kafka clients push (KIP-714)
//! GET    /api/amqp/queues                           AMQP's queues with their counts
//! GET    /api/amqp/queues/QUEUE                     one queue
//! GET    /api/amqp/exchanges                        AMQP's exchanges
//! GET    /api/amqp/bindings                         AMQP's bindings
//! ```
//!
//! It has no authentication: by default it listens on loopback only. Requests from web pages are
//! refused, so that a page that the operator visits cannot use it.

mod doctor;
mod messages;
mod metrics;
mod settings;
pub(crate) mod topics;
pub mod types;

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};

use crate::admin::types::Problem;
use crate::context::ServerContext;
use crate::http::web_pages;
use crate::timeline;

/// The state of the handlers.
pub(crate) type Context = State<Arc<ServerContext>>;

/// Paths that belong to no protocol, for the answer to an unknown path.
const PATHS: [&str; 7] = [
    "/metrics",
    "/healthz",
    "/debug/connections",
    "/api/doctor",
    "/api/doctor/clients",
    "/api/timeline",
    "/api/topics",
];

/// The routes of the interface.
pub(crate) fn router(context: &Arc<ServerContext>) -> Router {
    let subscription = "/api/topics/{topic}/subscriptions/{subscription}";
    let mut router = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(health))
        .route("/debug/connections", get(connections))
        .route("/api/doctor", get(doctor::report))
        .route("/api/doctor/clients", get(doctor::clients))
        .route("/api/topics", get(topics::list).post(topics::create))
        .route(
            "/api/topics/{topic}",
            get(topics::describe)
                .patch(settings::alter)
                .delete(topics::delete),
        )
        .route("/api/topics/{topic}/messages", get(messages::read))
        .route(
            "/api/topics/{topic}/subscriptions",
            post(topics::create_subscription),
        )
        .route(
            subscription,
            get(topics::describe_subscription).delete(topics::delete_subscription),
        )
        .route(
            &format!("{subscription}/{{action}}"),
            post(topics::act_on_subscription),
        )
        .route("/api/timeline", get(timeline::timeline))
        .with_state(Arc::clone(context));
    let mut paths = PATHS.to_vec();
    for front in &context.fronts {
        let part = Arc::clone(front).admin(context);
        router = router.merge(part.router);
        paths.extend(part.paths);
    }
    let unknown = format!("no such path; see {}", paths.join(", "));
    router
        .fallback(move || std::future::ready(Refused::not_found(unknown.clone())))
        .layer(from_fn(refuse_web_pages))
}

/// An answer with an error status, and its text.
#[derive(Debug)]
pub(crate) struct Refused(pub(crate) StatusCode, pub(crate) String);

impl Refused {
    pub(crate) fn not_found(what: impl Into<String>) -> Self {
        Refused(StatusCode::NOT_FOUND, what.into())
    }

    pub(crate) fn bad_request(why: impl Into<String>) -> Self {
        Refused(StatusCode::BAD_REQUEST, why.into())
    }

    pub(crate) fn conflict(why: impl Into<String>) -> Self {
        Refused(StatusCode::CONFLICT, why.into())
    }
}

/// The query string, or why it is malformed, which is answered in the same form as any other
/// refusal.
pub(crate) type QueryResult<T> = Result<Query<T>, QueryRejection>;

impl From<QueryRejection> for Refused {
    fn from(rejection: QueryRejection) -> Refused {
        Refused(rejection.status(), rejection.body_text())
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.0, Json(Problem { error: self.1 })).into_response()
    }
}

async fn refuse_web_pages(request: Request, next: Next) -> Response {
    // Monitoring systems may call these two by any name, and they reveal nothing secret.
    let public = ["/metrics", "/healthz"].contains(&request.uri().path());
    let foreign = !public && web_pages::is_host_foreign(request.headers());
    if foreign || web_pages::is_change_by_page(&request) {
        let why = "requests from web pages are refused; use an IP address or localhost as host";
        return Refused(StatusCode::FORBIDDEN, why.to_owned()).into_response();
    }
    next.run(request).await
}

async fn metrics(State(context): Context) -> impl IntoResponse {
    let mut headers = HeaderMap::new();
    let kind = header::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    headers.insert(header::CONTENT_TYPE, kind);
    (headers, metrics::page(&context))
}

async fn health(State(context): Context) -> Response {
    match unhealthy(&context) {
        None => (StatusCode::OK, damage(&context) + "\n").into_response(),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason + "\n").into_response(),
    }
}

/// The answer of a broker that stores new messages; some old ones may be lost.
fn damage(context: &ServerContext) -> String {
    let metrics = context.log.metrics();
    match metrics.corrupt_regions {
        0 => "ok".to_owned(),
        regions => format!(
            "ok, but the disk has lost messages: {} of them in {regions} damaged places; the log \
             names the files",
            metrics.lost_messages
        ),
    }
}

/// Why new messages cannot be stored at present; `None` when they can.
fn unhealthy(context: &ServerContext) -> Option<String> {
    if context.is_draining() {
        return Some("the broker is shutting down".to_owned());
    }
    if let Some(read) = context.log.stalled_reads().first() {
        return Some(format!("the disk does not answer: {read} is being read"));
    }
    let general = &context.config.general;
    let metrics = context.log.metrics();
    context
        .health
        .trouble(&metrics, &general.data_dir, general.disk_free_bytes_min.0)
}

async fn connections(State(context): Context) -> impl IntoResponse {
    Json(
        context
            .registry
            .snapshot(context.now_us(), crate::tcp_info::tcp_info),
    )
}
