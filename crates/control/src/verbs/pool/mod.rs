//! `cairn pool`: thin pools of a running server, made, looked at, grown and trimmed.
//!
//! A pool is a volume with a table of one line, `thin-pool`. Its devices are files, block devices
//! or other volumes. It is never exported unless a TOML file says so: it is its own data device.
//!
//! # Orders, and what a crash between two steps leaves
//! Create: 1. the files, blank and durable; 2. the table built; 3. recorded; 4. made live, which
//! formats the metadata; then the answer.
//! - Before 3: blank files without a record. After 3: the start formats a device that is still
//!   blank.
//!
//! Grow: 1. the files longer, durably; 2. the longer table recorded as the inactive one; 3. made
//! live, which grows the maps in one commit; 4. recorded as the live one; then the answer.
//! - Before 2: files longer than the pool. From 2 to 3: the pool with its old size, and a longer
//!   inactive table: a resume, or the same verb again, grows the pool. From 3 to 4: the metadata
//!   refuses the shorter table, and the start takes the longer one.
//! - A growth that fails (the metadata has no room) leaves the pool live with its old size, and
//!   only the shorter table recorded. If the longer one were recorded as live before the maps have
//!   grown, the next start could not bring up the pool and its volumes.
//!
//! Trim changes nothing that is recorded anywhere: see the target.
//!
//! A step that fails without a crash is undone before the refusal, but a file keeps its new length.

mod autogrow;
mod create;
mod grow;
pub mod status;
#[cfg(test)]
pub(crate) mod tests;

use cairn_block::{ConfigKind, TableLine};
use cairn_format::thin::Opening;
use cairn_outcome::failure::{Outcome, refused};
use cairn_targets::persistent::Store;
use cairn_targets::spec::words_of;

pub use create::{BLOCK_SECTORS, PoolCreate};
use grow::POOL;
pub use grow::{PoolGrow, PoolTrim, is_growth};
pub use status::PoolStatus;

use crate::live_pool::LivePool;
use crate::verbs::Verbs;
use crate::world::World;

/// At the start, before the pool `name` is up: refuses to format what the volume `held` is to be
/// in. A blank metadata device is another one then, or has lost what it held.
///
/// # Errors
/// It is blank, or can't be opened.
pub fn refuse_blank(world: &World, name: &str, table: &str, held: &str) -> Outcome<()> {
    // What is wrong in other ways is the target's to tell.
    let lines = TableLine::parse_all(table).unwrap_or_default();
    let pools = lines.iter().filter(|line| line.target == POOL);
    for metadata in pools.filter_map(|line| words_of(line)?.1.argument("metadata")) {
        let disk = world.open(metadata)?;
        let look = async move |env| Store::look(&env, &disk).await;
        if let Ok(Opening::Blank) = world.on_home(name, look) {
            let expected = format!("the pool that has volume '{held}', as the state file says");
            return Err(refused(ConfigKind::Damaged, metadata, "superblock", "zeros", expected));
        }
    }
    Ok(())
}

impl Verbs {
    /// The pool of this name.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn pool(&self, name: &str) -> Outcome<LivePool> {
        LivePool::of(&self.world.names(), name)
    }
}
