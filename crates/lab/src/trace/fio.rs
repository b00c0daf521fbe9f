//! A line of an iolog, as fio(1) describes it under "Trace file format v2" and "v3".
//!
//! `FILE ACTION` opens and closes files, `FILE ACTION OFFSET LENGTH` is an operation, in bytes. In
//! version 3 the time since the start stands before both, in microseconds (that is what fio 3.33
//! writes; its manual names no unit). In version 2 the offset of `wait` is a time in microseconds.

use std::time::Duration;

use cairn_block::{Op, SectorRange, Time};
use cairn_outcome::failure::Outcome;

use super::line::{Line, shown};
use super::{Ask, Event};

/// A shorter wait is none.
const WAIT_MIN: Duration = Duration::from_micros(100);
const FILE_ACTIONS: [&str; 3] = ["add", "open", "close"];
const ACTIONS_V3: &str = "add, open, close, read, write, sync, datasync or trim";
const ACTIONS_V2: &str = "add, open, close, wait, read, write, sync, datasync or trim";

pub(super) fn event_v2<'a>(line: &'a Line<'_>) -> Outcome<Event<'a>> {
    match line.words()[..] {
        [_, action] => management(line, action, ACTIONS_V2),
        [_, "wait", time, _] => {
            let wait = Duration::from_nanos(line.scaled("wait", time, 1000)?);
            Ok(if wait < WAIT_MIN { Event::Nothing } else { Event::Wait(wait) })
        }
        [file, action, offset, length] => {
            let (op, range) = operation(line, action, offset, length, ACTIONS_V2)?;
            Ok(ask(None, file, op, range))
        }
        ref words => {
            let expected = "2 or 4: FILE ACTION [OFFSET LENGTH]";
            Err(line.wrong("fields", words.len(), expected))
        }
    }
}

pub(super) fn event_v3<'a>(line: &'a Line<'_>) -> Outcome<Event<'a>> {
    match line.words()[..] {
        [time, _, action] => {
            line.scaled("time", time, 1000)?;
            management(line, action, ACTIONS_V3)
        }
        [time, file, action, offset, length] => {
            let at = Time(line.scaled("time", time, 1000)?);
            let (op, range) = operation(line, action, offset, length, ACTIONS_V3)?;
            Ok(ask(Some(at), file, op, range))
        }
        ref words => {
            let expected = "3 or 5: TIME FILE ACTION [OFFSET LENGTH]";
            Err(line.wrong("fields", words.len(), expected))
        }
    }
}

fn ask(at: Option<Time>, source: &str, op: Op, range: SectorRange) -> Event<'_> {
    Event::Ask(Ask { at, source, op, range, is_fua: false, has_preflush: false })
}

/// A line without a range.
fn management<'a>(line: &Line<'_>, action: &str, actions: &str) -> Outcome<Event<'a>> {
    if FILE_ACTIONS.contains(&action) {
        return Ok(Event::Nothing);
    }
    let found = format!("{} without a range", shown(action));
    Err(line.wrong("action", found, actions))
}

/// What and where. The range of a sync means nothing.
fn operation(
    line: &Line<'_>,
    action: &str,
    offset: &str,
    length: &str,
    actions: &str,
) -> Outcome<(Op, SectorRange)> {
    let op = match action {
        "read" => Op::Read,
        "write" => Op::Write,
        "trim" => Op::Discard,
        "sync" | "datasync" => {
            line.number("offset", offset)?;
            line.number("length", length)?;
            return Ok((Op::Flush, SectorRange::default()));
        }
        _ => return Err(line.wrong_word("action", action, actions)),
    };
    Ok((op, line.range_of_bytes(offset, length)?))
}
