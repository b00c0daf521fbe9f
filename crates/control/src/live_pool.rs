//! [`LivePool`]: a pool that is served, with its volume and its target.

use std::sync::Arc;

use cairn_block::{Call, ConfigError, ConfigKind, Env, MappedDevice, MessageError, Table, Target};
use cairn_outcome::failure::Outcome;
use cairn_targets::thin::{Figures, ThinDevice, ThinPool};

use crate::world::{Names, World, message_refused};

/// A block of the metadata device.
pub const METADATA_BLOCK_BYTES: u64 = 4096;

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

impl LivePool {
    /// The pool of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn of(names: &Names, name: &str) -> Outcome<LivePool> {
        names.volume(name).ok().and_then(|volume| LivePool::in_volume(&volume)).ok_or_else(|| {
            let all: Vec<String> = LivePool::all(names).into_iter().map(|pool| pool.name).collect();
            let hint = match all.is_empty() {
                true => "cairn pool create makes one".to_owned(),
                false => format!("pools: {}", all.join(", ")),
            };
            let detail = format!("there is no pool of this name; {hint}");
            ConfigError::new(ConfigKind::Argument, name, detail)
        })
    }

    /// Every pool, by name.
    pub fn all(names: &Names) -> Vec<LivePool> {
        names.volumes().iter().filter_map(LivePool::in_volume).collect()
    }

    /// The pool that a volume is, if it is one.
    pub fn in_volume(volume: &Arc<MappedDevice>) -> Option<LivePool> {
        let target = target_of(volume)?;
        Some(LivePool { name: volume.volume().to_owned(), volume: volume.clone(), target })
    }

    /// Has `next`, another table of this pool, handle zeros as the last message to this one said.
    /// The caller sees to it that neither gets a message or serves a request now.
    pub fn hand_detect_to(&self, next: &Table) {
        let pools = next.lines().iter().filter_map(|line| pool_in(&line.target));
        pools.for_each(|pool| pool.keep_detect(self.target()));
    }

    /// Begins a call into the pool.
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

    /// Runs a short query in the pool. No verb stops the pool while it runs.
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

    /// Makes a durable change in the pool.
    ///
    /// # Errors
    /// The pool refuses, or fails.
    pub fn change<T: Send + 'static>(
        &self,
        world: &World,
        change: impl AsyncFnOnce(&Env, &ThinPool) -> Result<T, MessageError> + Send + 'static,
    ) -> Outcome<T> {
        self.ask(world, change).map_err(|error| message_refused(&self.name, &error))
    }

    /// Deletes a device.
    ///
    /// # Errors
    /// The pool refuses, or fails.
    pub fn delete(&self, world: &World, id: u32) -> Outcome<()> {
        self.change(world, async move |env, pool| pool.delete(env, id).await)
    }

    /// Runs a long query in the pool. It ends early when a verb stops the pool.
    pub fn ask_at_length<T: Send + 'static>(
        &self,
        world: &World,
        ask: impl AsyncFnOnce(&Env, &ThinPool) -> T + Send + 'static,
    ) -> T {
        let pool = self.clone();
        world.on_home(&self.name, move |env| async move { ask(&env, pool.target()).await })
    }
}
