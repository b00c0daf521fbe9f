//! A refcount table that is large enough: one that cannot count all clusters which the content may
//! need is replaced when the image is opened, so that no write finds it full.
//!
//! # The order, and what a crash between its steps leaves
//! 1. The clusters of the new table are allocated, and their refcounts committed. *Crash*: leaks.
//! 2. The new table is written; flush. *Crash*: as before.
//! 3. The header names the new table, in one unit; flush. *Crash*: the old or the new table, with
//!    the same blocks. The other one is a leak.
//! 4. The clusters of the old table are released.

use std::ops::Range;

use cairn_block::{ConfigError, Env, IoError, SECTOR_BYTES};
use cairn_format::qcow2::write::set_refcount_table;

use super::Qcow2;
use super::image::Writes;
use super::load::failed;
use super::space::Space;

/// The longest refcount table, as qemu has it.
const TABLE_BYTES_MAX: u64 = 8 << 20;

impl Qcow2 {
    /// Replaces the refcount table if it is too small, and there is room for another one.
    pub(super) async fn ensure_coverage(&self, env: &Env) -> Result<(), ConfigError> {
        let cluster_bytes = self.geometry.cluster_bytes;
        let wanted = self.table_clusters(&self.state.lock().space);
        let Some(wanted) = wanted else { return Ok(()) };
        let mut taken = self.state.lock().space.allocate_whole(wanted);
        if taken.is_none() && self.grow(env).await {
            taken = self.state.lock().space.allocate_whole(wanted);
        }
        let Some(taken) = taken else {
            tracing::warn!(
                "{}: {}: no room for a larger refcount table; the image cannot hold all of its \
                 content",
                self.config.volume,
                self.config.image.argument
            );
            return Ok(());
        };
        let replaced = self.replace_table(env, taken.clone()).await;
        let failed = |error| failed(&self.config.image, "refcount table: write", error);
        replaced.map_err(failed)?;
        let sectors = self.disk().sectors();
        let mut state = self.state.lock();
        let entries = (taken.end - taken.start) * cluster_bytes / 8;
        state.space.move_table(taken.start * cluster_bytes, entries as usize);
        state.space.extend(sectors.0 * SECTOR_BYTES / cluster_bytes);
        Ok(())
    }

    /// How many clusters a table needs that can count all that the content may need; none if the
    /// one that there is can.
    fn table_clusters(&self, space: &Space) -> Option<u64> {
        let cluster_bytes = self.geometry.cluster_bytes;
        let content = self.geometry.size.div_ceil(cluster_bytes);
        // All data, its L2 tables, what there is by now, and twice the blocks and tables for these.
        let rest = space.used() + content.div_ceil(cluster_bytes / 8) + 16;
        let counted = content + rest + 2 * (content + rest) / space.per_block();
        let counted = counted + 2 * counted / space.per_block() * 8 / cluster_bytes;
        if counted <= space.coverage() {
            return None;
        }
        let bytes = counted.div_ceil(space.per_block()) * 8;
        let wanted = bytes.min(TABLE_BYTES_MAX).div_ceil(cluster_bytes);
        Some(wanted)
            .filter(|wanted| wanted * cluster_bytes / 8 * space.per_block() > space.coverage())
    }

    /// Steps 1 to 3.
    async fn replace_table(&self, env: &Env, taken: Range<u64>) -> Result<(), IoError> {
        let cluster_bytes = self.geometry.cluster_bytes;
        let committed = self.commit(env).await;
        // Also after a failure, which ends the start: the next one begins without a task.
        self.tasks.idle().await;
        committed?;
        let bytes = (taken.end - taken.start) * cluster_bytes;
        let mut table = Vec::with_capacity(bytes as usize);
        {
            let state = self.state.lock();
            for number in 0..bytes / 8 {
                let block = state.space.block(number as usize);
                let at = block.map_or(0, |block| block.cluster * cluster_bytes);
                table.extend_from_slice(&at.to_be_bytes());
            }
        }
        let at = taken.start * cluster_bytes;
        let units = table.chunks(self.image.unit as usize).map(<[u8]>::to_vec);
        let writes: Writes = (at..).step_by(self.image.unit as usize).zip(units).collect();
        self.image.write_durably(env, "qcow2: flush of a new refcount table", &writes).await?;
        let mut first = self.image.read(env, 0..self.image.unit).await?;
        set_refcount_table(&mut first, at, (taken.end - taken.start) as u32);
        let writes = Writes::from([(0, first)]);
        self.image.write_durably(env, "qcow2: flush of the header", &writes).await
    }
}
