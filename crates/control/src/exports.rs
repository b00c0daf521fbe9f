//! The registry of exports: which volumes are served to clients, and under which names.
//!
//! The state file has the changes that verbs made: exports that were added and that were removed.
//! They override the configuration. An added export is served whenever its volume is live, a
//! removed one is not, even if the configuration names it.
//!
//! If the TOML file names no export, every volume is served under its own name, also a volume that
//! is made at run time. A snapshot is served under its own name wherever its volume is served.
//! Never served are the volumes beneath a volume with snapshots, and pools (a pool is its own data
//! device). A volume that another volume claims is not served while the claim lasts, except an
//! external origin, which is served for reading. A volume that is kept for one that is not served
//! (see `kept`) is not served either.
//!
//! The empty export name means one export for the life of the server, and no export while that one
//! is missing. It is the export that `--export` names, or else the only one at the start that is
//! not a snapshot. If there were several at the start, the empty name means none; if there was
//! none, it means the first one that comes.

mod limits;
mod renaming;

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{Claimed, ConfigKind, Disk, Env, MappedDevice, ReactorId, Throttle, Traffic};
use cairn_exports::front::Front;
use cairn_exports::nbd::{
    Estate, ListenAddress, Listening, NbdExport, NbdOptions, NbdServer, Parted, Tls,
};
use cairn_exports::unix_socket::SocketRights;
use cairn_exports::vhost_user::{self, VhostExport, VhostUserServer};
use cairn_outcome::failure::{Outcome, refused, wrong};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::contexts::SnapContexts;
use crate::live_pool::is_pool;
use crate::names::{is_hidden, parent_of};
use crate::state::{Export, ExportChanges};
use crate::throttles::Limits;
use crate::tls_names::TlsNames;
use crate::world::World;

/// How long connections may finish their requests when their export is removed.
const DRAIN: Duration = Duration::from_secs(5);

/// One export, as `exports` shows it.
#[derive(Debug, Serialize, Deserialize)]
pub struct ExportInfo {
    /// The name clients ask for.
    pub name: String,
    /// The volume.
    pub volume: String,
    /// Size now.
    pub bytes: u64,
    /// Writes are refused.
    pub read_only: bool,
    /// Where.
    pub uri: Option<String>,
    /// Connections of clients.
    #[serde(default)]
    pub clients: u64,
    /// What its clients may do.
    #[serde(default)]
    pub throttle: Limits,
}

/// A socket for virtual machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VhostSocket {
    /// The export that is served there while it is served elsewhere, too.
    pub export: String,
    /// The path.
    pub path: PathBuf,
    /// Who may connect.
    pub rights: SocketRights,
    /// How many queues a driver may use.
    pub queues: u16,
}

/// How a volume may be served.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Access {
    /// Another volume claims it, or it is kept: not at all.
    None,
    /// Other volumes read it and need it unchanged: for reading.
    Read,
    /// For reading and writing.
    Full,
}

impl Access {
    fn to(world: &World, volume: &MappedDevice, arranged: &Arranged) -> Access {
        if world.kept_for(volume.volume()).is_some() {
            return Access::None;
        }
        let is_it = |claimed: &&Claimed| claimed.volume == volume.volume();
        let awaited = arranged.awaited.values().flatten().filter(is_it);
        let awaited = awaited.map(|claimed| claimed.may_be_read);
        let claimants = volume.claimants();
        let claims = claimants.iter().map(|claimant| claimant.may_be_read).chain(awaited);
        let access = |may_be_read| if may_be_read { Access::Read } else { Access::None };
        claims.map(access).fold(Access::Full, Access::min)
    }
}

/// What the empty export name means.
#[derive(Clone, Default)]
enum EmptyName {
    /// The server is starting.
    #[default]
    Open,
    /// The first export that comes.
    First,
    /// This export, or nothing.
    Fixed(Option<String>),
}

/// The names of the exports whose volumes are not snapshots.
fn plain(served: &[Export]) -> impl Iterator<Item = &str> {
    let plain = served.iter().filter(|export| parent_of(&export.volume).is_none());
    plain.map(|export| export.name.as_str())
}

/// The only such name, if there is exactly one.
fn only_plain(served: &[Export]) -> Option<&str> {
    let mut plain = plain(served);
    plain.next().filter(|_| plain.next().is_none())
}

/// The volumes that are not served, or not fully, because of claims.
#[derive(Default)]
struct Arranged {
    /// Volumes that are claimed or a pool, each with the volume for whose table its exports were
    /// removed, if any.
    held_back: BTreeMap<String, Option<String>>,
    /// The claims that tables are about to make, by the name of their volume. They count as claims
    /// until [`Exports::settle`] is called for that volume.
    awaited: BTreeMap<String, Vec<Claimed>>,
}

/// The exports of one server.
pub struct Exports {
    server: Arc<NbdServer>,
    vhost: VhostUserServer,
    sockets: Vec<VhostSocket>,
    tls_names: TlsNames,
    /// The exports that the configuration names; none means every volume.
    configured: Vec<Export>,
    /// The limits that the configuration gives to exports.
    configured_limits: BTreeMap<String, Limits>,
    /// Those of exports that are served.
    throttles: Mutex<BTreeMap<String, Arc<Throttle>>>,
    /// The changes that verbs made.
    changes: Mutex<ExportChanges>,
    /// The exports that are served; `read_only` is set for any reason.
    served: Mutex<Vec<Export>>,
    /// Held while exports begin or end, so that one verb does not undo another verb's changes. Not
    /// held while a verb waits for clients.
    arranged: Mutex<Arranged>,
    empty_name: Mutex<EmptyName>,
    addresses: Mutex<Vec<ListenAddress>>,
}

impl Exports {
    /// A registry that serves no volume yet.
    pub fn new(
        world: &World,
        configured: Vec<Export>,
        sockets: Vec<VhostSocket>,
        changes: ExportChanges,
        options: NbdOptions,
    ) -> Exports {
        let post = world.reactors().post();
        let front = Front::new(&*post, options.memory_bytes, options.connections_max);
        let vhost = VhostUserServer::new(front.clone(), post.clone());
        let server = Arc::new(NbdServer::with_front(front, post, options));
        let (served, arranged, addresses, tls_names) = Default::default();
        let (configured_limits, throttles) = Default::default();
        let (changes, empty_name) = (Mutex::new(changes), Mutex::default());
        Exports {
            server,
            vhost,
            sockets,
            tls_names,
            configured,
            configured_limits,
            throttles,
            changes,
            served,
            arranged,
            empty_name,
            addresses,
        }
    }

    /// The same with TLS, if there is any; clients find the exports that have a name of their
    /// certificates.
    #[must_use]
    pub fn with_tls(self, tls: Option<Tls>, tls_names: TlsNames) -> Exports {
        if let Some(tls) = tls {
            self.server.offer_tls(tls);
        }
        Exports { tls_names, ..self }
    }

    /// The same with limits for exports.
    #[must_use]
    pub fn with_limits(self, configured_limits: BTreeMap<String, Limits>) -> Exports {
        Exports { configured_limits, ..self }
    }

    /// Serves a volume under each of its names. Its present exports stay.
    ///
    /// # Errors
    /// A name is taken or breaks the protocol's limits.
    pub fn add_volume(&self, world: &World, volume: &str) -> Outcome<()> {
        self.add_in(world, volume, &mut self.arranged.lock())
    }

    fn add_in(&self, world: &World, volume: &str, arranged: &mut Arranged) -> Outcome<()> {
        let device = world.volume(volume)?;
        let access = Access::to(world, &device, arranged);
        if access != Access::Full
            && let Entry::Vacant(entry) = arranged.held_back.entry(volume.to_owned())
            && entry.insert(None).is_none()
            && let Some(owner) = world.kept_for(volume)
        {
            tracing::warn!("{volume}: not exported: kept for '{owner}', which is not served");
        }
        let disk: Arc<dyn Disk> = device.clone();
        let names = match access {
            Access::None => Vec::new(),
            _ => self.names_of(volume, is_pool(&device)),
        };
        for mut export in names {
            export.read_only |= world.read_only() || access == Access::Read;
            let is_it =
                |served: &Export| (&served.name, &served.volume) == (&export.name, &export.volume);
            if self.served.lock().iter().any(is_it) {
                continue;
            }
            let Some(clients) = self.tls_names.of(&export, &self.configured) else {
                tracing::warn!(
                    "{}: not exported: tls_names are in use, and none are for it",
                    export.name
                );
                continue;
            };
            let served = NbdExport {
                name: export.name.clone(),
                description: export.description.clone(),
                disk: disk.clone(),
                read_only: export.read_only,
                throttle: self.throttle_of(&export.name),
            };
            let contexts = Arc::new(SnapContexts::new(world.names(), volume));
            let added = self.add_socket(&export, &disk).and_then(|()| {
                let added = self.server.add_export_for(served, contexts, clients);
                added.inspect_err(|_| self.vhost.withdraw(&export.name))
            });
            added.inspect_err(|_| self.forget_unserved_throttle(&export.name))?;
            self.served.lock().push(export);
        }
        self.settle_default();
        Ok(())
    }

    /// True if there are clients that may find an export, by the names of the configuration.
    pub fn has_clients(&self, export: &Export) -> bool {
        self.tls_names.of(export, &self.configured).is_some()
    }

    /// Serves an export at its socket for virtual machines, if it has one.
    fn add_socket(&self, export: &Export, disk: &Arc<dyn Disk>) -> Outcome<()> {
        let Some(socket) = self.socket_of(&export.name) else { return Ok(()) };
        self.vhost.add_export(VhostExport {
            name: export.name.clone(),
            disk: disk.clone(),
            read_only: export.read_only,
            socket: socket.path.clone(),
            rights: socket.rights,
            queues: socket.queues,
            throttle: self.throttle_of(&export.name),
        })
    }

    /// The sockets for virtual machines whose exports are not served.
    pub fn idle_sockets(&self) -> Vec<VhostSocket> {
        let is_idle = |socket: &&VhostSocket| self.served_as(&socket.export).is_none();
        self.sockets.iter().filter(is_idle).cloned().collect()
    }

    /// The exports that have limits by the configuration, and that neither it nor a volume names.
    pub fn idle_limits(&self) -> Vec<String> {
        let is_configured = |name: &str| self.configured.iter().any(|export| export.name == name);
        let names = self.configured_limits.keys();
        let is_idle = |name: &&String| self.served_as(name).is_none() && !is_configured(name);
        names.filter(is_idle).cloned().collect()
    }

    /// The socket for virtual machines of an export.
    pub fn socket_of(&self, export: &str) -> Option<&VhostSocket> {
        self.sockets.iter().find(|socket| socket.export == export)
    }

    fn names_of(&self, volume: &str, pool: bool) -> Vec<Export> {
        let changes = self.changes.lock();
        let own = |export: &Export| {
            let replaced = changes.added.iter().any(|added| added.name == export.name);
            !replaced && !changes.removed.contains(&export.name)
        };
        let mut exports = self.names_without_changes(volume, pool);
        exports.retain(own);
        exports.extend(changes.added.iter().filter(|added| added.volume == volume).cloned());
        exports
    }

    fn names_without_changes(&self, volume: &str, pool: bool) -> Vec<Export> {
        let configured = |volume: &str| {
            let exports = self.configured.iter();
            exports.filter(|export| export.volume == volume).cloned().collect::<Vec<_>>()
        };
        let own = match parent_of(volume) {
            _ if pool || is_hidden(volume) => false,
            Some(parent) => self.configured.is_empty() || !configured(parent).is_empty(),
            None => self.configured.is_empty(),
        };
        if own {
            let (name, description) = (volume.to_owned(), String::new());
            return vec![Export { volume: name.clone(), name, description, read_only: false }];
        }
        configured(volume)
    }

    /// The changes that verbs made so far.
    pub fn changes(&self) -> ExportChanges {
        self.changes.lock().clone()
    }

    /// Replaces the changes that verbs made. Begins and ends no export.
    pub fn set_changes(&self, changes: ExportChanges) {
        *self.changes.lock() = changes;
    }

    /// The export of this name by the configuration, or by the name of a volume, without the
    /// changes of verbs.
    pub fn without_changes(&self, world: &World, name: &str) -> Option<Export> {
        let volumes = world.volumes();
        let mut exports = volumes
            .iter()
            .flat_map(|volume| self.names_without_changes(volume.volume(), is_pool(volume)));
        exports.find(|export| export.name == name)
    }

    /// The export of this name that is served.
    pub fn served_as(&self, name: &str) -> Option<Export> {
        self.served.lock().iter().find(|export| export.name == name).cloned()
    }

    /// The volume with an export of this name, or the volume of this name.
    pub fn volume_of(&self, name: &str) -> String {
        let changes = self.changes.lock();
        let mut all = changes.added.iter().chain(&self.configured);
        all.find(|export| export.name == name)
            .map_or_else(|| name.to_owned(), |export| export.volume.clone())
    }

    /// Sets the empty name to the only export that is not a snapshot, unless its meaning is fixed.
    fn settle_default(&self) {
        let served = self.served.lock();
        let mut empty_name = self.empty_name.lock();
        if matches!(*empty_name, EmptyName::Fixed(_)) {
            return;
        }
        let only = only_plain(&served);
        self.server.set_default_export(only);
        if only.is_some() && matches!(*empty_name, EmptyName::First) {
            *empty_name = EmptyName::Fixed(only.map(str::to_owned));
        }
    }

    /// Ends the start: fixes the present meaning of the empty name.
    pub fn fix_default(&self) {
        let served = self.served.lock();
        let mut empty_name = self.empty_name.lock();
        if matches!(*empty_name, EmptyName::Open) {
            let only = only_plain(&served);
            *empty_name = match plain(&served).next() {
                None => EmptyName::First,
                Some(_) => EmptyName::Fixed(only.map(str::to_owned)),
            };
            if matches!(*empty_name, EmptyName::Fixed(_)) {
                // Without a name the server takes the only export there is; no export has this one.
                self.server.set_default_export(only.or(Some("")));
            }
        }
    }

    /// Stops serving a volume; connections may finish their requests.
    ///
    /// # Errors
    /// Requests in flight do not end; the exports are removed all the same.
    pub fn remove_volume(&self, world: &World, volume: &str) -> Outcome<()> {
        let gone = {
            let mut arranged = self.arranged.lock();
            arranged.held_back.remove(volume);
            arranged.awaited.remove(volume);
            self.take_if(|export| export.volume == volume)
        };
        self.end(world, &gone);
        Ok(())
    }

    /// Stops serving a volume under one of its names.
    pub fn remove_export(&self, world: &World, name: &str) {
        let gone = self.take_if(|export| export.name == name);
        self.end(world, &gone);
    }

    /// Takes some exports from those that are served.
    fn take_if(&self, is_it: impl Fn(&Export) -> bool) -> Vec<Export> {
        let mut served = self.served.lock();
        let (gone, kept): (Vec<Export>, _) = served.drain(..).partition(is_it);
        *served = kept;
        gone.iter().for_each(|export| self.forget_throttle(&export.name));
        gone
    }

    /// Stops serving exports that were taken from the list.
    fn end(&self, world: &World, gone: &[Export]) {
        self.settle_default();
        for export in gone {
            let (server, vhost) = (self.server.clone(), self.vhost.clone());
            let name = export.name.clone();
            let left = world.on_home(&export.volume, move |env| async move {
                let drivers = vhost.remove_export(&env, &name, DRAIN).await;
                drivers + server.remove_export(&env, &name, DRAIN).await
            });
            if left > 0 {
                tracing::warn!("export '{}': {left} connections wait for requests", export.name);
            }
        }
    }

    /// Stops serving the volumes that `user` is about to claim. A volume that claims itself becomes
    /// a pool.
    ///
    /// # Errors
    /// A client is connected to one of them. Nothing has changed.
    pub fn give_way(&self, world: &World, user: &str, claimed: &[Claimed]) -> Outcome<()> {
        let is_in_the_way = |claimed: &Claimed, export: &Export| {
            let asked = claimed.volume == user && self.is_configured(export);
            claimed.volume == export.volume && !asked && !(claimed.may_be_read && export.read_only)
        };
        self.arranged.lock().awaited.insert(user.to_owned(), claimed.to_vec());
        for claimed in claimed {
            if !self.wait_for_clients_of(|export| is_in_the_way(claimed, export)) {
                self.settle(world, user);
                let expected = format!("none, as volume '{user}' needs it for itself");
                let found = "clients that are connected";
                return Err(refused(ConfigKind::Busy, &claimed.volume, "users", found, expected));
            }
        }
        let gone = {
            let mut arranged = self.arranged.lock();
            let in_the_way =
                |export: &Export| claimed.iter().any(|claimed| is_in_the_way(claimed, export));
            let gone = self.take_if(in_the_way);
            let to = || Some(user.to_owned());
            arranged.held_back.extend(gone.iter().map(|export| (export.volume.clone(), to())));
            gone
        };
        for volume in gone.iter().map(|export| &export.volume).collect::<BTreeSet<_>>() {
            tracing::warn!("{volume}: no longer exported: '{user}' uses it");
        }
        self.end(world, &gone);
        Ok(())
    }

    /// True if the configuration names this export of this volume.
    fn is_configured(&self, export: &Export) -> bool {
        let mut named = self.configured.iter();
        named.any(|named| (&named.name, &named.volume) == (&export.name, &export.volume))
    }

    /// True if exports of `volume` were removed for the table of `user`.
    pub fn gave_way(&self, volume: &str, user: &str) -> bool {
        let arranged = self.arranged.lock();
        arranged.held_back.get(volume).is_some_and(|to| to.as_deref() == Some(user))
    }

    /// Called when the volume `user` has made its claims, or will not make them. Serves again the
    /// volumes without claims, and for reading those whose claims allow it.
    pub fn settle(&self, world: &World, user: &str) {
        self.vhost.look_at_sizes();
        let mut arranged = self.arranged.lock();
        arranged.awaited.remove(user);
        let held_back: Vec<String> = arranged.held_back.keys().cloned().collect();
        for name in held_back {
            let Ok(volume) = world.volume(&name) else {
                arranged.held_back.remove(&name);
                continue;
            };
            let access = Access::to(world, &volume, &arranged);
            if access == Access::Full && !is_pool(&volume) {
                let other = |export: &Export| export.volume == name && !self.is_as_named(export);
                if world.read_only() || self.are_used(other) {
                    continue; // The readers stay connected; the next verb tries again.
                }
                // No client is connected, so this does not wait.
                self.end(world, &self.take_if(other));
                arranged.held_back.remove(&name);
            }
            if let Err(error) = self.add_in(world, &name, &mut arranged) {
                tracing::warn!("not exported: {error}");
            }
        }
    }

    /// True if an export is served as without any claim of its volume.
    fn is_as_named(&self, export: &Export) -> bool {
        let names = self.names_of(&export.volume, false);
        names.iter().any(|named| named.name == export.name && named.read_only == export.read_only)
    }

    /// Sets the meaning of the empty name to a volume or export, as the option or key `asked_by`
    /// demands.
    ///
    /// # Errors
    /// It is not served.
    pub fn set_default(&self, wanted: &str, asked_by: &str) -> Outcome<()> {
        let served = self.served.lock();
        let by_name = served.iter().find(|export| export.name == wanted);
        let found = by_name.or_else(|| served.iter().find(|export| export.volume == wanted));
        let Some(export) = found else {
            let names: Vec<_> = served.iter().map(|export| export.name.as_str()).collect();
            let expected = format!("one of {}", names.join(", "));
            return Err(wrong("", asked_by, format!("'{wanted}'"), expected));
        };
        self.choose(&export.name);
        Ok(())
    }

    fn choose(&self, name: &str) {
        self.server.set_default_export(Some(name));
        *self.empty_name.lock() = EmptyName::Fixed(Some(name.to_owned()));
    }

    /// The same for an export that may come later. Until then the empty name means no export.
    pub fn await_default(&self, wanted: &str) {
        self.choose(wanted);
    }

    /// True if the empty name means this export.
    pub fn is_default(&self, name: &str) -> bool {
        matches!(&*self.empty_name.lock(), EmptyName::Fixed(Some(meant)) if meant == name)
    }

    /// Listens at another address; the first is the one that URIs name. A unix socket gets
    /// `rights`.
    ///
    /// # Errors
    /// Another program listens there, or the system refuses.
    pub fn listen(&self, address: &ListenAddress, rights: SocketRights) -> Outcome<()> {
        let bound = self.server.listen_with(address, rights)?;
        self.addresses.lock().push(bound);
        Ok(())
    }

    /// Listens on a socket that another process opened.
    ///
    /// # Errors
    /// It does not listen.
    pub fn listen_on(&self, given: Listening) -> Outcome<()> {
        let address = given.address.clone();
        self.server.listen_on(given)?;
        self.addresses.lock().push(address);
        Ok(())
    }

    /// The URI of an export; the empty name is the default export.
    pub fn uri(&self, export: &str) -> Option<String> {
        self.server.uri(export)
    }

    /// The first address.
    pub fn address(&self) -> Option<ListenAddress> {
        self.addresses.lock().first().cloned()
    }

    /// The path of the first unix socket.
    pub fn unix_socket(&self) -> Option<PathBuf> {
        self.addresses.lock().iter().find_map(|address| match address {
            ListenAddress::Unix(path) => Some(path.clone()),
            ListenAddress::Tcp(_) => None,
        })
    }

    /// Every export.
    pub fn served(&self) -> Vec<Export> {
        self.served.lock().clone()
    }

    /// The URI of every export.
    pub fn uris(&self) -> Vec<String> {
        self.served().iter().filter_map(|export| self.uri(&export.name)).collect()
    }

    /// How many exports a volume has.
    pub fn count_of(&self, volume: &str) -> usize {
        self.served.lock().iter().filter(|export| export.volume == volume).count()
    }

    /// Refuses a volume that clients still use after a second.
    ///
    /// # Errors
    /// A client is connected to it.
    pub fn refuse_clients(&self, volume: &str, expected: &str) -> Outcome<()> {
        self.refuse_users(volume, expected, |export| export.volume == volume)
    }

    /// True if a client uses a volume now.
    pub fn has_users(&self, volume: &str) -> bool {
        self.are_used(|export| export.volume == volume)
    }

    /// Refuses an export that clients still use after a second.
    ///
    /// # Errors
    /// A client is connected to it.
    pub fn refuse_clients_of(&self, name: &str, expected: &str) -> Outcome<()> {
        self.refuse_users(&format!("export '{name}'"), expected, |export| export.name == name)
    }

    fn refuse_users(
        &self,
        device: &str,
        expected: &str,
        is_it: impl Fn(&Export) -> bool,
    ) -> Outcome<()> {
        if self.wait_for_clients_of(is_it) {
            return Ok(());
        }
        let found = "clients that are connected";
        Err(refused(ConfigKind::Busy, device, "users", found, expected))
    }

    /// Waits up to a second until no client uses these exports; false if one still does.
    fn wait_for_clients_of(&self, is_it: impl Fn(&Export) -> bool) -> bool {
        const TRIES: u32 = 50;
        const PAUSE: Duration = Duration::from_millis(20);
        // The server may not have seen yet that a client hung up.
        (0..TRIES).any(|attempt| {
            if attempt > 0 {
                std::thread::sleep(PAUSE);
            }
            !self.are_used(&is_it)
        })
    }

    fn are_used(&self, is_it: impl Fn(&Export) -> bool) -> bool {
        let served = self.served.lock();
        let mut exports = served.iter().filter(|export| is_it(export));
        exports.any(|export| self.server.users(&export.name) + self.vhost.users(&export.name) > 0)
    }

    /// What the clients of an export have asked for.
    pub fn traffic(&self, export: &str) -> Traffic {
        let drivers = self.vhost.traffic(export).unwrap_or_default();
        self.server.traffic(export).unwrap_or_default().with(&drivers)
    }

    /// Every export with its size.
    pub fn list(&self, world: &World) -> Vec<ExportInfo> {
        let info = |export: Export| {
            let disk = world.volume(&export.volume).ok();
            let limits = disk.as_ref().map(|disk| disk.limits());
            ExportInfo {
                uri: self.uri(&export.name),
                clients: (self.server.users(&export.name) + self.vhost.users(&export.name)) as u64,
                bytes: disk.map_or(0, |disk| disk.sectors().to_bytes()),
                read_only: export.read_only || limits.is_some_and(|limits| limits.read_only),
                throttle: self.limits_of(&export.name),
                name: export.name,
                volume: export.volume,
            }
        };
        self.served().into_iter().map(info).collect()
    }

    /// Has all connections wait: on return none has a request that is not answered.
    ///
    /// # Errors
    /// Requests do not end within `patience`: all connections go on.
    pub fn pause(&self, world: &World, patience: Duration) -> Outcome<()> {
        let (server, vhost) = (self.server.clone(), self.vhost.clone());
        let pause = move |env: Env| async move {
            let began = env.now();
            server.pause(&env, patience).await?;
            vhost.pause(&env, patience.saturating_sub(env.now().since(began))).await
        };
        let paused = world.reactors().block_on(ReactorId(0), pause);
        paused.map_err(|left| {
            self.resume();
            let found = format!("{left} connections with requests that do not end");
            refused(ConfigKind::Busy, "", "exports", found, "requests that end")
        })
    }

    /// Accepts no connection before [`Exports::resume`]. The exports that come use the sockets for
    /// virtual machines that an earlier process left.
    pub fn begin_paused(&self, left: &vhost_user::Estate) {
        self.server.begin_paused();
        self.vhost.begin_paused(left.iter().map(|parted| parted.listening.clone()));
    }

    /// Has the connections go on.
    pub fn resume(&self) {
        self.server.resume();
        self.vhost.resume();
    }

    /// Has the connections, which wait, leave for another process, with what listens.
    pub fn part(&self, world: &World) -> (Estate, vhost_user::Estate) {
        let (server, vhost) = (self.server.clone(), self.vhost.clone());
        let part = move |env| async move {
            (server.part(&env, DRAIN).await, vhost.part(&env, DRAIN).await)
        };
        world.reactors().block_on(ReactorId(0), part)
    }

    /// Judges the sessions of virtual machines of an earlier process, which go on with
    /// [`Exports::resume`]. Answers how many do.
    pub fn inherit_sessions(&self, left: vhost_user::Estate) -> usize {
        self.vhost.inherit(left)
    }

    /// Goes on with a connection of an earlier process.
    pub fn take_over(&self, parted: Parted, socket: OwnedFd) {
        self.server.take_over(parted, socket);
    }

    /// Accepts no more connections and lets the present ones finish their requests.
    pub fn stop(&self, world: &World) {
        let (server, vhost) = (self.server.clone(), self.vhost.clone());
        let stopped = move |env| async move {
            vhost.stop(&env, DRAIN).await + server.stop(&env, DRAIN).await
        };
        let left = world.reactors().block_on(ReactorId(0), stopped);
        if left > 0 {
            tracing::warn!("{left} connections were cut while their requests wait");
        }
    }
}
