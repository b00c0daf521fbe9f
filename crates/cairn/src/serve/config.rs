//! The TOML file: volumes, exports, sockets, state and images to make.
//!
//! Owns the schema and its checks; makes no file itself. `keys.toml` explains every key, for
//! `cairn serve --help` and `docs/cli.md`. Unknown keys are refused. Paths are relative to the
//! file: those of sockets, state and images are joined here; those in tables stay as written, so
//! that they print as given, and the opener joins them to [`Config::base`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cairn_backends::parse_size;
use cairn_block::{ConfigError, ConfigKind, escape_word};
use cairn_outcome::failure::{Outcome, system, wrong};
use serde::Deserialize;

use super::args::{RingChoice, SPIN_US_MAX, parse_message};
use super::limits::{CRASH_LOG_BYTES_MIN, CRASH_LOG_EXPECTED, MEMORY_BYTES_MIN, MEMORY_EXPECTED};
use super::throttle::refuse_directed;
use super::tls::TlsChoice;
use super::vhost;
use cairn_control::exports::VhostSocket;
use cairn_control::state::Export;
use cairn_control::throttles::{Limits, number_of_text};
use cairn_control::tls_names::TlsNames;
use cairn_control::verbs::volume::VolumeMessage;

/// A file with every key, explained.
pub const KEYS: &str = include_str!("keys.toml");

/// The contents of a TOML file.
#[derive(Debug, Default)]
pub struct Config {
    /// The file's folder.
    pub base: PathBuf,
    /// The state file: beside the TOML file, unless a key names another.
    pub state: PathBuf,
    /// Where to listen, as written.
    pub listen: Vec<String>,
    /// The control socket, as the file has it.
    pub control: Option<PathBuf>,
    /// Where monitoring reads.
    pub metrics: Option<String>,
    /// Where people with a browser look.
    pub dashboard: Option<String>,
    /// Write no byte.
    pub read_only: bool,
    /// Number of reactors.
    pub reactors: Option<u16>,
    /// Which ring.
    pub ring: Option<RingChoice>,
    /// How long an idle reactor polls before it sleeps, in microseconds.
    pub spin_us: Option<u32>,
    /// Most NBD connections.
    pub connections: Option<u16>,
    /// Memory for the payloads of all connections.
    pub memory_bytes: Option<u64>,
    /// Memory for the crash log of each cache and pool.
    pub crash_log_bytes: Option<u64>,
    /// Write dirty data of caches back before the server ends.
    pub drain_on_stop: bool,
    /// The volume behind the empty export name.
    pub default_export: Option<String>,
    /// Sparse images to make where they are missing.
    pub images: Vec<Image>,
    /// Volumes, in order.
    pub volumes: Vec<Volume>,
    /// Exports; none means every volume by its name.
    pub exports: Vec<Export>,
    /// Sockets for virtual machines.
    pub vhost: Vec<VhostSocket>,
    /// Whether clients use TLS.
    pub tls: Option<TlsChoice>,
    /// The folder of certificates.
    pub tls_certificates: Option<PathBuf>,
    /// The file of keys that clients share with the server.
    pub tls_psk: Option<PathBuf>,
    /// Clients need a certificate.
    pub tls_verify_peer: bool,
    /// Which clients find an export.
    pub tls_names: TlsNames,
    /// What the clients of an export may do.
    pub limits: BTreeMap<String, Limits>,
    /// What background copies may do.
    pub background: Option<Limits>,
}

/// A sparse image to make if it is missing.
#[derive(Debug, PartialEq, Eq)]
pub struct Image {
    /// Where.
    pub path: PathBuf,
    /// How large.
    pub bytes: u64,
}

/// A volume with its table.
#[derive(Debug, PartialEq, Eq)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// Its table, as text.
    pub table: String,
    /// Messages once it is up.
    pub messages: Vec<VolumeMessage>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConfig {
    listen: Option<OneOrMany>,
    control: Option<PathBuf>,
    metrics: Option<String>,
    dashboard: Option<String>,
    state: Option<PathBuf>,
    default_export: Option<String>,
    #[serde(default)]
    read_only: bool,
    reactors: Option<u16>,
    ring: Option<RingChoice>,
    spin_us: Option<u32>,
    connections: Option<u16>,
    memory: Option<Size>,
    crash_log: Option<Size>,
    #[serde(default)]
    background: BTreeMap<String, Size>,
    #[serde(default)]
    drain_on_stop: bool,
    tls: Option<TlsChoice>,
    tls_certificates: Option<PathBuf>,
    tls_psk: Option<PathBuf>,
    #[serde(default)]
    tls_verify_peer: bool,
    #[serde(default)]
    image: Vec<RawImage>,
    #[serde(default)]
    volume: Vec<RawVolume>,
    #[serde(default)]
    export: Vec<RawExport>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    fn into_vec(self) -> Vec<String> {
        match self {
            OneOrMany::One(one) => vec![one],
            OneOrMany::Many(many) => many,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawImage {
    path: PathBuf,
    size: Size,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawVolume {
    name: String,
    table: Option<OneOrMany>,
    #[serde(default)]
    line: Vec<RawLine>,
    #[serde(default)]
    messages: Vec<String>,
    tls_names: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLine {
    size: Option<Size>,
    target: String,
    #[serde(default)]
    args: Vec<Word>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawExport {
    name: String,
    volume: Option<String>,
    #[serde(default)]
    description: String,
    #[serde(default)]
    read_only: bool,
    listen: Option<String>,
    num_queues: Option<u16>,
    tls_names: Option<Vec<String>>,
    #[serde(default)]
    throttle: BTreeMap<String, Size>,
}

/// A size: bytes as a number, or text with a suffix.
#[derive(Deserialize)]
#[serde(untagged)]
enum Size {
    Bytes(u64),
    Text(String),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Word {
    Number(u64),
    Text(String),
}

impl Config {
    /// Reads a TOML file.
    ///
    /// # Errors
    /// It cannot be read, is no TOML, or says something that has no meaning.
    pub fn read(path: &Path) -> Outcome<Config> {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|e| system(&shown, "read", e))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let base = std::path::absolute(folder.join("x")).map_err(|e| system(&shown, "path", e))?;
        let base = base.parent().unwrap_or(Path::new("/")).to_owned();
        Config::parse(&text, path, base)
    }

    /// Parses and checks the text of a file at `path` in folder `base`.
    ///
    /// # Errors
    /// It is no TOML, or says something that has no meaning.
    pub fn parse(text: &str, path: &Path, base: PathBuf) -> Outcome<Config> {
        let shown = path.display().to_string();
        let raw: RawConfig = toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start));
            let line = before.map_or(1, |before| before.matches('\n').count() + 1);
            let found = error.message().replace('\n', " ");
            let detail = format!("line {line}: {found} (cairn serve --help lists the keys)");
            ConfigError::new(ConfigKind::Argument, &shown, detail)
        })?;
        let beside = path.with_extension("state");
        let config = Config {
            state: base.join(raw.state.as_deref().unwrap_or(&beside_name(&beside))),
            listen: raw.listen.map(OneOrMany::into_vec).unwrap_or_default(),
            control: raw.control,
            metrics: raw.metrics,
            dashboard: raw.dashboard,
            read_only: raw.read_only,
            reactors: raw.reactors,
            ring: raw.ring,
            spin_us: raw.spin_us,
            connections: raw.connections,
            memory_bytes: raw.memory.map(|size| size.memory_bytes(&shown)).transpose()?,
            crash_log_bytes: raw.crash_log.map(|size| size.crash_log_bytes(&shown)).transpose()?,
            drain_on_stop: raw.drain_on_stop,
            default_export: raw.default_export,
            tls: raw.tls,
            tls_certificates: raw.tls_certificates.map(|path| base.join(path)),
            tls_psk: raw.tls_psk.map(|path| base.join(path)),
            tls_verify_peer: raw.tls_verify_peer,
            tls_names: tls_names(&shown, &raw.volume, &raw.export)?,
            limits: limits(&shown, &raw.export)?,
            background: background(&shown, &raw.background)?,
            images: collect(&shown, raw.image, |image, shown| image.judge(shown, &base))?,
            volumes: collect(&shown, raw.volume, RawVolume::judge)?,
            vhost: vhost_sockets(&shown, &raw.export, &base)?,
            exports: raw.export.into_iter().map(RawExport::judge).collect(),
            base,
        };
        config.refuse_contradictions(&shown)?;
        Ok(config)
    }

    fn refuse_contradictions(&self, shown: &str) -> Outcome<()> {
        if self.reactors.is_some_and(|count| !(1..=256).contains(&count)) {
            return Err(wrong(shown, "reactors", self.reactors.unwrap_or(0), "1 to 256"));
        }
        if let Some(found) = self.spin_us.filter(|&spin| i64::from(spin) > SPIN_US_MAX) {
            return Err(wrong(shown, "spin_us", found, format!("0 to {SPIN_US_MAX}")));
        }
        if self.connections == Some(0) {
            return Err(wrong(shown, "connections", 0, "1 to 65535"));
        }
        for (index, volume) in self.volumes.iter().enumerate() {
            if self.volumes[..index].iter().any(|other| other.name == volume.name) {
                let found = format!("'{}' twice", volume.name);
                return Err(wrong(shown, "volume name", found, "each name once"));
            }
        }
        for (index, export) in self.exports.iter().enumerate() {
            let same = |other: &&Export| other.name == export.name;
            let Some(other) = self.exports[..index].iter().find(same) else { continue };
            let detail = format!(
                "[[export]]: '{}' is given twice, for the volumes '{}' and '{}'; give each export \
                 a name of its own",
                export.name, other.volume, export.volume
            );
            return Err(ConfigError::new(ConfigKind::Argument, shown, detail));
        }
        Ok(())
    }
}

fn beside_name(beside: &Path) -> PathBuf {
    PathBuf::from(beside.file_name().unwrap_or_default())
}

fn collect<Raw, T>(
    shown: &str,
    raw: Vec<Raw>,
    judge: impl Fn(Raw, &str) -> Outcome<T>,
) -> Outcome<Vec<T>> {
    raw.into_iter().map(|raw| judge(raw, shown)).collect()
}

impl Size {
    /// As much as the devices of the line have.
    fn is_whole(&self) -> bool {
        matches!(self, Size::Text(text) if ["N", "whole"].contains(&text.as_str()))
    }

    fn bytes(&self, shown: &str, field: &str) -> Outcome<u64> {
        let expected = "a size above 0, in whole sectors, like 1048576, \"2048s\" or \"1G\"";
        let (bytes, found) = match self {
            Size::Bytes(bytes) => (Some(*bytes), bytes.to_string()),
            Size::Text(text) => (parse_size(text).ok(), format!("'{text}'")),
        };
        let fits = |bytes: &u64| *bytes > 0 && bytes.is_multiple_of(512);
        bytes.filter(fits).ok_or_else(|| wrong(shown, field, found, expected))
    }
}

impl Size {
    fn memory_bytes(&self, shown: &str) -> Outcome<u64> {
        self.at_least(MEMORY_BYTES_MIN, shown, "memory", MEMORY_EXPECTED)
    }

    fn crash_log_bytes(&self, shown: &str) -> Outcome<u64> {
        self.at_least(CRASH_LOG_BYTES_MIN, shown, "crash_log", CRASH_LOG_EXPECTED)
    }

    fn at_least(&self, least: u64, shown: &str, key: &str, expected: &str) -> Outcome<u64> {
        let bytes = self.bytes(shown, key)?;
        if bytes < least { Err(wrong(shown, key, bytes, expected)) } else { Ok(bytes) }
    }
}

impl RawImage {
    fn judge(self, shown: &str, base: &Path) -> Outcome<Image> {
        let field = format!("image '{}' size", self.path.display());
        Ok(Image { bytes: self.size.bytes(shown, &field)?, path: base.join(self.path) })
    }
}

impl RawVolume {
    fn judge(self, shown: &str) -> Outcome<Volume> {
        let field = format!("volume '{}'", self.name);
        let table = match (self.table, self.line.is_empty()) {
            (Some(table), true) => table.into_vec().join("\n"),
            (None, false) => structured(shown, &field, &self.line)?,
            (Some(_), false) => {
                return Err(wrong(shown, &field, "both table and line", "one of them"));
            }
            (None, true) => return Err(wrong(shown, &field, "no table", "table or line")),
        };
        let message = |text: &String| parse_message(&format!("{} {text}", self.name));
        let messages = self.messages.iter().map(message).collect::<Outcome<_>>()?;
        Ok(Volume { name: self.name, table, messages })
    }
}

/// Writes structured lines as table text, each beginning where the one before ends. The last line
/// may be as long as its devices.
fn structured(shown: &str, field: &str, lines: &[RawLine]) -> Outcome<String> {
    let (mut start, mut text) = (0u64, String::new());
    for (at, line) in lines.iter().enumerate() {
        let size = line.size.as_ref().filter(|size| !size.is_whole());
        let (sectors, length) = match size {
            Some(size) => {
                let sectors = size.bytes(shown, &format!("{field} size"))? / 512;
                (sectors, sectors.to_string())
            }
            None if at + 1 == lines.len() => (0, "whole".to_owned()),
            None => {
                let detail = format!(
                    "{field} size: a line that another one follows needs a size in bytes; only \
                     the last may leave it out or have \"whole\""
                );
                return Err(ConfigError::new(ConfigKind::Argument, shown, detail));
            }
        };
        text.push_str(&format!("{start} {length} {}", line.target));
        for arg in &line.args {
            match arg {
                Word::Number(number) => text.push_str(&format!(" {number}")),
                Word::Text(word) if word.is_empty() => {
                    return Err(wrong(shown, &format!("{field} args"), "''", "a word"));
                }
                Word::Text(word) => text.push_str(&format!(" {}", escape_word(word))),
            }
        }
        text.push('\n');
        start = start.saturating_add(sectors);
    }
    Ok(text)
}

/// The sockets of the exports that have one.
fn vhost_sockets(shown: &str, exports: &[RawExport], base: &Path) -> Outcome<Vec<VhostSocket>> {
    let mut sockets = Vec::new();
    for export in exports {
        match (&export.listen, export.num_queues) {
            (Some(listen), count) => {
                sockets.push(vhost::of_file(&export.name, listen, count, base)?)
            }
            (None, Some(count)) => {
                return Err(wrong(shown, "num_queues", count, "a listen = 'vhost-user:PATH', too"));
            }
            (None, None) => {}
        }
    }
    Ok(sockets)
}

/// The names that volumes and exports give to clients.
fn tls_names(shown: &str, volumes: &[RawVolume], exports: &[RawExport]) -> Outcome<TlsNames> {
    let volumes = volumes.iter().map(|volume| (&volume.name, &volume.tls_names));
    let exports = exports.iter().map(|export| (&export.name, &export.tls_names));
    let given = |(name, names): (&String, &Option<Vec<String>>)| {
        let names = names.clone()?;
        if names.iter().all(|name| !name.is_empty()) && !names.is_empty() {
            return Some(Ok((name.clone(), names)));
        }
        let expected = "names in certificates, at least one";
        Some(Err(wrong(shown, &format!("tls_names of '{name}'"), "none", expected)))
    };
    Ok(TlsNames {
        volumes: volumes.filter_map(given).collect::<Outcome<_>>()?,
        exports: exports.filter_map(given).collect::<Outcome<_>>()?,
        ..TlsNames::default()
    })
}

/// The limits of the exports that have some.
fn limits(shown: &str, exports: &[RawExport]) -> Outcome<BTreeMap<String, Limits>> {
    let mut all = BTreeMap::new();
    for export in exports.iter().filter(|export| !export.throttle.is_empty()) {
        let shown = format!("{shown}: export '{}'", export.name);
        all.insert(export.name.clone(), Limits::judge(&shown, numbers(&shown, &export.throttle)?)?);
    }
    Ok(all)
}

/// The limits of background copies, if there are any.
fn background(shown: &str, given: &BTreeMap<String, Size>) -> Outcome<Option<Limits>> {
    if given.is_empty() {
        return Ok(None);
    }
    let shown = format!("{shown}: background");
    let limits = Limits::judge(&shown, numbers(&shown, given)?)?;
    refuse_directed(&shown, &limits)?;
    Ok(Some(limits))
}

/// The numbers of limits.
fn numbers(shown: &str, given: &BTreeMap<String, Size>) -> Outcome<BTreeMap<String, u64>> {
    let number = |(key, size): (&String, &Size)| {
        let number = match size {
            Size::Bytes(number) => Ok(*number),
            Size::Text(text) => number_of_text(shown, key, text),
        };
        number.map(|number| (key.clone(), number))
    };
    given.iter().map(number).collect()
}

impl RawExport {
    fn judge(self) -> Export {
        Export {
            volume: self.volume.unwrap_or_else(|| self.name.clone()),
            name: self.name,
            description: self.description,
            read_only: self.read_only,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Config, Image, KEYS};
    use cairn_control::state::Export;
    use cairn_control::verbs::volume::VolumeMessage;
    use std::path::Path;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, Path::new("vm.toml"), "/srv".into()).map_err(|e| e.to_string())
    }

    #[test]
    fn paths_are_relative_to_the_file_and_the_state_lies_beside_it() {
        let text = "control = 'c.sock'\n[[image]]\npath = 'a.img'\nsize = '1M'\n";
        let config = parse(text).unwrap();
        assert_eq!(config.state, Path::new("/srv/vm.state"));
        assert_eq!(config.control.as_deref(), Some(Path::new("c.sock")));
        assert_eq!(config.images, [Image { path: "/srv/a.img".into(), bytes: 1 << 20 }]);
    }

    /// The keys of a table of the schema, as its refusal of an unknown one lists them.
    fn keys_of(table: &str) -> Vec<String> {
        let line = parse(&format!("{table}\nno_such_key = 0")).unwrap_err();
        let (_, keys) =
            line.split_once("expected one of ").or(line.split_once("expected ")).unwrap();
        keys.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    #[test]
    fn help_and_manual_explain_every_key() {
        parse(KEYS).unwrap();
        let manual = include_str!("../../../../docs/cli.md");
        assert!(manual.contains(&format!("```toml\n{KEYS}```")), "docs/cli.md has other keys");
        for table in ["", "[[image]]", "[[volume]]", "[[volume]]\n[[volume.line]]", "[[export]]"] {
            let keys = keys_of(table);
            assert!(keys.len() > 1, "{keys:?}");
            for key in keys {
                let is_explained = |line: &str| {
                    line.starts_with(&format!("{key} = "))
                        || [format!("[[{key}]]"), format!("[[volume.{key}]]")]
                            .iter()
                            .any(|head| line.starts_with(head))
                };
                assert!(KEYS.lines().any(is_explained), "keys.toml lacks {key}");
            }
        }
    }

    #[test]
    fn structured_lines_follow_each_other() {
        let text = "
            [[volume]]
            name = 'v'
            messages = ['0 flush']
            [[volume.line]]
            size = '8s'
            target = 'zero'
            [[volume.line]]
            size = 4096
            target = 'linear'
            args = ['my disk/a.img', 16]
            [[export]]
            name = 'v'
        ";
        let config = parse(text).unwrap();
        assert_eq!(config.volumes[0].table, "0 8 zero\n8 8 linear my\\040disk/a.img 16\n");
        let flush = VolumeMessage { name: "v".into(), sector: 0, words: vec!["flush".into()] };
        assert_eq!(config.volumes[0].messages, [flush]);
        let export = Export {
            name: "v".into(),
            volume: "v".into(),
            description: String::new(),
            read_only: false,
        };
        assert_eq!(config.exports, [export]);
    }

    #[test]
    fn limits_of_an_export_are_numbers_and_sizes() {
        let text = "[[export]]\nname = 'v'\nthrottle = { iops_total = 9, bps_write = '1M' }\n";
        let config = parse(text).unwrap();
        assert_eq!(config.limits["v"].to_string(), "bps-write=1048576,iops-total=9");
        assert!(parse("[[export]]\nname = 'v'\nthrottle = {}").unwrap().limits.is_empty());
    }

    #[test]
    fn last_structured_line_may_be_as_long_as_its_devices() {
        for size in ["size = 'N'", "size = 'whole'", ""] {
            let line = |size: &str| format!("[[volume.line]]\n{size}\ntarget = 'zero'\n");
            let lines = [line("size = '8s'"), line(size)].concat();
            let config = parse(&format!("[[volume]]\nname = 'v'\n{lines}")).unwrap();
            assert_eq!(config.volumes[0].table, "0 8 zero\n8 whole zero\n", "{size}");
            let lines = [line(size), line("size = '8s'")].concat();
            let refused = parse(&format!("[[volume]]\nname = 'v'\n{lines}")).unwrap_err();
            let expected = "volume 'v' size: a line that another one follows needs a size in bytes";
            assert!(refused.contains(expected), "{refused}");
        }
    }

    #[test]
    fn an_invalid_configuration_prints_one_line_that_names_the_key() {
        let cases = [
            ("\n\nfrob = 1", "vm.toml: line 3: unknown field `frob`, expected one of `listen`"),
            ("[[volume]]\nname = 'v'", "volume 'v': found no table, expected table or line"),
            (
                "tls = 'yes'",
                "line 1: unknown variant `yes`, expected one of `off`, `on`, `require`",
            ),
            (
                "[[export]]\nname='e'\nthrottle={iops_total=0}",
                "vm.toml: export 'e': iops-total: found 0, expected 1 or more",
            ),
            (
                "[[export]]\nname='e'\nthrottle={bps_read='fast'}",
                "vm.toml: export 'e': bps-read: found 'fast', expected bytes, like",
            ),
            (
                "[[export]]\nname='e'\nthrottle={frob=1}",
                "vm.toml: export 'e': limit: found 'frob', expected iops-total,",
            ),
            (
                "[[export]]\nname='e'\ntls_names=[]",
                "tls_names of 'e': found none, expected names in certificates, at least one",
            ),
            (
                "background = {bps_read='1M'}",
                "vm.toml: background: limit: found bps-read, expected iops-total",
            ),
            ("reactors = 0", "reactors: found 0, expected 1 to 256"),
            ("connections = 0", "connections: found 0, expected 1 to 65535"),
            ("memory = '63M'", "memory: found 66060288, expected a size of 64M or more"),
            ("spin_us = 10001", "spin_us: found 10001, expected 0 to 10000"),
            ("[[image]]\npath = 'a'\nsize = '3'", "image 'a' size: found '3', expected a size"),
            ("[[image]]\npath = 'a'\nsize = 'x'", "image 'a' size: found 'x', expected a size"),
            (
                "[[volume]]\nname='v'\ntable='x'\n[[volume]]\nname='v'\ntable='x'",
                "volume name: found 'v' twice",
            ),
            (
                "[[export]]\nname='e'\nvolume='a'\n[[export]]\nname='e'\nvolume='b'",
                "vm.toml: [[export]]: 'e' is given twice, for the volumes 'a' and 'b'; give each",
            ),
            (
                "[[volume]]\nname='v'\n[[volume.line]]\nsize=512\ntarget='zero'\nargs=['']",
                "volume 'v' args: found '', expected a word",
            ),
        ];
        for (text, expected) in cases {
            let line = parse(text).unwrap_err();
            assert!(line.contains(expected), "{line}");
            assert!(!line.contains('\n'), "{line}");
        }
    }
}
