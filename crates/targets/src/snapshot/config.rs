//! The table lines of snapshots: the words, their order, and how they are printed.

use cairn_block::{ConfigError, ConfigKind, Ctor, Sector};
use cairn_format::snapshot::ChunkSize;

use crate::args::{Args, Device, OptionSpec, Spec};

/// What the parser and the manual of `snapshot` know.
pub const SNAPSHOT_SPEC: Spec =
    Spec { options: OPTIONS, status_fields: super::status::STATUS_FIELDS, messages: &[] };

/// What the parser and the manual of `snapshot-merge` know.
pub const MERGE_SPEC: Spec =
    Spec { options: OPTIONS, status_fields: super::status::STATUS_FIELDS, messages: &[] };

/// What the parser and the manual of `snapshot-origin` know.
pub const ORIGIN_SPEC: Spec = Spec::NONE;

const ZEROES: &str = "discard_zeroes_cow";
const PASSDOWN: &str = "discard_passdown_origin";
const FILL: &str = "fill_event";
const WAIT: &str = "wait_for_room";

/// Longest time that a write waits for room.
const WAIT_SECONDS_MAX: u64 = 3600;

const OPTIONS: &[OptionSpec] = &[
    OptionSpec::new(ZEROES, &[]),
    OptionSpec::new(PASSDOWN, &[]),
    OptionSpec::new(FILL, &["percent"]),
    OptionSpec::new(WAIT, &["seconds"]),
];

/// Most words of features: both of the kernel's and our pairs.
const FEATURE_WORDS_MAX: usize = 6;

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
    fn of_word(word: &str) -> Option<Kind> {
        let mut letters = word.chars().map(|letter| letter.to_ascii_uppercase());
        match (letters.next(), letters.next()) {
            (Some('N'), _) => Some(Kind::Transient),
            (Some('P'), None) => Some(Kind::Persistent),
            (Some('P'), Some('O')) => Some(Kind::PersistentOverflow),
            _ => None,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Kind::Persistent => "P",
            Kind::PersistentOverflow => "PO",
            Kind::Transient => "N",
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
}

impl Config {
    /// Parses the words after the target's name and opens the devices.
    pub fn parse(target: &'static str, ctor: &Ctor<'_>) -> Result<Config, ConfigError> {
        let mut args = Args::new(target, ctor);
        let (origin, cow) = (args.device("origin")?, args.device("cow")?);
        let word = args.word("store")?;
        let kind = Kind::of_word(word)
            .ok_or_else(|| args.refuse("store", format!("'{word}'"), "P, PO or N"))?;
        let sectors = args.number("chunk_size", 0..=u64::from(u32::MAX))? as u32;
        let limits = [&origin, &cow].map(|device| device.disk.limits().logical_block);
        let chunk = ChunkSize::from_table(sectors, limits[0].max(limits[1]))
            .map_err(|error| ConfigError::new(ConfigKind::Argument, target, error.to_string()))?;
        let mut config = Config {
            origin,
            cow,
            kind,
            chunk,
            any_chunk: sectors == 0,
            discard_zeroes_cow: false,
            discard_passdown_origin: false,
            fill_event_percent: None,
            wait_for_room_s: None,
            start: ctor.start,
            end: ctor.start + ctor.len,
        };
        let mut features = args.group("#features", FEATURE_WORDS_MAX)?;
        while let Some(word) = features.option(OPTIONS)? {
            match word {
                ZEROES => config.discard_zeroes_cow = true,
                PASSDOWN => config.discard_passdown_origin = true,
                FILL => config.fill_event_percent = Some(features.number(FILL, 1..=100)?),
                _ => {
                    let seconds = features.number(WAIT, 1..=WAIT_SECONDS_MAX)?;
                    config.wait_for_room_s = Some(seconds);
                }
            }
        }
        if config.discard_passdown_origin && !config.discard_zeroes_cow {
            let expected = "discard_zeroes_cow beside it";
            return Err(args.refuse("features", PASSDOWN, expected));
        }
        args.finish()?;
        Ok(config)
    }

    /// The words after the target's name, as the kernel prints them.
    pub fn print(&self) -> String {
        let mut features = Vec::new();
        if self.discard_zeroes_cow {
            features.push(ZEROES.to_owned());
        }
        if self.discard_passdown_origin {
            features.push(PASSDOWN.to_owned());
        }
        if let Some(percent) = self.fill_event_percent {
            features.extend([FILL.to_owned(), percent.to_string()]);
        }
        if let Some(seconds) = self.wait_for_room_s {
            features.extend([WAIT.to_owned(), seconds.to_string()]);
        }
        let (origin, cow) = (&self.origin.argument, &self.cow.argument);
        let (kind, chunk) = (self.kind.word(), self.chunk.sectors());
        let mut text = format!("{origin} {cow} {kind} {chunk}");
        if !features.is_empty() {
            text.push_str(&format!(" {} {}", features.len(), features.join(" ")));
        }
        text
    }
}

/// The words of a table line as the kernel takes them: without what only cairn knows.
#[must_use]
pub fn kernel_words(params: &str) -> String {
    let mut words: Vec<&str> = params.split(' ').collect();
    let all = words.len();
    for own in [FILL, WAIT] {
        if let Some(at) = words.iter().position(|word| *word == own) {
            words.drain(at..(at + 2).min(words.len()));
        }
    }
    if words.len() == all {
        return params.to_owned();
    }
    let rest = words.split_off(words.len().min(5));
    words.truncate(4);
    let mut text = words.join(" ");
    if !rest.is_empty() {
        text.push_str(&format!(" {} {}", rest.len(), rest.join(" ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::with_ctor;

    fn parse(line: &str) -> Result<Config, String> {
        with_ctor(line, |ctor| Config::parse("snapshot", ctor).map_err(|error| error.to_string()))
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
            assert_eq!(kernel_words(line), kernels);
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
