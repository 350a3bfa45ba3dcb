//! The connections of one HTTP interface: their number, their time limits, and TLS if configured.
//! The layers above are axum and hyper.

use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use cloverleaf_nsq::http::Published;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::context::ServerContext;
use crate::http::activity::{Admission, AdmittedConnection, ConnectionActivity, HttpConnections};
use crate::http::body::TimedBody;
use crate::http::probe::HttpProbe;
use crate::log_throttle::LogThrottle;

/// Pause after a failed accept, as for the other listeners.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// One HTTP interface.
pub(crate) struct HttpListener {
    pub(crate) listener: TcpListener,
    pub(crate) router: Router,
    pub(crate) tls: Option<Arc<rustls::ServerConfig>>,
    /// Whether its connections publish, so that the doctor has to see them.
    pub(crate) is_watched: bool,
}

impl HttpListener {
    /// Accepts connections until the broker drains, then serves the open ones until each has
    /// answered its last request.
    pub(crate) async fn serve(self, context: Arc<ServerContext>) {
        let connections =
            HttpConnections::new(context.config.general.http_connections_max as usize);
        let tls = self.tls.map(TlsAcceptor::from);
        let mut served = JoinSet::new();
        let (mut failed, mut crowded) = (LogThrottle::default(), LogThrottle::default());
        let mut drained = pin!(context.drained());
        for id in 0.. {
            let accepted = tokio::select! {
                accepted = accept(&self.listener, &mut served) => accepted,
                () = &mut drained => break,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    if let Some(times) = failed.count() {
                        tracing::warn!(times, %error, "HTTP connections cannot be accepted");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let admission = connections.admit(id);
            if !matches!(admission, Admission::Free(_))
                && let Some(closed) = crowded.count()
            {
                let http_connections_max = context.config.general.http_connections_max;
                tracing::warn!(
                    closed,
                    http_connections_max,
                    "HTTP connections closed: too many are open"
                );
            }
            if let Admission::Free(admitted) | Admission::ReplacesOther(admitted) = admission {
                let probe = self
                    .is_watched
                    .then(|| Arc::new(HttpProbe::open(&context, peer)));
                let (router, tls) = (self.router.clone(), tls.clone());
                let context = Arc::clone(&context);
                let watched = (admitted, probe);
                served.spawn(serve_connection(stream, tls, router, watched, context));
            }
        }
        drop(self.listener);
        while served.join_next().await.is_some() {}
    }
}

/// Accepts the next connection. In the meantime, removes connections that have ended.
async fn accept(
    listener: &TcpListener,
    served: &mut JoinSet<()>,
) -> io::Result<(TcpStream, SocketAddr)> {
    loop {
        tokio::select! {
            accepted = listener.accept() => return accepted,
            Some(ended) = served.join_next() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "an HTTP connection ended by a fault of the broker");
                }
            }
        }
    }
}

async fn serve_connection(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    router: Router,
    (admitted, probe): (AdmittedConnection, Option<Arc<HttpProbe>>),
    context: Arc<ServerContext>,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY cannot be set");
    }
    let activity = admitted.activity();
    let served = async {
        let transport = match tls {
            None => HttpTransport::Plain(stream),
            Some(tls) => match tls.accept(stream).await {
                Ok(stream) => HttpTransport::Tls(Box::new(stream)),
                Err(error) => {
                    tracing::debug!(%error, "TLS handshake failed");
                    return;
                }
            },
        };
        let stream = HttpStream::new(transport, Arc::clone(activity), probe);
        serve_requests(stream, router, &context).await;
    };
    tokio::select! {
        () = served => {}
        () = activity.expired() => tracing::debug!("an idle or slow HTTP connection is closed"),
    }
}

async fn serve_requests(stream: HttpStream, router: Router, context: &ServerContext) {
    let (activity, probe) = (Arc::clone(&stream.activity), stream.probe.clone());
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        activity.request_begins();
        probe
            .iter()
            .for_each(|it| it.request_begins(request.headers()));
        let answer = router.call(request.map(TimedBody::new));
        let (activity, probe) = (Arc::clone(&activity), probe.clone());
        async move {
            let answer = answer.await;
            activity.request_ends();
            if let (Some(probe), Ok(answer)) = (probe, &answer) {
                probe.request_ends(answer.status(), answer.extensions().get::<Published>());
            }
            answer
        }
    });
    let mut connection =
        pin!(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = context.drained() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "an HTTP connection has ended");
    }
}

/// The bytes of one HTTP connection; each read and write is reported to its activity and probe.
struct HttpStream {
    transport: HttpTransport,
    activity: Arc<ConnectionActivity>,
    probe: Option<Arc<HttpProbe>>,
}

impl HttpStream {
    fn new(
        transport: HttpTransport,
        activity: Arc<ConnectionActivity>,
        probe: Option<Arc<HttpProbe>>,
    ) -> Self {
        let socket = match &transport {
            HttpTransport::Plain(stream) => stream,
            HttpTransport::Tls(stream) => stream.get_ref().0,
        };
        probe.iter().for_each(|it| it.attach(socket));
        HttpStream {
            transport,
            activity,
            probe,
        }
    }
}

impl Drop for HttpStream {
    fn drop(&mut self) {
        // Before the socket is closed: afterwards its descriptor may belong to another connection.
        self.probe.iter().for_each(|it| it.close());
    }
}

enum HttpTransport {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for HttpStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = match &mut self.transport {
            HttpTransport::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            HttpTransport::Tls(stream) => Pin::new(stream.as_mut()).poll_read(cx, buffer),
        };
        let count = buffer.filled().len() - before;
        if count > 0 {
            self.activity.received();
            self.probe.iter().for_each(|it| it.received(count));
        }
        read
    }
}

impl AsyncWrite for HttpStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = match &mut self.transport {
            HttpTransport::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            HttpTransport::Tls(stream) => Pin::new(stream.as_mut()).poll_write(cx, bytes),
        };
        if let Poll::Ready(result) = &written {
            self.activity.sent();
            if let (Some(probe), Ok(count)) = (&self.probe, result) {
                probe.sent(*count);
            }
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.transport {
            HttpTransport::Plain(stream) => Pin::new(stream).poll_flush(cx),
            HttpTransport::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.transport {
            HttpTransport::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            HttpTransport::Tls(stream) => Pin::new(stream.as_mut()).poll_shutdown(cx),
        }
    }
}
