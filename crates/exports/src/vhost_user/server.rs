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

use crate::front::{First, Front, Level, Membership, Shutdown, first};
use crate::listener::{ListenAddress, Listener};

use super::export::{Export, VhostExport};
use super::session;

/// The most queues of an export.
pub const QUEUES_MAX: u16 = 64;

/// How long accepting pauses after the system refused a connection (out of descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

struct Shared {
    post: Arc<dyn Post>,
    front: Arc<Front>,
    exports: Mutex<Vec<(Arc<Export>, Arc<Listener>)>>,
    /// Those that were removed; a request of some may not have ended. No later export accepts a
    /// driver before.
    ending: Mutex<Vec<Arc<Export>>>,
    next_reactor: AtomicU16,
}

/// A vhost-user server over the reactors of one world. Cloning makes another handle on it.
#[derive(Clone)]
pub struct VhostUserServer(Arc<Shared>);

impl VhostUserServer {
    /// A server without exports, beside others that use the front.
    pub fn new(front: Arc<Front>, post: Arc<dyn Post>) -> VhostUserServer {
        let (exports, ending, next_reactor) = Default::default();
        VhostUserServer(Arc::new(Shared { post, front, exports, ending, next_reactor }))
    }

    /// Serves a disk at a socket.
    ///
    /// # Errors
    /// The name is in use, the number of queues is none that is allowed, or the socket cannot be
    /// made.
    pub fn add_export(&self, export: VhostExport) -> Result<(), ConfigError> {
        if export.queues == 0 || export.queues > QUEUES_MAX {
            let found = format!("'{}'", export.queues);
            return Err(ConfigError::argument("vhost-user", "num-queues", found, "1 to 64"));
        }
        let is_used = |exports: &[(Arc<Export>, Arc<Listener>)]| {
            exports.iter().any(|(other, _)| other.name == export.name)
        };
        let in_use = || {
            let expected = "a name not in use";
            ConfigError::argument("vhost-user", "export", &export.name, expected)
        };
        if is_used(&self.0.exports.lock()) {
            return Err(in_use());
        }
        // May wait for a socket that is in use.
        let address = ListenAddress::Unix(export.socket.clone());
        let listener = Arc::new(Listener::bind(&address, export.rights)?);
        let mut exports = self.0.exports.lock();
        if is_used(&exports) {
            listener.unlink();
            return Err(in_use());
        }
        let before = self.0.ending.lock().iter().map(|ending| ending.shutdown.clone()).collect();
        let shared = self.0.front.share(&export.disk);
        let export = Arc::new(Export::new(export, shared));
        exports.push((export.clone(), listener.clone()));
        let (shared, open) = (self.0.clone(), export.shutdown.join());
        let job = move |env: &Env| {
            env.spawn(accept(env.clone(), shared, export, listener, (open, before)));
        };
        self.0.post.post(ReactorId(0), Mail::Call(Box::new(job)));
        Ok(())
    }

    /// Removes an export. Its session may finish its requests for as long as `drain`. Returns how
    /// many sessions still wait for a request to end; 0 also if there is no such export.
    pub async fn remove_export(&self, env: &Env, name: &str, drain: Duration) -> usize {
        let removed = {
            let mut exports = self.0.exports.lock();
            let index = exports.iter().position(|(export, _)| export.name == name);
            index.map(|index| exports.remove(index))
        };
        let Some((export, listener)) = removed else { return 0 };
        self.end(&export, &listener);
        first(export.shutdown.empty(), env.sleep(drain)).await;
        export.sessions.users()
    }

    /// Takes back an export that no driver has used.
    pub fn withdraw(&self, name: &str) {
        let mut exports = self.0.exports.lock();
        if let Some(index) = exports.iter().position(|(export, _)| export.name == name) {
            let (export, listener) = exports.remove(index);
            self.end(&export, &listener);
        }
    }

    /// Begins the end of an export that was taken from the list.
    fn end(&self, export: &Arc<Export>, listener: &Listener) {
        listener.unlink();
        export.shutdown.raise(Level::Draining);
        let mut ending = self.0.ending.lock();
        ending.retain(|other| other.shutdown.users() > 0);
        ending.push(export.clone());
    }

    /// Removes all exports, as [`VhostUserServer::remove_export`] does.
    pub async fn stop(&self, env: &Env, drain: Duration) -> usize {
        let exports = std::mem::take(&mut *self.0.exports.lock());
        exports.iter().for_each(|(export, listener)| self.end(export, listener));
        let ended = async {
            for (export, _) in &exports {
                export.shutdown.empty().await;
            }
        };
        first(ended, env.sleep(drain)).await;
        exports.iter().map(|(export, _)| export.sessions.users()).sum()
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
        exports.iter().for_each(|(export, _)| export.look_at_size());
    }

    /// True if there is an export.
    pub fn is_used(&self) -> bool {
        !self.0.exports.lock().is_empty()
    }

    fn with<R>(&self, name: &str, look: impl FnOnce(&Export) -> R) -> Option<R> {
        let exports = self.0.exports.lock();
        exports.iter().find(|(export, _)| export.name == name).map(|(export, _)| look(export))
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

/// Accepts a driver after the other until the export is removed.
async fn accept(
    env: Env,
    shared: Arc<Shared>,
    export: Arc<Export>,
    listener: Arc<Listener>,
    (open, before): (Membership, Vec<Arc<Shutdown>>),
) {
    let driver = Driver::of(&env).clone();
    for ending in before {
        let stopped = export.shutdown.above(Level::Serving);
        first(stopped, ending.empty()).await;
    }
    while export.shutdown.level() == Level::Serving {
        let stopped = export.shutdown.above(Level::Serving);
        if let First::Left(_) = first(stopped, driver.readable(&listener.socket)).await {
            break;
        }
        match accept_with(&*listener.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => {
                let session = export.sessions.join();
                let turn = shared.next_reactor.fetch_add(export.queues, Ordering::Relaxed);
                let reactor = ReactorId(turn % shared.post.reactors());
                session::serve(env.clone(), export.clone(), socket, reactor).await;
                drop(session);
            }
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
            Err(error) => {
                let key = format!("export '{}': cannot accept a connection", export.name);
                env.warn(&key, || format!("{key}: {error}"));
                env.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop((listener, open));
}
