//! The notes of dirty markers (`cairn_block::dirty_marker`): which generation stands beside which
//! disk for a cache of this server.
//!
//! The notes are in the state file. A server without one has them until it ends; it knows its own
//! markers by host, cache device and UUID then.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use cairn_backends::{host_name, name_in_notes, nonce};
use cairn_block::dirty_marker::{DirtyMarker, MarkerBook};
use cairn_block::{Receipt, Registry};
use cairn_outcome::failure::Outcome;
use parking_lot::Mutex;

use super::StateFile;

/// What the user says of a disk: what stands beside it belongs to its cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adopted {
    device: String,
    found: String,
}

impl Adopted {
    /// Parses `DEVICE=GENERATION`, `DEVICE=none` or `DEVICE=none-GENERATION`, as refusals show
    /// them.
    ///
    /// # Errors
    /// It has another form.
    pub fn parse(argument: &str) -> Result<Adopted, String> {
        let parts = argument.rsplit_once('=');
        let is_generation =
            |text: &str| text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_found = |text: &str| {
            text == "none" || is_generation(text.strip_prefix("none-").unwrap_or(text))
        };
        match parts.filter(|(device, _)| !device.is_empty()) {
            Some((device, found)) if is_found(found) => {
                Ok(Adopted { device: device.to_owned(), found: found.to_owned() })
            }
            _ => Err(format!(
                "found '{argument}', expected DEVICE=GENERATION, DEVICE=none or \
                 DEVICE=none-GENERATION"
            )),
        }
    }
}

/// The notes of a server.
#[derive(Default)]
pub struct MarkerNotes {
    state: Option<StateFile>,
    /// Those of a server without a state file.
    noted: Mutex<BTreeMap<String, Vec<String>>>,
    /// By the names of disks.
    adopted: Vec<(String, String)>,
}

impl MarkerNotes {
    /// Notes in a state file, if there is one.
    ///
    /// # Errors
    /// A device of which the user says something has no name.
    pub fn new(state: Option<&StateFile>, adopted: &[Adopted]) -> Outcome<MarkerNotes> {
        let named = adopted.iter().map(|Adopted { device, found }| {
            let name = name_in_notes(device)?;
            Ok((name, found.clone()))
        });
        let adopted = named.collect::<Outcome<Vec<_>>>()?;
        Ok(MarkerNotes { state: state.cloned(), noted: Mutex::default(), adopted })
    }
}

impl MarkerBook for MarkerNotes {
    fn new_marker(&self, kind: &str, cache: &str, uuid: &str) -> DirtyMarker {
        DirtyMarker {
            generation: nonce(),
            kind: kind.to_owned(),
            cache: cache.to_owned(),
            uuid: uuid.to_owned(),
            host: host_name(),
            since: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
        }
    }

    fn noted(&self, disk: &str) -> Vec<String> {
        match &self.state {
            Some(state) => state.noted_marker(disk),
            None => self.noted.lock().get(disk).cloned().unwrap_or_default(),
        }
    }

    fn is_lasting(&self) -> bool {
        self.state.is_some()
    }

    fn note(&self, disk: &str, generations: &[String], receipt: Receipt) {
        let Some(state) = self.state.clone() else {
            set(&mut self.noted.lock(), disk, generations);
            return receipt.give();
        };
        let (disk, generations) = (disk.to_owned(), generations.to_vec());
        let note = move || match state.note_marker(&disk, &generations) {
            Ok(()) => receipt.give(),
            Err(error) => tracing::error!("{disk}: its dirty marker is not noted: {error}"),
        };
        // Without a thread the receipt is dropped.
        let _ = std::thread::Builder::new().name("state".to_owned()).spawn(note);
    }

    fn is_adopted(&self, disk: &str, found: &str) -> bool {
        self.adopted.iter().any(|(named, said)| named == disk && said == found)
    }
}

fn set(notes: &mut BTreeMap<String, Vec<String>>, disk: &str, generations: &[String]) {
    match generations {
        [] => notes.remove(disk),
        _ => notes.insert(disk.to_owned(), generations.to_vec()),
    };
}

impl StateFile {
    /// The generations that are noted for a disk.
    pub fn noted_marker(&self, disk: &str) -> Vec<String> {
        self.inner.lock().contents.markers.get(disk).cloned().unwrap_or_default()
    }

    /// Replaces what is noted for a disk. Durable when it returns.
    ///
    /// # Errors
    /// The system refused to write.
    pub fn note_marker(&self, disk: &str, generations: &[String]) -> Outcome<()> {
        let mut inner = self.inner.lock();
        let mut next = inner.latest();
        set(&mut next.markers, disk, generations);
        self.put(&mut inner, next)
    }
}

/// Keeps the notes of a world.
pub fn keep_markers(
    registry: &Registry,
    state: Option<&StateFile>,
    adopted: &[Adopted],
) -> Outcome<()> {
    registry.set_markers(Arc::new(MarkerNotes::new(state, adopted)?));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_adopted_is_named_as_a_refusal_shows_it() {
        let generation = "0123456789abcdef0123456789abcdef";
        let uri = "rbd:vms/a?user=x";
        for found in [generation, "none", &format!("none-{generation}")] {
            let adopted = Adopted::parse(&format!("{uri}={found}")).expect("as it is shown");
            assert_eq!((adopted.device.as_str(), adopted.found.as_str()), (uri, found));
        }
        for wrong in ["", "rbd:vms/a", "=none", "rbd:vms/a=5f", "rbd:vms/a=", &generation[1..]] {
            let error = Adopted::parse(wrong).expect_err(wrong);
            assert!(error.contains("DEVICE=GENERATION"), "{error}");
        }
    }

    #[test]
    fn notes_are_in_the_state_file_and_gone_with_their_markers() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("state");
        let open = || StateFile::open(&path).expect("it is sound");
        let noted = ["5f".to_owned(), "60".to_owned()];
        open().note_marker("rbd:vms/a", &noted).expect("the folder is writable");
        assert_eq!(open().noted_marker("rbd:vms/a"), noted);
        assert!(!open().has_changes(), "no verb has changed anything");
        open().note_marker("rbd:vms/a", &[]).expect("the folder is writable");
        assert!(open().noted_marker("rbd:vms/a").is_empty());
    }

    #[test]
    fn each_marker_has_another_generation() {
        let notes = MarkerNotes::default();
        let of = || notes.new_marker("writecache", "c", "-");
        let (one, other) = (of(), of());
        assert_ne!(one.generation, other.generation);
        assert_eq!(DirtyMarker::decode(&one.encode()).map(|it| it.host), Some(one.host));
    }
}
