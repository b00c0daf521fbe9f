//! `cairn pool`: thin pools of a running server, made, looked at, grown and trimmed.
//!
//! A pool is a volume with a table of one line, `thin-pool`; what it is made of is files, block
//! devices or other volumes. It is never exported unless a TOML file says so: it is its own data
//! device.
//!
//! # Orders, and what a crash between two steps leaves
//! Create: 1. the files, blank and durable; 2. the table built; 3. recorded; 4. made live, which
//! formats the metadata; then the answer.
//! - Before 3: blank files that nobody knows. After 3: the start formats what is still blank.
//!
//! Grow: 1. the files longer, durably; 2. the longer table recorded as one that waits; 3. made
//! live, which grows the maps in one commit; 4. recorded as the pool's; then the answer.
//! - Before 2: files longer than the pool. From 2 to 3: the pool as it was, with a longer table
//!   waiting: a resume, or the same verb again, grows it. From 3 to 4: the metadata refuses the
//!   shorter table then, and the start takes the longer.
//! - A growth that fails (the metadata has no room) leaves the pool live as it was, and the shorter
//!   table alone recorded. Recorded before the maps have grown, the longer one would keep the pool,
//!   and its volumes, from the next start.
//!
//! Trim changes nothing that is recorded anywhere: see the target.
//!
//! A step that fails without a crash is undone before the refusal, but a file stays as long as it
//! became.

mod create;
mod grow;
mod remote;
mod status;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

use cairn_block::{Call, ConfigKind, Env, MappedDevice, TableLine, Target};
use cairn_format::thin::Opening;
use cairn_targets::persistent::Store;
use cairn_targets::thin::{Figures, ThinDevice, ThinPool};

pub use grow::is_growth;
pub use remote::run;

use crate::failure::{Outcome, refused, wrong};
use crate::verbs::Verbs;
use crate::world::{Names, World};

/// A pool that is served.
#[derive(Clone)]
pub struct LivePool {
    /// The volume.
    pub name: String,
    volume: Arc<MappedDevice>,
    target: Arc<dyn Target>,
}

/// The target of a volume whose live table is a pool.
fn target_of(volume: &MappedDevice) -> Option<Arc<dyn Target>> {
    let table = volume.live_table()?;
    let target = table.lines().first()?.target.clone();
    pool_in(&target).is_some().then_some(target)
}

fn pool_in(target: &Arc<dyn Target>) -> Option<&ThinPool> {
    target.as_any()?.downcast_ref()
}

/// True if the next resume makes the volume a pool.
pub fn will_be_pool(volume: &MappedDevice) -> bool {
    let table = volume.inactive_table();
    let lines = table.iter().flat_map(|table| table.lines());
    lines.into_iter().any(|line| pool_in(&line.target).is_some())
}

/// True if the volume is a pool.
pub fn is_pool(volume: &MappedDevice) -> bool {
    target_of(volume).is_some()
}

/// At the start, before the pool `name` is up: refuses to format what the volume `held` is to be in.
/// A blank metadata device is another one then, or has lost what it held.
///
/// # Errors
/// It is blank, or can't be opened.
pub fn refuse_blank(world: &World, name: &str, table: &str, held: &str) -> Outcome<()> {
    // What is wrong in other ways is the target's to tell.
    let lines = TableLine::parse_all(table).unwrap_or_default();
    let pools = lines.iter().filter(|line| line.target == "thin-pool");
    for metadata in pools.filter_map(|line| line.args.first()) {
        let disk = world.open(metadata)?;
        let look = async move |env| Store::look(&env, &disk).await;
        if let Ok(Opening::Blank) = world.on_home(name, look) {
            let expected = format!("the pool that has volume '{held}', as the state file says");
            return Err(refused(ConfigKind::Damaged, metadata, "superblock", "zeros", expected));
        }
    }
    Ok(())
}

impl LivePool {
    /// The pool of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn of(names: &Names, name: &str) -> Outcome<LivePool> {
        names.volume(name).ok().and_then(LivePool::in_volume).ok_or_else(|| {
            let all: Vec<String> = LivePool::all(names).into_iter().map(|pool| pool.name).collect();
            let expected = match all.is_empty() {
                true => "one made by cairn pool create".to_owned(),
                false => format!("one of {}", all.join(", ")),
            };
            wrong(name, "pool", "none of this name", expected)
        })
    }

    /// Every pool, by name.
    pub fn all(names: &Names) -> Vec<LivePool> {
        names.volumes().into_iter().filter_map(LivePool::in_volume).collect()
    }

    fn in_volume(volume: Arc<MappedDevice>) -> Option<LivePool> {
        let target = target_of(&volume)?;
        Some(LivePool { name: volume.volume().to_owned(), volume, target })
    }

    /// Begins a call into it.
    pub async fn begin_call(&self) -> Call<'_> {
        self.volume.begin_call().await
    }

    /// The target.
    pub fn target(&self) -> &ThinPool {
        pool_in(&self.target).expect("it was looked at when this was made")
    }

    /// The pool in numbers.
    ///
    /// # Errors
    /// It was never live.
    pub fn figures(&self) -> Outcome<Figures> {
        self.target().figures()
    }

    /// Its devices, by id.
    ///
    /// # Errors
    /// It was never live.
    pub fn devices(&self) -> Outcome<Vec<ThinDevice>> {
        self.target().devices()
    }

    /// The device of an id.
    ///
    /// # Errors
    /// The pool was never live.
    pub fn device(&self, id: u32) -> Outcome<Option<ThinDevice>> {
        Ok(self.devices()?.into_iter().find(|device| device.id == id))
    }

    /// Asks the pool something that waits, but not for long: no verb stops the pool meanwhile.
    pub fn ask<T: Send + 'static>(
        &self,
        world: &World,
        ask: impl AsyncFnOnce(&Env, &ThinPool) -> T + Send + 'static,
    ) -> T {
        let pool = self.clone();
        world.on_home(&self.name, move |env| async move {
            let _call = pool.begin_call().await;
            ask(&env, pool.target()).await
        })
    }

    /// Asks the pool something that takes long, and ends by itself when a verb stops the pool.
    pub fn ask_at_length<T: Send + 'static>(
        &self,
        world: &World,
        ask: impl AsyncFnOnce(&Env, &ThinPool) -> T + Send + 'static,
    ) -> T {
        let pool = self.clone();
        world.on_home(&self.name, move |env| async move { ask(&env, pool.target()).await })
    }
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
