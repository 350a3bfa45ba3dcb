#![allow(clippy::unwrap_used, clippy::expect_used)]

use cloverleaf_nsq::SessionOptions;
use cloverleaf_nsq::definitions::channel_options;
use cloverleaf_nsq::http::config::{LogLevel, RuntimeOptions};
use cloverleaf_nsq::stats::clients::Clients;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::LocalSet;
use tokio::time::timeout;

use super::super::auth_http::ClientTls as AuthTls;
use super::*;
use crate::test_context::{PATIENCE, bytes_in, connect_to, context, core, until};

/// An NSQ front with the default options.
fn front() -> Arc<NsqFront> {
    Arc::new(NsqFront {
        options: Arc::new(SessionOptions::default()),
        channel_policy: Arc::new(|_, channel| channel_options(channel)),
        clients: Clients::new(),
        runtime: Arc::new(RuntimeOptions::new(Vec::new(), LogLevel::Info)),
        tls: None,
        auth_tls: AuthTls::default(),
        closed_throttle: Mutex::default(),
        auth_throttle: Mutex::default(),
    })
}

fn sized(line: &str, body: &str) -> Vec<u8> {
    let size = (body.len() as u32).to_be_bytes();
    [line.as_bytes(), &size, body.as_bytes()].concat()
}

async fn expect_oks(client: &mut TcpStream, count: usize) {
    let mut frames = vec![0; 10 * count];
    let read = client.read_exact(&mut frames);
    timeout(PATIENCE, read)
        .await
        .expect("an answer comes")
        .unwrap();
    assert_eq!(frames, b"\0\0\0\x06\0\0\0\0OK".repeat(count));
}

#[test]
fn a_waiting_publisher_is_woken_by_the_write() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let context = context();
    let core = core(&context);
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let (mut first, mut second) = (
            connect_to(|accepted| serve(front(), accepted), &core).await,
            connect_to(|accepted| serve(front(), accepted), &core).await,
        );
        let hello = sized("  V2IDENTIFY\n", r#"{"heartbeat_interval":-1}"#);
        for client in [&mut first, &mut second] {
            client.write_all(&hello).await.unwrap();
            expect_oks(client, 1).await;
        }
        let mut received = bytes_in(&context);
        for round in 0..3 {
            let publish = sized("PUB t\n", "x");
            first.write_all(&publish).await.unwrap();
            until(|| context.broker.write_budget().unwritten_bytes() > 0).await;
            second.write_all(&publish).await.unwrap();
            received += 2 * publish.len() as u64;
            until(|| bytes_in(&context) == received).await;
            let topic = context.broker.topic("t").unwrap();
            assert_eq!(topic.message_count(), 2 * round + 1, "the second waits");
            context.log.step();
            expect_oks(&mut first, 1).await;
            // Only the write can wake the second publisher: it has no heartbeats, and awaits no
            // other answer.
            until(|| topic.message_count() == 2 * round + 2).await;
            context.log.step();
            expect_oks(&mut second, 1).await;
        }
    });
}
