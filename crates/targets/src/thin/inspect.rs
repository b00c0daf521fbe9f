//! Queries of verbs on a pool: figures, devices, the blocks that only one device has, and the
//! differences between two.
//!
//! All answers come from the last durable metadata; [`ThinPool::settle`] first commits all earlier
//! writes to it. Queries change nothing and block no request.

use std::sync::Arc;

use cairn_block::{ConfigError, Env, IoError, Sector, SectorCount, SectorRange};
use cairn_format::thin::{DeviceDetails, DeviceId};

use super::config::{DetectZeroes, Discards, Options};
use super::metadata::MetadataError;
use super::pool::{Mode, Pool};
use super::recover::{ThinPool, config_error};
use super::space::metadata_low_watermark;
use super::status;

/// A pool in numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figures {
    /// `rw`, `ro`, `out_of_data_space` or `failed`.
    pub mode: &'static str,
    /// The user's counter.
    pub transaction_id: u64,
    /// How many snapshots were made.
    pub time: u32,
    /// The block of the metadata snapshot, if one is held.
    pub held_root: Option<u64>,
    /// The metadata has to be checked before it may be changed.
    pub needs_check: bool,
    /// The size of a data block.
    pub block: SectorCount,
    /// Data blocks in use, and all.
    pub data_blocks: (u64, u64),
    /// Metadata blocks in use, without the reserve, and all.
    pub metadata_blocks: (u64, u64),
    /// Metadata blocks that are kept for what must always be possible.
    pub reserve_blocks: u64,
    /// How full, in percent, data and metadata may be before an event is raised.
    pub marks_percent: [u64; 2],
    /// How full before a second, critical event.
    pub critical_percent: [u64; 2],
    /// An event is raised when so few data blocks are free.
    pub low_water_blocks: u64,
    /// An event is raised when so few metadata blocks are free.
    pub metadata_low_blocks: u64,
    /// Writes fail when no data block is free; otherwise they wait.
    pub fails_when_full: bool,
    /// What is done with discards, in the word of the status line.
    pub discards: &'static str,
    /// Volumes take discards.
    pub takes_discards: bool,
    /// What is done with zeros that clients write: `off` or `unmap`.
    pub detect_zeroes: &'static str,
}

/// A thin device as the metadata knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThinDevice {
    /// By which messages and tables name it.
    pub id: u32,
    /// How many blocks it maps.
    pub mapped_blocks: u64,
    /// The pool's transaction id when it was created.
    pub transaction_id: u64,
    /// How many snapshots the pool had made when it was created, itself included.
    pub creation_time: u32,
}

impl ThinDevice {
    pub(super) fn of(id: DeviceId, details: DeviceDetails) -> ThinDevice {
        let DeviceDetails { mapped_blocks, transaction_id, creation_time, .. } = details;
        ThinDevice { id: id.get(), mapped_blocks, transaction_id, creation_time }
    }
}

pub(super) fn device_id(id: u32) -> Result<DeviceId, MetadataError> {
    Ok(DeviceId::new(u64::from(id))?)
}

impl ThinPool {
    fn known(&self) -> Result<Arc<Pool>, ConfigError> {
        self.pool().ok_or_else(|| self.busy("none yet", "a table that was live"))
    }

    fn error(&self, error: &MetadataError) -> ConfigError {
        config_error(&self.config.metadata, error)
    }

    /// The pool in numbers.
    ///
    /// # Errors
    /// It was never live.
    pub fn figures(&self) -> Result<Figures, ConfigError> {
        let pool = self.known()?;
        let (facts, metadata) = (pool.metadata.facts(), pool.metadata.metadata_use());
        let (total, _) = pool.metadata.data_use();
        let (Options { marks_percent, critical_percent, .. }, low_water_blocks) = {
            let state = pool.state.lock();
            (state.options, state.low_water_blocks)
        };
        let detect = if pool.detects_zeroes() { DetectZeroes::Unmap } else { DetectZeroes::Off };
        let mode = pool.mode();
        Ok(Figures {
            mode: if mode == Mode::Fail { "failed" } else { status::mode_word(mode) },
            transaction_id: facts.transaction_id,
            time: facts.time,
            held_root: facts.held_root,
            needs_check: facts.needs_check,
            block: pool.block,
            data_blocks: (total.saturating_sub(pool.free_data()), total),
            metadata_blocks: (metadata.used, metadata.total),
            reserve_blocks: status::reserve(metadata.total),
            marks_percent,
            critical_percent,
            low_water_blocks,
            metadata_low_blocks: metadata_low_watermark(metadata.total),
            fails_when_full: pool.fails_when_full(),
            discards: status::discards_word(pool.discards(), &pool.data),
            takes_discards: pool.discards() != Discards::Ignore,
            detect_zeroes: detect.word(),
        })
    }

    /// Every thin device, by id.
    ///
    /// # Errors
    /// The pool was never live.
    pub fn devices(&self) -> Result<Vec<ThinDevice>, ConfigError> {
        let pool = self.known()?;
        let devices = pool.metadata.devices().into_iter();
        Ok(devices.map(|(id, details)| ThinDevice::of(id, details)).collect())
    }

    /// Has the metadata tell of everything that was written before.
    ///
    /// # Errors
    /// The pool was never live, or the commit failed.
    pub async fn settle(&self, env: &Env) -> Result<(), ConfigError> {
        let pool = self.known()?;
        if pool.open_volumes().iter().any(|volume| volume.is_changed()) {
            let lost = |error| self.error(&MetadataError::Commit(error));
            pool.commit(env).await.map_err(lost)?;
        }
        Ok(())
    }

    /// How many data blocks would come free if this device were deleted.
    ///
    /// # Errors
    /// There is none of this id, or the metadata can't be read.
    pub async fn own_blocks(&self, env: &Env, id: u32) -> Result<u64, ConfigError> {
        let pool = self.known()?;
        let own = async { pool.metadata.own_blocks(env, device_id(id)?).await };
        own.await.map_err(|error| self.error(&error))
    }

    /// Where two devices differ inside a range, from its start on, as far as one step tells: also
    /// answers how far that is. Both devices should be settled.
    ///
    /// # Errors
    /// One of them is not there, or the metadata can't be read.
    pub async fn differences(
        &self,
        env: &Env,
        ids: [u32; 2],
        range: SectorRange,
    ) -> Result<(SectorCount, Vec<SectorRange>), IoError> {
        let pool = self.pool().ok_or(IoError::INVALID)?;
        let ids = [device_id(ids[0]), device_id(ids[1])];
        let [Ok(one), Ok(other)] = ids else { return Err(IoError::INVALID) };
        let size = pool.block.0;
        let stretch = pool.metadata.compare(env, [one, other], range.start.0 / size).await;
        let stretch = stretch.map_err(|error| {
            tracing::warn!("{}: metadata: {error}", pool.name());
            error.io()
        })?;
        let sector = |block: u64| Sector(block.saturating_mul(size)).min(range.end());
        let parts = stretch.changed.iter().map(|blocks| {
            SectorRange::between(sector(blocks.start).max(range.start), sector(blocks.end))
        });
        let told = sector(stretch.keys.end) - range.start;
        Ok((told, parts.filter(|part| !part.is_empty()).collect()))
    }
}
