//! What a file may say about an experiment.
//!
//! ```toml
//! title = "Dirty data goes to one disk"
//! variants = ["strict", "sweep"]
//!
//! [drive.cache]
//! model = "nvme"
//! size = "10G"
//!
//! [drive.backing]
//! model = "hdd"
//! size = "100G"
//!
//! [[volume]]
//! name = "disk"
//! table = "0 N bcache backing cache 0"
//! messages = ["set writeback_policy {variant}"]
//!
//! [end]
//! clean = "disk"
//! at_most = "8h"
//! ```
//!
//! Tables and messages are those of `cairn serve`; devices are the names of drives, or of volumes
//! before. A cache is filled before the first volume that uses it is opened. Both may have
//! [`Words`](super::words::Words).

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use cairn_backends::parse_size;
use cairn_block::{ConfigError, ConfigKind};
use cairn_outcome::failure::{Outcome, system, wrong};
use serde::Deserialize;

use super::clients::{Clients, RawClients, What};
use super::devices::{Changes, Model};
use super::words::Words;
use crate::fill;
use crate::page::LINES_MAX;

/// Words of an experiment: by name, and then by variant.
pub type OwnWords = BTreeMap<String, BTreeMap<String, String>>;

/// An experiment that has a meaning.
#[derive(Clone, Debug, PartialEq)]
pub struct Experiment {
    /// The file, for errors.
    pub file: String,
    /// One line.
    pub title: String,
    /// What it is for.
    pub about: String,
    /// Sizes are divided by this, and times are reported times this.
    pub scale: u64,
    /// Words that tell its runs apart; at least one.
    pub variants: Vec<String>,
    /// What each variant puts into tables and messages: by name, a word or more for each variant,
    /// by its word.
    pub words: OwnWords,
    /// By name, in the order of the names.
    pub drives: Vec<(String, Drive)>,
    /// What is there first.
    pub fill: Option<Fill>,
    /// In the order in which they are created.
    pub volumes: Vec<Volume>,
    /// Who uses them.
    pub clients: Vec<Clients>,
    /// Numbers of the volumes that are recorded, by their names.
    pub counts: Vec<String>,
    /// When a run ends.
    pub end: End,
}

/// A drive, or an array of drives.
#[derive(Clone, Debug, PartialEq)]
pub struct Drive {
    /// What kind.
    pub model: Model,
    /// How much it holds, scaled.
    pub bytes: u64,
    /// How its arms differ from their model.
    pub changes: Changes,
}

/// A cache that has data when a run begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Fill {
    /// The index of its drive.
    pub cache: usize,
    /// Whose data it has, to equal parts: devices, as in tables.
    pub backings: Vec<String>,
    /// How much of the cache is dirty, in percent.
    pub dirty_percent: f64,
    /// How much of it is clean data.
    pub clean_percent: f64,
    /// How it came there.
    pub pattern: fill::Pattern,
    /// Sectors that were written at once.
    pub block_sectors: u64,
    /// Whose cache it is.
    pub kind: FillKind,
}

/// A kind of cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FillKind {
    /// A set of bcache.
    Bcache {
        /// Sectors of a bucket.
        bucket_sectors: u64,
    },
    /// A writecache, which has dirty data only.
    Writecache {
        /// Bytes of a block of the cache.
        block_bytes: u32,
    },
}

/// A volume with its table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// As text.
    pub table: String,
    /// Sent once it is up.
    pub messages: Vec<String>,
}

/// When a run ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// When none of these volumes has dirty data, if there are some.
    pub clean: Vec<String>,
    /// When no client has anything left to send.
    pub when_sent: bool,
    /// Not before the dirty data of this volume, which is left then, is written back.
    pub drain: Option<String>,
    /// At this time, as reported.
    pub at_most: Duration,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawExperiment {
    title: String,
    #[serde(default)]
    about: String,
    scale: Option<u64>,
    #[serde(default)]
    variants: Vec<String>,
    #[serde(default)]
    words: OwnWords,
    #[serde(default)]
    drive: BTreeMap<String, RawDrive>,
    fill: Option<RawFill>,
    #[serde(default)]
    volume: Vec<RawVolume>,
    #[serde(default)]
    client: Vec<RawClients>,
    #[serde(default)]
    record: RawRecord,
    end: RawEnd,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRecord {
    counts: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawDrive {
    model: String,
    size: String,
    members: Option<u32>,
    flush: Option<String>,
    seek: Option<f64>,
    ncq: Option<f64>,
    cache: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFill {
    #[serde(default)]
    kind: RawFillKind,
    cache: String,
    backing: OneOrMany,
    #[serde(default)]
    dirty: f64,
    #[serde(default)]
    clean: f64,
    pattern: String,
    block: String,
    bucket: Option<String>,
    cache_block: Option<String>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RawFillKind {
    #[default]
    Bcache,
    Writecache,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawVolume {
    name: String,
    table: OneOrMany,
    #[serde(default)]
    messages: Vec<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    pub fn words(&self) -> &[String] {
        match self {
            OneOrMany::One(one) => std::slice::from_ref(one),
            OneOrMany::Many(many) => many,
        }
    }

    pub fn into_vec(self) -> Vec<String> {
        match self {
            OneOrMany::One(one) => vec![one],
            OneOrMany::Many(many) => many,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEnd {
    clean: Option<OneOrMany>,
    #[serde(default)]
    sent: bool,
    drain: Option<String>,
    at_most: String,
}

/// The largest block, and bucket.
const BLOCK_MAX: u64 = 16 << 20;
/// The largest drive.
const SIZE_MAX: u64 = 256 << 40;
/// How far the figures of an arm may be from their model.
const FACTORS: RangeInclusive<f64> = 0.1..=10.0;
/// The longest run, in virtual time.
const LONGEST: Duration = Duration::from_secs(50 * 86_400);
/// The shortest.
const SHORTEST: Duration = Duration::from_secs(1);

/// Sizes are rounded down to this, so that a scaled drive has whole buckets and chunks.
const SIZE_STEP: u64 = 4 << 20;

impl Experiment {
    /// Reads a TOML file.
    ///
    /// # Errors
    /// It cannot be read, is no TOML, or says something that has no meaning.
    pub fn read(path: &Path) -> Outcome<Experiment> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| system(&file, "read", error))?;
        Experiment::parse(&text, &file)
    }

    /// Parses and checks the text of a file.
    ///
    /// # Errors
    /// It is no TOML, or says something that has no meaning.
    pub fn parse(text: &str, file: &str) -> Outcome<Experiment> {
        let raw: RawExperiment = toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start));
            let line = before.map_or(1, |before| before.matches('\n').count() + 1);
            let detail = format!("line {line}: {}", error.message().replace('\n', " "));
            ConfigError::new(ConfigKind::Argument, file, detail)
        })?;
        let scale = raw.scale.unwrap_or(1);
        if !(1..=1 << 20).contains(&scale) {
            return Err(wrong(file, "scale", scale, "1 to 1048576"));
        }
        let drives = raw.drive.into_iter();
        let drives =
            drives.map(|(name, drive)| Ok((name.clone(), drive.judge(file, &name, scale)?)));
        let volumes = raw.volume.into_iter().map(|volume| Volume {
            name: volume.name,
            table: volume.table.into_vec().join("\n"),
            messages: volume.messages,
        });
        let is_plain = raw.variants.is_empty();
        let drives = drives.collect::<Outcome<Vec<_>>>()?;
        let experiment = Experiment {
            title: raw.title,
            about: raw.about,
            scale,
            variants: if is_plain { vec!["plain".to_owned()] } else { raw.variants },
            words: raw.words,
            fill: raw.fill.map(|fill| fill.judge(file, &drives)).transpose()?,
            drives,
            volumes: volumes.collect(),
            clients: raw
                .client
                .into_iter()
                .enumerate()
                .map(|(number, clients)| clients.judge(file, number))
                .collect::<Outcome<_>>()?,
            counts: raw.record.counts,
            end: End {
                clean: raw.end.clean.map(OneOrMany::into_vec).unwrap_or_default(),
                when_sent: raw.end.sent,
                drain: raw.end.drain,
                at_most: duration(file, "end at_most", &raw.end.at_most)?,
            },
            file: file.to_owned(),
        };
        experiment.refuse_contradictions()?;
        Ok(experiment)
    }

    fn refuse_contradictions(&self) -> Outcome<()> {
        let file = &self.file;
        if self.drives.is_empty() {
            return Err(wrong(file, "drive", "none", "one at least"));
        }
        let variants = self.variants.len();
        let is_twice = |(index, word)| self.variants[..index].contains(word);
        if variants > LINES_MAX || self.variants.iter().enumerate().any(is_twice) {
            let found = format!("{variants}: {}", self.variants.join(", "));
            let expected = format!("{LINES_MAX} at most, each once");
            return Err(wrong(file, "variants", found, expected));
        }
        self.expect_words()?;
        for (index, volume) in self.volumes.iter().enumerate() {
            if self.drives.iter().any(|(name, _)| *name == volume.name) {
                let found = format!("'{}', as a drive", volume.name);
                return Err(wrong(file, "volume name", found, "a name of its own"));
            }
            let is_other = |other: &Volume| other.name == volume.name;
            if self.volumes[..index].iter().any(is_other) {
                return Err(wrong(file, "volume name", format!("'{}' twice", volume.name), "once"));
            }
        }
        for clients in &self.clients {
            self.expect_volume(&format!("client '{}' volume", clients.name), &clients.volume)?;
            if matches!(clients.what, What::Trace { .. }) && self.scale > 1 {
                let field = format!("client '{}' trace", clients.name);
                let found = format!("a scale of {}", self.scale);
                return Err(wrong(file, &field, found, "1, as a trace has its own times"));
            }
        }
        let at_most = self.unscaled(self.end.at_most);
        if !(SHORTEST..=LONGEST).contains(&at_most) {
            let found = format!("{:?}, or {at_most:?} in virtual time", self.end.at_most);
            return Err(wrong(file, "end at_most", found, "1 s to 50 days in virtual time"));
        }
        for clean in &self.end.clean {
            self.expect_volume("end clean", clean)?;
        }
        if let Some(drain) = &self.end.drain {
            self.expect_volume("end drain", drain)?;
            if !self.end.when_sent {
                let expected = "'sent = true': it comes after that";
                return Err(wrong(file, "end drain", format!("'{drain}' alone"), expected));
            }
        }
        Ok(())
    }

    /// Refuses words that a device or the variant has, and such as not each variant has.
    fn expect_words(&self) -> Outcome<()> {
        for (name, words) in &self.words {
            let field = format!("words '{name}'");
            let mut devices = self.drives.iter().map(|(name, _)| name);
            let mut volumes = self.volumes.iter().map(|volume| &volume.name);
            if name == "variant" || devices.any(|it| it == name) || volumes.any(|it| it == name) {
                let found = "the name of a device, or 'variant'";
                return Err(wrong(&self.file, &field, found, "a name of its own"));
            }
            let has = |variant: &String| words.contains_key(variant);
            if words.len() != self.variants.len() || !self.variants.iter().all(has) {
                let found: Vec<&str> = words.keys().map(String::as_str).collect();
                let expected = format!("each variant once: {}", self.variants.join(", "));
                return Err(wrong(&self.file, &field, found.join(", "), expected));
            }
        }
        Ok(())
    }

    /// A reported time in virtual time.
    pub fn unscaled(&self, time: Duration) -> Duration {
        time / u32::try_from(self.scale).unwrap_or(u32::MAX)
    }

    /// Refuses a name that no volume has.
    ///
    /// # Errors
    /// It names no volume.
    pub fn expect_volume(&self, field: &str, name: &str) -> Outcome<()> {
        if self.volumes.iter().any(|volume| volume.name == name) {
            return Ok(());
        }
        let names: Vec<&str> = self.volumes.iter().map(|volume| &*volume.name).collect();
        let expected = format!("the name of a volume ({})", names.join(", "));
        Err(wrong(&self.file, field, format!("'{name}'"), expected))
    }

    /// True if a volume with this table uses the cache that is filled.
    pub fn uses(&self, table: &str, fill: &Fill) -> bool {
        let (cache, _) = &self.drives[fill.cache];
        // The first three words of a line are no devices.
        table.lines().any(|line| line.split_whitespace().skip(3).any(|word| word == cache))
    }

    /// What stands for something else in a run, before a volume is opened.
    pub fn words<'a>(&'a self, variant: &'a str, seed: u64) -> Words<'a> {
        let own = self.words.iter();
        let own = own.filter_map(|(name, words)| Some((&**name, &**words.get(variant)?)));
        let drives = self.drives.iter().map(|(name, drive)| (&**name, drive.bytes / 512));
        Words::new(variant, own.collect(), seed, drives)
    }
}

impl RawDrive {
    fn judge(self, file: &str, name: &str, scale: u64) -> Outcome<Drive> {
        let model = Model::of_word(&self.model, self.members).map_err(|expected| {
            let found = match self.members {
                Some(members) => format!("'{}' of {members}", self.model),
                None => format!("'{}'", self.model),
            };
            wrong(file, &format!("drive '{name}' model"), found, expected)
        })?;
        let field = format!("drive '{name}' size");
        let whole = size(file, &field, &self.size)?;
        let bytes = whole / scale / SIZE_STEP * SIZE_STEP;
        if bytes == 0 || whole > SIZE_MAX {
            let expected = format!("{} MiB to 256 TiB", (SIZE_STEP * scale) >> 20);
            return Err(wrong(file, &field, format!("'{}'", self.size), expected));
        }
        let changes = self.changes(file, name, model)?;
        Ok(Drive { model, bytes, changes })
    }

    /// Refuses changes of what a drive has not.
    fn changes(&self, file: &str, name: &str, model: Model) -> Outcome<Changes> {
        let field = |word: &str| format!("drive '{name}' {word}");
        let flush = |text: &String| duration(file, &field("flush"), text);
        let flush = self.flush.as_ref().map(flush).transpose()?;
        let factors = [("seek", self.seek), ("ncq", self.ncq), ("cache", self.cache)];
        let has_arm = model.has_arm();
        let mut words = factors.iter().filter(|(_, factor)| factor.is_some()).map(|(word, _)| word);
        if let Some(word) = flush.map(|_| &"flush").or_else(|| words.next()).filter(|_| !has_arm) {
            return Err(wrong(file, &field(word), "a drive without an arm", "one with an arm"));
        }
        if self.cache.is_some() && !model.has_arm_with_cache() {
            let expected = "one with a write cache";
            return Err(wrong(file, &field("cache"), "a drive without a write cache", expected));
        }
        for (word, factor) in factors {
            if let Some(factor) = factor.filter(|factor| !FACTORS.contains(factor)) {
                let expected = "0.1 to 10 times the model's";
                return Err(wrong(file, &field(word), factor, expected));
            }
        }
        let [seek, ncq, cache] = factors.map(|(_, factor)| factor.unwrap_or(1.0));
        Ok(Changes { flush, seek, ncq, cache })
    }
}

impl RawFill {
    fn judge(self, file: &str, drives: &[(String, Drive)]) -> Outcome<Fill> {
        let cache = drives.iter().position(|(own, _)| *own == self.cache);
        let unknown =
            || wrong(file, "fill cache", format!("'{}'", self.cache), "the name of a drive");
        let pattern = self.pattern.parse::<fill::Pattern>();
        let kind = self.judge_kind(file)?;
        Ok(Fill {
            kind,
            cache: cache.ok_or_else(unknown)?,
            backings: self.backing.into_vec(),
            dirty_percent: self.dirty,
            clean_percent: self.clean,
            pattern: pattern.map_err(|error| {
                ConfigError::new(ConfigKind::Argument, file, format!("fill: {error}"))
            })?,
            block_sectors: block(file, "fill block", &self.block)?,
        })
    }

    /// Refuses words of another kind.
    fn judge_kind(&self, file: &str) -> Outcome<FillKind> {
        let RawFill { bucket, cache_block, .. } = self;
        let refuse = |field: &str, found: &str, expected: &str| {
            Err(wrong(file, &format!("fill {field}"), format!("'{found}'"), expected))
        };
        match (self.kind, bucket, cache_block) {
            (RawFillKind::Bcache, bucket, None) => {
                let bucket = bucket.as_deref().unwrap_or("512K");
                Ok(FillKind::Bcache { bucket_sectors: block(file, "fill bucket", bucket)? })
            }
            (RawFillKind::Bcache, _, Some(found)) => {
                refuse("cache_block", found, "none: a bcache has buckets")
            }
            (RawFillKind::Writecache, Some(found), _) => {
                refuse("bucket", found, "none: a writecache has blocks")
            }
            (RawFillKind::Writecache, None, cache_block) => {
                if self.clean > 0.0 {
                    let expected = "0: all data of a writecache is dirty";
                    return Err(wrong(file, "fill clean", self.clean, expected));
                }
                let text = cache_block.as_deref().unwrap_or("4K");
                let bytes = block(file, "fill cache_block", text)? * 512;
                // A block is 16 MiB at most.
                Ok(FillKind::Writecache { block_bytes: bytes as u32 })
            }
        }
    }
}

/// Sectors of a block.
pub(super) fn block(file: &str, field: &str, text: &str) -> Outcome<u64> {
    let bytes = size(file, field, text)?;
    match bytes % 512 {
        0 if (512..=BLOCK_MAX).contains(&bytes) => Ok(bytes / 512),
        _ => Err(wrong(file, field, format!("'{text}'"), "whole sectors, of 16 MiB at most")),
    }
}

/// Bytes.
pub(super) fn size(file: &str, field: &str, text: &str) -> Outcome<u64> {
    let expected = "a size like \"512M\" or \"1676G\"";
    parse_size(text).map_err(|_| wrong(file, field, format!("'{text}'"), expected))
}

/// A time like "20us", "5ms", "90s", "10m", "8h" or "2d".
pub(super) fn duration(file: &str, field: &str, text: &str) -> Outcome<Duration> {
    const UNITS: [(&str, u64); 6] = [
        ("us", 1),
        ("ms", 1000),
        ("s", 1_000_000),
        ("m", 60_000_000),
        ("h", 3_600_000_000),
        ("d", 86_400_000_000),
    ];
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = UNITS.iter().find(|(suffix, _)| *suffix == &text[digits.len()..]);
    let micros = unit.and_then(|(_, micros)| digits.parse::<u64>().ok()?.checked_mul(*micros));
    let expected = "a time above 0, like \"5ms\", \"90s\", \"10m\", \"8h\" or \"2d\"";
    let micros = micros.filter(|&micros| micros > 0);
    let micros = micros.ok_or_else(|| wrong(file, field, format!("'{text}'"), expected))?;
    Ok(Duration::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::clients::Made;
    use crate::workload::{Durability, Order, Pause};

    const PLAIN: &str = r#"
title = "t"
scale = 4
variants = ["strict", "sweep"]
[drive.cache]
model = "nvme"
size = "10G"
[drive.backing]
model = "raid5"
members = 4
size = "100G"
[[volume]]
name = "disk"
table = "0 {backing} bcache backing cache 0"
messages = ["set writeback_policy {variant}"]
[[client]]
volume = "disk"
order = "zipf-1.1"
block = "4K"
think = "about 5ms"
durable = "fua+flush"
[end]
clean = "disk"
at_most = "8h"
"#;

    #[test]
    fn experiment_has_what_its_file_says() {
        let found = Experiment::parse(PLAIN, "x.toml").unwrap();
        assert_eq!(found.scale, 4);
        assert_eq!(found.variants, ["strict", "sweep"]);
        let bytes: Vec<u64> = found.drives.iter().map(|(_, drive)| drive.bytes >> 20).collect();
        assert_eq!(bytes, [25_600, 2560], "MiB, scaled, by name");
        assert_eq!(found.end.at_most, Duration::from_secs(8 * 3600));
        let words = found.words("sweep", 1);
        let table = words.put(&found.volumes[0].table);
        assert_eq!(table, "0 52428800 bcache backing cache 0");
        let message = words.put(&found.volumes[0].messages[0]);
        assert_eq!(message, "set writeback_policy sweep");
        let [clients] = &found.clients[..] else { panic!("one kind of clients") };
        assert_eq!((clients.name.as_str(), clients.depth, clients.count), ("clients 1", 1, 1));
        let expected = What::Made(Made {
            order: Order::Zipf(1.1),
            blocks: vec![8],
            read_percent: 0,
            durability: Durability::FuaAndFlush,
            pause: Pause::Exponential(Duration::from_millis(5)),
        });
        assert_eq!(clients.what, expected);
    }

    #[test]
    fn arms_differ_from_their_model_by_factors() {
        let changed = PLAIN.replacen("members = 4", "members = 4\nseek = 1.3\ncache = 2", 1);
        let changes = |text: &str| {
            let found = Experiment::parse(text, "x.toml").expect("it has a meaning");
            found.drives.iter().map(|(_, drive)| drive.changes).collect::<Vec<_>>()
        };
        assert_eq!(changes(PLAIN), [Changes::NONE; 2]);
        let expected = Changes { seek: 1.3, cache: 2.0, ..Changes::NONE };
        assert_eq!(changes(&changed), [expected, Changes::NONE]);
        assert_eq!(expected.describe(), ", seeks x 1.3, write cache x 2");
    }

    const WORDS: &str = "[words.depth]\nstrict = \"1\"\nsweep = \"2 of {backing}\"\n[drive.cache]";

    #[test]
    fn words_are_those_of_each_variant_under_a_name_of_their_own() {
        let text = PLAIN.replacen("[drive.cache]", WORDS, 1);
        let found = Experiment::parse(&text, "x.toml").unwrap();
        let put = |variant| found.words(variant, 1).put("depth {depth}");
        assert_eq!([put("strict"), put("sweep")], ["depth 1", "depth 2 of 52428800"]);
        for (good, bad, expected) in [
            ("sweep = \"2", "other = \"2", "words 'depth': found other, strict, expected each"),
            ("strict = \"1\"\n", "", "found sweep, expected each variant once: strict, sweep"),
            ("words.depth", "words.backing", "words 'backing': found the name of a device, or"),
            ("words.depth", "words.disk", "words 'disk': found the name of a device, or"),
            ("words.depth", "words.variant", "words 'variant': found the name of a device, or"),
        ] {
            let refused = Experiment::parse(&text.replacen(good, bad, 1), "x.toml").unwrap_err();
            assert!(refused.to_string().contains(expected), "{refused}");
        }
    }

    const FILLED: &str = "[fill]\nkind = \"writecache\"\ncache = \"cache\"\nbacking = \"backing\"\n\
        dirty = 30\npattern = \"uniform\"\nblock = \"64K\"\ncache_block = \"2K\"\n[[volume]]";

    #[test]
    fn fill_is_of_one_kind_and_has_its_words_only() {
        let filled = PLAIN.replacen("[[volume]]", FILLED, 1);
        let fill = Experiment::parse(&filled, "x.toml").unwrap().fill.unwrap();
        assert_eq!(fill.kind, FillKind::Writecache { block_bytes: 2048 });
        assert_eq!((fill.block_sectors, fill.clean_percent), (128, 0.0));
        let plain = filled.replace("kind = \"writecache\"\n", "");
        let of_sets = plain.replace("cache_block = \"2K\"\n", "");
        let fill = Experiment::parse(&of_sets, "x.toml").unwrap().fill.unwrap();
        assert_eq!(fill.kind, FillKind::Bcache { bucket_sectors: 1024 });
        let cases = [
            (&filled, "dirty = 30", "clean = 5", "fill clean: found 5, expected 0: all data"),
            (&filled, "dirty = 30", "bucket = \"1M\"", "fill bucket: found '1M', expected none"),
            (&filled, "\"writecache\"", "\"dmcache\"", "unknown variant `dmcache`"),
            (&filled, "\"2K\"", "\"700\"", "fill cache_block: found '700', expected whole"),
            (&plain, "30", "30", "fill cache_block: found '2K', expected none: a bcache"),
        ];
        for (text, good, bad, expected) in cases {
            let refused = Experiment::parse(&text.replacen(good, bad, 1), "x.toml").unwrap_err();
            assert!(refused.to_string().contains(expected), "{refused}");
        }
    }

    #[test]
    fn experiments_of_the_documentation_have_a_meaning() {
        let evidence = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/evidence");
        let text = std::fs::read_to_string(evidence.join("README.md")).unwrap();
        let example = text.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
        let found = Experiment::parse(example, "README.md").unwrap();
        assert_eq!((found.clients.len(), found.end.when_sent), (4, true));
        let fill = found.fill.unwrap();
        assert_eq!(fill.kind, FillKind::Bcache { bucket_sectors: 1024 });
        // The other kind, in place of these parts of the example.
        let other = text.split("```toml\n").nth(2).unwrap().split("```").next().unwrap();
        let whole = example.split("[[volume]]").next().unwrap().split("[fill]").next().unwrap();
        let rest = &example[example.find("[[client]]").unwrap()..];
        let found = Experiment::parse(&format!("{whole}{other}{rest}"), "README.md").unwrap();
        let fill = found.fill.unwrap();
        assert_eq!(fill.kind, FillKind::Writecache { block_bytes: 4096 });
        for (folder, variants, least) in [("writeback", 2..=4, 4), ("aged", 1..=2, 2)] {
            let mut rows = 0;
            for entry in std::fs::read_dir(evidence.join(folder)).unwrap() {
                let path = entry.unwrap().path();
                if path.extension().is_some_and(|end| end == "toml") {
                    let found = Experiment::read(&path).unwrap();
                    assert!(variants.contains(&found.variants.len()), "{}", path.display());
                    rows += 1;
                }
            }
            assert!(rows >= least, "{folder}: {rows}");
        }
    }

    #[test]
    fn what_has_no_meaning_is_refused_in_one_line() {
        let cases = [
            ("scale = 4", "scale = 0", "scale: found 0, expected 1 to 1048576"),
            ("title = \"t\"", "titel = \"t\"", "line 2: unknown field `titel`"),
            ("\"nvme\"", "\"mvme\"", "drive 'cache' model: found 'mvme', expected hdd,"),
            ("members = 4", "members = 2", "model: found 'raid5' of 2, expected 3 to 64 members"),
            ("\"raid5\"", "\"hdd\"", "model: found 'hdd' of 4, expected no members"),
            ("\"10G\"", "\"10X\"", "drive 'cache' size: found '10X', expected a size"),
            ("\"10G\"", "\"10M\"", "drive 'cache' size: found '10M', expected 16 MiB to 256 TiB"),
            ("\"10G\"", "\"300T\"", "drive 'cache' size: found '300T', expected 16 MiB to 256"),
            ("\"10G\"", "\"10G\"\nflush = \"1ms\"", "flush: found a drive without an arm"),
            ("\"10G\"", "\"10G\"\nncq = 1.3", "'cache' ncq: found a drive without an arm, exp"),
            ("members = 4", "members = 4\nseek = 0", "seek: found 0, expected 0.1 to 10 times"),
            ("members = 4", "members = 4\nncq = nan", "ncq: found NaN, expected 0.1 to 10 times"),
            ("members = 4", "members = 4\ncache = 11.5", "cache: found 11.5, expected 0.1 to 10"),
            ("members = 4", "members = 4\nseek = \"2x\"", "line 11: invalid type: string"),
            (
                "\"raid5\"\nmembers = 4",
                "\"hdd-uncached\"\ncache = 1.3",
                "cache: found a drive without a write cache, expected one with a write cache",
            ),
            ("\"8h\"", "\"2s\"", "end at_most: found 2s, or 500ms in virtual time, expected 1 s"),
            ("\"8h\"", "\"10000d\"", "end at_most: found"),
            ("[\"strict\", \"sweep\"]", "[\"a\", \"a\"]", "variants: found 2: a, a, expected 7"),
            ("name = \"disk\"", "name = \"cache\"", "volume name: found 'cache', as a drive"),
            ("\"4K\"\nthink", "\"1000\"\nthink", "block: found '1000', expected whole sectors"),
            ("\"4K\"\nthink", "\"1G\"\nthink", "block: found '1G', expected whole sectors, of"),
            ("clean = \"disk\"", "clean = \"dsk\"", "found 'dsk', expected the name of a volume"),
            ("clean = \"d", "sent = true\ndrain = \"x", "end drain: found 'xisk', expected"),
            ("clean = ", "drain = ", "end drain: found 'disk' alone, expected 'sent = true'"),
            ("\"8h\"", "\"8\"", "end at_most: found '8', expected a time above 0"),
            ("\"8h\"", "\"0h\"", "end at_most: found '0h', expected a time above 0"),
            ("zipf-1.1", "zipf", "client 'clients 1' order: found 'zipf', expected random,"),
            ("fua+flush", "sync", "durable: found 'sync', expected none, fua, write+flush or"),
            ("\"4K\"\nthink", "\"4K\"\ndepth = 2\nthink", "depth: found 2, expected 1, as a"),
            (
                "order = \"zipf-1.1\"",
                "trace = \"t\"",
                "trace: found a trace and a generator's words",
            ),
            ("block = \"4K\"\n", "", "client 'clients 1' block: found none, expected a size"),
            (
                "think",
                "from = \"2s\"\nuntil = \"1s\"\nthink",
                "from: found 2s, expected a time bef",
            ),
            ("about 5ms", "5 ms", "think: found '5 ms', expected a time above 0"),
            ("durable", "burst = \"4M\"\ndurable", "burst: found bursts and a generator's words"),
            ("durable", "part = [50, 20]\ndurable", "part: found [50, 20], expected two numbers"),
            ("= \"disk\"\norder", "= \"dsk\"\norder", "client 'clients 1' volume: found 'dsk'"),
        ];
        for (good, bad, expected) in cases {
            assert!(PLAIN.contains(good), "{good}");
            let refused = Experiment::parse(&PLAIN.replacen(good, bad, 1), "x.toml").unwrap_err();
            let line = refused.to_string();
            assert!(line.starts_with("x.toml: ") && line.contains(expected), "{line}");
            assert_eq!(line.lines().count(), 1);
        }
    }
}
