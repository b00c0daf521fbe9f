//! The backing device alone: what a volume without its cache may do.
//!
//! ```text
//! state          option           reads             writes      the next resume writes
//! none                            pass through      the same    nothing
//! clean                           the device        refused     nothing
//! dirty, stale                    fail              refused     nothing
//! dirty, stale   stale_ok         the device        refused     nothing
//! any of a set   force <set>      pass through      the same    stale, unless it is
//! ```
//!
//! Q1. Requests pass through only while no cache counts for the device: its state is `none`, or
//!     `stale`, durably. If the device has failed since the system started, a killed process may
//!     have written a state that the device shows and has lost: it is written again. Each request
//!     goes to the sector behind the superblock, with its flags; a flush goes to the device, and so
//!     do its failures to the clients.
//! Q2. A forced run makes `stale` durable before the first request (R11). From then on the set
//!     refuses the device, here and in a kernel, until it is attached as a new volume: what the old
//!     cache has neither hides nor overwrites what is written now.
//! Q3. What the cache may have had is given up only by the UUID of its set.
//!
//! A crash before Q2 ends leaves the former state, and no request has passed.

use std::sync::Arc;

use cairn_block::{
    ConfigError, Disk, Env, IoError, Op, Request, SECTOR_BYTES, Sector, Verdict, mutants,
};
use cairn_format::bcache::{BackingState, BackingSuperblock, Uuid};

use super::canary::{Bug, planted};
use super::config::{Config, Devices};
use super::superblocks::{intact, keep_uncounted, write_backing, written};
use super::volume::Bcache;
use crate::args::Device;

/// How many ranges of lost data are logged.
const REPORTED_MAX: usize = 32;

/// True if the line and the superblock make a volume whose requests pass through.
pub(super) fn passes(config: &Config, backing: Option<&BackingSuperblock>) -> bool {
    let Devices::Bare { force, .. } = &config.devices else { return false };
    force.is_some() || backing.is_some_and(|backing| backing.state() == BackingState::None)
}

/// Refuses to force a device that does not belong to the set that is named.
///
/// # Errors
/// It belongs to another set, or to none.
pub(super) fn refuse_force(
    device: &Device,
    backing: &BackingSuperblock,
    forced: Uuid,
    read_only: bool,
) -> Result<(), ConfigError> {
    let refuse = |found: String, expected: &str| {
        Err(ConfigError::argument(&device.argument, "force", found, expected))
    };
    let set = backing.set_uuid();
    match backing.state() {
        BackingState::None => {
            refuse("a device that belongs to no set".to_owned(), "a line without force")
        }
        _ if set != forced => refuse(forced.to_string(), &format!("{set}, the set of the device")),
        BackingState::Clean | BackingState::Dirty if read_only => {
            refuse("a device that is open read-only".to_owned(), "stale_ok, which writes nothing")
        }
        _ => Ok(()),
    }
}

impl Bcache {
    /// The device that requests pass through to.
    pub(super) fn passes_to(&self) -> Option<&Arc<dyn Disk>> {
        let backing = self.config.devices.backing().filter(|_| self.passes)?;
        Some(&backing.disk)
    }

    /// Q1.
    pub(super) fn pass_through<'a>(&self, disk: &'a dyn Disk, request: &Request) -> Verdict<'a> {
        let is_write = matches!(request.op, Op::Write | Op::WriteZeroes | Op::Discard);
        if self.read_only && is_write {
            return Verdict::Failed(IoError::READ_ONLY);
        }
        let sector = Sector(self.first + request.range.start.0);
        Verdict::Remapped { disk, sector }
    }

    /// Begins to serve a backing device alone; see the table of the module.
    ///
    /// # Errors
    /// Whether requests pass has changed since the table was loaded, or the state cannot be
    /// written.
    pub(super) async fn start_bare(
        &self,
        env: &Env,
        backing: BackingSuperblock,
    ) -> Result<(), ConfigError> {
        let Devices::Bare { backing: device, force, .. } = &self.config.devices else {
            return Ok(());
        };
        if passes(&self.config, Some(&backing)) != self.passes {
            let expected = "that of when the table was loaded: load it again";
            let state = backing.state().word();
            return Err(ConfigError::argument(&device.argument, "state", state, expected));
        }
        if self.passes && !self.read_only {
            keep_uncounted(env, device, &backing).await?;
        }
        match force {
            Some(set) => self.force(env, device, *set, backing).await,
            None => {
                self.serve_bare(backing.state());
                Ok(())
            }
        }
    }

    /// Logs where data is lost, by the map of dirty zones.
    fn report_lost(&self, device: &Device, backing: &BackingSuperblock) {
        let (volume, name, first) = (&self.config.volume, &device.argument, backing.data_offset());
        let lost =
            self.zones.as_ref().and_then(|zones| zones.lost(backing, self.backing_sectors()));
        let Some(lost) = lost else {
            tracing::warn!(
                "{volume}: {name}: no map of dirty zones of the last session: the lost data may be \
                 anywhere in the volume"
            );
            return;
        };
        for range in lost.iter().take(REPORTED_MAX) {
            let bytes = (range.end - range.start) * SECTOR_BYTES;
            let at = (range.start - first) * SECTOR_BYTES;
            tracing::warn!("{volume}: {name}: suspect: {bytes} bytes at {at}");
        }
        let more = lost.len().saturating_sub(REPORTED_MAX);
        if more > 0 {
            tracing::warn!(
                "{volume}: {name}: {more} more ranges; see: cairn check --list-lost --zones FILE \
                 {name}"
            );
        }
        tracing::warn!(
            "{volume}: {name}: all else is sound, unless a kernel has used the set since"
        );
    }

    /// Q2.
    async fn force(
        &self,
        env: &Env,
        device: &Device,
        set: Uuid,
        mut backing: BackingSuperblock,
    ) -> Result<(), ConfigError> {
        let (volume, name) = (&self.config.volume, &device.argument);
        let former = backing.state();
        if former == BackingState::Stale {
            tracing::info!("{volume}: {name}: forced to run without set {set} before");
            return Ok(());
        }
        match former {
            BackingState::Dirty => {
                tracing::warn!(
                    "{volume}: {name}: forced to run without its dirty set {set}: what only the \
                     cache had is lost"
                );
                self.report_lost(device, &backing);
            }
            _ => tracing::warn!(
                "{volume}: {name}: forced to run without set {set}, which was clean: nothing is \
                 lost"
            ),
        }
        backing.set_state(BackingState::Stale);
        if planted(Bug::ForcedBeforeStale) {
            self.set_backing(Some(backing));
            return Ok(());
        }
        let known = device.disk.failures();
        let fua = mutants::fua("bcache: FUA of a forced run");
        let flushed = match write_backing(env, device, &backing, fua).await {
            Ok(()) => env.make_durable(&device.disk).await.and(intact(device, known)),
            Err(error) => Err(error),
        };
        self.set_backing(Some(backing));
        written(device, flushed)
    }
}
