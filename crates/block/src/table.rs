//! Tables: the ordered, gapless lines that make up a mapped device, as text and as targets.

use std::fmt;
use std::sync::Arc;

use crate::claims::ClaimKind;
use crate::device::MappedDevice;
use crate::dirty_marker::DirtyMarker;
use crate::disk::{Disk, Limits, MarkerPlace};
use crate::env::Env;
use crate::error::ConfigError;
use crate::ids::DeviceId;
use crate::local::Way;
use crate::nature::{Nature, Shape};
use crate::target::Target;
use crate::units::{Sector, SectorCount, SectorRange};

/// A table line as text: `start length target args...`, numbers in sectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableLine {
    /// First sector on the device.
    pub start: Sector,
    /// Length.
    pub len: SectorCount,
    /// The target's name.
    pub target: String,
    /// The words after it.
    pub args: Vec<String>,
}

impl TableLine {
    /// The length of a line that is as long as what it stands on: `N` or `whole` in its text. It
    /// becomes a number before a table is built.
    pub const WHOLE: SectorCount = SectorCount::ZERO;

    /// Parses one line.
    ///
    /// # Errors
    /// Names the word that is missing or wrong.
    pub fn parse(text: &str) -> Result<TableLine, ConfigError> {
        let mut words = text.split_whitespace();
        let number = |field: &str, word: &str| {
            let wrong = || ConfigError::argument("table", field, word, "a number of sectors");
            word.parse::<u64>().map_err(|_| wrong())
        };
        let start = number("start", words.next().unwrap_or("nothing"))?;
        let word = words.next().unwrap_or("nothing");
        let is_whole = ["N", "whole"].contains(&word);
        let len = if is_whole { TableLine::WHOLE.0 } else { number("length", word)? };
        let is_empty = len == 0 && !is_whole;
        if is_empty || start.checked_add(len).is_none_or(|end| end > u64::MAX >> 9) {
            let expected = "a range of sectors below 2^55, not empty";
            return Err(ConfigError::argument("table", "length", len, expected));
        }
        let Some(target) = words.next() else {
            return Err(ConfigError::argument("table", "target", "nothing", "a target's name"));
        };
        Ok(TableLine {
            start: Sector(start),
            len: SectorCount(len),
            target: target.to_owned(),
            args: words.map(str::to_owned).collect(),
        })
    }

    /// Parses a table of several lines; blank lines and lines that begin with `#` are skipped.
    /// The lines must follow each other without gaps, from sector 0.
    ///
    /// # Errors
    /// Names the line and the word that is missing or wrong.
    pub fn parse_all(text: &str) -> Result<Vec<TableLine>, ConfigError> {
        let mut lines: Vec<TableLine> = Vec::new();
        for line in text.lines().map(str::trim) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let line = TableLine::parse(line)?;
            if lines.last().is_some_and(|last| last.len == TableLine::WHOLE) {
                let want = "a number of sectors, as another line follows";
                return Err(ConfigError::argument("table", "length", "no number", want));
            }
            let expected = lines.last().map_or(Sector(0), |last| last.start + last.len);
            if line.start != expected {
                let want = format!("{expected} (lines follow each other without gaps)");
                return Err(ConfigError::argument("table", "start", line.start, &want));
            }
            lines.push(line);
        }
        if lines.is_empty() {
            return Err(ConfigError::argument("table", "lines", "none", "at least one"));
        }
        Ok(lines)
    }
}

/// Writes a text, say a path, as one word of a table line: as in `/etc/fstab`, each byte of white
/// space and each backslash is a backslash and three octal digits (`\040` is a space).
pub fn escape_word(text: &str) -> String {
    let mut word = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_whitespace() || c == '\\' {
            let mut bytes = [0; 4];
            let bytes = c.encode_utf8(&mut bytes).bytes();
            word.extend(bytes.map(|byte| format!("\\{byte:03o}")));
        } else {
            word.push(c);
        }
    }
    word
}

/// The text of a word of a table line: the inverse of [`escape_word`]. A backslash without three
/// octal digits after it stands for itself, and so do escapes that give no UTF-8.
pub fn unescape_word(word: &str) -> String {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let byte;
        (byte, rest) = match after {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] if first == b'\\' => {
                ((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'), after)
            }
            _ => (first, after),
        };
        bytes.push(byte);
    }
    String::from_utf8(bytes).unwrap_or_else(|_| word.to_owned())
}

/// The text of the line.
impl fmt::Display for TableLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.len {
            TableLine::WHOLE => write!(f, "{} N {}", self.start, self.target)?,
            len => write!(f, "{} {len} {}", self.start, self.target)?,
        }
        self.args.iter().try_for_each(|word| write!(f, " {word}"))
    }
}

/// One line of a table with its target.
pub struct Line {
    /// First sector on the device.
    pub start: Sector,
    /// Length.
    pub len: SectorCount,
    /// The target's name, as in the table line.
    pub name: String,
    /// The policy.
    pub target: Arc<dyn Target>,
    /// Set if the target has nothing to decide.
    pub(crate) straight: Option<Straight>,
    /// Every write to the line is refused.
    pub(crate) read_only: bool,
}

/// The disk of a line whose target never decides otherwise.
pub(crate) struct Straight {
    pub disk: Arc<dyn Disk>,
    pub device: Option<DeviceId>,
    /// Of the line's first sector.
    pub start: Sector,
}

impl Straight {
    pub fn of(target: &dyn Target) -> Option<Straight> {
        let (disk, start) = target.straight()?;
        let device = disk.mapped().map(MappedDevice::id);
        Some(Straight { disk, device, start })
    }

    pub fn way(&self) -> Way {
        Way { start: self.start, next: self.device }
    }
}

impl Line {
    /// The line as text has it, in words.
    pub fn to_table_line(&self) -> TableLine {
        TableLine {
            start: self.start,
            len: self.len,
            target: self.name.clone(),
            args: self.target.table().split_whitespace().map(str::to_owned).collect(),
        }
    }

    /// True if every write to the line is refused.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// The range on the device.
    pub fn range(&self) -> SectorRange {
        SectorRange::new(self.start, self.len)
    }
}

/// A complete mapping of a device: gapless lines with their targets.
pub struct Table {
    lines: Vec<Line>,
    limits: Limits,
    read_only: bool,
}

impl Table {
    /// A table of gapless lines with these limits.
    pub(crate) fn new(lines: Vec<Line>, limits: Limits, read_only: bool) -> Table {
        Table { lines, limits, read_only }
    }

    /// The lines in order.
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// The size of the device.
    pub fn sectors(&self) -> SectorCount {
        self.lines.last().map_or(SectorCount::ZERO, |line| line.range().end() - Sector(0))
    }

    /// Block sizes and abilities of the whole.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// True if it was built to write no byte.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// The failures that concern the writers of the device.
    pub(crate) fn failures(&self) -> u64 {
        self.lines.iter().map(|line| line.target.failures()).sum()
    }

    /// The failures that some client got an error for already.
    pub(crate) fn failures_told(&self) -> u64 {
        self.lines.iter().map(|line| line.target.failures_told()).sum()
    }

    /// Every disk beneath, once.
    pub(crate) fn lowers(&self) -> Vec<Arc<dyn Disk>> {
        let mut lowers: Vec<Arc<dyn Disk>> = Vec::new();
        for lower in self.lines.iter().flat_map(|line| line.target.lowers()) {
            if !lowers.iter().any(|known| Arc::ptr_eq(known, &lower)) {
                lowers.push(lower);
            }
        }
        lowers
    }

    /// The lower disks but those that targets only read, as their claims say: nothing that was
    /// acknowledged here is there.
    pub(crate) fn written_lowers(&self) -> Vec<Arc<dyn Disk>> {
        let writes = |target: &Arc<dyn Target>, lower: &Arc<dyn Disk>| {
            let is_it = |disk: &Arc<dyn Disk>| Arc::ptr_eq(disk, lower);
            let mut claims = target.claims();
            claims.retain(|claim| claim.disk.as_ref().is_some_and(is_it));
            let only_reads =
                !claims.is_empty() && claims.iter().all(|claim| claim.kind == ClaimKind::Read);
            target.lowers().iter().any(is_it) && !only_reads
        };
        let mut lowers = self.lowers();
        lowers.retain(|lower| self.lines.iter().any(|line| writes(&line.target, lower)));
        lowers
    }

    /// Starts the targets: all of them or none. Refuses a disk that only its cache may use now.
    pub(crate) async fn start(&self, env: &Env) -> Result<(), ConfigError> {
        let kept: Vec<_> =
            self.lines.iter().filter_map(|line| line.target.keeps_marker_of()).collect();
        let is_kept = |disk: &Arc<dyn Disk>| kept.iter().any(|it| Arc::ptr_eq(it, disk));
        for disk in self.lowers().iter().filter(|disk| !is_kept(disk)) {
            take_unmarked(env, disk.as_ref()).await?;
        }
        for (started, line) in self.lines.iter().enumerate() {
            if let Err(error) = line.target.resume(env).await {
                for line in &self.lines[..started] {
                    // It was given nothing since.
                    let _ = line.target.suspend(env).await;
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Where the marker of a volume would be. A cache names the disk itself, so nothing is kept for
    /// a volume.
    pub(crate) fn marker_place<'a>(&self) -> MarkerPlace<'a> {
        let needless = |disk: &Arc<dyn Disk>| matches!(disk.marker_place(), MarkerPlace::Needless);
        if self.lowers().iter().all(needless) {
            MarkerPlace::Needless
        } else {
            MarkerPlace::Nowhere
        }
    }

    /// Has the targets let go of their devices.
    pub(crate) async fn close(&self, env: &Env) -> Result<(), ConfigError> {
        let mut result = Ok(());
        for line in &self.lines {
            result = result.and(line.target.close(env).await);
        }
        result
    }

    /// The line that holds `sector`, with its number.
    #[inline(always)]
    pub(crate) fn line_at(&self, sector: Sector) -> Option<(u16, &Line)> {
        if let [line] = self.lines.as_slice() {
            return (sector < line.start + line.len).then_some((0, line));
        }
        let index = self.lines.partition_point(|line| line.range().end() <= sector);
        Some((index as u16, self.lines.get(index)?))
    }

    /// What it is made of.
    pub fn nature(&self) -> Nature {
        match &self.lines[..] {
            [line] => line.target.nature(),
            lines => Nature::of_parts(lines.iter().map(|line| line.target.nature()), Shape::Linear),
        }
    }

    /// Where all requests go, if there is one line and its target has nothing to decide.
    pub(crate) fn straight(&self) -> Option<&Straight> {
        match self.lines.as_slice() {
            [line] => line.straight.as_ref(),
            _ => None,
        }
    }

    pub(crate) fn line(&self, index: u16) -> &Line {
        &self.lines[usize::from(index)]
    }

    /// The line of the only flush copy, if one line wants exactly one and no other any.
    pub(crate) fn single_flush(&self) -> Option<u16> {
        let mut flushes = self.flushes();
        let (line, _) = flushes.next()?;
        flushes.next().is_none().then_some(line)
    }

    /// Every flush copy: its line and its number there.
    pub(crate) fn flushes(&self) -> impl Iterator<Item = (u16, u16)> {
        self.lines.iter().enumerate().flat_map(|(index, line)| {
            (0..line.target.flush_copies()).map(move |copy| (index as u16, copy))
        })
    }
}

/// Refuses a disk beside which a dirty marker stands: it is to be used without a cache.
///
/// # Errors
/// It stands, or it is not known whether it does.
pub async fn refuse_marked(env: &Env, disk: &dyn Disk) -> Result<(), ConfigError> {
    let MarkerPlace::Store(store) = disk.marker_place() else { return Ok(()) };
    let Some(text) = store.read(env).await? else { return Ok(()) };
    let name = disk.name();
    let marker = DirtyMarker::of_text(&name, &text)?;
    Err(marker.refusal_alone(&name, env.unix_time()))
}

/// The same, and then this host uses the disk: it is told from others from now on.
///
/// # Errors
/// A marker stands, or it is not known whether one does, or the engine did not answer.
pub async fn take_unmarked(env: &Env, disk: &dyn Disk) -> Result<(), ConfigError> {
    refuse_marked(env, disk).await?;
    match disk.marker_place() {
        MarkerPlace::Store(store) => store.take(env).await,
        MarkerPlace::Needless | MarkerPlace::Nowhere => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{TableLine, escape_word, unescape_word};

    #[test]
    fn escaped_text_is_one_word_and_comes_back() {
        for text in ["/my disk/a b.img", "tab\there", "wide\u{3000}space", "a\\040b", "plain"] {
            let word = escape_word(text);
            let line = TableLine::parse(&format!("0 8 linear {word} 0")).unwrap();
            assert_eq!(line.args, [word.as_str(), "0"]);
            assert_eq!(unescape_word(&word), text);
        }
        assert_eq!(escape_word("/my disk"), r"/my\040disk");
    }

    #[test]
    fn backslashes_that_escape_nothing_stand_for_themselves() {
        for word in [r"a\b", r"a\", r"\04", r"\048", r"\400", r"\377"] {
            assert_eq!(unescape_word(word), word);
        }
    }
}
