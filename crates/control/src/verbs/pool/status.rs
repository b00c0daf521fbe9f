//! `pool status`: the pools, and how full they are.

use cairn_outcome::failure::Outcome;
use cairn_targets::thin::Figures;
use serde::{Deserialize, Serialize};

use crate::live_pool::{LivePool, METADATA_BLOCK_BYTES};
use crate::verbs::Verbs;
use crate::verbs::verb::declare;

/// A pool, as `pool status` shows it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolInfo {
    /// The volume.
    pub name: String,
    /// `rw`, `ro`, `out_of_data_space` or `failed`.
    pub mode: String,
    /// The size of a data block.
    pub block_bytes: u64,
    /// Data blocks in use.
    pub data_used_bytes: u64,
    /// All data blocks.
    pub data_total_bytes: u64,
    /// Metadata in use, without the reserve.
    pub metadata_used_bytes: u64,
    /// All of the metadata that can be used.
    pub metadata_total_bytes: u64,
    /// The part of it that is reserved for changes that must always be possible.
    pub metadata_reserve_bytes: u64,
    /// An event is raised when so much of the data is in use.
    pub data_mark_percent: u64,
    /// The same for the metadata.
    pub metadata_mark_percent: u64,
    /// A critical event is raised when so much of the data is in use.
    #[serde(default)]
    pub data_critical_percent: u64,
    /// The same for the metadata.
    #[serde(default)]
    pub metadata_critical_percent: u64,
    /// An event is raised when so little of the data is free.
    pub low_water_bytes: u64,
    /// The same for the metadata.
    pub metadata_low_bytes: u64,
    /// `queue` or `error`: how writes are handled when no data block is free.
    pub no_space: String,
    /// `discard_passdown`, `no_discard_passdown` or `ignore_discard`.
    pub discards: String,
    /// `off` or `unmap`: how all-zero writes are handled.
    pub detect_zeroes: String,
    /// The metadata has to be checked before it may be changed.
    pub needs_check: bool,
    /// The pool's transaction id.
    pub transaction_id: u64,
    /// How many snapshots were made; at most 2^24 - 1.
    pub time: u32,
    /// The block of the metadata snapshot, if one is held.
    pub held_metadata_root: Option<u64>,
    /// How many volumes it has, with a name or without.
    pub volumes: u64,
}

declare! {
    /// `pool status`
    PoolStatus = "pool_status" -> Vec<PoolInfo> {
        /// The pool (default: all)
        name: Option<String>,
    }
    |verb, verbs, _| verbs.pool_status(verb.name.as_deref())
}

impl PoolInfo {
    fn of(pool: &LivePool) -> Outcome<PoolInfo> {
        let Figures {
            mode,
            transaction_id,
            time,
            held_root,
            needs_check,
            block,
            data_blocks,
            metadata_blocks,
            reserve_blocks,
            marks_percent,
            critical_percent,
            low_water_blocks,
            metadata_low_blocks,
            fails_when_full,
            discards,
            detect_zeroes,
            ..
        } = pool.figures()?;
        let block_bytes = block.to_bytes();
        let data = |blocks: u64| blocks.saturating_mul(block_bytes);
        let metadata = |blocks: u64| blocks * METADATA_BLOCK_BYTES;
        Ok(PoolInfo {
            name: pool.name.clone(),
            mode: mode.to_owned(),
            block_bytes,
            data_used_bytes: data(data_blocks.0),
            data_total_bytes: data(data_blocks.1),
            metadata_used_bytes: metadata(metadata_blocks.0),
            metadata_total_bytes: metadata(metadata_blocks.1),
            metadata_reserve_bytes: metadata(reserve_blocks),
            data_mark_percent: marks_percent[0],
            metadata_mark_percent: marks_percent[1],
            data_critical_percent: critical_percent[0],
            metadata_critical_percent: critical_percent[1],
            low_water_bytes: data(low_water_blocks),
            metadata_low_bytes: metadata(metadata_low_blocks),
            no_space: if fails_when_full { "error" } else { "queue" }.to_owned(),
            discards: discards.to_owned(),
            detect_zeroes: detect_zeroes.to_owned(),
            needs_check,
            transaction_id,
            time,
            held_metadata_root: held_root,
            volumes: pool.devices()?.len() as u64,
        })
    }
}

impl Verbs {
    /// `pool status`: of one pool, or all.
    ///
    /// # Errors
    /// There is no such pool.
    pub fn pool_status(&self, name: Option<&str>) -> Outcome<Vec<PoolInfo>> {
        let pools = match name {
            Some(name) => vec![self.pool(name)?],
            None => LivePool::all(&self.world.names()),
        };
        pools.iter().map(PoolInfo::of).collect()
    }
}
