//! Trust: which clean extents that a start finds are what the backing device has, durably (R13).
//!
//! The kernel does not order what it caches and what it writes to the backing device: after a power
//! cut under it a clean extent may have data that the backing device lacks, and a read changes when
//! the extent is evicted. cairn keeps that order (I8, I9). So clean extents count if only cairn has
//! written to the set since they were known to count; the write-intent map in the superblock of the
//! backing device says so ([`IntentMap::vouches`]).
//!
//! # Order of a start
//! 1. The set is read, and the map is compared with it.
//! 2. If it does not vouch for the clean extents, they leave the set, durably (`set::distrust`);
//!    those in regions with a bit leave in any case. With `--read-only` they leave in memory alone.
//! 3. The volume serves. With its first session it writes the map of that session.
//!
//! # Invariants
//! T1. The clean extents of a volume that is served have what the backing device has, durably; or
//!     its table has `keep_clean`, and no map vouched for them.
//! T2. A map is written only where the first half of T1 holds, in a session, with the sequence of
//!     its superblock. So at the next start that map vouches for what this session cached.
//!
//! # What a crash leaves
//! - During 2: a superblock of the cache with a sequence for which no map vouches, or does after
//!   the sessions of a kernel: the next start removes what is left.
//! - Before the map of 3 is durable: the same. So a start after that may remove what could be kept.
//! - After it: a map that vouches for the sessions of cairn from then on.
//!
//! Each volume of a set has its own map. A session that serves only others of them goes on with the
//! lineage in the superblock of the cache, so that the map vouches after it, too.

use cairn_block::sync::atomic::Ordering;
use cairn_block::{ConfigError, ConfigKind, Env, IoResult, mutants, yield_once};
use cairn_format::bcache::{BackingSuperblock, IntentMap, Key};

use super::canary::{Bug, planted};
use super::config::Devices;
use super::set::{Core, Session, Set};
use super::volume::Bcache;

/// What is done with the clean extents that a start finds.
pub(super) enum Judged {
    /// They count.
    Vouched,
    /// They count, though they may differ from the backing device: the table has `keep_clean`.
    Kept,
    /// These leave the set.
    Suspect(Suspects),
}

/// Which clean extents may differ from the backing device.
pub(super) enum Suspects {
    /// All of them: there is no map, or it does not vouch for the set as it is now.
    All,
    /// Those in regions with a bit.
    InRegions(IntentMap),
}

impl Suspects {
    fn has(&self, key: &Key) -> bool {
        match self {
            Suspects::All => true,
            Suspects::InRegions(map) => {
                let regions = map.region_of(key.start())..=map.region_of(key.end() - 1);
                regions.into_iter().any(|region| map.is_set(region))
            }
        }
    }
}

fn judge(map: Option<IntentMap>, set: &Set, keeps: bool) -> Judged {
    let vouches = |map: &IntentMap| {
        planted(Bug::ForeignTrusted) || map.vouches(&set.superblock, set.newest())
    };
    match map {
        Some(map) if vouches(&map) && map.count() == 0 => Judged::Vouched,
        _ if keeps => Judged::Kept,
        Some(map) if vouches(&map) => Judged::Suspect(Suspects::InRegions(map)),
        _ => Judged::Suspect(Suspects::All),
    }
}

impl Bcache {
    /// Steps 1 and 2. Answers what was done with the clean extents, and how many sectors left.
    ///
    /// # Errors
    /// The set cannot be written.
    pub(super) async fn settle_trust(
        &self,
        env: &Env,
        core: &Core,
        backing: Option<&BackingSuperblock>,
        has_clean: bool,
    ) -> Result<(Judged, u64), ConfigError> {
        let keeps = self.config.keeps_clean;
        let map = backing.and_then(BackingSuperblock::intent);
        let judged = match has_clean {
            true => core.with(|set| judge(map, set, keeps)),
            false => Judged::Vouched,
        };
        let gone = match &judged {
            Judged::Suspect(suspects) => self.drop_suspects(env, core, suspects).await?,
            Judged::Vouched | Judged::Kept => 0,
        };
        self.is_vouched.store(!matches!(judged, Judged::Kept), Ordering::Relaxed);
        Ok((judged, gone))
    }

    async fn drop_suspects(
        &self,
        env: &Env,
        core: &Core,
        suspects: &Suspects,
    ) -> Result<u64, ConfigError> {
        let (inode, is_suspect) = (self.inode(), |key: &Key| suspects.has(key));
        if self.read_only {
            let (mut next, mut gone) = (Some(0), 0);
            while let Some(from) = next {
                let left = core.drop_clean_of_leaf(env, inode, from, &is_suspect).await;
                let left = left.map_err(|error| core.unread(&error))?;
                (next, gone) = (left.next, gone + left.sectors);
                yield_once().await;
            }
            return Ok(gone);
        }
        let drop_all = async |session: &Session<'_>| session.drop_clean(inode, &is_suspect).await;
        core.change(env, drop_all).await.map_err(|error| {
            let argument = &core.cache.device().argument;
            let detail = format!(
                "clean extents that may differ from the backing device could not be removed: \
                 {error}; keep_clean keeps them, and --read-only passes them over"
            );
            ConfigError::new(ConfigKind::System, argument, detail)
        })
    }

    /// Writes the map of this session, unless the superblock of the backing device has it. The
    /// caller has the turn to write that (S1). `is_closed` if no request is left.
    ///
    /// # Errors
    /// The device failed. Nothing that is served depends on the map.
    pub(super) async fn write_map(&self, env: &Env, is_closed: bool) -> IoResult {
        let superblock = self.backing.lock().clone();
        let (Some(backing), Some(mut superblock)) = (self.config.devices.backing(), superblock)
        else {
            return Ok(());
        };
        if !self.renew_map(&mut superblock, is_closed) {
            return Ok(());
        }
        let fua = mutants::fua("bcache: FUA of the intent map");
        self.write_own_backing(env, backing, &superblock, fua).await?;
        self.set_backing(Some(superblock));
        Ok(())
    }

    /// Puts the map of this session into a superblock (T2), or takes an older one out if there is
    /// none of this session: a map names the newest session of cairn (`zones`). False if nothing
    /// changes.
    pub(super) fn renew_map(&self, superblock: &mut BackingSuperblock, is_closed: bool) -> bool {
        let is_cached = matches!(self.config.devices, Devices::Cached { .. });
        if !is_cached || self.is_broken() {
            return false;
        }
        if !self.is_vouched.load(Ordering::Relaxed) {
            return superblock.clear_intent();
        }
        let session = |set: &Set| {
            let number = (set.superblock.set_uuid(), set.superblock.seq());
            set.has_session().then_some((number, set.newest()))
        };
        let Some(((set_uuid, cache_seq), newest)) = self.look(session).flatten() else {
            return false;
        };
        let is_it = |map: &IntentMap| {
            let of = (map.set_uuid, map.cache_seq, map.is_closed, map.count());
            of == (set_uuid, cache_seq, is_closed, 0)
        };
        if superblock.intent().is_some_and(|map| is_it(&map)) {
            return false;
        }
        let mut map = IntentMap::new(set_uuid, self.backing_sectors());
        (map.cache_seq, map.is_closed) = (cache_seq, is_closed);
        // The newest entry may be under way; the one before it is durable (J1).
        map.journal_seq = newest.saturating_sub(1);
        superblock.set_intent(&map)
    }
}
