//! The listener below the HTTP interfaces: bounds their connections and speaks TLS if asked to.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Connections that one HTTP address serves at once; more wait in the kernel's queue. Far more
/// than any dashboard or script opens, and few enough to bound their buffers.
const CONNECTIONS_MAX: usize = 1024;

/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause after a failed accept, as for the other listeners.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections for axum. Handshakes run beside each other, so that a slow one holds
/// nobody up.
pub(crate) struct HttpListener {
    address: SocketAddr,
    ready: mpsc::Receiver<(HttpStream, SocketAddr)>,
}

impl HttpListener {
    /// Takes over a listening socket; must be called within the runtime that serves it.
    ///
    /// # Errors
    /// The socket cannot be used with the runtime.
    pub(crate) fn new(
        listener: std::net::TcpListener,
        tls: Option<Arc<rustls::ServerConfig>>,
    ) -> io::Result<Self> {
        let listener = TcpListener::from_std(listener)?;
        let address = listener.local_addr()?;
        let (sender, ready) = mpsc::channel(1);
        tokio::spawn(accept(listener, tls.map(TlsAcceptor::from), sender));
        Ok(Self { address, ready })
    }
}

impl axum::serve::Listener for HttpListener {
    type Io = HttpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (HttpStream, SocketAddr) {
        match self.ready.recv().await {
            Some(accepted) => accepted,
            // The accepting task ends with the runtime only.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

async fn accept(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    sender: mpsc::Sender<(HttpStream, SocketAddr)>,
) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else {
            return;
        };
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "an HTTP connection cannot be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%peer, %error, "TCP_NODELAY cannot be set");
        }
        let Some(tls) = tls.clone() else {
            let stream = HttpStream {
                transport: Transport::Plain(stream),
                _permit: permit,
            };
            if sender.send((stream, peer)).await.is_err() {
                return;
            }
            continue;
        };
        let sender = sender.clone();
        tokio::spawn(async move {
            match timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
                Ok(Ok(stream)) => {
                    let transport = Transport::Tls(Box::new(stream));
                    // A closed channel means that the broker shuts down.
                    let _ = sender
                        .send((
                            HttpStream {
                                transport,
                                _permit: permit,
                            },
                            peer,
                        ))
                        .await;
                }
                Ok(Err(error)) => tracing::debug!(%peer, %error, "TLS handshake failed"),
                Err(_) => tracing::debug!(%peer, "TLS handshake took too long"),
            }
        });
    }
}

/// One HTTP connection, counted until it is dropped.
pub(crate) struct HttpStream {
    transport: Transport,
    _permit: OwnedSemaphorePermit,
}

enum Transport {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for HttpStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Transport::Tls(stream) => Pin::new(stream.as_mut()).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for HttpStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Transport::Tls(stream) => Pin::new(stream.as_mut()).poll_write(cx, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Transport::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Transport::Tls(stream) => Pin::new(stream.as_mut()).poll_shutdown(cx),
        }
    }
}
