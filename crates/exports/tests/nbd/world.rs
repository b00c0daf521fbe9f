//! A test fixture: real reactors with a server on them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{Disk, ReactorId, Throttle};
use cairn_exports::front::Front;
use cairn_exports::nbd::{ListenAddress, NbdExport, NbdOptions, NbdServer};
use cairn_reactor::{Options, Reactors, RingKind};
pub use cairn_testkit::eventually;

/// Reactors, and a server on a socket in a folder of its own.
pub struct World {
    pub server: NbdServer,
    pub reactors: Reactors,
    front: Arc<Front>,
    folder: tempfile::TempDir,
}

impl World {
    pub fn new(ring: RingKind) -> World {
        World::with_options(ring, NbdOptions::default())
    }

    pub fn with_options(ring: RingKind, options: NbdOptions) -> World {
        let reactors = Reactors::start(Options { count: 3, ring }).unwrap();
        let clients = options.connections_max;
        let front = Front::new(&*reactors.post(), options.memory_bytes, clients);
        let server = NbdServer::with_front(front.clone(), reactors.post(), options);
        let world = World { server, reactors, front, folder: tempfile::tempdir().unwrap() };
        world.server.listen(&ListenAddress::Unix(world.socket())).unwrap();
        world
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("nbd.sock")
    }

    pub fn export(&self, name: &str, disk: &Arc<impl Disk + 'static>) {
        export(&self.server, name, disk, Arc::default());
    }

    /// Serves a disk behind a throttle.
    pub fn export_slowly(
        &self,
        name: &str,
        disk: &Arc<impl Disk + 'static>,
        throttle: &Arc<Throttle>,
    ) {
        export(&self.server, name, disk, throttle.clone());
    }

    /// Another server, which serves a disk of the first one; answers its socket.
    pub fn serve_again(&self, name: &str, disk: &Arc<impl Disk + 'static>) -> (NbdServer, PathBuf) {
        let (front, post) = (self.front.clone(), self.reactors.post());
        let server = NbdServer::with_front(front, post, NbdOptions::default());
        let socket = self.folder.path().join("again.sock");
        server.listen(&ListenAddress::Unix(socket.clone())).unwrap();
        export(&server, name, disk, Arc::default());
        (server, socket)
    }

    pub fn stop(&self, drain: Duration) -> usize {
        let server = self.server.clone();
        self.reactors
            .block_on(ReactorId(1), move |env| async move { server.stop(&env, drain).await })
    }

    pub fn remove(&self, name: &'static str, drain: Duration) -> usize {
        let server = self.server.clone();
        self.reactors.block_on(ReactorId(2), move |env| async move {
            server.remove_export(&env, name, drain).await
        })
    }
}

fn export(
    server: &NbdServer,
    name: &str,
    disk: &Arc<impl Disk + 'static>,
    throttle: Arc<Throttle>,
) {
    let disk: Arc<dyn Disk> = disk.clone();
    let description = format!("the {name} volume");
    let (name, read_only) = (name.to_owned(), false);
    let export = NbdExport { name, description, disk, read_only, throttle };
    server.add_export(export).unwrap();
}

impl Drop for World {
    /// Whatever clients sent, the server never broke the contract with a disk.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for reactor in (0..self.reactors.post().reactors()).map(ReactorId) {
            let violations =
                self.reactors.block_on(reactor, |env| async move { env.contract_violations() });
            assert_eq!(violations, 0);
        }
    }
}

/// Runs a test over io_uring (or its replacement on this machine) and over helper threads.
pub fn on_both_rings(test: impl Fn(RingKind)) {
    test(RingKind::Auto);
    test(RingKind::Threads);
}
