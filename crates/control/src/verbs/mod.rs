//! The verbs of a running server, as the control socket calls them.
//!
//! Owns the records of the tables that verbs changed. A record is in the state file before the verb
//! answers. Order, and what a crash between two steps leaves:
//! - load: build, record, answer. Crash: the old tables, or the loaded one as inactive table.
//! - resume with a loaded table, and replace: see `volume::swap`.
//! - create: build, resume, record, export. Crash: no volume, or one that no caller was told of.
//! - remove: record, then end. Crash: the next start does not have the volume.
//! - rename: end, record, begin: see `volume::rename`.
//! - clear: record, then drop. suspend changes no record.
//! - message: send, then record if it changed what the table prints. Crash: the target may have
//!   acted although no caller was told, and the next start has the table without the change.
//!
//! So after a failed verb the record is that of the served table. A volume that could not be
//! brought up at a start stays recorded, and no verb gives its name to another volume.
//!
//! Without a state file the verbs that change tables refuse. A verb that changes something takes a
//! turn: until it ends, no other verb changes anything in its reach (see `turns` and `reach`).
//! `snap list` and `snap diff` also take turns, so that they report one moment of a volume; other
//! reading verbs do not.
//!
//! A verb whose caller hangs up while it waits for its turn does nothing. One that has begun goes
//! on to its end: for a second turn, which completes or undoes it, the server itself is the caller.
//!
//! A verb in its turn must not wait for something that needs another verb. So suspend, and resume
//! with a new table, wait for requests outside their turn; other verbs on their volume are refused
//! during the wait. A verb that would read through a suspended volume, or wait for requests that
//! read through one, is refused. [`Verbs::close`] refuses all further changes and ends the waits of
//! verbs under way.

pub mod cache;
mod calls;
mod changes;
pub mod export;
mod keeper;
pub mod methods;
pub mod pool;
pub mod server;
pub mod snap;
pub mod state;
pub mod steps;
mod tables;
#[cfg(test)]
mod tests;
pub mod thin;
pub mod verb;
pub mod volume;
pub mod watch;

use std::fs::File;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use cairn_block::{ConfigError, ConfigKind};
use cairn_outcome::failure::{Outcome, refused, wrong};
use cairn_outcome::signals::Event;
use parking_lot::Mutex;

use self::calls::Calls;
pub(crate) use self::changes::Changes;
use self::changes::Records;
#[cfg(test)]
use self::steps::Step;
use self::steps::log_undo_failure;
use crate::control::server::Caller;
use crate::exports::Exports;
use crate::keeper_calls::KeeperCalls;
use crate::names::{parent_of, snapshot_of};
use crate::reach::{Named, Reach};
use crate::state::{Noting, Record, StateFile};
use crate::turns::{NoTurn, Turn, Turns};
use crate::world::World;

/// The verbs of one server.
pub struct Verbs {
    /// Reactors and volumes.
    pub(crate) world: Arc<World>,
    /// What is served.
    pub(crate) exports: Arc<Exports>,
    /// Ends merges and lets stores grow.
    pub(crate) keeper: Arc<KeeperCalls>,
    /// The state file, for what is noted beside the verbs.
    state: Option<StateFile>,
    changes: Changes,
    turns: Turns,
    /// The calls under way.
    calls: Calls,
    /// Where an upgrade is asked for; none if the server cannot be upgraded.
    events: Mutex<Option<Sender<Event>>>,
    /// Sees each step of a verb on snapshots.
    #[cfg(test)]
    pub(crate) at_step: Mutex<Box<dyn FnMut(Step) + Send>>,
}

impl Verbs {
    /// Verbs on a world whose volumes have the tables in `records`.
    pub fn new(
        world: Arc<World>,
        exports: Arc<Exports>,
        state: Option<StateFile>,
        records: Vec<Record>,
    ) -> Verbs {
        let changes = Changes::new(state.clone(), records);
        let verbs = Verbs {
            world,
            exports,
            keeper: Arc::default(),
            state,
            changes,
            turns: Turns::default(),
            calls: Calls::default(),
            events: Mutex::default(),
            #[cfg(test)]
            at_step: Mutex::new(Box::new(|_| ())),
        };
        for volume in verbs.world.volumes() {
            // It is there.
            let _ = verbs.set_owner(volume.volume());
        }
        verbs
    }

    /// From now on the server can be upgraded: what is asked for comes as an event.
    pub fn ask_for_upgrades(&self, events: Sender<Event>) {
        *self.events.lock() = Some(events);
    }

    /// Where the state file is.
    pub fn state_path(&self) -> Option<&Path> {
        self.state.as_ref().map(StateFile::path)
    }

    /// The lock of the state file, for the server after this one.
    ///
    /// # Errors
    /// The system refused.
    pub fn state_lock(&self) -> Outcome<Option<File>> {
        self.state.as_ref().map_or(Ok(None), StateFile::lock)
    }

    /// True if what verbs change is kept, so that volumes may come.
    pub fn keeps_changes(&self) -> bool {
        self.state.is_some()
    }

    /// Has the keeper called by a snapshot, merge or pool that needs it, and the state file note if
    /// the content of a snapshot is lost and its store can't say so.
    ///
    /// # Errors
    /// There is no such volume.
    pub(crate) fn set_owner(&self, name: &str) -> Outcome<()> {
        let volume = self.world.volume(name)?;
        volume.events().set_owner(KeeperCalls::caller(&self.keeper));
        let Some(parent) = parent_of(name) else { return Ok(()) };
        let is_snapshot = snapshot_of(name, parent).is_some();
        if let Some(state) = self.state.as_ref().filter(|_| is_snapshot) {
            volume.events().set_loss_log(Noting::new(state.clone(), name));
        }
        Ok(())
    }

    /// What verbs recorded, for those that take no turn.
    pub(crate) fn told(&self) -> Records {
        self.changes.records()
    }

    /// Keeps in the state file which losses no client was told of, for the next start, and which
    /// snapshots ended. Answers what it could not keep: each snapshot, and what the system said.
    pub fn keep_untold(&self) -> Vec<ConfigError> {
        // One that may only read holds no lock on the file, which may be another server's.
        let Some(state) = self.state.as_ref().filter(|_| !self.world.read_only()) else {
            return Vec::new();
        };
        let untold = self.world.untold_losses().into_iter().collect();
        let Err(error) = state.keep_untold(untold) else { return Vec::new() };
        let untrusted = |name: String| {
            let detail = format!(
                "content: it ended, which neither its store nor the state file could be told: it \
                 must not be trusted, though it looks valid (cairn snap remove {name})"
            );
            ConfigError::new(ConfigKind::Lost, name, detail)
        };
        state.owed().into_iter().map(untrusted).chain([error]).collect()
    }

    /// Refuses further calls until [`Verbs::open`]: on return nothing in this process changes a
    /// volume or the state file for a verb, and the file has all that is to be kept.
    ///
    /// # Errors
    /// The verbs under way take their time, or the file cannot be written. Calls are taken again.
    pub fn close_if_idle(&self) -> Outcome<()> {
        const STEP: Duration = Duration::from_millis(1);
        const STEPS: u32 = 2000;
        self.calls.close();
        self.turns.close();
        let is_idle =
            || self.turns.is_idle() && self.calls.are_none() && self.world.under_way().is_empty();
        let mut steps = 0;
        while !is_idle() && steps < STEPS {
            std::thread::sleep(STEP);
            steps += 1;
        }
        let closed = match is_idle() {
            true => self.changes.record_owed().and_then(|()| self.pay_owed()),
            false => {
                let found = "verbs under way that do not end";
                Err(refused(ConfigKind::Busy, "", "server", found, "none"))
            }
        };
        closed.inspect_err(|_| self.open())
    }

    /// Writes what the state file lacks of the ends of snapshots.
    fn pay_owed(&self) -> Outcome<()> {
        let owing = self.state.as_ref().filter(|state| !state.owed().is_empty());
        owing.map_or(Ok(()), StateFile::pay)
    }

    /// Takes calls again.
    pub fn open(&self) {
        self.turns.open();
        self.calls.open();
        self.keeper.poke();
    }

    /// True between [`Verbs::close_if_idle`] and [`Verbs::open`].
    pub(crate) fn is_paused(&self) -> bool {
        self.calls.is_closed()
    }

    /// Another process goes on: from now on this one writes no state.
    pub fn leave_state(&self) {
        self.state.iter().for_each(StateFile::leave);
    }

    /// Refuses all further changes, and waits for the verbs under way: what these wait for is given
    /// up, as only another verb may bring it. False if one is left, which waits for a remote disk
    /// that does not answer.
    pub fn close(&self) -> bool {
        const STEP: Duration = Duration::from_millis(100);
        /// Most verbs end by themselves, and no request fails for them.
        const PATIENCE_STEPS: u32 = 20;
        self.turns.close();
        let is_busy = || !self.turns.is_idle() || !self.world.under_way().is_empty();
        let mut steps = 0;
        while is_busy() && (steps <= 2 * PATIENCE_STEPS || !self.world.is_any_silent()) {
            steps += 1;
            if steps > PATIENCE_STEPS {
                self.world.give_up_waiting();
            }
            std::thread::sleep(STEP);
        }
        // A verb that is left owes nothing that an earlier one owes.
        log_undo_failure("state", self.changes.record_owed());
        !is_busy()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.turns.is_closed()
    }

    fn refuse_closed(&self) -> Outcome<()> {
        if self.is_closed() { Err(going_away()) } else { Ok(()) }
    }

    /// A turn with what these names reach: to change it, or to look at it as it is at one moment.
    ///
    /// # Errors
    /// The server is going away, or the caller hung up while the verb waited.
    pub(crate) fn change(
        &self,
        named: &Named<'_>,
        verb: &str,
        caller: &dyn Caller,
    ) -> Outcome<InTurn<'_>> {
        let reach = || Reach::of(named, &self.world, &self.changes.records());
        let turn = self.turns.take(reach, || caller.is_gone()).map_err(|why| match why {
            NoTurn::Closed => going_away(),
            NoTurn::CallerGone => interrupted(named.first(), verb),
        })?;
        self.refuse_closed()?;
        Ok(InTurn { changes: &self.changes, _turn: turn })
    }

    /// The same, to change tables.
    ///
    /// # Errors
    /// Those of [`Verbs::change`]; or the server is read-only, or there is no state file.
    pub(crate) fn change_table(
        &self,
        named: &Named<'_>,
        verb: &str,
        caller: &dyn Caller,
    ) -> Outcome<InTurn<'_>> {
        if self.world.read_only() {
            let found = "a read-only server";
            return Err(wrong(named.first(), "access", found, "a writable one"));
        }
        if self.state.is_none() {
            let expected = "a server started with --state FILE or a TOML file, to keep the change";
            let field = format!("{verb} state file");
            return Err(refused(ConfigKind::Argument, named.first(), &field, "none", expected));
        }
        self.change(named, verb, caller)
    }
}

/// The records, in the turn of a verb: no other verb changes those of the volumes that it reaches.
pub(crate) struct InTurn<'a> {
    changes: &'a Changes,
    _turn: Turn<'a>,
}

impl Deref for InTurn<'_> {
    type Target = Changes;

    fn deref(&self) -> &Changes {
        self.changes
    }
}

fn going_away() -> ConfigError {
    refused(ConfigKind::Busy, "", "server", "a server that is going away", "a running one")
}

/// How the detail of [`interrupted`] ends.
const INTERRUPTED: &str = ": interrupted by its caller";

/// The caller of a verb waits no more, so the verb was not carried out.
fn interrupted(name: &str, verb: &str) -> ConfigError {
    ConfigError::new(ConfigKind::Busy, name, format!("{verb}{INTERRUPTED}"))
}

/// True for an error of [`interrupted`], to which nothing was added.
fn is_interruption(error: &ConfigError) -> bool {
    error.kind == ConfigKind::Busy && error.detail.ends_with(INTERRUPTED)
}
