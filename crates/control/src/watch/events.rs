//! The events of a server: volumes come and go, are suspended and resumed, get other tables, their
//! targets raise events, and their remote disks are lost and found. The caller keeps [`Marks`] of
//! what it has seen, so that a server keeps nothing for it, and a change that lasts is in the next
//! answer. Of what came and went between two looks only the end is seen: two events are one line
//! with the last number.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_backends::{RemoteFigures, RemoteState};
use cairn_block::{Disk, MappedDevice};
use serde::{Deserialize, Serialize};

use crate::report::{self, VolumeLines};
use crate::world::{World, remotes_of};

/// What a caller has seen: volumes by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marks {
    /// The start of the server: counts begin again with another one.
    server: u64,
    volumes: BTreeMap<String, Mark>,
}

impl Marks {
    /// How many volumes there were.
    pub fn volumes(&self) -> usize {
        self.volumes.len()
    }
}

/// The state of a volume when a caller last asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    event_nr: u64,
    losses: u64,
    suspended: bool,
    /// A digest of its table lines.
    table: u32,
    /// The remote disks that it stands on, by name.
    #[serde(default)]
    remotes: BTreeMap<String, RemoteMark>,
}

/// The state of a remote disk when a caller last asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RemoteMark {
    state: String,
    reconnects: u64,
}

/// Something that happened to a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeEvent {
    /// The volume.
    pub name: String,
    /// `created`, `removed`, `table`, `suspended`, `resumed`, `loss` or `event`. Of a remote disk
    /// `reconnecting`, `reconnected`, `unreachable`, `refused`, `fenced` or `changed`.
    pub what: String,
    /// The remote disk, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// How many events the volume had.
    pub event_nr: u64,
    /// When it was seen, in milliseconds since 1970-01-01 00:00 UTC.
    pub unix_ms: u64,
}

/// The marks of now.
pub fn marks(world: &World) -> Marks {
    let all = world.remotes();
    let remote = |remote: &RemoteFigures| {
        let (state, reconnects) = (remote.state.name(), remote.reconnects.unwrap_or(0));
        (remote.shown.clone(), RemoteMark { state: state.to_owned(), reconnects })
    };
    let mark = |volume: Arc<MappedDevice>| {
        let table = volume.live_table();
        let lines = table.iter().flat_map(|table| table.lines());
        let text = lines.map(|line| {
            let (start, len) = (line.start.0, line.len.0);
            format!("{start} {len} {} {}\n", line.name, line.target.table())
        });
        let mark = Mark {
            event_nr: volume.event_nr(),
            losses: volume.failures(),
            suspended: volume.is_suspended(),
            table: crc32c::crc32c(text.collect::<String>().as_bytes()),
            remotes: remotes_of(&volume, &all).into_iter().map(remote).collect(),
        };
        (volume.volume().to_owned(), mark)
    };
    let volumes = world.volumes().into_iter().map(mark).collect();
    Marks { server: world.start_number(), volumes }
}

/// What happened between two sets of marks, by volume.
pub fn events_between(before: &Marks, now: &Marks, unix_ms: u64) -> Vec<VolumeEvent> {
    let mut all = Vec::new();
    let mut add = |name: &str, device: Option<&str>, what: &str, event_nr| {
        let (name, what, device) = (name.to_owned(), what.to_owned(), device.map(str::to_owned));
        all.push(VolumeEvent { name, what, device, event_nr, unix_ms });
    };
    for (name, mark) in &before.volumes {
        if !now.volumes.contains_key(name) {
            add(name, None, "removed", mark.event_nr);
        }
    }
    for (name, mark) in &now.volumes {
        let Some(earlier) = before.volumes.get(name) else {
            add(name, None, "created", mark.event_nr);
            continue;
        };
        let is_same = before.server == now.server;
        let (events, losses) = if is_same { (earlier.event_nr, earlier.losses) } else { (0, 0) };
        let changes = [
            ("table", mark.table != earlier.table),
            ("suspended", mark.suspended && !earlier.suspended),
            ("resumed", !mark.suspended && earlier.suspended),
            // Less than before: it is another volume of this name, and has none yet.
            ("loss", mark.losses > losses),
            ("event", mark.event_nr > events),
        ];
        for (what, _) in changes.into_iter().filter(|(_, is_new)| *is_new) {
            add(name, None, what, mark.event_nr);
        }
        for (device, remote) in &mark.remotes {
            let before = earlier.remotes.get(device).filter(|_| is_same);
            if let Some(what) = remote.since(before) {
                add(name, Some(device), what, mark.event_nr);
            }
        }
    }
    all
}

impl RemoteMark {
    /// What happened to the disk, if anything. One that was not there before was connected.
    fn since(&self, before: Option<&RemoteMark>) -> Option<&str> {
        let connected = RemoteState::Connected.name();
        let (state, reconnects) =
            before.map_or((connected, self.reconnects), |it| (&it.state, it.reconnects));
        match self.state == connected {
            // A disk that was lost and found between two looks has an event, too. Fewer reconnects
            // than before: it was opened again.
            true if state != connected || self.reconnects > reconnects => Some("reconnected"),
            false if self.state != state => Some(&self.state),
            _ => None,
        }
    }
}

/// What happened since marks that a caller has, with the status lines of the volumes that are
/// still there.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct EventsSince {
    /// In the order of names.
    pub events: Vec<VolumeEvent>,
    /// The status lines of now.
    pub status: Vec<VolumeLines>,
    /// What the caller has seen with this answer.
    pub marks: Marks,
}

impl EventsSince {
    /// What happened until now.
    pub fn look(world: &World, before: &Marks) -> EventsSince {
        let now = marks(world);
        let unix_ms = world.unix_time().as_millis() as u64;
        let events = events_between(before, &now, unix_ms);
        let mut names: Vec<&str> = events.iter().map(|event| event.name.as_str()).collect();
        names.dedup();
        // One that was removed has none.
        let lines = |name: &&str| report::status(world, Some(name)).unwrap_or_default();
        let status = names.iter().flat_map(lines).collect();
        EventsSince { events, status, marks: now }
    }
}

#[cfg(test)]
mod tests {
    use super::{Mark, Marks, RemoteMark, events_between};

    fn marks<const N: usize>(all: [(&str, Mark); N]) -> Marks {
        Marks { server: 1, volumes: all.map(|(name, mark)| (name.to_owned(), mark)).into() }
    }

    #[test]
    fn each_difference_between_two_marks_is_an_event() {
        let remotes = Default::default();
        let quiet = Mark { event_nr: 3, losses: 0, suspended: false, table: 1, remotes };
        let before = marks([("gone", quiet.clone()), ("vm", quiet.clone())]);
        assert_eq!(events_between(&before, &before, 7), []);
        let busy = Mark { event_nr: 5, losses: 1, suspended: true, table: 2, ..quiet.clone() };
        let now = marks([("new", quiet.clone()), ("vm", busy.clone())]);
        let told = |before, now| {
            let events = events_between(before, now, 7).into_iter();
            events.map(|it| format!("{} {} {}", it.name, it.what, it.event_nr)).collect::<Vec<_>>()
        };
        let expected =
            ["gone removed 3", "new created 3", "vm table 5", "vm suspended 5", "vm loss 5"];
        assert_eq!(told(&before, &now)[..5], expected);
        assert_eq!(told(&before, &now)[5..], ["vm event 5"]);
        let resumed = marks([("new", quiet), ("vm", Mark { suspended: false, ..busy })]);
        assert_eq!(told(&now, &resumed), ["vm resumed 5"]);
        let counts = Mark { event_nr: 0, losses: 0, ..resumed.volumes["vm"].clone() };
        let restarted = Marks { server: 2, ..marks([("new", counts.clone()), ("vm", counts)]) };
        assert_eq!(told(&resumed, &restarted), ["new table 0"], "its events count from 0 again");
    }

    #[test]
    fn a_remote_disk_that_is_lost_or_found_is_an_event_of_its_volumes() {
        let at = |state: &str, reconnects| {
            let mark = RemoteMark { state: state.to_owned(), reconnects };
            let remotes = [("nbd://h/x".to_owned(), mark)].into();
            marks([("vm", Mark { event_nr: 0, losses: 0, suspended: false, table: 1, remotes })])
        };
        for (before, now, expected) in [
            (("connected", 2), ("connected", 2), None),
            (("connected", 2), ("reconnecting", 2), Some("reconnecting")),
            (("reconnecting", 2), ("reconnecting", 2), None),
            (("reconnecting", 2), ("unreachable", 2), Some("unreachable")),
            (("unreachable", 2), ("connected", 3), Some("reconnected")),
            // Lost and found between two looks.
            (("connected", 2), ("connected", 3), Some("reconnected")),
            // Opened again.
            (("connected", 2), ("connected", 0), None),
            (("connected", 0), ("fenced", 0), Some("fenced")),
        ] {
            let found = events_between(&at(before.0, before.1), &at(now.0, now.1), 7);
            let [found, more] = [0, 1].map(|it| found.get(it));
            assert_eq!(found.map(|event| event.what.as_str()), expected, "{before:?} {now:?}");
            let device = expected.is_some().then_some("nbd://h/x");
            assert_eq!(found.and_then(|event| event.device.as_deref()), device);
            assert_eq!(more, None);
        }
    }
}
