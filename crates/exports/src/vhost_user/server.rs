//! [`VhostUserServer`]: exports, each behind a socket of its own.
//!
//! A socket serves one driver at a time; the next one is heard when the session before it has
//! ended. A stop drains: rings use what they have taken, then the sockets close. A request that a
//! disk is working on always runs to its end.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::sync::Mutex;
use cairn_block::sync::atomic::{AtomicU16, Ordering};
use cairn_block::{ConfigError, Env, Mail, Post, ReactorId, Traffic};
use cairn_reactor::Driver;
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

use crate::front::{First, Front, Level, Membership, Phase, Shutdown, first};
use crate::listener::{ListenAddress, Listener, Listening};

use super::export::{Export, Pauses, VhostExport};
use super::known::Known;
use super::session;

/// The most queues of an export.
pub const QUEUES_MAX: u16 = 64;

/// How long accepting pauses after the system refused a connection (out of descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// An export with its socket.
#[derive(Clone)]
pub(super) struct Served {
    pub(super) export: Arc<Export>,
    pub(super) listener: Arc<Listener>,
    /// A driver of an earlier process that is to go on here; or one that has left this process.
    pub(super) known: Arc<Mutex<Option<Known>>>,
}

pub(super) struct Shared {
    post: Arc<dyn Post>,
    front: Arc<Front>,
    pub(super) exports: Mutex<Vec<Served>>,
    /// Those that were removed; a request of some may not have ended. No later export accepts a
    /// driver before.
    ending: Mutex<Vec<Arc<Export>>>,
    /// The sockets of an earlier process that no export has yet.
    pub(super) inherited: Mutex<Vec<Listening>>,
    /// Drivers wait, or leave for another process.
    pub(super) pauses: Arc<Pauses>,
    next_reactor: AtomicU16,
}

/// A vhost-user server over the reactors of one world. Cloning makes another handle on it.
#[derive(Clone)]
pub struct VhostUserServer(pub(super) Arc<Shared>);

impl VhostUserServer {
    /// A server without exports, beside others that use the front.
    pub fn new(front: Arc<Front>, post: Arc<dyn Post>) -> VhostUserServer {
        VhostUserServer(Arc::new(Shared {
            post,
            front,
            exports: Mutex::default(),
            ending: Mutex::default(),
            inherited: Mutex::default(),
            pauses: Arc::default(),
            next_reactor: AtomicU16::default(),
        }))
    }

    /// Serves a disk at a socket: one that an earlier process left, if it has this path.
    ///
    /// # Errors
    /// The name is in use, the number of queues is none that is allowed, or the socket cannot be
    /// made.
    pub fn add_export(&self, export: VhostExport) -> Result<(), ConfigError> {
        if export.queues == 0 || export.queues > QUEUES_MAX {
            let found = format!("'{}'", export.queues);
            return Err(ConfigError::argument("vhost-user", "num-queues", found, "1 to 64"));
        }
        let is_used =
            |exports: &[Served]| exports.iter().any(|other| other.export.name == export.name);
        let in_use = || {
            let expected = "a name not in use";
            ConfigError::argument("vhost-user", "export", &export.name, expected)
        };
        if is_used(&self.0.exports.lock()) {
            return Err(in_use());
        }
        let listener = Arc::new(self.listen(&export)?);
        let mut exports = self.0.exports.lock();
        if is_used(&exports) {
            listener.unlink();
            return Err(in_use());
        }
        let before = self.0.ending.lock().iter().map(|ending| ending.shutdown.clone()).collect();
        let shared = self.0.front.share(&export.disk);
        let export = Arc::new(Export::new(export, shared, self.0.pauses.clone()));
        let open = [export.shutdown.join(), self.0.pauses.sessions.tasks.join()];
        let served = Served { export, listener, known: Arc::default() };
        exports.push(served.clone());
        let shared = self.0.clone();
        let job = move |env: &Env| env.spawn(accept(env.clone(), shared, served, open, before));
        self.0.post.post(ReactorId(0), Mail::Call(Box::new(job)));
        Ok(())
    }

    /// Listens for the drivers of an export. May wait for a socket that is in use.
    fn listen(&self, export: &VhostExport) -> Result<Listener, ConfigError> {
        let address = ListenAddress::Unix(export.socket.clone());
        let mut inherited = self.0.inherited.lock();
        if let Some(index) = inherited.iter().position(|it| it.address == address) {
            return Listener::inherited(inherited.remove(index));
        }
        drop(inherited);
        Listener::bind(&address, export.rights)
    }

    /// Removes an export. Its session may finish its requests for as long as `drain`. Returns how
    /// many sessions still wait for a request to end; 0 also if there is no such export.
    pub async fn remove_export(&self, env: &Env, name: &str, drain: Duration) -> usize {
        let Some(Served { export, listener, .. }) = self.take(name) else { return 0 };
        self.end(&export, &listener);
        first(export.shutdown.empty(), env.sleep(drain)).await;
        export.sessions.users()
    }

    /// Takes back an export that no driver has used.
    pub fn withdraw(&self, name: &str) {
        if let Some(Served { export, listener, .. }) = self.take(name) {
            self.end(&export, &listener);
        }
    }

    /// Takes an export from the list.
    fn take(&self, name: &str) -> Option<Served> {
        let mut exports = self.0.exports.lock();
        let index = exports.iter().position(|served| served.export.name == name)?;
        Some(exports.remove(index))
    }

    /// Begins the end of an export that was taken from the list.
    fn end(&self, export: &Arc<Export>, listener: &Listener) {
        // Before its pause ends, another process may go on with the socket.
        if self.0.pauses.sessions.pause.phase() != Phase::Pausing {
            listener.unlink();
        }
        export.shutdown.raise(Level::Draining);
        let mut ending = self.0.ending.lock();
        ending.retain(|other| other.shutdown.users() > 0);
        ending.push(export.clone());
    }

    /// Removes all exports, as [`VhostUserServer::remove_export`] does.
    pub async fn stop(&self, env: &Env, drain: Duration) -> usize {
        let exports = std::mem::take(&mut *self.0.exports.lock());
        exports.iter().for_each(|served| self.end(&served.export, &served.listener));
        let ended = async {
            for served in &exports {
                served.export.shutdown.empty().await;
            }
        };
        first(ended, env.sleep(drain)).await;
        exports.iter().map(|served| served.export.sessions.users()).sum()
    }

    /// How many drivers use an export.
    pub fn users(&self, name: &str) -> usize {
        self.with(name, |export| export.sessions.users()).unwrap_or(0)
    }

    /// What the drivers of an export have asked for; none if there is no such export.
    pub fn traffic(&self, name: &str) -> Option<Traffic> {
        self.with(name, |export| export.traffic.sum())
    }

    /// Tells the drivers of disks that have another size than before.
    pub fn look_at_sizes(&self) {
        let exports = self.0.exports.lock();
        exports.iter().for_each(|served| served.export.look_at_size());
    }

    fn with<R>(&self, name: &str, look: impl FnOnce(&Export) -> R) -> Option<R> {
        let exports = self.0.exports.lock();
        exports.iter().find(|it| it.export.name == name).map(|it| look(&it.export))
    }
}

/// How a guest of qemu uses the export at `socket`.
pub fn qemu_arguments(socket: &Path, queues: u16) -> String {
    let path = std::path::absolute(socket).unwrap_or_else(|_| socket.to_owned());
    // In an option of qemu a comma is written twice.
    let path = path.display().to_string().replace(',', ",,");
    format!(
        "-object memory-backend-memfd,id=mem,size=SIZE,share=on -numa node,memdev=mem -chardev \
         'socket,id=disk,path={path},reconnect=1' -device \
         vhost-user-blk-pci,chardev=disk,num-queues={queues}"
    )
}

/// Serves a driver after the other until the export is removed, or until it leaves for another
/// process.
async fn accept(
    env: Env,
    shared: Arc<Shared>,
    served: Served,
    open: [Membership; 2],
    before: Vec<Arc<Shutdown>>,
) {
    let Served { export, listener, known } = &served;
    for ending in before {
        let stopped = export.shutdown.above(Level::Serving);
        first(stopped, ending.empty()).await;
    }
    while export.shutdown.level() == Level::Serving {
        if shared.pauses.sessions.pause.phase() != Phase::Going {
            match export.wait_for_end_of_pause().await {
                Phase::Leaving => break,
                _ => continue,
            }
        }
        let inherited = known.lock().take();
        let next = match inherited {
            Some(known) => Some(known),
            None => next_driver(&env, export, listener).await,
        };
        let Some(next) = next else { continue };
        let session = export.sessions.join();
        let turn = shared.next_reactor.fetch_add(export.queues, Ordering::Relaxed);
        let reactor = ReactorId(turn % shared.post.reactors());
        if let Some(left) = session::serve(env.clone(), export.clone(), next, reactor).await {
            *known.lock() = Some(left);
            break;
        }
        drop(session);
    }
    drop((served, open));
}

/// The next driver that connects; none if there is something else to do first.
async fn next_driver(env: &Env, export: &Export, listener: &Listener) -> Option<Known> {
    let stopped = export.shutdown.above(Level::Serving);
    let paused = export.pauses.sessions.pause.phase_that(|phase| phase != Phase::Going);
    let driver = Driver::of(env);
    match first(first(stopped, paused), driver.readable(&listener.socket)).await {
        First::Left(_) => return None,
        First::Right(_) => {}
    }
    match accept_with(&*listener.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        Ok(socket) => Some(Known::new(socket, export.queues)),
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => None,
        Err(error) => {
            let key = format!("export '{}': cannot accept a connection", export.name);
            env.warn(&key, || format!("{key}: {error}"));
            env.sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}
