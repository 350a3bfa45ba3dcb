//! What the doctor has found, in the admin interface.
//!
//! `GET /api/doctor?since=SECONDS&client=TEXT`
//!
//! With `since` also findings that have ended, if they were seen within so many seconds; with
//! `client` only those about clients whose address, library or name has this in it.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use serde::Deserialize;
use tokio::task::spawn_blocking;

use crate::admin::{Asked, Context, Refused};

/// Longest text that a client is looked for by: no part of a client has more.
const CLIENT_BYTES_MAX: usize = 1024;

/// The query string.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DoctorQuery {
    since: Option<u64>,
    client: Option<String>,
}

/// `GET /api/doctor`
pub(crate) async fn report(
    State(context): Context,
    query: Asked<DoctorQuery>,
) -> Result<impl IntoResponse, Refused> {
    let Query(query) = query?;
    let client = query.client.filter(|text| !text.is_empty());
    if client
        .as_ref()
        .is_some_and(|text| text.len() > CLIENT_BYTES_MAX)
    {
        let why = format!("`client` is longer than {CLIENT_BYTES_MAX} bytes");
        return Err(Refused::bad_request(why));
    }
    let query = cloverleaf_doctor::Query {
        since_us: query.since.map(|seconds| seconds.saturating_mul(1_000_000)),
        client,
    };
    let context = Arc::clone(&context);
    // The doctor may be thinking, and a long answer takes its time: others go on meanwhile.
    let answer = spawn_blocking(move || serde_json::to_vec(&context.practice.report(&query)));
    match answer.await {
        Ok(Ok(json)) => Ok(([(header::CONTENT_TYPE, "application/json")], json)),
        Ok(Err(error)) => Err(failed(error.to_string())),
        Err(error) => Err(failed(error.to_string())),
    }
}

fn failed(why: String) -> Refused {
    Refused(StatusCode::INTERNAL_SERVER_ERROR, why)
}
