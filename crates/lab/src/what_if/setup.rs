//! [`Setup`]: one of the ways to serve the trace that are compared, as the text of an experiment.
//!
//! What runs is that text, as [`Experiment`](crate::experiment::form::Experiment) reads it: what is
//! saved for the user is what was run.

use std::time::Duration;

use super::drive::{DriveSpec, size_word};
use super::survey::BLOCK;
use crate::experiment::clients::Pace;

/// How the trace is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The backing device alone.
    Bare,
    /// A writecache before it.
    Writecache,
    /// A bcache that writes both.
    Writethrough,
    /// A bcache that copies dirty data down later.
    Writeback {
        /// In this order.
        policy: String,
    },
}

impl Kind {
    /// In words.
    pub fn name(&self) -> String {
        match self {
            Kind::Bare => "no cache".to_owned(),
            Kind::Writecache => "writecache".to_owned(),
            Kind::Writethrough => "bcache writethrough".to_owned(),
            Kind::Writeback { policy } => format!("bcache writeback {policy}"),
        }
    }

    /// The cache may have data that the backing device lacks.
    pub fn is_writeback(&self) -> bool {
        matches!(self, Kind::Writecache | Kind::Writeback { .. })
    }

    /// All that are tried with a cache of one size.
    pub fn with_cache(policies: &[String]) -> Vec<Kind> {
        let writeback = policies.iter().map(|policy| Kind::Writeback { policy: policy.clone() });
        [Kind::Writecache, Kind::Writethrough].into_iter().chain(writeback).collect()
    }
}

/// A way to serve the trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// How.
    pub kind: Kind,
    /// With what.
    pub cache: Option<DriveSpec>,
}

/// What all setups have in common.
#[derive(Clone, Debug)]
pub struct Common {
    /// The trace, absolute.
    pub trace: String,
    /// Which device of it.
    pub device: Option<String>,
    /// Operations in flight at most.
    pub depth: u32,
    /// When they start.
    pub pace: Pace,
    /// The backing device.
    pub backing: DriveSpec,
    /// How long a run may take in virtual time.
    pub at_most: Duration,
}

/// More than the superblock of a backing device needs, so that all setups offer the same volume.
const SPARE_BYTES: u64 = 4 << 20;
/// Sectors of a bucket, and of a bucket of a small cache.
const BUCKETS: [(u64, &str); 2] = [(1 << 30, "512K"), (0, "64K")];

impl Setup {
    /// Without a cache.
    pub fn bare() -> Setup {
        Setup { kind: Kind::Bare, cache: None }
    }

    /// In words.
    pub fn label(&self) -> String {
        match &self.cache {
            None => self.kind.name(),
            Some(cache) => format!("{} on {}", self.kind.name(), cache.name()),
        }
    }

    /// A word for its file and its run.
    pub fn word(&self) -> String {
        let kind = match &self.kind {
            Kind::Bare => "no-cache".to_owned(),
            Kind::Writecache => "writecache".to_owned(),
            Kind::Writethrough => "writethrough".to_owned(),
            Kind::Writeback { policy } => format!("writeback-{policy}"),
        };
        let cache = self.cache.as_ref().map(|it| format!("-{}-{}", it.word, size_word(it.bytes)));
        kind + &cache.unwrap_or_default()
    }

    /// The experiment.
    pub fn toml(&self, common: &Common) -> String {
        let Common { depth, backing, at_most, .. } = common;
        let sectors = backing.bytes / 512 / BLOCK.0 * BLOCK.0;
        let cache = match &self.cache {
            Some(cache) => drive("cache", cache, 0),
            None => String::new(),
        };
        let fill = match (&self.kind, &self.cache) {
            (Kind::Writethrough | Kind::Writeback { .. }, Some(cache)) => set(cache.bytes),
            _ => String::new(),
        };
        let (table, messages) = match &self.kind {
            Kind::Bare => (format!("0 {sectors} linear backing 0"), vec![]),
            Kind::Writecache => (format!("0 {sectors} writecache s backing cache 4096 0"), vec![]),
            Kind::Writethrough => (
                format!("0 {sectors} bcache backing cache 0"),
                vec!["set cache_mode writethrough".to_owned()],
            ),
            Kind::Writeback { policy } => (
                format!("0 {sectors} bcache backing cache 0"),
                vec![
                    "set cache_mode writeback".to_owned(),
                    format!("set writeback_policy {policy}"),
                ],
            ),
        };
        let messages: Vec<String> = messages.iter().map(|text| quoted(text)).collect();
        let device = common.device.as_ref().map(|it| format!("device = {}\n", quoted(it)));
        let pace = match common.pace {
            Pace::Trace => "trace",
            Pace::Full => "full",
        };
        format!(
            "title = {title}\n\
             variants = [{word}]\n\
             \n\
             {backing}\n{cache}{fill}\
             [[volume]]\n\
             name = \"disk\"\n\
             table = {table}\n\
             messages = [{messages}]\n\
             \n\
             [[client]]\n\
             name = \"trace\"\n\
             volume = \"disk\"\n\
             trace = {trace}\n\
             {device}\
             depth = {depth}\n\
             pace = \"{pace}\"\n\
             \n\
             [end]\n\
             sent = true\n\
             drain = \"disk\"\n\
             at_most = \"{at_most}s\"\n",
            title = quoted(&format!("What if: {}", self.label())),
            word = quoted(&self.word()),
            backing = drive("backing", backing, SPARE_BYTES),
            table = quoted(&table),
            messages = messages.join(", "),
            trace = quoted(&common.trace),
            device = device.unwrap_or_default(),
            at_most = at_most.as_secs(),
        )
    }
}

/// A drive of an experiment.
fn drive(name: &str, drive: &DriveSpec, spare: u64) -> String {
    let members = drive.members.map(|members| format!("members = {members}\n"));
    format!(
        "[drive.{name}]\nmodel = \"{}\"\n{}size = \"{}\"\n\n",
        drive.word,
        members.unwrap_or_default(),
        size_word(drive.bytes + spare)
    )
}

/// An empty set on a cache of so many bytes.
fn set(cache_bytes: u64) -> String {
    let bucket = BUCKETS.into_iter().find(|(least, _)| cache_bytes >= *least);
    let (_, bucket) = bucket.expect("the last is for all sizes");
    format!(
        "[fill]\ncache = \"cache\"\nbacking = \"backing\"\npattern = \"uniform\"\n\
         block = \"4K\"\nbucket = \"{bucket}\"\n\n"
    )
}

/// A text of TOML.
fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::clients::What;
    use crate::experiment::form::Experiment;

    fn common() -> Common {
        Common {
            trace: "/tmp/a \"b\"\\c.log".to_owned(),
            device: Some("8,0".to_owned()),
            depth: 7,
            pace: Pace::Full,
            backing: DriveSpec::parse("x", "raid5-4:3T", None).unwrap(),
            at_most: Duration::from_secs(90_000),
        }
    }

    #[test]
    fn experiments_of_all_setups_say_what_the_setup_is() {
        let policies = ["sweep".to_owned(), "strict".to_owned()];
        let mut words = vec![];
        for size in ["64M", "20G"] {
            let cache = DriveSpec::parse("x", &format!("nvme:{size}"), None).unwrap();
            let kinds = Kind::with_cache(&policies);
            let setups = kinds.into_iter().map(|kind| Setup { kind, cache: Some(cache.clone()) });
            for setup in setups.chain([Setup::bare()]) {
                let text = setup.toml(&common());
                let found = Experiment::parse(&text, "x").unwrap();
                assert_eq!(found.variants, [setup.word()]);
                assert_eq!(found.drives.len(), if setup.cache.is_some() { 2 } else { 1 });
                assert_eq!(found.drives[0].1.bytes, (3 << 40) + SPARE_BYTES);
                let [client] = &found.clients[..] else { panic!("one client") };
                let What::Trace { path, device, pace } = &client.what else { panic!("a trace") };
                assert_eq!(path.to_str(), Some("/tmp/a \"b\"\\c.log"));
                assert_eq!((device.as_deref(), *pace, client.depth), (Some("8,0"), Pace::Full, 7));
                let is_set = setup.kind.name().starts_with("bcache");
                assert_eq!(found.fill.is_some(), is_set, "{text}");
                assert!(found.volumes[0].table.starts_with("0 6442450944 "));
                words.push(setup.word());
            }
        }
        assert_eq!(
            words[..5],
            [
                "writecache-nvme-64M",
                "writethrough-nvme-64M",
                "writeback-sweep-nvme-64M",
                "writeback-strict-nvme-64M",
                "no-cache"
            ]
        );
    }
}
