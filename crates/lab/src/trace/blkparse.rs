//! A line of what `blkparse` prints by default.
//!
//! `MAJOR,MINOR CPU SEQUENCE SECONDS PID ACTION RWBS`, then what depends on the action. `Q` is what
//! a client asked for (`SECTOR + COUNT [PROCESS]`, without a range for a flush); all other actions
//! are what the kernel made of it. After the events come sums, from a line `CPU0 (DEVICE):` on.
//!
//! RWBS: `F` for a flush before, then one of `R`, `W`, `D` (discard) or `N` (none), then any of `F`
//! (FUA), `A` (read ahead), `S` (synchronous), `M` (metadata), `B` (barrier, of old kernels).

use cairn_block::{Op, Sector, SectorCount, SectorRange, Time};
use cairn_outcome::failure::Outcome;

use super::line::{Line, shown};
use super::{Ask, Event};

const ACTIONS: [&str; 18] =
    ["A", "B", "C", "D", "F", "G", "I", "M", "P", "Q", "R", "S", "T", "U", "UT", "X", "Y", "m"];
const NANOS_DIGITS: usize = 9;

pub(super) fn event<'a>(line: &'a Line<'_>) -> Outcome<Event<'a>> {
    let words = line.words();
    let device = words[0];
    if device.strip_prefix("CPU").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    {
        return Ok(Event::End);
    }
    let is_number = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    if !device.split_once(',').is_some_and(|(a, b)| is_number(a) && is_number(b)) {
        let expected = "MAJOR,MINOR as blkparse prints it, or the first line of an iolog of fio";
        return Err(line.wrong_word("device", device, expected));
    }
    let [_, _, _, time, _, action, rwbs, rest @ ..] = &words[..] else {
        let expected = "7 or more: MAJOR,MINOR CPU SEQUENCE TIME PID ACTION RWBS";
        return Err(line.wrong("fields", words.len(), expected));
    };
    let at = Some(moment(line, time)?);
    if !ACTIONS.contains(action) {
        return Err(line.wrong_word("action", action, "one of blkparse's, as Q or C"));
    }
    if *action != "Q" {
        return Ok(Event::Nothing);
    }
    let Some(Rwbs { op, is_fua, has_preflush }) = rwbs_of(rwbs) else {
        let expected = "R, W or D with any of F, A, S, M and B";
        return Err(line.wrong_word("operation", rwbs, expected));
    };
    let (op, range, is_fua) = match (range(line, rest)?, op) {
        (Some(range), Some(op)) => (op, range, is_fua),
        (None, _) if has_preflush => (Op::Flush, SectorRange::default(), false),
        (None, _) => return Err(line.wrong("range", "none", "SECTOR + COUNT")),
        (Some(_), None) => {
            return Err(line.wrong_word("operation", rwbs, "R, W or D before a range"));
        }
    };
    Ok(Event::Ask(Ask { at, source: device, op, range, is_fua, has_preflush }))
}

struct Rwbs {
    /// `None` for `N`.
    op: Option<Op>,
    is_fua: bool,
    has_preflush: bool,
}

fn rwbs_of(word: &str) -> Option<Rwbs> {
    let (has_preflush, rest) = match word.strip_prefix('F') {
        Some(rest) => (true, rest),
        None => (false, word),
    };
    let mut letters = rest.chars();
    let op = match letters.next()? {
        'R' => Some(Op::Read),
        'W' => Some(Op::Write),
        'D' => Some(Op::Discard),
        'N' => None,
        _ => return None,
    };
    let flags = letters.as_str();
    let is_known = flags.chars().all(|c| matches!(c, 'F' | 'A' | 'S' | 'M' | 'B'));
    is_known.then(|| Rwbs { op, is_fua: flags.contains('F'), has_preflush })
}

/// The range before the name of the process, if there is one.
fn range(line: &Line<'_>, words: &[&str]) -> Outcome<Option<SectorRange>> {
    match words {
        [] => Ok(None),
        [name, ..] if name.starts_with('[') => Ok(None),
        [sector, "+", count, ..] => {
            let start = Sector(line.number("sector", sector)?);
            let range = SectorRange::new(start, SectorCount(line.number("count", count)?));
            if range.is_empty() {
                return Err(line.wrong("range", range, "1 sector or more"));
            }
            Ok(Some(range))
        }
        _ => Err(line.wrong("range", shown(&words.join(" ")), "SECTOR + COUNT")),
    }
}

/// Seconds and nine digits of their fraction.
fn moment(line: &Line<'_>, word: &str) -> Outcome<Time> {
    let expected = "SECONDS.NANOSECONDS, with nine digits";
    let nanos = word.split_once('.').filter(|(_, nanos)| nanos.len() == NANOS_DIGITS);
    let Some((seconds, nanos)) = nanos else {
        return Err(line.wrong_word("time", word, expected));
    };
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let (true, true) = (is_number(seconds), is_number(nanos)) else {
        return Err(line.wrong_word("time", word, expected));
    };
    let seconds = line.scaled("time", seconds, 1_000_000_000)?;
    let nanos = line.number("time", nanos)?;
    let sum = seconds.checked_add(nanos);
    sum.map(Time).ok_or_else(|| line.wrong_word("time", word, "a time of this century"))
}
