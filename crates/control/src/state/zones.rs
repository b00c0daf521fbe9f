//! The files of the maps of dirty zones (`cairn_block::ZoneMaps`): `FILE.zones-NAME` beside the
//! state file `FILE`. A volume with a bcache cache that had dirty data has one of its name, or one
//! for each line of its table (`bcache::zones` of the crate `targets`).
//!
//! `format::bcache::zones` has the layout: two slots that take turns. A map is written
//! to the slot that does not have the newest one, and `fdatasync`ed. So a crash leaves the former
//! map or the new one, whole. The file is made with both slots at their full size: from then on a
//! map needs no more room, and a full file system does not stop it.
//!
//! Making a file, or one of another size, replaces it: `FILE.zones.new-NAME` is written and
//! fsynced, renamed over it, and the folder is fsynced.
//!
//! W1. The slot with the newest map that is durable is not written to.
//! W2. After a failure to make a file it is not known which file is there: it is made again.
//! W3. One thread does all this, in the order of the calls.
//!
//! The server that holds the lock of the state file is the only one that writes to these files.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use cairn_block::{Receipt, ZoneMaps};
use cairn_format::bcache::ZoneMap;
use cairn_format::bcache::zones::Newest;
use cairn_outcome::failure::{Outcome, system};
use parking_lot::Mutex;

use super::{StateFile, beside};

enum Job {
    Keep { name: String, map: ZoneMap, receipt: Receipt },
    Forget { name: String },
}

/// The newest durable maps, by name.
type Kept = Arc<Mutex<HashMap<String, ZoneMap>>>;

/// See the module's description.
pub struct ZoneFiles {
    kept: Kept,
    jobs: Sender<Job>,
}

impl ZoneFiles {
    /// Reads the files beside a state file. One that is damaged counts as missing, with a warning.
    ///
    /// # Errors
    /// The folder cannot be read, or the system refused a thread.
    pub fn open(state: &StateFile) -> Outcome<Arc<ZoneFiles>> {
        let shown = || state.path().display().to_string();
        let mut files = Files { state: state.path().to_owned(), files: HashMap::new() };
        let kept = files.read_all().map_err(|error| system(shown(), "zones", error))?;
        let kept = Arc::new(Mutex::new(kept));
        let (jobs, todo) = channel();
        let own = kept.clone();
        let thread = std::thread::Builder::new().name("zones".to_owned());
        let started = thread.spawn(move || files.work(&todo, &own));
        started.map_err(|error| system(shown(), "zones", error))?;
        Ok(Arc::new(ZoneFiles { kept, jobs }))
    }
}

impl ZoneMaps for ZoneFiles {
    fn all(&self) -> Vec<(String, Vec<u8>)> {
        let kept = self.kept.lock();
        kept.iter().map(|(name, map)| (name.clone(), map.encode_slot(0))).collect()
    }

    fn keep(&self, name: &str, map: Vec<u8>, receipt: Receipt) {
        let (_, map) = ZoneMap::decode_slot(&map).expect("a map as its target encodes it");
        // Without the thread the receipt is dropped.
        let _ = self.jobs.send(Job::Keep { name: name.to_owned(), map, receipt });
    }

    fn forget(&self, name: &str) {
        let _ = self.jobs.send(Job::Forget { name: name.to_owned() });
    }
}

/// What is known of a file.
#[derive(Default)]
struct Known {
    /// The slot of the newest durable map, and its bytes; none if the file has to be made.
    place: Option<(usize, u64)>,
    /// Of the newest map.
    sequence: u64,
    /// The last map could not be written.
    is_failing: bool,
}

struct Files {
    state: PathBuf,
    files: HashMap<String, Known>,
}

impl Files {
    fn path(&self, name: &str) -> PathBuf {
        beside(&self.state, &format!(".zones-{name}"))
    }

    /// Reads the files that are there.
    fn read_all(&mut self) -> io::Result<HashMap<String, ZoneMap>> {
        let prefix = self.path("");
        let prefix = prefix.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut kept = HashMap::new();
        let folder = folder_of(&self.state);
        for entry in fs::read_dir(folder)? {
            let file = entry?.file_name().to_string_lossy().into_owned();
            let Some(name) = file.strip_prefix(&prefix) else { continue };
            let path = self.path(name);
            let bytes = match fs::read(&path) {
                Ok(bytes) => bytes,
                Err(error) => {
                    tracing::warn!("{}: not read: {error}", path.display());
                    continue;
                }
            };
            let Some(newest) = Newest::of(&bytes) else {
                tracing::warn!("{}: damaged: found no sound map of zones", path.display());
                continue;
            };
            let (place, sequence) = ((newest.slot, bytes.len() as u64 / 2), newest.sequence);
            let known = Known { place: Some(place), sequence, is_failing: false };
            self.files.insert(name.to_owned(), known);
            kept.insert(name.to_owned(), newest.map);
        }
        Ok(kept)
    }

    fn work(&mut self, todo: &Receiver<Job>, kept: &Kept) {
        while let Ok(job) = todo.recv() {
            match job {
                Job::Keep { name, map, receipt } => {
                    if self.keep(&name, &map) {
                        kept.lock().insert(name, map);
                        receipt.give();
                    }
                }
                Job::Forget { name } => {
                    self.files.remove(&name);
                    kept.lock().remove(&name);
                    let path = self.path(&name);
                    match fs::remove_file(&path) {
                        Ok(()) => {}
                        Err(error) if error.kind() == ErrorKind::NotFound => {}
                        Err(error) => tracing::warn!("{}: not removed: {error}", path.display()),
                    }
                }
            }
        }
    }

    /// Replaces a map. True if it is durable.
    fn keep(&mut self, name: &str, map: &ZoneMap) -> bool {
        let path = self.path(name);
        let fresh = beside(&self.state, &format!(".zones.new-{name}"));
        let known = self.files.entry(name.to_owned()).or_default();
        let written = known.write(&path, &fresh, map);
        let was_failing = std::mem::replace(&mut known.is_failing, written.is_err());
        let path = path.display();
        match &written {
            Ok(()) if was_failing => tracing::info!("{path}: is written again"),
            Ok(()) => {}
            Err(error) if !was_failing => tracing::error!(
                "{path}: {error}: writes to zones that are not in the map of dirty zones \
                 go around the cache until it can be written"
            ),
            Err(_) => {}
        }
        written.is_ok()
    }
}

impl Known {
    fn write(&mut self, path: &Path, fresh: &Path, map: &ZoneMap) -> io::Result<()> {
        let slot = map.encode_slot(self.sequence + 1);
        let bytes = slot.len() as u64;
        let place = self.place.filter(|(_, own)| *own == bytes);
        let file = place.and_then(|(newest, _)| Some((1 - newest, open_of(path, 2 * bytes)?)));
        let next = match file {
            Some((next, file)) => {
                // W1.
                file.write_all_at(&slot, next as u64 * bytes)?;
                file.sync_data()?;
                next
            }
            None => {
                // W2.
                self.place = None;
                make(path, fresh, &slot)?;
                0
            }
        };
        (self.place, self.sequence) = (Some((next, bytes)), self.sequence + 1);
        Ok(())
    }
}

/// Opens a file of this size.
fn open_of(path: &Path, bytes: u64) -> Option<File> {
    let file = OpenOptions::new().write(true).open(path).ok()?;
    (file.metadata().ok()?.len() == bytes).then_some(file)
}

/// Makes a file with this slot and an empty one.
fn make(path: &Path, fresh: &Path, slot: &[u8]) -> io::Result<()> {
    let mut file = File::create(fresh)?;
    file.write_all(slot)?;
    file.write_all(&vec![0; slot.len()])?;
    file.sync_all()?;
    fs::rename(fresh, path)?;
    File::open(folder_of(path))?.sync_all()
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
