//! The notes of dirty markers (`cairn_block::dirty_marker`): which generation stands beside which
//! disk for a cache of this server.
//!
//! The notes are in the state file. A server without one has them until it ends; it knows its own
//! markers by host, cache device and UUID then.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use cairn_block::dirty_marker::{DirtyMarker, MarkerBook};
use cairn_block::{Identity, Receipt, Registry};
use cairn_outcome::failure::Outcome;
use parking_lot::Mutex;
use rustix::rand::{GetRandomFlags, getrandom};

use super::StateFile;

/// What the user says of a disk: what stands beside it belongs to its cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adopted {
    device: String,
    found: String,
}

impl Adopted {
    /// Parses `DEVICE=GENERATION`, as a refusal shows it, or `DEVICE=none`.
    ///
    /// # Errors
    /// It has another form.
    pub fn parse(argument: &str) -> Result<Adopted, String> {
        let parts = argument.rsplit_once('=');
        let is_generation = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
        match parts.filter(|(device, _)| !device.is_empty()) {
            Some((device, found))
                if found == "none" || found.len() == 32 && is_generation(found) =>
            {
                Ok(Adopted { device: device.to_owned(), found: found.to_owned() })
            }
            _ => Err(format!("found '{argument}', expected DEVICE=GENERATION or DEVICE=none")),
        }
    }
}

/// The notes of a server.
#[derive(Default)]
pub struct MarkerNotes {
    state: Option<StateFile>,
    /// Those of a server without a state file.
    noted: Mutex<BTreeMap<String, String>>,
    /// By the names of disks.
    adopted: Vec<(String, String)>,
}

impl MarkerNotes {
    /// Notes in a state file, if there is one.
    ///
    /// # Errors
    /// A device of which the user says something has no name.
    pub fn new(
        state: Option<&StateFile>,
        adopted: &[Adopted],
        registry: &Registry,
    ) -> Outcome<MarkerNotes> {
        let named = adopted.iter().map(|Adopted { device, found }| {
            let name = match registry.identify(device)? {
                Identity::Remote(name) => name,
                _ => device.clone(),
            };
            Ok((name, found.clone()))
        });
        let adopted = named.collect::<Outcome<Vec<_>>>()?;
        Ok(MarkerNotes { state: state.cloned(), noted: Mutex::default(), adopted })
    }
}

impl MarkerBook for MarkerNotes {
    fn new_marker(&self, kind: &str, cache: &str, uuid: &str) -> DirtyMarker {
        let mut bytes = [0; 16];
        getrandom(&mut bytes, GetRandomFlags::empty()).expect("so few bytes are always there");
        let generation = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let host = rustix::system::uname().nodename().to_string_lossy().replace(' ', "_");
        DirtyMarker {
            generation,
            kind: kind.to_owned(),
            cache: cache.to_owned(),
            uuid: uuid.to_owned(),
            host,
            since: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
        }
    }

    fn noted(&self, disk: &str) -> Option<String> {
        match &self.state {
            Some(state) => state.noted_marker(disk),
            None => self.noted.lock().get(disk).cloned(),
        }
    }

    fn note(&self, disk: &str, generation: Option<&str>, receipt: Receipt) {
        let Some(state) = self.state.clone() else {
            set(&mut self.noted.lock(), disk, generation);
            return receipt.give();
        };
        let (disk, generation) = (disk.to_owned(), generation.map(str::to_owned));
        let note = move || match state.note_marker(&disk, generation.as_deref()) {
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

fn set(notes: &mut BTreeMap<String, String>, disk: &str, generation: Option<&str>) {
    match generation {
        Some(generation) => notes.insert(disk.to_owned(), generation.to_owned()),
        None => notes.remove(disk),
    };
}

impl StateFile {
    /// The generation that is noted for a disk.
    pub fn noted_marker(&self, disk: &str) -> Option<String> {
        self.inner.lock().contents.markers.get(disk).cloned()
    }

    /// Notes a generation for a disk, or none. Durable when it returns.
    ///
    /// # Errors
    /// The system refused to write.
    pub fn note_marker(&self, disk: &str, generation: Option<&str>) -> Outcome<()> {
        let mut inner = self.inner.lock();
        let mut next = inner.latest();
        set(&mut next.markers, disk, generation);
        self.put(&mut inner, next)
    }
}

/// Keeps the notes of a world.
pub fn keep_markers(
    registry: &Registry,
    state: Option<&StateFile>,
    adopted: &[Adopted],
) -> Outcome<()> {
    registry.set_markers(Arc::new(MarkerNotes::new(state, adopted, registry)?));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_adopted_is_named_as_a_refusal_shows_it() {
        let generation = "0123456789abcdef0123456789abcdef";
        let uri = "rbd:vms/a?user=x";
        for found in [generation, "none"] {
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
        open().note_marker("rbd:vms/a", Some("5f")).expect("the folder is writable");
        assert_eq!(open().noted_marker("rbd:vms/a").as_deref(), Some("5f"));
        assert!(!open().has_changes(), "no verb has changed anything");
        open().note_marker("rbd:vms/a", None).expect("the folder is writable");
        assert_eq!(open().noted_marker("rbd:vms/a"), None);
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
