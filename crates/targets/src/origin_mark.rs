//! [`OriginMark`]: the dirty marker that a cache keeps beside its origin
//! ([`cairn_block::dirty_marker`]).
//!
//! The marker stands from before the cache serves until a suspend that leaves nothing dirty. So the
//! way of a request knows nothing of it, and a cache that becomes clean and dirty again while it
//! serves asks the engine of the origin for nothing. A cache that makes nothing dirty (bcache in
//! writethrough) has none.
//!
//! M1. The note of the generation is durable before the marker is, and the marker before the first
//!     block becomes dirty.
//! M2. The marker goes when nothing is dirty, durably: the origin has been flushed, and the cache
//!     says on its own device that it is clean. No request is in the target then.
//! M3. The note goes after the marker.
//! M4. Nothing is written to the origin before the marker beside it was compared. With dirty
//!     content it has to be the one that is noted. Without it there is none, or that one.
//!
//! # What a crash leaves
//! - Between the note and the marker (M1): a note alone, of a cache that is clean. The next start
//!   takes a new generation. An engine that did not answer may have the marker: it is noted.
//! - After M2 and before the removal: a marker that is noted, of a clean cache. The next start goes
//!   on with it, the next suspend removes it.
//! - Between the removal and M3: as after the first note.
//!
//! A cache with dirty content and no marker is one whose origin was used without it, or one that
//! never had a marker: a kernel's, or one of a program before this. It is refused, unless the user
//! says that both belong together ([`MarkerBook::is_adopted`]). So is one that was brought from
//! another host. A server without a note, as it has no state file or a new one, goes on with the
//! marker of a cache of its own host by the same device and UUID.
//!
//! Whoever wants to use the origin without its cache removes the marker by hand (`cairn unmark`).
//! The cache finds none then, and is refused.

use std::sync::Arc;

use cairn_block::dirty_marker::{DirtyMarker, MarkerBook, note_marker};
use cairn_block::sync::Mutex;
use cairn_block::{ConfigError, ConfigKind, Ctor, Disk, Env, Identity, MarkerPlace};

use crate::args::Device;

#[cfg(test)]
mod tests;

/// The words for what is found where no marker is.
const NONE: &str = "none";
/// What is expected beside an origin that is used without its cache.
const ALONE: &str = "none: its newest data is in that cache";
/// A format without a UUID.
pub const NO_UUID: &str = "-";

/// See the module's description.
pub struct OriginMark {
    origin: Device,
    kind: &'static str,
    cache: String,
    volume: String,
    /// What the notes call the origin, and the notes; none if the server keeps no markers.
    notes: Option<(String, Arc<dyn MarkerBook>)>,
    /// The marker that stands, and is that of this cache.
    standing: Mutex<Option<DirtyMarker>>,
}

/// What a start does with the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plans {
    /// Something is dirty.
    pub is_dirty: bool,
    /// Something may become dirty.
    pub makes_dirty: bool,
    /// Nothing is written.
    pub read_only: bool,
}

impl OriginMark {
    /// The marker of a cache of this kind.
    pub fn new(ctor: &Ctor<'_>, volume: &str, kind: &'static str, of: (&Device, &str)) -> Self {
        let (origin, cache) = of;
        let identity = ctor.registry.identify(&origin.argument).ok();
        let name = match identity {
            Some(Identity::Remote(name)) => name,
            _ => origin.argument.clone(),
        };
        OriginMark {
            origin: origin.clone(),
            kind,
            cache: cache.to_owned(),
            volume: volume.to_owned(),
            notes: ctor.registry.markers().map(|book| (name, book)),
            standing: Mutex::default(),
        }
    }

    /// The disk whose marker this is; none if the server keeps no markers.
    pub fn disk(&self) -> Option<Arc<dyn Disk>> {
        self.notes.as_ref().map(|_| self.origin.disk.clone())
    }

    fn place(&self) -> MarkerPlace<'_> {
        match self.notes {
            Some(_) => self.origin.disk.marker_place(),
            None => MarkerPlace::Needless,
        }
    }

    /// Compares what stands beside the origin with the notes. Called before anything is written
    /// (M4).
    ///
    /// # Errors
    /// The marker of another cache stands, or the engine did not answer.
    pub async fn look(&self, env: &Env, uuid: &str) -> Result<(), ConfigError> {
        *self.standing.lock() = None;
        let (MarkerPlace::Store(store), Some((name, book))) = (self.place(), &self.notes) else {
            return Ok(());
        };
        let Some(text) = store.read(env).await? else { return Ok(()) };
        let disk = self.origin.disk.name();
        let marker = DirtyMarker::of_text(&disk, &text)?;
        let own = book.new_marker(self.kind, &self.cache, uuid);
        let is_own = match book.noted(name) {
            Some(noted) => noted == marker.generation,
            None => marker.is_of_cache_of(&own),
        };
        if !is_own && !book.is_adopted(name, &marker.generation) {
            let expected = format!(
                "that of {} {}; or, if its data belongs to this cache: --adopt-marker '{disk}={}'",
                self.kind, self.cache, marker.generation
            );
            return Err(marker.refusal(&disk, env.unix_time(), &expected));
        }
        *self.standing.lock() = Some(marker);
        Ok(())
    }

    /// Refuses the origin if a marker stands, whose ever it is: it is to be used without a cache.
    ///
    /// # Errors
    /// It stands, or the engine did not answer.
    pub async fn refuse(&self, env: &Env) -> Result<(), ConfigError> {
        let MarkerPlace::Store(store) = self.place() else { return Ok(()) };
        let Some(text) = store.read(env).await? else { return Ok(()) };
        let disk = self.origin.disk.name();
        let marker = DirtyMarker::of_text(&disk, &text)?;
        Err(marker.refusal(&disk, env.unix_time(), ALONE))
    }

    /// Has the marker stand if something is dirty or may become so, and removes it otherwise.
    ///
    /// # Errors
    /// Something is dirty and no marker stood, or the marker or its note could not be written.
    pub async fn stand(&self, env: &Env, uuid: &str, plans: Plans) -> Result<(), ConfigError> {
        let Plans { is_dirty, makes_dirty, read_only } = plans;
        let (MarkerPlace::Store(store), Some((name, book))) = (self.place(), &self.notes) else {
            self.warn_of_no_place(makes_dirty && !read_only);
            return Ok(());
        };
        let standing = self.standing.lock().clone();
        if is_dirty && standing.is_none() && !book.is_adopted(name, NONE) {
            return Err(self.without_marker());
        }
        if read_only {
            return Ok(());
        }
        if !is_dirty && !makes_dirty {
            self.fall(env).await;
            return Ok(());
        }
        let own = book.new_marker(self.kind, &self.cache, uuid);
        // One that was adopted gets a generation that its former host does not know.
        let kept = standing.filter(|marker| marker.is_of_cache_of(&own));
        let marker = kept.clone().unwrap_or(own);
        if !note_marker(book.as_ref(), name, Some(&marker.generation)).await {
            let detail = "dirty marker: its generation could not be noted in the state file";
            return Err(ConfigError::new(ConfigKind::System, &self.origin.argument, detail));
        }
        if kept.is_none() {
            store.write(env, Some(marker.encode())).await?;
        }
        *self.standing.lock() = Some(marker);
        Ok(())
    }

    /// Removes the marker: nothing is dirty, durably (M2). One that cannot be removed stays, which
    /// refuses more than it must.
    pub async fn fall(&self, env: &Env) {
        let (MarkerPlace::Store(store), Some((name, book))) = (self.place(), &self.notes) else {
            return;
        };
        if self.standing.lock().is_none() {
            return;
        }
        match store.write(env, None).await {
            Ok(()) => {
                *self.standing.lock() = None;
                // Without a marker a note means nothing.
                let _ = note_marker(book.as_ref(), name, None).await;
            }
            Err(error) => {
                let volume = &self.volume;
                tracing::warn!("{volume}: {error}; the dirty marker stays, and nothing is dirty");
            }
        }
    }

    fn warn_of_no_place(&self, makes_dirty: bool) {
        if makes_dirty && matches!(self.place(), MarkerPlace::Nowhere) {
            tracing::warn!(
                "{}: {}: no dirty marker can be kept there: nothing refuses another host that \
                 uses it without {}",
                self.volume,
                self.origin.argument,
                self.cache
            );
        }
    }

    fn without_marker(&self) -> ConfigError {
        let origin = &self.origin.argument;
        let detail = format!(
            "dirty marker: found {NONE}, expected that of {} {}, which has dirty data: {origin} \
             may have been used without it; if it was not: --adopt-marker '{origin}={NONE}'",
            self.kind, self.cache
        );
        ConfigError::new(ConfigKind::Argument, origin, detail)
    }
}
