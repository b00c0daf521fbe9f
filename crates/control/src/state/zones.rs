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
//! W4. What a start finds is made durable before it counts: a server that was killed may have
//!     written it without a flush.
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
use cairn_format::bcache::zones::{Newest, ZONE_SECTORS};
use cairn_outcome::failure::{Outcome, system};
use parking_lot::Mutex;

use super::{StateFile, beside, folder_of};

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

    fn zone_sectors(&self) -> u64 {
        ZONE_SECTORS
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
        File::open(folder)?.sync_all()?;
        for entry in fs::read_dir(folder)? {
            let file = entry?.file_name().to_string_lossy().into_owned();
            let Some(name) = file.strip_prefix(&prefix) else { continue };
            let path = self.path(name);
            let bytes = match read(&path) {
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

/// W4.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    File::open(path)?.sync_all()?;
    fs::read(path)
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::sync::Arc;

    use cairn_block::{ZoneMaps, keep_zones};
    use cairn_format::bcache::zones::{Newest, ZONE_SECTORS};
    use cairn_format::bcache::{Uuid, ZoneMap};
    use futures_util::FutureExt;
    use tempfile::TempDir;

    use super::ZoneFiles;
    use crate::state::StateFile;

    struct Place {
        folder: TempDir,
        files: Arc<ZoneFiles>,
    }

    fn open(folder: &TempDir) -> Arc<ZoneFiles> {
        ZoneFiles::open(&StateFile::open(&folder.path().join("vm.state")).unwrap()).unwrap()
    }

    fn map_of(zones: u64, marked: &[u64]) -> ZoneMap {
        let sectors = zones * ZONE_SECTORS;
        let mut map = ZoneMap::new(Uuid([3; 16]), Uuid([2; 16]), sectors, ZONE_SECTORS);
        marked.iter().for_each(|zone| map.mark(*zone));
        map
    }

    impl Place {
        fn new() -> Place {
            let folder = tempfile::tempdir().unwrap();
            let files = open(&folder);
            Place { folder, files }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        fn keep(&self, name: &str, map: &ZoneMap) -> bool {
            let mut kept = Box::pin(keep_zones(&*self.files, name, map.encode_slot(0)));
            loop {
                match kept.as_mut().now_or_never() {
                    Some(kept) => return kept,
                    None => std::thread::yield_now(),
                }
            }
        }

        fn newest(&self, name: &str) -> Newest {
            Newest::of(&fs::read(self.path(name)).unwrap()).unwrap()
        }

        /// What another start finds.
        fn found(&self) -> Vec<(String, ZoneMap)> {
            let decode =
                |(name, map): (String, Vec<u8>)| (name, ZoneMap::decode_slot(&map).unwrap().1);
            let mut found: Vec<_> = open(&self.folder).all().into_iter().map(decode).collect();
            found.sort_by(|one, other| one.0.cmp(&other.0));
            found
        }
    }

    #[test]
    fn maps_survive_reopening_and_their_slots_take_turns() {
        let place = Place::new();
        assert!(place.found().is_empty());
        for turn in 0..5 {
            let map = map_of(40, &[turn]);
            assert!(place.keep("vm", &map));
            let newest = place.newest("vm.state.zones-vm");
            assert_eq!((newest.slot as u64, newest.sequence), (turn % 2, turn + 1));
            assert_eq!(place.found(), [("vm".to_owned(), map)]);
        }
        let other = map_of(7, &[6]);
        assert!(place.keep("vm@@2048", &other));
        let both = [("vm".to_owned(), map_of(40, &[4])), ("vm@@2048".to_owned(), other)];
        assert_eq!(place.found(), both);
        assert_eq!(fs::metadata(place.path("vm.state.zones-vm")).unwrap().len(), 8192);
    }

    #[test]
    fn slot_that_was_written_in_part_leaves_the_former_map() {
        let place = Place::new();
        assert!(place.keep("vm", &map_of(40, &[1])) && place.keep("vm", &map_of(40, &[1, 2])));
        let path = place.path("vm.state.zones-vm");
        let mut bytes = fs::read(&path).unwrap();
        bytes[4096 + 512..].fill(7);
        fs::write(&path, &bytes).unwrap();
        assert_eq!(place.found(), [("vm".to_owned(), map_of(40, &[1]))]);
        bytes[0] ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert!(place.found().is_empty(), "a damaged file counts as missing");
    }

    #[test]
    fn map_of_another_size_makes_the_file_again() {
        let place = Place::new();
        let large = map_of(8 * 10_000, &[70_000]);
        for map in [map_of(40, &[1]), large.clone(), map_of(40, &[2])] {
            assert!(place.keep("vm", &map));
            assert_eq!(place.found(), [("vm".to_owned(), map)]);
        }
        assert_eq!(place.newest("vm.state.zones-vm").sequence, 3);
        // As does a file that a user removed, or cut short.
        fs::remove_file(place.path("vm.state.zones-vm")).unwrap();
        assert!(place.keep("vm", &map_of(40, &[3])));
        fs::write(place.path("vm.state.zones-vm"), "short").unwrap();
        assert!(place.keep("vm", &map_of(40, &[4])));
        assert_eq!(place.found(), [("vm".to_owned(), map_of(40, &[4]))]);
    }

    #[test]
    fn map_that_cannot_be_written_leaves_the_former_one_and_the_next_may_succeed() {
        let place = Place::new();
        let (path, fresh) = (place.path("vm.state.zones-vm"), place.path("vm.state.zones.new-vm"));
        fs::create_dir(&fresh).unwrap();
        assert!(!place.keep("vm", &map_of(40, &[1])));
        assert!(!path.exists() && place.files.all().is_empty());
        fs::remove_dir(&fresh).unwrap();
        assert!(place.keep("vm", &map_of(40, &[1])));
        // Of another size: it is made again.
        fs::create_dir(&fresh).unwrap();
        assert!(!place.keep("vm", &map_of(80_000, &[1])));
        assert_eq!(place.found(), [("vm".to_owned(), map_of(40, &[1]))]);
        assert_eq!(place.files.all().len(), 1);
        fs::remove_dir(&fresh).unwrap();
        assert!(place.keep("vm", &map_of(40, &[2])));
        assert_eq!(place.found(), [("vm".to_owned(), map_of(40, &[2]))]);
    }

    #[test]
    fn forgotten_map_is_gone_and_may_come_again() {
        let place = Place::new();
        assert!(place.keep("vm", &map_of(40, &[1])));
        place.files.forget("vm");
        place.files.forget("never");
        assert!(place.keep("vm", &map_of(40, &[2])));
        assert_eq!(place.found(), [("vm".to_owned(), map_of(40, &[2]))]);
        place.files.forget("vm");
        assert!(place.keep("other", &map_of(40, &[2])), "in the order of the calls");
        assert!(!place.path("vm.state.zones-vm").exists());
    }
}
