//! [`OriginMarker`]: the dirty marker that a cache keeps beside its origin
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
//! M5. A marker is that of this cache if its kind, and the UUID of the set or else the device, are
//!     the same, and its generation is noted. A blank cache device has no marker of its own.
//! M6. Where dirty data is adopted, or a marker, its generation stays noted until the new marker is
//!     written.
//!
//! M7. While the cache serves, its marker is read again before something is written back, unless it
//!     was read within the last second, or the engine itself takes no write from a host that has
//!     lost the origin. If another one stands, or none, nothing is written back until the next
//!     start, and the cache serves nothing: what it reads from the origin is another host's. The
//!     read comes after all that a write waits for. Its age is told by a clock that goes on while
//!     the process, or the host, is stopped.
//!
//! # What a crash leaves
//! - Between the note and the marker (M1): a note alone, of a cache that is clean. The next start
//!   takes a new generation. An engine that did not answer may have the marker: it is noted. Where
//!   a marker was adopted, both are noted (M6).
//! - After M2 and before the removal: a marker that is noted, of a clean cache. The next start goes
//!   on with it, the next suspend removes it.
//! - Between the removal and M3: as after the first note.
//!
//! A cache with dirty content and no marker is one whose origin was used without it, or one that
//! never had a marker: a kernel's, or one of a program before this. It is refused, unless the user
//! says that both belong together ([`MarkerBook::is_adopted`]). So is one that was brought from
//! another host, unless other hosts reach the cache device, too, whose own lock tells who has it. A
//! server without a state file (`cairn flush`) has no notes: it goes on with a marker of its own
//! host.
//!
//! A user who gives the cache up removes the marker by hand (`cairn unmark`).
//! The cache finds none then, and is refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cairn_block::dirty_marker::{DirtyMarker, MarkerBook, note_marker};
use cairn_block::sync::Mutex;
use cairn_block::{
    ConfigError, ConfigKind, Ctor, Disk, Env, Identity, IoError, IoResult, MarkerPlace,
    MarkerStore, take_unmarked,
};

use crate::args::Device;
use crate::fair::Fair;

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests;

/// What is found where no marker is.
const NONE: &str = "none";

/// How long a marker that was read counts (M7).
const LOOK_AGE: Duration = Duration::from_secs(1);

/// How many answers may come too late before the writes that wait fail.
const LOOKS: u32 = 3;

/// See the module's description.
pub struct OriginMarker {
    origin: Device,
    kind: &'static str,
    cache: String,
    /// Other hosts reach the cache device, too, and one alone has it.
    is_cache_shared: bool,
    volume: String,
    /// None if the server keeps no markers.
    notes: Option<Arc<dyn MarkerBook>>,
    /// The marker that stands, and is that of this cache.
    standing: Mutex<Option<DirtyMarker>>,
    /// When it was last read, since 1970 (M7).
    seen: Mutex<Option<Duration>>,
    /// Another one was found in its place (M7).
    is_lost: AtomicBool,
    /// One read at a time: each occupies a thread.
    reading: Fair<()>,
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

impl OriginMarker {
    /// The marker of a cache of this kind.
    pub fn new(ctor: &Ctor<'_>, volume: &str, kind: &'static str, of: (&Device, &str)) -> Self {
        let (origin, cache) = of;
        let identity = ctor.registry.identify(cache);
        OriginMarker {
            origin: origin.clone(),
            kind,
            cache: cache.to_owned(),
            is_cache_shared: matches!(identity, Ok(Identity::Remote(_))),
            volume: volume.to_owned(),
            notes: ctor.registry.markers(),
            standing: Mutex::default(),
            seen: Mutex::default(),
            is_lost: AtomicBool::new(false),
            reading: Fair::new(()),
        }
    }

    /// The disk whose marker this is; none if the server keeps no markers.
    pub fn disk(&self) -> Option<Arc<dyn Disk>> {
        self.notes.as_ref().map(|_| self.origin.disk.clone())
    }

    /// The generation of the marker that stands, as far as is known here.
    pub fn generation(&self) -> Option<String> {
        self.standing.lock().as_ref().map(|marker| marker.generation.clone())
    }

    /// True if one stands that is this cache's.
    pub fn stands(&self) -> bool {
        self.standing.lock().is_some()
    }

    /// Where the marker is, and the notes; none if there is none for this origin.
    fn place(&self) -> Option<(&dyn MarkerStore, &dyn MarkerBook)> {
        match (self.origin.disk.marker_place(), &self.notes) {
            (MarkerPlace::Store(store), Some(book)) => Some((store, book.as_ref())),
            _ => None,
        }
    }

    async fn read(
        &self,
        env: &Env,
        store: &dyn MarkerStore,
    ) -> Result<Option<DirtyMarker>, ConfigError> {
        let text = store.read(env).await?;
        let disk = self.origin.disk.name();
        text.map(|text| DirtyMarker::of_text(&disk, &text)).transpose()
    }

    /// True if a marker is that of this cache (M5).
    fn is_own(&self, marker: &DirtyMarker, own: &DirtyMarker, noted: &[String]) -> bool {
        let is_here = self.notes.as_ref().is_some_and(|book| !book.is_lasting());
        let is_known = match noted {
            [] => self.is_cache_shared || (is_here && marker.host == own.host),
            noted => noted.contains(&marker.generation),
        };
        is_known && marker.is_of_cache_of(own)
    }

    /// Compares what stands beside the origin with the notes. Called before anything is written
    /// (M4).
    ///
    /// # Errors
    /// The marker of another cache stands, or the engine did not answer.
    pub async fn look(&self, env: &Env, uuid: &str) -> Result<(), ConfigError> {
        *self.standing.lock() = None;
        *self.seen.lock() = None;
        self.is_lost.store(false, Ordering::Release);
        let Some((store, book)) = self.place() else { return Ok(()) };
        let Some(marker) = self.read(env, store).await? else { return store.take(env).await };
        let own = book.new_marker(self.kind, &self.cache, uuid);
        let (name, disk) = (store.disk(), self.origin.disk.name());
        let is_own = self.is_own(&marker, &own, &book.noted(&name));
        if !is_own && !book.is_adopted(&name, &marker.generation) {
            let expected = format!(
                "that of {} {}; or, if its data belongs to this cache: --adopt-marker '{disk}={}'",
                self.kind, self.cache, marker.generation
            );
            return Err(marker.refusal(&disk, env.unix_time(), &expected));
        }
        *self.standing.lock() = Some(marker);
        store.take(env).await
    }

    /// Refuses the origin if a marker stands, whose ever it is, and takes it otherwise: it is to be
    /// used without a cache, or the cache device is blank, so that no marker can be its own.
    ///
    /// # Errors
    /// It stands, or the engine did not answer.
    pub async fn refuse(&self, env: &Env) -> Result<(), ConfigError> {
        match self.place() {
            Some(_) => take_unmarked(env, self.origin.disk.as_ref()).await,
            None => Ok(()),
        }
    }

    /// Removes the marker of whichever cache of this kind: the origin itself durably says that none
    /// counts for it. Refuses that of another kind.
    ///
    /// # Errors
    /// It stands, or the engine did not answer.
    pub async fn end_any(&self, env: &Env) -> Result<(), ConfigError> {
        let Some((store, _)) = self.place() else { return Ok(()) };
        match self.read(env, store).await? {
            Some(marker) if marker.kind == self.kind => {
                store.take(env).await?;
                *self.standing.lock() = Some(marker);
                self.fall(env).await;
                Ok(())
            }
            _ => self.refuse(env).await,
        }
    }

    /// Has the marker stand if something is dirty or may become so, and removes it otherwise.
    ///
    /// # Errors
    /// Something is dirty and no marker stood, or the marker or its note could not be written.
    pub async fn stand(&self, env: &Env, uuid: &str, plans: Plans) -> Result<(), ConfigError> {
        let Plans { is_dirty, makes_dirty, read_only } = plans;
        let Some((store, book)) = self.place() else {
            self.warn_of_no_place(makes_dirty && !read_only);
            return Ok(());
        };
        let (name, standing) = (store.disk(), self.standing.lock().clone());
        let noted = book.noted(&name);
        if is_dirty && standing.is_none() {
            self.refuse_without_marker(&name, book, &noted)?;
        }
        if read_only {
            return Ok(());
        }
        if !is_dirty && !makes_dirty {
            self.fall(env).await;
            return Ok(());
        }
        let own = book.new_marker(self.kind, &self.cache, uuid);
        let keeps = |it: &DirtyMarker| it.host == own.host && self.is_own(it, &own, &noted);
        if standing.as_ref().is_some_and(keeps) && noted.len() < 2 {
            return self.note(book, &name, standing.iter()).await;
        }
        // One that was adopted gets a generation that its former host does not know.
        let found =
            standing.clone().unwrap_or(DirtyMarker { generation: NONE.into(), ..own.clone() });
        self.note(book, &name, [&found, &own].into_iter().filter(|it| is_dirty || *it == &own))
            .await?;
        store.write(env, Some(own.encode())).await?;
        *self.standing.lock() = Some(own.clone());
        self.note(book, &name, [&own].into_iter()).await
    }

    /// Before something is written back: reads again whether the marker stands (M7).
    ///
    /// # Errors
    /// It does not, or the engine did not answer.
    pub async fn look_again(&self, env: &Env) -> IoResult {
        let Some((store, _)) = self.place().filter(|(store, _)| !store.fences()) else {
            return Ok(());
        };
        // An answer that was stopped on its way counts no more when it arrives.
        for _ in 0..LOOKS {
            if self.is_fresh(env) {
                return Ok(());
            }
            let _turn = self.reading.lock().await;
            if self.is_lost() {
                return Err(IoError::FENCED);
            }
            if !self.is_fresh(env) && !self.read_again(env, store).await? {
                return Ok(());
            }
        }
        if self.is_fresh(env) {
            return Ok(());
        }
        let disk = self.origin.disk.name();
        env.warn(&format!("{disk}: slow marker"), || {
            let (volume, most) = (&self.volume, LOOK_AGE.as_secs());
            format!("{volume}: {disk}: dirty marker: no answer within {most} s")
        });
        Err(IoError::IO)
    }

    /// True if another marker was found in its place since the start.
    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    fn is_fresh(&self, env: &Env) -> bool {
        let age = |seen| env.unix_time().checked_sub(seen);
        !self.is_lost() && self.seen.lock().and_then(age).is_some_and(|age| age < LOOK_AGE)
    }

    /// Reads the marker again. False if none has to stand.
    async fn read_again(&self, env: &Env, store: &dyn MarkerStore) -> Result<bool, IoError> {
        let Some(standing) = self.standing.lock().clone() else { return Ok(false) };
        let (began, disk) = (env.unix_time(), self.origin.disk.name());
        let found = match self.read(env, store).await {
            Ok(Some(found)) if found.generation == standing.generation => {
                *self.seen.lock() = Some(began);
                return Ok(true);
            }
            Ok(found) => found.map_or(NONE.to_owned(), |found| found.describe(env.unix_time())),
            Err(error) => {
                env.warn(&format!("{disk}: marker"), || format!("{}: {error}", self.volume));
                return Err(IoError::IO);
            }
        };
        self.is_lost.store(true, Ordering::Release);
        let (volume, own) = (&self.volume, &standing.generation);
        tracing::error!(
            "{volume}: {disk}: dirty marker: found {found}, expected {own}: another host uses the \
             device, and nothing is written back to it any more"
        );
        Err(IoError::FENCED)
    }

    /// Notes the generations of these markers, if that is not noted.
    async fn note(
        &self,
        book: &dyn MarkerBook,
        name: &str,
        markers: impl Iterator<Item = &DirtyMarker>,
    ) -> Result<(), ConfigError> {
        let generations: Vec<String> = markers.map(|marker| marker.generation.clone()).collect();
        if book.noted(name) == generations || note_marker(book, name, &generations).await {
            return Ok(());
        }
        let detail = "dirty marker: its generation could not be noted in the state file";
        Err(ConfigError::new(ConfigKind::System, &self.origin.argument, detail))
    }

    /// Removes the marker: nothing is dirty, durably (M2). One that cannot be removed stays, which
    /// refuses more than it must.
    pub async fn fall(&self, env: &Env) {
        let Some((store, book)) = self.place() else { return };
        let Some(standing) = self.standing.lock().clone() else { return };
        let volume = &self.volume;
        let removed = match self.read(env, store).await {
            Ok(Some(found)) if found.generation != standing.generation => {
                let line = found.describe(env.unix_time());
                tracing::warn!("{volume}: dirty marker: found {line}, which stays");
                return;
            }
            Ok(Some(_)) => store.write(env, None).await,
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        match removed {
            Ok(()) => {
                *self.standing.lock() = None;
                // Without a marker a note means nothing.
                let _ = note_marker(book, &store.disk(), &[]).await;
            }
            Err(error) => tracing::warn!(
                "{volume}: {error}; the dirty marker stays, and nothing is dirty: the next stop or \
                 flush of the cache removes it"
            ),
        }
    }

    fn warn_of_no_place(&self, makes_dirty: bool) {
        let is_nowhere = matches!(self.origin.disk.marker_place(), MarkerPlace::Nowhere);
        if makes_dirty && self.notes.is_some() && is_nowhere {
            tracing::warn!(
                "{}: {}: no dirty marker can be kept there: nothing refuses another host that \
                 uses it without {}",
                self.volume,
                self.origin.argument,
                self.cache
            );
        }
    }

    /// Refuses dirty data beside which no marker stands, unless the user has said that it belongs
    /// to the origin; if a marker is noted, of the one that is gone.
    fn refuse_without_marker(
        &self,
        name: &str,
        book: &dyn MarkerBook,
        noted: &[String],
    ) -> Result<(), ConfigError> {
        let is_begun = noted.iter().any(|noted| noted == NONE);
        let found = match noted.last().filter(|_| !is_begun) {
            Some(gone) => format!("{NONE}-{gone}"),
            None => NONE.to_owned(),
        };
        if book.is_adopted(name, &found) {
            return Ok(());
        }
        let origin = &self.origin.argument;
        let detail = format!(
            "dirty marker: found {NONE}, expected that of {} {}, which has dirty data: {origin} \
             may have been used without it; if it was not: --adopt-marker '{origin}={found}'",
            self.kind, self.cache
        );
        Err(ConfigError::new(ConfigKind::Argument, origin, detail))
    }
}
