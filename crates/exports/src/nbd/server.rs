//! [`NbdServer`]: exports by name, listening sockets, and the connections that use them.
//!
//! Connections are assigned to the reactors in turn and stay there. Exports can be added and
//! removed while the server runs. Each negotiation sees the exports, and their sizes, as they are
//! when it starts.
//!
//! A stop goes in this order: no connection is accepted; negotiations are closed; connections stop
//! receiving and answer the requests that they have admitted; connections that have not ended when
//! the drain time is over are cut. A request that a disk is working on always runs to its end.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cairn_block::sync::Mutex;
use cairn_block::sync::atomic::{AtomicU16, Ordering};
use cairn_block::{ConfigError, ConfigKind, Env, Mail, Post, ReactorId, Traffic};
use cairn_reactor::Driver;
use cairn_tls::Tls;
use rustix::net::{SocketFlags, accept_with, sockopt};

use crate::front::{First, Front, Level, Membership, Pause, Phase, Shutdown, first};

use super::connection::{Channel, Connection};
use super::contexts::{Contexts, NoContexts};
use super::export::{Export, NbdExport};
use super::facts::Exports;
use super::handover::Parted;
use super::negotiate::{negotiate, refuse};
use super::receiver::Receiver;
use super::serve::receive;
use crate::listener::{ListenAddress, Listener};
use crate::unix_socket::SocketRights;

/// How long cut connections may take to end.
const CUT_GRACE: Duration = Duration::from_secs(1);

/// How long accepting pauses after the system refused a connection (out of descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How many clients at a time get the message that there are too many; more are closed at once.
const REFUSALS_MAX: usize = 16;

/// How long sending that message may take.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(2);

/// Send buffer requested for a unix socket, in bytes: replies that the client has not read yet.
const UNIX_SEND_BYTES: usize = 1 << 20;

/// Limits of a server.
#[derive(Clone, Copy, Debug)]
pub struct NbdOptions {
    /// A connection that has not finished its negotiation within this time is closed.
    pub handshake_timeout: Duration,
    /// More connections than this are refused.
    pub connections_max: usize,
    /// The memory that the payloads of all connections may take, in bytes, and what
    /// [`Front::new`] adds. A front that is given has a limit of its own.
    pub memory_bytes: usize,
}

impl Default for NbdOptions {
    fn default() -> NbdOptions {
        NbdOptions {
            handshake_timeout: Duration::from_secs(10),
            connections_max: 256,
            memory_bytes: 1 << 30,
        }
    }
}

#[derive(Default)]
struct Table {
    exports: Vec<Arc<Export>>,
    default: Option<String>,
}

pub(super) struct Shared {
    pub(super) post: Arc<dyn Post>,
    options: NbdOptions,
    front: Arc<Front>,
    pub(super) tls: OnceLock<Tls>,
    table: Mutex<Table>,
    pub(super) listeners: Mutex<Vec<Arc<Listener>>>,
    /// Counts the connections.
    pub(super) shutdown: Arc<Shutdown>,
    /// Counts those of them that have not ended their negotiation.
    pub(super) negotiating: Arc<Shutdown>,
    /// Counts the tasks that accept.
    pub(super) accepting: Arc<Shutdown>,
    /// Counts the tasks that tell a client that there are too many.
    refusals: Arc<Shutdown>,
    /// The connections wait between two requests.
    pub(super) pause: Arc<Pause>,
    /// The connections that have left.
    pub(super) parted: Mutex<Vec<(Parted, Arc<OwnedFd>)>>,
    next_reactor: AtomicU16,
}

impl Shared {
    /// The export of this name.
    pub(super) fn export(&self, name: &str) -> Option<Arc<Export>> {
        self.table.lock().exports.iter().find(|export| export.name == name).cloned()
    }

    /// The reactor of the next connection.
    pub(super) fn next_reactor(&self) -> ReactorId {
        let turn = self.next_reactor.fetch_add(1, Ordering::Relaxed);
        ReactorId(turn % self.post.reactors())
    }
}

/// An NBD server over the reactors of one world. Cloning makes another handle on it.
#[derive(Clone)]
pub struct NbdServer(pub(super) Arc<Shared>);

impl NbdServer {
    /// A server without exports that listens nowhere yet, for a world with no other server.
    pub fn new(post: Arc<dyn Post>, options: NbdOptions) -> NbdServer {
        let front = Front::new(&*post, options.memory_bytes, options.connections_max);
        NbdServer::with_front(front, post, options)
    }

    /// The same, for a world where other servers use the front, too.
    pub fn with_front(front: Arc<Front>, post: Arc<dyn Post>, options: NbdOptions) -> NbdServer {
        NbdServer(Arc::new(Shared {
            post,
            options,
            front,
            tls: OnceLock::new(),
            table: Mutex::new(Table::default()),
            listeners: Mutex::new(Vec::new()),
            shutdown: Arc::default(),
            accepting: Arc::default(),
            refusals: Arc::default(),
            negotiating: Arc::default(),
            pause: Arc::default(),
            parted: Mutex::default(),
            next_reactor: AtomicU16::new(0),
        }))
    }

    /// Offers TLS to clients, or requires it; to be called once, before the server listens.
    pub fn offer_tls(&self, tls: Tls) {
        let is_first = self.0.tls.set(tls).is_ok();
        assert!(is_first, "TLS is offered once");
    }

    /// Adds an export.
    ///
    /// # Errors
    /// The name is in use, or name, description or block size break the protocol's limits.
    pub fn add_export(&self, export: NbdExport) -> Result<(), ConfigError> {
        self.add_export_with(export, Arc::new(NoContexts))
    }

    /// Adds an export with metadata contexts of its own.
    ///
    /// # Errors
    /// Those of [`NbdServer::add_export`].
    pub fn add_export_with(
        &self,
        export: NbdExport,
        contexts: Arc<dyn Contexts>,
    ) -> Result<(), ConfigError> {
        self.add_export_for(export, contexts, Vec::new())
    }

    /// The same for the clients alone that have one of these names in their certificates; all
    /// clients if there is no name.
    ///
    /// # Errors
    /// Those of [`NbdServer::add_export`].
    pub fn add_export_for(
        &self,
        export: NbdExport,
        contexts: Arc<dyn Contexts>,
        clients: Vec<String>,
    ) -> Result<(), ConfigError> {
        let mut table = self.0.table.lock();
        if table.exports.iter().any(|other| other.name == export.name) {
            return Err(ConfigError::argument("nbd", "export", &export.name, "a name not in use"));
        }
        let shared = self.0.front.share(&export.disk);
        let export = Export::new(export, contexts, clients, shared);
        Exports::new(vec![export.facts()], None).map_err(|error| {
            ConfigError::new(ConfigKind::Argument, "nbd", "cannot export").with_source(error)
        })?;
        table.exports.push(Arc::new(export));
        Ok(())
    }

    /// Removes an export. Its connections may finish for as long as `drain`, then they are cut.
    /// Returns how many of them still wait for a request to end; 0 also if there is no such export.
    pub async fn remove_export(&self, env: &Env, name: &str, drain: Duration) -> usize {
        let removed = {
            let mut table = self.0.table.lock();
            let index = table.exports.iter().position(|export| export.name == name);
            index.map(|index| table.exports.remove(index))
        };
        let Some(export) = removed else { return 0 };
        export.shutdown.raise(Level::Draining);
        if !drained(env, &export.shutdown, drain).await {
            export.shutdown.raise(Level::Cut);
            drained(env, &export.shutdown, CUT_GRACE).await;
        }
        export.shutdown.users()
    }

    /// How many clients use an export.
    pub fn users(&self, name: &str) -> usize {
        let table = self.0.table.lock();
        let export = table.exports.iter().find(|export| export.name == name);
        export.map_or(0, |export| export.shutdown.users())
    }

    /// What the clients of an export have asked for; none if there is no such export.
    pub fn traffic(&self, name: &str) -> Option<Traffic> {
        let table = self.0.table.lock();
        let export = table.exports.iter().find(|export| export.name == name)?;
        Some(export.traffic.sum())
    }

    /// Sets the export that the empty name means; by default it is the only export.
    pub fn set_default_export(&self, name: Option<&str>) {
        self.0.table.lock().default = name.map(str::to_owned);
    }

    /// Listens at one more address. Returns that address, with the port that the system chose.
    ///
    /// # Errors
    /// The address is in use, or the system refused.
    pub fn listen(&self, address: &ListenAddress) -> Result<ListenAddress, ConfigError> {
        self.listen_with(address, SocketRights::default())
    }

    /// The same; a unix socket gets `rights`.
    ///
    /// # Errors
    /// Those of [`NbdServer::listen`]; the rights cannot be set.
    pub fn listen_with(
        &self,
        address: &ListenAddress,
        rights: SocketRights,
    ) -> Result<ListenAddress, ConfigError> {
        let listener = Listener::bind(address, rights)?;
        let bound = listener.address.clone();
        self.accept_on(listener);
        Ok(bound)
    }

    pub(super) fn accept_on(&self, listener: Listener) {
        let listener = Arc::new(listener);
        self.0.listeners.lock().push(listener.clone());
        let (shared, open) = (self.0.clone(), self.0.accepting.join());
        let job = move |env: &Env| env.spawn(accept(env.clone(), shared, listener, open));
        self.0.post.post(ReactorId(0), Mail::Call(Box::new(job)));
    }

    /// The URI of an export (empty: the default one) at the first address listened on.
    pub fn uri(&self, export: &str) -> Option<String> {
        let is_secured = self.0.tls.get().is_some();
        self.0.listeners.lock().first().map(|listener| listener.uri(export, is_secured))
    }

    /// How many clients are connected.
    pub fn connections(&self) -> usize {
        self.0.shutdown.users()
    }

    /// The memory that payloads take now, in bytes.
    pub fn memory_held(&self) -> usize {
        self.0.front.memory_held()
    }

    /// Stops the server in the order that the module's description gives. Connections may finish
    /// for as long as `drain`. Returns how many of them still wait for a request to end.
    pub async fn stop(&self, env: &Env, drain: Duration) -> usize {
        self.0.accepting.raise(Level::Cut);
        self.0.accepting.empty().await;
        let listeners = std::mem::take(&mut *self.0.listeners.lock());
        listeners.iter().for_each(|listener| listener.unlink());
        self.0.shutdown.raise(Level::Draining);
        let exports = std::mem::take(&mut self.0.table.lock().exports);
        exports.iter().for_each(|export| export.shutdown.raise(Level::Draining));
        if !drained(env, &self.0.shutdown, drain).await {
            exports.iter().for_each(|export| export.shutdown.raise(Level::Cut));
            drained(env, &self.0.shutdown, CUT_GRACE).await;
        }
        self.0.shutdown.users()
    }
}

/// Waits until `shutdown` has no users, at most for `patience`. True if it has none.
async fn drained(env: &Env, shutdown: &Shutdown, patience: Duration) -> bool {
    matches!(first(shutdown.empty(), env.sleep(patience)).await, First::Left(()))
}

/// Accepts connections until the server stops.
async fn accept(env: Env, shared: Arc<Shared>, listener: Arc<Listener>, open: Membership) {
    let driver = Driver::of(&env).clone();
    loop {
        let stopped = shared.accepting.above(Level::Serving);
        let going = shared.pause.phase_that(|phase| phase == Phase::Going);
        if let First::Left(_) = first(stopped, going).await {
            break;
        }
        let stopped = shared.accepting.above(Level::Serving);
        let paused = shared.pause.phase_that(|phase| phase != Phase::Going);
        match first(first(stopped, paused), driver.readable(&listener.socket)).await {
            First::Left(First::Left(_)) => break,
            First::Left(First::Right(_)) => continue,
            First::Right(_) => {}
        }
        if let Err(error) = accept_all(&env, &shared, &listener) {
            let key = "nbd: cannot accept a connection";
            env.warn(key, || format!("{key}: {error}"));
            env.sleep(ACCEPT_PAUSE).await;
        }
    }
    drop((listener, open));
}

/// Accepts every pending connection.
fn accept_all(
    env: &Env,
    shared: &Arc<Shared>,
    listener: &Listener,
) -> Result<(), rustix::io::Errno> {
    use rustix::io::Errno;
    loop {
        match accept_with(&*listener.socket, SocketFlags::CLOEXEC) {
            Ok(socket) => assign(env, shared, listener, socket),
            Err(Errno::AGAIN) => return Ok(()),
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Hands a connection to the next reactor.
fn assign(env: &Env, shared: &Arc<Shared>, listener: &Listener, socket: OwnedFd) {
    let member = shared.shutdown.join();
    if shared.shutdown.users() > shared.options.connections_max {
        drop(member);
        return refuse_connection(env, shared, socket);
    }
    if let Err(error) = tune(listener, &socket) {
        tracing::debug!("tuning a connection: {error}");
    }
    let (to, shared) = (shared.next_reactor(), shared.clone());
    let (post, negotiating) = (shared.post.clone(), shared.negotiating.join());
    let members = (member, negotiating);
    let job = move |env: &Env| env.spawn(connect(env.clone(), shared, socket, members));
    post.post(to, Mail::Call(Box::new(job)));
}

/// Refuses a connection over the limit, and tells the client why.
fn refuse_connection(env: &Env, shared: &Arc<Shared>, socket: OwnedFd) {
    let most = shared.options.connections_max;
    let reason = format!("too many connections: {most} are open, the most allowed (--connections)");
    env.warn("nbd: connection refused", || format!("nbd: connection refused: {reason}"));
    let member = shared.refusals.join();
    if shared.refusals.users() > REFUSALS_MAX {
        return;
    }
    let (task, shared) = (env.clone(), shared.clone());
    env.spawn(async move {
        let channel = Channel::new(&task, socket);
        let limit = first(task.sleep(REFUSAL_TIMEOUT), shared.shutdown.above(Level::Serving));
        first(refuse(&task, &channel, reason), limit).await;
        drop(member);
    });
}

/// Has replies leave at once. TCP: without Nagle's delay; TCP sizes its own buffer. Unix: the
/// default send buffer is smaller than one large reply, which would then leave in pieces, each
/// after a wake-up; ask for a larger one.
fn tune(listener: &Listener, socket: &OwnedFd) -> Result<(), rustix::io::Errno> {
    match listener.address {
        ListenAddress::Tcp(_) => sockopt::set_tcp_nodelay(socket, true)
            .and_then(|()| sockopt::set_socket_keepalive(socket, true)),
        ListenAddress::Unix(_) => sockopt::set_socket_send_buffer_size(socket, UNIX_SEND_BYTES),
    }
}

/// One connection, from its greeting to its end.
async fn connect(
    env: Env,
    shared: Arc<Shared>,
    socket: OwnedFd,
    (member, negotiating): (Membership, Membership),
) {
    let (exports, list) = snapshot(&env, &shared);
    let channel = Channel::new(&env, socket);
    let facts = Arc::new(exports);
    let limit =
        first(env.sleep(shared.options.handshake_timeout), shared.shutdown.above(Level::Serving));
    let negotiated = negotiate(&env, &channel, facts.clone(), shared.tls.get());
    let agreed = match first(negotiated, limit).await {
        First::Left(agreed) => agreed,
        First::Right(First::Left(())) => {
            let seconds = shared.options.handshake_timeout.as_secs_f32();
            env.warn("nbd: negotiation took too long", || {
                format!("nbd: negotiation took too long: closed after {seconds} s")
            });
            None
        }
        First::Right(First::Right(_)) => None,
    };
    let Some((negotiated, receiver)) = agreed else { return };
    let on = (list[negotiated.export].clone(), shared.pause.clone());
    let terms = negotiated.terms(&facts.all()[negotiated.export]);
    let conn = Connection::new(&env, channel, on, &negotiated, terms);
    drop(negotiating);
    serve(&env, &shared, conn, receiver, member).await;
}

/// A connection in transmission, to its end.
pub(super) async fn serve(
    env: &Env,
    shared: &Shared,
    conn: Rc<Connection>,
    receiver: Receiver,
    member: Membership,
) {
    let used = conn.export.shutdown.join();
    if conn.export.shutdown.level() > Level::Serving {
        return;
    }
    env.spawn(watch(conn.clone()));
    env.spawn(send(conn.clone(), (member, used)));
    if let Some(parted) = receive(&conn, receiver).await {
        shared.parted.lock().push(parted);
    }
}

async fn watch(conn: Rc<Connection>) {
    conn.watch().await;
}

async fn send(conn: Rc<Connection>, uses: (Membership, Membership)) {
    conn.send_replies().await;
    drop(uses);
}

/// The exports as they are now, and what clients may know about them. An export that cannot be
/// described (its block size became illegal) is left out.
fn snapshot(env: &Env, shared: &Shared) -> (Exports, Vec<Arc<Export>>) {
    let table = shared.table.lock();
    let mut described = Vec::new();
    for export in &table.exports {
        match Exports::new(vec![export.facts()], None) {
            Ok(_) => described.push((export.facts(), export.clone())),
            Err(error) => {
                let key = format!("export '{}': not offered", export.name);
                env.warn(&key, || format!("{key}: {error}"));
            }
        }
    }
    let (facts, list): (Vec<_>, Vec<_>) = described.into_iter().unzip();
    let sole = match table.exports.as_slice() {
        [only] => Some(only.name.as_str()),
        _ => None,
    };
    let default = table.default.as_deref().or(sole);
    let default = default.filter(|name| facts.iter().any(|fact| fact.name == *name));
    let exports = Exports::new(facts, default).expect("checked one by one, with unique names");
    (exports, list)
}
