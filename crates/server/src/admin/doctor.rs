//! The doctor's findings, in the admin interface.
//!
//! ```text
//! GET /api/doctor?since=SECONDS&client=TEXT   findings about slow clients
//! GET /api/doctor/clients?client=TEXT         the advice for each client's library and version
//! ```
//!
//! With `since`, the report includes findings that have ended, if they were seen within this many
//! seconds. With `client`, it has only findings about clients whose address, library or name
//! contains this text.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use cloverleaf_doctor::KnownClients;
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;

use crate::admin::{Context, QueryResult, Refused};

/// Maximum length of `client`: no part of a client's description is longer.
const CLIENT_BYTES_MAX: usize = 1024;

/// The query string of a report.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DoctorQuery {
    since: Option<u64>,
    client: Option<String>,
}

/// The query string of the list of clients.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClientsQuery {
    client: Option<String>,
}

/// `GET /api/doctor/clients`
pub(crate) async fn clients(
    State(context): Context,
    query: QueryResult<ClientsQuery>,
) -> Result<impl IntoResponse, Refused> {
    let Query(query) = query?;
    let client = client_filter(query.client)?;
    let context = Arc::clone(&context);
    answer(move || {
        let snapshot = context.registry.snapshot(context.now_us(), |_| None);
        KnownClients::of(&snapshot, context.doctor.advice(), client.as_deref())
    })
    .await
}

/// `GET /api/doctor`
pub(crate) async fn report(
    State(context): Context,
    query: QueryResult<DoctorQuery>,
) -> Result<impl IntoResponse, Refused> {
    let Query(query) = query?;
    let client = client_filter(query.client)?;
    let query = cloverleaf_doctor::Query {
        since_us: query.since.map(|seconds| seconds.saturating_mul(1_000_000)),
        client,
    };
    let context = Arc::clone(&context);
    answer(move || context.doctor.report(&query)).await
}

/// The text by which clients are filtered.
fn client_filter(client: Option<String>) -> Result<Option<String>, Refused> {
    let client = client.filter(|text| !text.is_empty());
    match client {
        Some(text) if text.len() > CLIENT_BYTES_MAX => {
            let why = format!("`client` is longer than {CLIENT_BYTES_MAX} bytes");
            Err(Refused::bad_request(why))
        }
        client => Ok(client),
    }
}

/// Answers on another thread: the doctor may be evaluating its rules, and a long answer takes time.
async fn answer<T: Serialize>(
    ask: impl FnOnce() -> T + Send + 'static,
) -> Result<impl IntoResponse, Refused> {
    let answer = spawn_blocking(move || serde_json::to_vec(&ask()));
    match answer.await {
        Ok(Ok(json)) => Ok(([(header::CONTENT_TYPE, "application/json")], json)),
        Ok(Err(error)) => Err(failed(error.to_string())),
        Err(error) => Err(failed(error.to_string())),
    }
}

fn failed(why: String) -> Refused {
    Refused(StatusCode::INTERNAL_SERVER_ERROR, why)
}
