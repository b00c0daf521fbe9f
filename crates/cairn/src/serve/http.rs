//! `--metrics` and `--dashboard`: what a server answers over HTTP, and where.

mod dashboard;
mod metrics;

use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use cairn_control::exports::Exports;
use cairn_control::http::{HttpListener, HttpServer, Pages};
use cairn_control::world::World;
use cairn_exports::nbd::ListenAddress;
use cairn_exports::unix_socket::listen_unix;
use cairn_outcome::failure::{Outcome, system};

use self::dashboard::Dashboard;
use self::metrics::Metrics;
use super::listen::Listen;

/// What one address answers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// `/metrics`
    Metrics,
    /// `/`, a page for people, with what it loads; and `/metrics`.
    Dashboard,
}

impl Service {
    fn option(self) -> &'static str {
        match self {
            Service::Metrics => "metrics",
            Service::Dashboard => "dashboard",
        }
    }

    fn path(self) -> &'static str {
        match self {
            Service::Metrics => "/metrics",
            Service::Dashboard => "/",
        }
    }
}

/// Answers at an address.
///
/// # Errors
/// It is taken, or the system refuses.
pub fn start(
    service: Service,
    listen: &Listen,
    world: Arc<World>,
    exports: Arc<Exports>,
) -> Outcome<HttpServer> {
    let (option, path) = (service.option(), service.path());
    let listener = match &listen.address {
        ListenAddress::Unix(place) => {
            let socket = listen_unix(place, listen.rights)?;
            tracing::info!("{option}: {path} at unix:{}", place.display());
            HttpListener::Unix(UnixListener::from(socket), place.clone())
        }
        ListenAddress::Tcp(address) => {
            let failed = |error| system(address.to_string(), &format!("{option}: listen"), error);
            let listener = TcpListener::bind(address).map_err(failed)?;
            tracing::info!("{option}: http://{}{path}", listener.local_addr().map_err(failed)?);
            HttpListener::Tcp(listener)
        }
    };
    let metrics = Metrics { world, exports };
    let pages: Arc<dyn Pages> = match service {
        Service::Metrics => Arc::new(metrics),
        Service::Dashboard => Arc::new(Dashboard { metrics }),
    };
    HttpServer::start(listener, pages)
}
