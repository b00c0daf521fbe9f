//! [`Markers`]: the dirty markers beside simulated drives, and the notes that a server has of them.
//!
//! Both are durable from the moment in which they change, which is in the middle of the call: a
//! power cut or a kill finds the former ones or the new ones.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use cairn_block::dirty_marker::{DirtyMarker, MarkerBook};
use cairn_block::{ConfigError, ConfigKind, Env, LocalFuture, MarkerStore, Receipt};
use parking_lot::Mutex;

/// Half the time of a call.
const TIME: Duration = Duration::from_micros(100);

#[derive(Clone, Default)]
struct State {
    /// By drive.
    texts: HashMap<String, String>,
    /// By drive, as a server knows them.
    notes: HashMap<String, Vec<String>>,
    /// What the user has named.
    adopted: HashSet<(String, String)>,
    host: String,
    is_without_file: bool,
    generations: u64,
    /// Every call fails.
    is_failing: bool,
    /// How long every call takes beside its usual time.
    delay: Duration,
    /// The drives that this process uses.
    taken: HashSet<String>,
}

/// See the module's description.
#[derive(Default)]
pub struct Markers(Mutex<State>);

impl Markers {
    /// The text beside a drive.
    pub fn text(&self, drive: &str) -> Option<String> {
        self.0.lock().texts.get(drive).cloned()
    }

    /// Replaces the text beside a drive, as another host does.
    pub fn set_text(&self, drive: &str, text: Option<&str>) {
        let mut state = self.0.lock();
        match text {
            Some(text) => state.texts.insert(drive.to_owned(), text.to_owned()),
            None => state.texts.remove(drive),
        };
    }

    /// The note of a drive.
    pub fn note_of(&self, drive: &str) -> Vec<String> {
        self.0.lock().notes.get(drive).cloned().unwrap_or_default()
    }

    /// The server has no state file from now on: notes end with it.
    pub fn forget_state_file(&self) {
        let mut state = self.0.lock();
        state.is_without_file = true;
        state.notes.clear();
    }

    /// The server is another host from now on, without notes.
    pub fn move_to(&self, host: &str) {
        let mut state = self.0.lock();
        state.host = host.to_owned();
        state.notes.clear();
    }

    /// The user says that a drive with this generation beside it, or `none`, belongs to its cache.
    pub fn adopt(&self, drive: &str, found: &str) {
        self.0.lock().adopted.insert((drive.to_owned(), found.to_owned()));
    }

    /// From now on every call beside a drive fails, or none.
    pub fn set_failing(&self, is_failing: bool) {
        self.0.lock().is_failing = is_failing;
    }

    /// From now on every call beside a drive takes so much longer.
    pub fn set_delay(&self, delay: Duration) {
        self.0.lock().delay = delay;
    }

    /// True if the start of a table of this process has taken a drive.
    pub fn is_taken(&self, drive: &str) -> bool {
        self.0.lock().taken.contains(drive)
    }

    /// Another process begins: it has taken nothing.
    pub(crate) fn let_go(&self, drive: &str) {
        self.0.lock().taken.remove(drive);
    }

    fn delay(&self) -> Duration {
        self.0.lock().delay
    }

    fn refuse_if_failing(&self, drive: &str) -> Result<(), ConfigError> {
        let failed = || ConfigError::new(ConfigKind::System, drive, "dirty marker: no answer");
        if self.0.lock().is_failing { Err(failed()) } else { Ok(()) }
    }
}

impl MarkerBook for Markers {
    fn new_marker(&self, kind: &str, cache: &str, uuid: &str) -> DirtyMarker {
        let mut state = self.0.lock();
        state.generations += 1;
        let host = if state.host.is_empty() { "a" } else { &state.host };
        DirtyMarker {
            generation: format!("{:x}", state.generations),
            kind: kind.to_owned(),
            cache: cache.to_owned(),
            uuid: uuid.to_owned(),
            host: host.to_owned(),
            since: Duration::ZERO,
        }
    }

    fn noted(&self, disk: &str) -> Vec<String> {
        self.note_of(disk)
    }

    fn is_lasting(&self) -> bool {
        !self.0.lock().is_without_file
    }

    fn note(&self, disk: &str, generations: &[String], receipt: Receipt) {
        self.0.lock().notes.insert(disk.to_owned(), generations.to_vec());
        receipt.give();
    }

    fn is_adopted(&self, disk: &str, found: &str) -> bool {
        self.0.lock().adopted.contains(&(disk.to_owned(), found.to_owned()))
    }
}

/// Where the marker of one drive is.
pub(crate) struct Shelf {
    pub markers: Arc<Markers>,
    pub drive: String,
}

impl MarkerStore for Shelf {
    fn disk(&self) -> String {
        self.drive.clone()
    }

    fn fences(&self) -> bool {
        false
    }

    fn take<'a>(&'a self, env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(async move {
            env.sleep(TIME).await;
            self.markers.refuse_if_failing(&self.drive)?;
            self.markers.0.lock().taken.insert(self.drive.clone());
            Ok(())
        })
    }

    fn read<'a>(&'a self, env: &'a Env) -> LocalFuture<'a, Result<Option<String>, ConfigError>> {
        Box::pin(async move {
            env.sleep(TIME).await;
            let text = self.markers.text(&self.drive);
            env.sleep(TIME + self.markers.delay()).await;
            self.markers.refuse_if_failing(&self.drive)?;
            Ok(text)
        })
    }

    fn write<'a>(
        &'a self,
        env: &'a Env,
        text: Option<String>,
    ) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(async move {
            env.sleep(TIME).await;
            self.markers.refuse_if_failing(&self.drive)?;
            self.markers.set_text(&self.drive, text.as_deref());
            env.sleep(TIME).await;
            Ok(())
        })
    }
}
