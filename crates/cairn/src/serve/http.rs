//! `--metrics`: what monitoring reads, over HTTP.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use cairn_control::exports::Exports;
use cairn_control::http::{HttpListener, HttpServer, Page, Pages};
use cairn_control::metrics::{Format, gather, write};
use cairn_control::world::World;
use cairn_exports::nbd::ListenAddress;
use cairn_exports::unix_socket::listen_unix;
use cairn_outcome::failure::{Outcome, system};

use super::listen::Listen;

struct Metrics {
    world: Arc<World>,
    exports: Arc<Exports>,
}

impl Pages for Metrics {
    fn page(&self, path: &str, accept: &str) -> Outcome<Option<Page>> {
        if path != "/metrics" {
            return Ok(None);
        }
        let format = match accept.contains("application/openmetrics-text") {
            true => Format::OpenMetrics,
            false => Format::Prometheus,
        };
        let body = write(gather(&self.world, &self.exports), format);
        Ok(Some(Page { media_type: format.media_type(), body }))
    }
}

/// Answers at an address.
///
/// # Errors
/// It is taken, or the system refuses.
pub fn start(listen: &Listen, world: Arc<World>, exports: Arc<Exports>) -> Outcome<HttpServer> {
    let listener = match &listen.address {
        ListenAddress::Unix(path) => {
            let socket = listen_unix(path, listen.rights)?;
            tracing::info!("metrics: /metrics at unix:{}", path.display());
            HttpListener::Unix(UnixListener::from(socket), path.clone())
        }
        ListenAddress::Tcp(address) => {
            let failed = |error| system(address.to_string(), "metrics: listen", error);
            let listener = TcpListener::bind(address).map_err(failed)?;
            tracing::info!("metrics: http://{}/metrics", listener.local_addr().map_err(failed)?);
            HttpListener::Tcp(listener)
        }
    };
    HttpServer::start(listener, Arc::new(Metrics { world, exports }))
}
