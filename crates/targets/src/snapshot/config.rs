//! The table lines of snapshots: the words, their order, and how they are printed.

use cairn_block::{Attribute, ConfigError, ConfigKind, Ctor, Sector};
use cairn_format::snapshot::ChunkSize;

use crate::args::{Args, Device};
use crate::spec::{self, Arg, Group, Opt, Spec, Use};

const ZEROES: &str = "discard_zeroes_cow";
const PASSDOWN: &str = "discard_passdown_origin";
const FILL: &str = "fill_event";
const WAIT: &str = "wait_for_room";

const FEATURES: &[Opt] = &[
    Opt::new(ZEROES, &[], "discards are taken, and zero chunks that have an exception"),
    Opt::new(PASSDOWN, &[], "discards go to the origin as well; only with discard_zeroes_cow"),
    Opt::new(FILL, &[Arg::number("percent", 1, 100, "")], "raises an event when so full").own(),
    Opt::new(
        WAIT,
        &[Arg::number("seconds", 1, 3600, "")],
        "a write to the origin waits so long for a full store to grow",
    )
    .own(),
];

const fn spec(name: &'static str, version: [u32; 3], arguments: &'static [Arg]) -> Spec {
    // Both features of the kernel and our pairs.
    let group = Group::features(6, false, FEATURES);
    let status_fields = super::status::STATUS_FIELDS;
    Spec { group, status_fields, ..Spec::plain(name, version, arguments) }
}

const fn arguments(origin: Use) -> [Arg; 4] {
    let store = spec::Kind::Spelled("P, PO or N", Kind::spelled);
    [
        Arg::device("origin", origin, "the device whose content is kept").gives_length(),
        Arg::device("cow", Use::Shares, "the device that keeps it"),
        Arg::word("store", store, "where exceptions are kept"),
        Arg::number("chunk_size", 0, u32::MAX as u64, "in sectors; 0: as the store, or 32"),
    ]
}

const ARGUMENTS: &[Arg] = &arguments(Use::Follows);
/// A merge writes the origin.
const MERGE_ARGUMENTS: &[Arg] = &arguments(Use::Shares);

/// What `snapshot` declares.
pub const SNAPSHOT_SPEC: Spec = spec("snapshot", [1, 16, 0], ARGUMENTS);

/// What `snapshot-merge` declares.
pub const MERGE_SPEC: Spec = spec("snapshot-merge", [1, 5, 0], MERGE_ARGUMENTS);

/// What `snapshot-origin` declares.
pub const ORIGIN_SPEC: Spec = Spec::plain(
    "snapshot-origin",
    [1, 9, 0],
    &[Arg::device("origin", Use::Shares, "the device").gives_length()],
);

/// Where exceptions are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `P`: on the device; a write that finds no room ends the snapshot.
    Persistent,
    /// `PO`: on the device; such a write fails, and the snapshot goes on for readers.
    PersistentOverflow,
    /// `N`: in memory.
    Transient,
}

impl Kind {
    /// How a word is printed: letters after these do not matter, nor does case.
    fn spelled(word: &str) -> Option<&'static str> {
        let mut letters = word.chars().map(|letter| letter.to_ascii_uppercase());
        match (letters.next(), letters.next()) {
            (Some('N'), _) => Some("N"),
            (Some('P'), None) => Some("P"),
            (Some('P'), Some('O')) => Some("PO"),
            _ => None,
        }
    }

    pub fn is_persistent(self) -> bool {
        self != Kind::Transient
    }
}

/// A parsed table line with its devices.
#[derive(Clone)]
pub(super) struct Config {
    pub origin: Device,
    pub cow: Device,
    pub kind: Kind,
    /// As the table says it, then as the store's header does.
    pub chunk: ChunkSize,
    /// The table left the chunk size open.
    pub any_chunk: bool,
    pub discard_zeroes_cow: bool,
    pub discard_passdown_origin: bool,
    pub fill_event_percent: Option<u64>,
    /// How long a write to the origin that finds no room waits for the store to grow.
    pub wait_for_room_s: Option<u64>,
    /// The snapshot's range of the mapped device, which is that of the origin.
    pub start: Sector,
    pub end: Sector,
    args: Args,
}

impl Config {
    /// Parses the words after the target's name and opens the devices.
    pub fn parse(spec: &'static Spec, ctor: &Ctor<'_>) -> Result<Config, ConfigError> {
        let args = Args::parse(spec, ctor)?;
        let (origin, cow) = (args.device("origin"), args.device("cow"));
        let kind = match args.word("store") {
            Some("N") => Kind::Transient,
            Some("P") => Kind::Persistent,
            _ => Kind::PersistentOverflow,
        };
        let sectors = args.number("chunk_size") as u32;
        let limits = [&origin, &cow].map(|device| device.disk.limits().logical_block);
        let chunk = ChunkSize::from_table(sectors, limits[0].max(limits[1])).map_err(|error| {
            ConfigError::new(ConfigKind::Argument, spec.name, error.to_string())
        })?;
        if args.has(PASSDOWN) && !args.has(ZEROES) {
            return Err(args.refuse("features", PASSDOWN, "discard_zeroes_cow beside it"));
        }
        Ok(Config {
            origin,
            cow,
            kind,
            chunk,
            any_chunk: sectors == 0,
            discard_zeroes_cow: args.has(ZEROES),
            discard_passdown_origin: args.has(PASSDOWN),
            fill_event_percent: args.given(FILL),
            wait_for_room_s: args.given(WAIT),
            start: ctor.start,
            end: ctor.start + ctor.len,
            args,
        })
    }

    /// The features as attributes.
    pub fn attributes(&self) -> Vec<Attribute> {
        self.args.attributes()
    }

    /// The words after the target's name, as the kernel prints them.
    pub fn print(&self) -> String {
        let mut args = self.args.clone();
        args.set_number("chunk_size", u64::from(self.chunk.sectors()));
        args.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::with_ctor;

    fn parse(line: &str) -> Result<Config, String> {
        with_ctor(line, |ctor| {
            Config::parse(&SNAPSHOT_SPEC, ctor).map_err(|error| error.to_string())
        })
    }

    #[test]
    fn lines_print_as_the_kernel_prints_them() {
        for (line, printed) in [
            ("/o /c p 8", "/o /c P 8"),
            ("/o /c Po 16", "/o /c PO 16"),
            ("/o /c pOverflow 16 0", "/o /c PO 16"),
            ("/o /c N 0", "/o /c N 32"),
            ("/o /c P 8 1 DISCARD_ZEROES_COW", "/o /c P 8 1 discard_zeroes_cow"),
            (
                "/o /c P 8 4 fill_event 80 discard_passdown_origin discard_zeroes_cow",
                "/o /c P 8 4 discard_zeroes_cow discard_passdown_origin fill_event 80",
            ),
            ("/o /c PO 8 2 WAIT_FOR_ROOM 30", "/o /c PO 8 2 wait_for_room 30"),
        ] {
            assert_eq!(parse(line).unwrap().print(), printed);
            assert_eq!(parse(printed).unwrap().print(), printed);
        }
    }

    #[test]
    fn the_kernel_is_not_told_our_own_words() {
        for (line, kernels) in [
            ("/o /c P 8", "/o /c P 8"),
            ("/o /c P 8 2 fill_event 80", "/o /c P 8"),
            ("/o /c P 8 4 fill_event 80 wait_for_room 30", "/o /c P 8"),
            ("/o /c P 8 3 discard_zeroes_cow fill_event 80", "/o /c P 8 1 discard_zeroes_cow"),
        ] {
            assert_eq!(SNAPSHOT_SPEC.kernel_words(line), kernels);
        }
    }

    #[test]
    fn wrong_words_are_named_with_what_was_expected() {
        for (line, part) in [
            ("/o /c X 8", "store: found 'X', expected P, PO or N"),
            ("/o /c PX 8", "store: found 'PX'"),
            ("/o /c P", "chunk_size: found nothing"),
            ("/o /c P 24", "chunk size: found 24 sectors"),
            ("/o /c P 8 1 shiny", "option: found 'shiny'"),
            ("/o /c P 8 1 discard_passdown_origin", "discard_zeroes_cow beside it"),
            ("/o /c P 8 2 fill_event 0", "fill_event: found '0'"),
            ("/o /c P 8 2 wait_for_room 3601", "wait_for_room: found '3601'"),
            ("/o /c P 8 0 more", "more"),
        ] {
            let error = parse(line).err().expect(line);
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
