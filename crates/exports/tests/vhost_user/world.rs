//! A test fixture: real reactors with a server on them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{Disk, ReactorId, Throttle};
use cairn_exports::front::Front;
use cairn_exports::unix_socket::SocketRights;
use cairn_exports::vhost_user::{Estate, VhostExport, VhostUserServer};
use cairn_reactor::{Options, Reactors, RingKind};
pub use cairn_testkit::eventually;
use cairn_testkit::vhost::{PACKED, RINGS};

/// Reactors, and a server with sockets in a folder of its own.
pub struct World {
    pub server: VhostUserServer,
    pub front: Arc<Front>,
    reactors: Reactors,
    folder: tempfile::TempDir,
}

impl World {
    pub fn new(ring: RingKind) -> World {
        let reactors = Reactors::start(Options { count: 3, ring }).unwrap();
        let front = Front::new(&*reactors.post(), 64 << 20, 4);
        let server = VhostUserServer::new(front.clone(), reactors.post());
        World { server, front, reactors, folder: tempfile::tempdir().unwrap() }
    }

    /// Serves a disk; answers the path of its socket.
    pub fn export(&self, name: &str, disk: &Arc<impl Disk + 'static>) -> PathBuf {
        self.export_for(name, disk, false)
    }

    /// Serves a disk behind a throttle.
    pub fn export_slowly(
        &self,
        name: &str,
        disk: &Arc<impl Disk + 'static>,
        throttle: &Arc<Throttle>,
    ) -> PathBuf {
        self.export_as(name, disk, false, (RINGS, throttle.clone()))
    }

    pub fn export_for(
        &self,
        name: &str,
        disk: &Arc<impl Disk + 'static>,
        read_only: bool,
    ) -> PathBuf {
        self.export_as(name, disk, read_only, (RINGS, Arc::default()))
    }

    pub fn export_with(
        &self,
        name: &str,
        disk: &Arc<impl Disk + 'static>,
        read_only: bool,
        queues: u16,
    ) -> PathBuf {
        self.export_as(name, disk, read_only, (queues, Arc::default()))
    }

    fn export_as(
        &self,
        name: &str,
        disk: &Arc<impl Disk + 'static>,
        read_only: bool,
        (queues, throttle): (u16, Arc<Throttle>),
    ) -> PathBuf {
        let socket = self.folder.path().join(name);
        let (disk, name): (Arc<dyn Disk>, _) = (disk.clone(), name.to_owned());
        let rights = SocketRights::default();
        let export = VhostExport { name, disk, read_only, socket, rights, queues, throttle };
        let socket = export.socket.clone();
        self.server.add_export(export).unwrap();
        socket
    }

    /// Has all drivers wait.
    pub fn pause(&self, patience: Duration) -> Result<(), usize> {
        let server = self.server.clone();
        self.reactors
            .block_on(ReactorId(1), move |env| async move { server.pause(&env, patience).await })
    }

    /// Has all drivers, which wait, leave; from now on `server` is another one, without an export,
    /// which has the sockets and waits.
    pub fn part(&mut self) -> Estate {
        let server = self.server.clone();
        let estate = self.reactors.block_on(ReactorId(1), move |env| async move {
            server.part(&env, Duration::from_secs(30)).await
        });
        self.server = VhostUserServer::new(self.front.clone(), self.reactors.post());
        self.server.begin_paused(estate.iter().map(|parted| parted.listening.clone()));
        estate
    }

    pub fn remove(&self, name: &'static str, drain: Duration) -> usize {
        let server = self.server.clone();
        self.reactors.block_on(ReactorId(2), move |env| async move {
            server.remove_export(&env, name, drain).await
        })
    }
}

impl Drop for World {
    /// Whatever drivers did, the server never broke the contract with a disk, and kept no memory.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for reactor in (0..self.reactors.post().reactors()).map(ReactorId) {
            let violations =
                self.reactors.block_on(reactor, |env| async move { env.contract_violations() });
            assert_eq!(violations, 0);
        }
        eventually("the memory of requests is given back", || self.front.memory_held() == 0);
    }
}

/// Runs a test over split rings, and over packed ones: with the features that say so.
pub fn on_both_layouts(test: impl Fn(u64)) {
    test(0);
    test(PACKED);
}

/// Runs a test over io_uring (or its replacement on this machine) and over helper threads.
pub fn on_both_rings(test: impl Fn(RingKind)) {
    test(RingKind::Auto);
    test(RingKind::Threads);
}
