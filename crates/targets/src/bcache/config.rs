//! The table line of bcache: parsing, and which devices make which volume.
//!
//! The kernel has no table line for bcache; it takes devices and attributes through sysfs. Names of
//! options are those of sysfs where there is such an attribute; the others are cairn's own.

use cairn_block::{ConfigError, Ctor, Events, SectorCount, TableLine};
use cairn_format::bcache::Uuid;

use super::flushing::{self, Flushing};
use crate::args::{Args, Device};
use crate::spec::{Arg, Group, Kind, NO_DEVICE, Opt, Span, Spec, Use};

const UUID: &[Arg] = &[Arg::word("uuid", Kind::Uuid, "")];

const OPTIONS: &[Opt] = &[
    Opt::new("set", UUID, "the set that the devices must belong to").own().once(),
    Opt::new("flash", UUID, "the volume without a backing device to serve").own().once(),
    Opt::new("keep_clean", &[], "clean data counts whatever the kernel did with it").own().once(),
    Opt::new("stale_ok", &[], "without the cache: reads what it may have had newer").own().once(),
    Opt::new("attach", &[], "the backing device joins the set, if it is not of it").own().once(),
    Opt::new("force", UUID, "without the cache of this set: gives up what it had").own().once(),
];

/// What `bcache` declares.
pub const SPEC: Spec = Spec {
    own: true,
    group: Group {
        count: "#options",
        item: "option",
        most: 9,
        needed: true,
        prints_zero: true,
        options: OPTIONS,
    },
    status_fields: super::status::STATUS_FIELDS,
    messages: super::message::MESSAGES,
    measure: Some(super::measure::MEASURE),
    ..Spec::plain(
        "bcache",
        [1, 0, 0],
        &[
            Arg::device("backing", Use::Owns(Span::Whole), "the slow device; `-`: none")
                .or_none()
                .with_set(),
            Arg::device("cache", Use::Owns(Span::Whole), "the fast device; `-`: none").or_none(),
        ],
    )
};

const LAB_OPTIONS: [Opt; OPTIONS.len() + 1] = {
    let mut all = [flushing::OPTION; OPTIONS.len() + 1];
    let mut at = 0;
    while at < OPTIONS.len() {
        all[at] = OPTIONS[at];
        at += 1;
    }
    all
};

/// The same, with the words that only experiments have.
pub(super) const LAB_SPEC: Spec = Spec {
    group: Group { most: 11, options: &LAB_OPTIONS, ..SPEC.group },
    measure: Some(super::measure::LAB_MEASURE),
    ..SPEC
};

/// Makes a line of this target one whose backing device has joined the set: the word that asks for
/// that has been acted upon. One that is wrong stays as it is.
pub fn without_attach(line: &mut TableLine) {
    if line.target != SPEC.name {
        return;
    }
    let (words, split) = SPEC.split(line.args.iter().map(String::as_str));
    if split.is_err() || words.option(&SPEC, "attach").is_none() {
        return;
    }
    // A device may have this name, too.
    let mut options = line.args.split_off(3);
    options.retain(|word| !word.eq_ignore_ascii_case("attach"));
    line.args[2] = options.len().to_string();
    line.args.append(&mut options);
}

/// Makes a line of this target one whose cache is gone; what the cache may have newer is read as it
/// is on the backing device if `stale_ok`. Answers whether it is a line of this target. One that is
/// wrong stays as it is: it is refused when the table is built.
pub fn without_cache(line: &mut TableLine, stale_ok: bool) -> bool {
    if line.target != SPEC.name {
        return false;
    }
    let (words, split) = SPEC.split(line.args.iter().map(String::as_str));
    if split.is_err() {
        return true;
    }
    let has_word = words.option(&SPEC, "stale_ok").is_some();
    without_attach(line);
    line.args[1] = NO_DEVICE.to_owned();
    let mut options = line.args.split_off(3);
    options.retain(|word| !word.eq_ignore_ascii_case("keep_clean"));
    if stale_ok && !has_word {
        options.push("stale_ok".to_owned());
    }
    line.args[2] = options.len().to_string();
    line.args.append(&mut options);
    true
}

/// The same for a line whose backing device has left its set, so that it needs no other word.
pub(super) fn leave_set(args: &mut Args) {
    args.set_no_device("cache");
    ["set", "keep_clean", "attach"].into_iter().for_each(|option| args.set_flag(option, false));
}

/// The devices of a volume.
#[derive(Clone)]
pub(super) enum Devices {
    /// A backing device with its cache.
    Cached { backing: Device, cache: Device },
    /// A backing device alone.
    Bare {
        backing: Device,
        /// What the cache may have newer is read as it is.
        stale_ok: bool,
        /// What only the cache of this set has is given up.
        force: Option<Uuid>,
    },
    /// A volume that is all in the cache.
    Flash { cache: Device, volume: Uuid },
}

/// A parsed table line with its devices.
#[derive(Clone)]
pub(super) struct Config {
    /// The name of the volume, for the log.
    pub volume: String,
    /// The events of the volume.
    pub events: Events,
    pub devices: Devices,
    /// The set that the devices must belong to.
    pub set: Option<Uuid>,
    /// Clean data counts that may differ from the backing device.
    pub keeps_clean: bool,
    /// The backing device joins the set (`attach`).
    pub attach: bool,
    pub flushing: Flushing,
    pub len: SectorCount,
    pub args: Args,
}

impl Config {
    /// Parses the words after the target's name and opens the devices.
    pub fn parse(spec: &'static Spec, ctor: &Ctor<'_>) -> Result<Config, ConfigError> {
        let args = Args::parse(spec, ctor)?;
        let (backing, cache) = (args.optional_device("backing"), args.optional_device("cache"));
        let (stale_ok, attach, force) =
            (args.has("stale_ok"), args.has("attach"), args.uuid("force"));
        let devices = match (backing, cache, args.uuid("flash")) {
            (None, None, _) => {
                return Err(args.refuse("backing", "'-' with cache '-'", "a device at least"));
            }
            (None, Some(cache), Some(volume)) => Devices::Flash { cache, volume },
            (None, Some(_), None) => {
                let expected = "the option flash <uuid> where backing is '-'";
                return Err(args.refuse("flash", "nothing", expected));
            }
            (Some(_), _, Some(volume)) => {
                let found = format!("'{volume}' with a backing device");
                return Err(args.refuse("flash", found, "'-' as backing"));
            }
            (Some(backing), None, None) => Devices::Bare { backing, stale_ok, force },
            (Some(backing), Some(cache), None) => Devices::Cached { backing, cache },
        };
        if stale_ok && !matches!(devices, Devices::Bare { .. }) {
            return Err(args.refuse("stale_ok", "it with a cache", "'-' as cache"));
        }
        let keeps_clean = args.has("keep_clean");
        if keeps_clean && !matches!(devices, Devices::Cached { .. }) {
            let expected = "a backing device and a cache";
            return Err(args.refuse("keep_clean", "it with one device", expected));
        }
        if force.is_some() && !matches!(devices, Devices::Bare { .. }) {
            return Err(args.refuse("force", "it with a cache", "'-' as cache"));
        }
        if force.is_some() && stale_ok {
            return Err(args.refuse("stale_ok", "it with force", "one of both"));
        }
        if attach && !matches!(devices, Devices::Cached { .. }) {
            let found = "it without both devices";
            return Err(args.refuse("attach", found, "a backing device and a cache"));
        }
        let (volume, events, len) =
            (ctor.events.volume().to_owned(), ctor.events.clone(), ctor.len);
        let set = args.uuid("set");
        let flushing = args.word("flushes").and_then(Flushing::of_word);
        let flushing = flushing.unwrap_or(Flushing::OURS);
        Ok(Config { volume, events, devices, set, keeps_clean, attach, flushing, len, args })
    }
}

impl Devices {
    /// The cache device.
    pub fn cache(&self) -> Option<&Device> {
        match self {
            Devices::Cached { cache, .. } | Devices::Flash { cache, .. } => Some(cache),
            Devices::Bare { .. } => None,
        }
    }

    /// The backing device.
    pub fn backing(&self) -> Option<&Device> {
        match self {
            Devices::Cached { backing, .. } | Devices::Bare { backing, .. } => Some(backing),
            Devices::Flash { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::with_ctor;

    const ID: &str = "00112233-4455-6677-8899-aabbccddeeff";

    fn parse_by(spec: &'static Spec, line: &str) -> Result<Config, String> {
        with_ctor(line, |ctor| Config::parse(spec, ctor).map_err(|error| error.to_string()))
    }

    fn parse(line: &str) -> Result<String, String> {
        parse_by(&SPEC, line).map(|config| config.args.to_string())
    }

    #[test]
    fn policies_of_flushes_are_words_of_experiments_only() {
        let word_of = |option: &Opt| match option.values[0].kind {
            Kind::Word(words) => words.to_vec(),
            _ => Vec::new(),
        };
        let words = word_of(&flushing::OPTION);
        assert!(words.len() > 5, "{words:?}");
        for word in words {
            let line = format!("/o /c 2 flushes {word}");
            let refused = parse(&line).expect_err("no word of servers");
            assert!(refused.contains("option: found 'flushes', expected one of set"), "{refused}");
            let config = parse_by(&LAB_SPEC, &line).map_err(|error| panic!("{error}"));
            let config = config.expect("a word of experiments");
            assert_eq!(config.args.to_string(), line);
            assert_eq!(config.flushing, Flushing::of_word(word).expect("a policy"));
        }
        let plain = parse_by(&LAB_SPEC, "/o /c 0").map(|config| config.flushing);
        assert_eq!(plain, Ok(Flushing::OURS));
    }

    #[test]
    fn a_line_prints_as_it_was_given() {
        for line in [
            "/o /c 0".to_owned(),
            format!("/o /c 2 set {ID}"),
            "/o - 1 stale_ok".to_owned(),
            "/o /c 1 attach".to_owned(),
            format!("/o /c 3 set {ID} attach"),
            format!("/o - 2 force {ID}"),
            format!("- /c 4 set {ID} flash {ID}"),
        ] {
            assert_eq!(parse(&line).as_deref(), Ok(line.as_str()));
        }
        for line in ["/o /c 1 keep_clean".to_owned(), format!("/o /c 3 set {ID} keep_clean")] {
            assert_eq!(parse(&line).as_deref(), Ok(line.as_str()));
        }
        let plain = ID.replace('-', "").to_uppercase();
        assert_eq!(parse(&format!("/o /c 2 SET {plain}")), Ok(format!("/o /c 2 set {ID}")));
    }

    #[test]
    fn a_line_without_its_cache_keeps_its_set_and_its_backing_device() {
        let rewritten = |text: &str, stale_ok| {
            let mut line = TableLine::parse(text).expect("a line");
            without_cache(&mut line, stale_ok).then(|| line.to_string())
        };
        let of = |words: &str| Some(format!("0 8 bcache {words}"));
        assert_eq!(rewritten("0 8 bcache /o /c 0", false), of("/o - 0"));
        assert_eq!(rewritten("0 8 bcache /o /c 0", true), of("/o - 1 stale_ok"));
        assert_eq!(rewritten("0 8 bcache /o - 1 STALE_OK", true), of("/o - 1 STALE_OK"));
        let (line, expected) = (format!("/o /c 2 set {ID}"), format!("/o - 3 set {ID} stale_ok"));
        assert_eq!(rewritten(&format!("0 8 bcache {line}"), true), of(&expected));
        assert_eq!(rewritten("0 8 bcache /o /c 1 keep_clean", false), of("/o - 0"));
        assert_eq!(rewritten("0 8 bcache /o /c 1 KEEP_CLEAN", true), of("/o - 1 stale_ok"));
        assert_eq!(rewritten("0 8 bcache /o /c 1 ATTACH", false), of("/o - 0"));
        assert_eq!(rewritten("0 8 bcache /o /c 1 attach", true), of("/o - 1 stale_ok"));
        assert_eq!(rewritten("0 8 bcache /o", true), of("/o"));
        assert_eq!(rewritten("0 8 linear /o 0", true), None);
    }

    #[test]
    fn word_that_asks_for_an_attach_is_dropped_once_it_was_acted_upon() {
        for (words, expected) in [
            ("bcache /o /c 1 attach", "bcache /o /c 0".to_owned()),
            (&format!("bcache /o /c 3 set {ID} Attach"), format!("bcache /o /c 2 set {ID}")),
            (&format!("bcache /o /c 2 set {ID}"), format!("bcache /o /c 2 set {ID}")),
            ("bcache attach /c 1 attach", "bcache attach /c 0".to_owned()),
            ("linear attach 0", "linear attach 0".to_owned()),
        ] {
            let mut line = TableLine::parse(&format!("0 8 {words}")).expect("a line");
            without_attach(&mut line);
            assert_eq!(line.to_string(), format!("0 8 {expected}"));
        }
    }

    #[test]
    fn wrong_words_are_named_with_what_was_expected() {
        for (line, part) in [
            ("/o /c", "#options: found nothing"),
            ("- - 0", "backing: found '-' with cache '-', expected a device at least"),
            ("- /c 0", "flash: found nothing, expected the option flash <uuid>"),
            ("/o /c 2 set 12", "set: found '12', expected a UUID of 32 hexadecimal digits"),
            ("/o /c 1 stale_ok", "stale_ok: found it with a cache, expected '-' as cache"),
            ("/o /c 2 flash 00112233445566778899aabbccddeeff", "flash: found '00112233-4455"),
            (
                "/o - 1 keep_clean",
                "keep_clean: found it with one device, expected a backing device",
            ),
            ("/o - 1 attach", "attach: found it without both devices, expected a backing device"),
            ("/o /c 2 force 00112233445566778899aabbccddeeff", "force: found it with a cache"),
            (
                "/o /c 1 shiny",
                "option: found 'shiny', expected one of set, flash, keep_clean, stale_ok, attach",
            ),
        ] {
            let error = parse(line).expect_err(line);
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
