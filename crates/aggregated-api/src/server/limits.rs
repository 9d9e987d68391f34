//! Sizes and times of a connection.

use std::time::Duration;

/// Limits of the listener. The defaults are those of upstream's aggregated servers.
#[derive(Clone, Debug)]
pub struct Limits {
    /// From the connection to the end of the TLS handshake.
    pub handshake_timeout: Duration,
    /// From the start of waiting for an HTTP/1.1 request to the end of its headers. It also ends
    /// HTTP/1.1 connections that are kept alive without a request.
    pub header_read_timeout: Duration,
    /// How long an HTTP/2 connection may stay without a request.
    pub idle_timeout: Duration,
    /// Headers of one request, bytes.
    pub max_header_bytes: u32,
    /// Concurrent requests per HTTP/2 connection. Each kube-apiserver puts the requests and
    /// watches of all users on a few connections, so a low limit deadlocks the whole group.
    pub max_concurrent_streams: u32,
    /// Flow control window of one stream, and size of a frame, bytes. The connection's window is
    /// this times `max_concurrent_streams`.
    pub stream_window: u32,
    /// A peer that holds streams and says nothing is pinged this often.
    pub ping_interval: Duration,
    /// A peer that does not answer the ping in this time is gone.
    pub ping_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            handshake_timeout: Duration::from_secs(10),
            header_read_timeout: Duration::from_secs(32),
            idle_timeout: Duration::from_secs(90),
            max_header_bytes: 1 << 20,
            max_concurrent_streams: 1000,
            stream_window: 256 << 10,
            ping_interval: Duration::from_secs(30),
            ping_timeout: Duration::from_secs(20),
        }
    }
}

impl Limits {
    /// Window of the whole connection, within what HTTP/2 can say.
    pub(crate) fn connection_window(&self) -> u32 {
        const MAX_WINDOW: u32 = (1 << 31) - 1;
        self.stream_window
            .saturating_mul(self.max_concurrent_streams)
            .min(MAX_WINDOW)
    }
}
