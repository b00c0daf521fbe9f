//! Which volumes are served under which names.
//!
//! Without a word in the TOML file every volume is served under its own name, those made at run
//! time too. A snapshot is served under its own name wherever its volume is served; what lies
//! beneath a volume with snapshots never is, nor is a pool: it is its own data device. The empty
//! export name means the volume of `--export`, and nothing while that is not there; if nobody chose,
//! the only one that is no snapshot.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{Disk, ReactorId};
use cairn_exports::nbd::{ListenAddress, NbdExport, NbdOptions, NbdServer};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::config::Export;
use crate::failure::{Outcome, wrong};
use crate::pool::is_pool;
use crate::snap::SnapContexts;
use crate::snap::names::{is_hidden, parent_of};
use crate::world::World;

/// How long connections may finish what they have begun when their export goes.
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
}

/// The exports of one server.
pub struct Exports {
    server: Arc<NbdServer>,
    /// What the configuration names; none means every volume.
    configured: Vec<Export>,
    served: Mutex<Vec<Export>>,
    /// Somebody said that this is what the empty name means.
    chosen: Mutex<Option<String>>,
    addresses: Mutex<Vec<ListenAddress>>,
}

impl Exports {
    /// Nothing served yet.
    pub fn new(world: &World, configured: Vec<Export>, options: NbdOptions) -> Exports {
        let server = Arc::new(NbdServer::new(world.reactors().post(), options));
        let (served, addresses) = (Mutex::default(), Mutex::default());
        Exports { server, configured, served, chosen: Mutex::default(), addresses }
    }

    /// Serves a volume under each of its names; those that it has already stay.
    ///
    /// # Errors
    /// A name is taken or breaks the protocol's limits.
    pub fn add_volume(&self, world: &World, volume: &str) -> Outcome<()> {
        let disk: Arc<dyn Disk> = world.volume(volume)?;
        let pool = is_pool(&*world.volume(volume)?);
        for export in self.names_of(volume, pool) {
            let is_it =
                |served: &Export| (&served.name, &served.volume) == (&export.name, &export.volume);
            if self.served.lock().iter().any(is_it) {
                continue;
            }
            let served = NbdExport {
                name: export.name.clone(),
                description: export.description.clone(),
                disk: disk.clone(),
                read_only: export.read_only || world.read_only(),
            };
            let contexts = Arc::new(SnapContexts::new(world.names(), volume));
            self.server.add_export_with(served, contexts)?;
            self.served.lock().push(export);
        }
        self.settle_default();
        Ok(())
    }

    fn names_of(&self, volume: &str, pool: bool) -> Vec<Export> {
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

    /// If nobody chose, the empty name means the only export, whatever snapshots are beside it.
    fn settle_default(&self) {
        let served = self.served.lock();
        if self.chosen.lock().is_some() {
            return;
        }
        let mut plain = served.iter().filter(|export| parent_of(&export.volume).is_none());
        let only = plain.next().filter(|_| plain.next().is_none());
        self.server.set_default_export(only.map(|only| only.name.as_str()));
    }

    /// Stops serving a volume; connections may finish what they have begun.
    ///
    /// # Errors
    /// Requests are under way that do not end; the exports are gone all the same.
    pub fn remove_volume(&self, world: &World, volume: &str) -> Outcome<()> {
        let (gone, kept): (Vec<_>, Vec<_>) =
            self.served.lock().drain(..).partition(|export| export.volume == volume);
        *self.served.lock() = kept;
        self.settle_default();
        for export in gone {
            let (server, name) = (self.server.clone(), export.name.clone());
            let left = world.on_home(volume, move |env| async move {
                server.remove_export(&env, &name, DRAIN).await
            });
            if left > 0 {
                tracing::warn!("export '{}': {left} connections wait for requests", export.name);
            }
        }
        Ok(())
    }

    /// Says which volume or export the empty name means.
    ///
    /// # Errors
    /// It is not served.
    pub fn set_default(&self, wanted: &str) -> Outcome<()> {
        let served = self.served.lock();
        let by_name = served.iter().find(|export| export.name == wanted);
        let found = by_name.or_else(|| served.iter().find(|export| export.volume == wanted));
        let Some(export) = found else {
            let names: Vec<_> = served.iter().map(|export| export.name.as_str()).collect();
            let expected = format!("one of {}", names.join(", "));
            return Err(wrong("", "--export", format!("'{wanted}'"), expected));
        };
        self.choose(&export.name);
        Ok(())
    }

    fn choose(&self, name: &str) {
        self.server.set_default_export(Some(name));
        *self.chosen.lock() = Some(name.to_owned());
    }

    /// The same for an export that may come: until then the empty name means nothing, never another.
    pub fn await_default(&self, wanted: &str) {
        self.choose(wanted);
    }

    /// True if the empty name means this export, one of those served.
    pub fn is_default(&self, name: &str) -> bool {
        let chosen = self.chosen.lock().clone();
        match chosen {
            Some(chosen) => chosen == name,
            None => self.served.lock().len() == 1,
        }
    }

    /// Listens at another address; the first is the one that URIs name.
    ///
    /// # Errors
    /// Somebody listens there, or the system refuses.
    pub fn listen(&self, address: &ListenAddress) -> Outcome<()> {
        let bound = self.server.listen(address)?;
        self.addresses.lock().push(bound);
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

    /// Waits a moment until no client uses a volume; false if one still does.
    pub fn wait_for_clients(&self, volume: &str) -> bool {
        const TRIES: u32 = 50;
        const PAUSE: Duration = Duration::from_millis(20);
        let used = || {
            let served = self.served.lock();
            let mut exports = served.iter().filter(|export| export.volume == volume);
            exports.any(|export| self.server.users(&export.name) > 0)
        };
        // Who has just gone may not have been seen to go.
        (0..TRIES).any(|attempt| {
            if attempt > 0 {
                std::thread::sleep(PAUSE);
            }
            !used()
        })
    }

    /// Every export with its size.
    pub fn list(&self, world: &World) -> Vec<ExportInfo> {
        let info = |export: Export| {
            let disk = world.volume(&export.volume).ok();
            let limits = disk.as_ref().map(|disk| disk.limits());
            ExportInfo {
                uri: self.uri(&export.name),
                bytes: disk.map_or(0, |disk| disk.sectors().to_bytes()),
                read_only: export.read_only || limits.is_some_and(|limits| limits.read_only),
                name: export.name,
                volume: export.volume,
            }
        };
        self.served().into_iter().map(info).collect()
    }

    /// Accepts nothing more and lets connections finish what they have begun.
    pub fn stop(&self, world: &World) {
        let server = self.server.clone();
        let stopped = move |env| async move { server.stop(&env, DRAIN).await };
        let left = world.reactors().block_on(ReactorId(0), stopped);
        if left > 0 {
            tracing::warn!("{left} connections were cut while their requests wait");
        }
    }
}
