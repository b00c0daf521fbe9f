//! The reserve: devices that are kept for volumes that are not served, so that no other volume
//! writes to them before their owner is served again or forgotten.
//!
//! A claim (`cairn_block`) belongs to a table that exists. A volume that could not be brought up
//! has no table, but its dirty cache, its snapshots or its pool are on devices that must not
//! change. So the start enters these devices here, by name, and every table is checked against them
//! before it is built.
//!
//! K1. The text of a table decides what the table keeps and what it writes: the device may be
//!     missing, or its metadata damaged. A check compares the devices that the arguments lead to at
//!     that time. An argument that leads nowhere keeps nothing.
//! K2. A remapper keeps nothing, because it owns nothing. The exception is a remapper beneath a
//!     volume with snapshots: a write to its device would be missing in the snapshots.
//! K3. A device that a served volume writes is not kept from that volume. It was there first.
//! K4. If several volumes need a device, it is kept for the one that was refused first. A volume
//!     and the parts that its snapshots made of it count as one.
//! K5. A volume that is named as `@VOLUME` and kept is not exported, because its clients would
//!     write to it.
//! K6. The devices that a cache or pool owns, and those beneath a volume with snapshots, are kept
//!     from the beginning of the start until that volume has its turn. So the order of the volumes
//!     does not matter. Then the claims of the volume take over, or the device stays kept. Other
//!     targets share devices with their kin, under any name; they keep nothing until they were
//!     refused.

use cairn_block::{Identity, Sector, SectorCount, SectorRange, TableLine};
use cairn_targets::spec::{Arg, Kind, NO_DEVICE, Span, Use, words_of};
use parking_lot::Mutex;

use crate::names::parent_of;

/// The end of the longest possible disk.
const END: Sector = Sector(1 << 55);

/// A range of a device that a table line names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The device, as the line names it.
    pub argument: String,
    /// The range on the device.
    pub range: SectorRange,
}

impl Part {
    /// True if both are on one device and overlap.
    fn meets(&self, other: &Part, identify: &impl Fn(&str) -> Option<Identity>) -> bool {
        let is_it = || {
            let own = identify(&self.argument);
            own.is_some() && own == identify(&other.argument)
        };
        self.range.overlaps(other.range) && is_it()
    }
}

/// The ranges that are kept for one volume.
struct Kept {
    volume: String,
    parts: Vec<Part>,
    /// The volume has not had its turn (K6).
    awaited: bool,
}

/// The ranges of all volumes, in the order in which the volumes were refused.
#[derive(Default)]
pub struct Reserve(Mutex<Vec<Kept>>);

/// A range that a table writes and that is kept for another volume.
#[derive(Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The device, as the table names it.
    pub argument: String,
    /// The volume that it is kept for.
    pub volume: String,
    /// That volume has not had its turn, and may still be served.
    pub awaited: bool,
}

/// The volume whose snapshots made this one, or the volume itself.
pub fn family_of(name: &str) -> &str {
    parent_of(name).unwrap_or(name)
}

impl Reserve {
    /// Keeps the ranges that the volume `name` needs, unless the volume has an entry. `live` are
    /// the lines of the served volumes (K3).
    pub fn keep(
        &self,
        name: &str,
        needed: impl IntoIterator<Item = Part>,
        live: &[TableLine],
        identify: impl Fn(&str) -> Option<Identity>,
    ) {
        let live: Vec<Part> = live.iter().flat_map(written_by).collect();
        let is_free = |part: &Part| !live.iter().any(|other| part.meets(other, &identify));
        let parts = needed.into_iter().filter(is_free).collect();
        let kept = Kept { volume: name.to_owned(), parts, awaited: false };
        let mut all = self.0.lock();
        match all.iter_mut().find(|known| known.volume == name) {
            Some(known) if known.awaited => *known = kept,
            Some(_) => {}
            None => all.push(kept),
        }
    }

    /// Keeps the ranges that the volume `name` owns until its turn (K6), unless it has an entry.
    pub fn await_turn(&self, name: &str, owned: impl IntoIterator<Item = Part>) {
        let mut all = self.0.lock();
        if all.iter().all(|kept| kept.volume != name) {
            let parts = owned.into_iter().collect();
            all.push(Kept { volume: name.to_owned(), parts, awaited: true });
        }
    }

    /// The owner for which the volume `name` is kept (K5).
    pub fn owner_of(&self, name: &str) -> Option<String> {
        let is_it = |part: &Part| part.argument.strip_prefix('@') == Some(name);
        let all = self.0.lock();
        let mut kept = all.iter().filter(|kept| !kept.awaited);
        let owner = kept.find(|kept| kept.parts.iter().any(is_it))?;
        let owner = family_of(&owner.volume);
        (owner != family_of(name)).then(|| owner.to_owned())
    }

    /// True if the volume `name` is kept for the volume `owner`, also before the turn of that (K6).
    pub fn is_kept_for(&self, name: &str, owner: &str) -> bool {
        let is_it = |part: &Part| part.argument.strip_prefix('@') == Some(name);
        let all = self.0.lock();
        let mut own = all.iter().filter(|kept| family_of(&kept.volume) == family_of(owner));
        own.any(|kept| kept.parts.iter().any(is_it))
    }

    /// Removes the entry of the volume `name`.
    pub fn release(&self, name: &str) {
        self.0.lock().retain(|kept| kept.volume != name);
    }

    /// The first range that a table of the volume `name` would write and that is kept for another
    /// volume.
    pub fn conflict(
        &self,
        name: &str,
        lines: &[TableLine],
        identify: impl Fn(&str) -> Option<Identity>,
    ) -> Option<Conflict> {
        let all = self.0.lock();
        let parts = || all.iter().flat_map(|kept| kept.parts.iter().map(move |part| (kept, part)));
        parts().next()?;
        lines.iter().flat_map(written_by).find_map(|wanted| {
            let (first, _) = parts().find(|(_, part)| part.meets(&wanted, &identify))?;
            let volume = family_of(&first.volume);
            let (argument, volume) = (wanted.argument.clone(), volume.to_owned());
            let awaited = first.awaited;
            (volume != family_of(name)).then_some(Conflict { argument, volume, awaited })
        })
    }
}

/// The ranges that these tables need for themselves.
pub fn needed<'a>(
    tables: impl IntoIterator<Item = &'a str>,
    has_snapshots: bool,
) -> impl Iterator<Item = Part> {
    let lines = tables.into_iter().filter_map(|text| TableLine::parse_all(text).ok()).flatten();
    lines.flat_map(move |line| needed_by(&line, has_snapshots))
}

/// The ranges that these tables own from the beginning of the start (K6).
pub fn owned<'a>(
    tables: impl IntoIterator<Item = &'a str>,
    has_snapshots: bool,
) -> impl Iterator<Item = Part> {
    let lines = tables.into_iter().filter_map(|text| TableLine::parse_all(text).ok()).flatten();
    let owns = |line: &TableLine| devices_of(line).any(|(used, _)| matches!(used, Use::Owns(_)));
    let lines = lines.filter(move |line| has_snapshots || owns(line));
    lines.flat_map(move |line| needed_by(&line, has_snapshots))
}

/// What a line uses of devices, for itself or with others.
pub fn used_by(line: &TableLine) -> Vec<Part> {
    needed_by(line, true)
}

/// What a line needs for itself.
fn needed_by(line: &TableLine, has_snapshots: bool) -> Vec<Part> {
    let needs = |used| used != Use::Maps || has_snapshots;
    devices_of(line).filter(|(used, _)| needs(*used)).map(|(_, part)| part).collect()
}

/// What a line writes.
fn written_by(line: &TableLine) -> Vec<Part> {
    let writes = |used| !matches!(used, Use::Reads | Use::Follows);
    devices_of(line).filter(|(used, _)| writes(*used)).map(|(_, part)| part).collect()
}

/// The parts of devices that a line uses, by the declaration of its target.
fn devices_of(line: &TableLine) -> impl Iterator<Item = (Use, Part)> {
    let parts = words_of(line).map(|(spec, words)| {
        let devices = words.fixed.iter().enumerate();
        let is_device = |arg: &Arg, word: &str| match arg.used {
            Use::Nothing | Use::Pool => false,
            _ => !arg.or_none || word != NO_DEVICE,
        };
        let devices = devices.filter(|(_, (arg, word))| is_device(arg, word));
        let part = |(at, (arg, word)): (usize, &(&Arg, &str))| {
            let range = match arg.used {
                Use::Maps => mapped(line, &words.fixed, at),
                Use::Owns(Span::Line) => SectorRange::new(Sector(0), len_of(line)),
                Use::Owns(Span::From(option)) => {
                    let start = words.option(spec, option).and_then(|values| values.first());
                    let start = start.and_then(|word| word.parse().ok());
                    SectorRange::between(Sector(start.filter(|at| *at < END.0).unwrap_or(0)), END)
                }
                _ => whole_device(),
            };
            (arg.used, Part { argument: (*word).to_owned(), range })
        };
        devices.map(part).collect::<Vec<_>>()
    });
    parts.into_iter().flatten()
}

/// The range that a line maps its own to: it begins at the offset that follows the device, and is
/// as long as the line, or as one of its stripes.
fn mapped(line: &TableLine, words: &[(&'static Arg, &str)], device: usize) -> SectorRange {
    let offset = words.get(device + 1).filter(|(arg, _)| matches!(arg.kind, Kind::Offset));
    let start = offset.and_then(|(_, word)| word.parse().ok()).unwrap_or(0);
    let stripes = words.first().filter(|_| words[device].0.repeated);
    let stripes = stripes.and_then(|(_, word)| word.parse().ok()).unwrap_or(1_u64).max(1);
    let count = SectorCount(len_of(line).0.div_ceil(stripes));
    if start < END.0 { SectorRange::new(Sector(start), count) } else { whole_device() }
}

/// A length that is left to what the line stands on, and was not found, may be any.
fn len_of(line: &TableLine) -> SectorCount {
    if line.len == TableLine::WHOLE { END - Sector(0) } else { line.len }
}

/// A device as a whole.
pub fn whole_device() -> SectorRange {
    SectorRange::between(Sector(0), END)
}

#[cfg(test)]
mod tests {
    use cairn_block::{Identity, TableLine};

    use super::{Part, Reserve, needed, needed_by, owned, written_by};

    fn line(text: &str) -> TableLine {
        TableLine::parse_all(text).unwrap().remove(0)
    }

    fn lines(text: &str) -> Vec<TableLine> {
        TableLine::parse_all(text).unwrap()
    }

    #[test]
    fn each_target_needs_and_writes_these_of_its_devices() {
        let names = |parts: Vec<Part>| {
            let names: Vec<String> = parts.into_iter().map(|part| part.argument).collect();
            names.join(" ")
        };
        for (text, needed, beneath_snapshots, written) in [
            ("0 8 writecache s slow fast 4096 0", "slow fast", "slow fast", "slow fast"),
            ("0 8 thin-pool m d 128 0", "m d", "m d", "m d"),
            ("0 8 thin-pool @m d 128 0", "@m d", "@m d", "@m d"),
            ("0 8 thin @p 0", "", "", ""),
            ("0 8 thin @p 0 base", "base", "base", ""),
            ("0 8 snapshot o cow P 8", "o cow", "o cow", "cow"),
            ("0 8 snapshot @v@real cow P 8", "@v@real cow", "@v@real cow", "cow"),
            ("0 8 snapshot-merge o cow P 8", "o cow", "o cow", "o cow"),
            ("0 8 snapshot-origin o", "o", "o", "o"),
            ("0 8 linear a 0", "", "a", "a"),
            ("0 8 linear @a 0", "", "@a", "@a"),
            ("0 8 flakey a 0 1 1", "", "a", "a"),
            ("0 8 passthrough a", "", "a", "a"),
            ("0 8 delay a 0 5", "", "a", "a"),
            ("0 8 delay a 0 5 b 0 5 c 0 5", "", "a b c", "a b c"),
            ("0 8 striped 2 8 a 0 b 0", "", "a b", "a b"),
            ("0 8 zero", "", "", ""),
            ("0 8 error", "", "", ""),
        ] {
            let line = line(text);
            assert_eq!(names(needed_by(&line, false)), needed, "{text}");
            assert_eq!(names(needed_by(&line, true)), beneath_snapshots, "{text}");
            assert_eq!(names(written_by(&line)), written, "{text}");
        }
    }

    /// Files `a` and `A` are one; `gone` is none.
    fn identify(argument: &str) -> Option<Identity> {
        let name = argument.to_lowercase();
        (name != "gone").then_some(Identity::Volume(name))
    }

    fn keep(reserve: &Reserve, name: &str, table: &str) {
        reserve.keep(name, needed([table], true), &[], identify);
    }

    fn owner(reserve: &Reserve, name: &str, text: &str) -> Option<String> {
        reserve.conflict(name, &lines(text), identify).map(|conflict| conflict.volume)
    }

    #[test]
    fn other_volumes_do_not_write_a_kept_range_until_its_release() {
        let reserve = Reserve::default();
        keep(&reserve, "v@s", "0 8 snapshot @v@real gone P 8");
        keep(&reserve, "v@real", "0 8 linear a 16");
        assert_eq!(owner(&reserve, "w", "0 8 linear A 16"), Some("v".to_owned()));
        assert_eq!(owner(&reserve, "w", "0 8 zero\n8 9 delay b 0 1 A 8 1"), Some("v".to_owned()));
        assert_eq!(owner(&reserve, "w", "0 8 writecache s b A 4096 0"), Some("v".to_owned()));
        for text in ["0 8 linear a 8", "0 8 linear a 24", "0 8 linear b 16", "0 8 thin @p 0 a"] {
            assert_eq!(owner(&reserve, "w", text), None, "{text}");
        }
        assert_eq!(owner(&reserve, "w", "0 8 linear gone 0"), None);
        for own in ["v", "v@real", "v@new"] {
            assert_eq!(owner(&reserve, own, "0 8 linear a 16"), None, "{own}");
        }
        reserve.release("v@real");
        assert_eq!(owner(&reserve, "w", "0 8 linear a 16"), None);
    }

    #[test]
    fn a_range_that_two_volumes_need_is_kept_for_the_first() {
        let reserve = Reserve::default();
        for name in ["one", "two"] {
            keep(&reserve, name, "0 8 writecache s slow fast 4096 0");
        }
        let table = "0 8 writecache s slow fast 4096 0";
        assert_eq!(owner(&reserve, "one", table), None);
        assert_eq!(owner(&reserve, "two", table), Some("one".to_owned()));
        // Tried again, and refused again.
        keep(&reserve, "one", table);
        assert_eq!(owner(&reserve, "one", table), None);
        reserve.release("one");
        assert_eq!(owner(&reserve, "one", table), Some("two".to_owned()));
        assert_eq!(owner(&reserve, "two", table), None);
    }

    #[test]
    fn owned_ranges_are_kept_until_the_turn_and_longer_if_the_volume_is_refused() {
        let reserve = Reserve::default();
        let tables = ["0 8 writecache s @slow fast 4096 2 start_sector 16", "8 8 linear a 0"];
        reserve.await_turn("v", owned(tables, false));
        let taken = |text: &str| reserve.conflict("w", &lines(text), identify);
        assert!(taken("0 8 linear @slow 0").is_some_and(|conflict| conflict.awaited));
        assert!(taken("0 8 linear fast 16").is_some() && taken("0 8 linear fast 8").is_none());
        assert_eq!((taken("0 8 linear a 0"), reserve.owner_of("slow")), (None, None));
        assert!(reserve.is_kept_for("slow", "v") && !reserve.is_kept_for("slow", "w"));
        assert!(!reserve.is_kept_for("fast", "v"));
        reserve.keep("v", needed(tables, false), &[], identify);
        assert!(taken("0 8 linear @slow 0").is_some_and(|conflict| !conflict.awaited));
        assert_eq!(reserve.owner_of("slow").as_deref(), Some("v"));
        assert!(reserve.is_kept_for("slow", "v"));
        reserve.release("v");
        assert!(!reserve.is_kept_for("slow", "v"));
        assert_eq!((taken("0 8 linear @slow 0"), reserve.owner_of("slow")), (None, None));
        // Other volumes may use the rest of a data device.
        reserve.await_turn("p", owned(["0 64 thin-pool m d 128 0"], false));
        assert!(taken("0 8 linear d 56").is_some() && taken("0 8 linear d 64").is_none());
        // Kin share their origin, except the tables that verbs made beneath a volume.
        reserve.await_turn("s", owned(["0 8 snapshot o cow P 8"], false));
        assert_eq!(taken("0 8 snapshot-origin o"), None);
        reserve.await_turn("o@real", owned(["0 8 linear o 0"], true));
        assert_eq!(taken("0 8 linear o 4").map(|conflict| conflict.volume).as_deref(), Some("o"));
    }

    #[test]
    fn a_range_that_a_served_volume_writes_is_not_kept() {
        let reserve = Reserve::default();
        let live = lines("0 8 linear SLOW 0");
        let needs = needed(["0 8 writecache s slow fast 4096 0"], false);
        reserve.keep("v", needs, &live, identify);
        assert_eq!(owner(&reserve, "w", "0 8 linear slow 0"), None);
        assert_eq!(owner(&reserve, "w", "0 8 linear fast 0"), Some("v".to_owned()));
    }
}
