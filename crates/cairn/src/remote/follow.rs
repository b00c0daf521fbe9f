//! What a client prints again and again: `status --interval`, and `events`.

use std::thread::sleep;
use std::time::{Duration, Instant};

use cairn_outcome::exit;
use cairn_outcome::failure::Outcome;
use cairn_outcome::stderr::say;
use cairn_outcome::stdout::{print_json, print_more};
use serde_json::json;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::text;
use crate::cli::{EventsArgs, StatusArgs};
use cairn_control::client::Client;
use cairn_control::report::VolumeLines;
use cairn_control::verbs::watch::ServerEvents;
use cairn_control::watch::events::{EventsSince, Marks, VolumeEvent};

/// How long `events` tries to go on with a server that ended: another one may go on for it.
const PATIENCE: Duration = Duration::from_secs(10);

/// `status`, once or at an interval.
///
/// # Errors
/// There is no server or volume, or stdout refuses.
pub fn status(server: &Client, args: &StatusArgs) -> Outcome<u8> {
    let is_named = args.query.verb.name.is_none();
    let mut due = Instant::now();
    for answers in 1u64.. {
        let volumes = server.ask(&args.query.verb)?;
        let Some(interval) = args.repeat.interval else {
            return match args.query.json {
                true => print_json(&json!(volumes)),
                false => print_more(&text::lines(&volumes, is_named)).map(|_| exit::OK),
            };
        };
        let text = match args.query.json {
            true => format!("{}\n", json!(volumes)),
            false => text::lines(&volumes, is_named),
        };
        if !print_more(&text)? || args.repeat.count.is_some_and(|count| answers >= count) {
            break;
        }
        // From one time to the next, however long an answer takes; missed ones are left out.
        due = (due + interval).max(Instant::now());
        sleep(due.saturating_duration_since(Instant::now()));
    }
    Ok(exit::OK)
}

/// `events`, until the reader or the server goes away.
///
/// # Errors
/// There is no server, or stdout refuses.
pub fn events(server: &Client, args: &EventsArgs) -> Outcome<u8> {
    let begin = server.ask(&ServerEvents { marks: None, now: true })?;
    say(format_args!("events: following {}", counted(begin.marks.volumes())));
    let (mut marks, mut left) = (begin.marks, args.count.unwrap_or(u64::MAX));
    while left > 0 {
        let mut found = next(server, &marks)?;
        marks = std::mem::take(&mut found.marks);
        let is_chosen =
            |event: &&VolumeEvent| args.names.is_empty() || args.names.contains(&event.name);
        let chosen = found.events.iter().filter(is_chosen).take(left as usize);
        let lines: Vec<String> =
            chosen.map(|event| line(event, &found.status, args.json)).collect();
        left -= lines.len() as u64;
        if !lines.is_empty() && !print_more(&lines.concat())? {
            break;
        }
    }
    Ok(exit::OK)
}

fn counted(volumes: usize) -> String {
    format!("{volumes} volume{}", if volumes == 1 { "" } else { "s" })
}

/// The next events. A server that was upgraded, or started again, goes on for the one before.
fn next(server: &Client, marks: &Marks) -> Outcome<EventsSince> {
    const PAUSE: Duration = Duration::from_millis(100);
    let ask = |now| server.ask(&ServerEvents { marks: Some(marks.clone()), now });
    let until = Instant::now() + PATIENCE;
    let mut answer = ask(false);
    while answer.is_err() && Instant::now() < until {
        sleep(PAUSE);
        answer = ask(true);
    }
    answer
}

/// An event as one document, or as lines: the event, and what the status lines of its volume are.
fn line(event: &VolumeEvent, status: &[VolumeLines], is_json: bool) -> String {
    let volumes = status.iter().filter(|volume| volume.name == event.name);
    let lines: Vec<_> = volumes.flat_map(|volume| &volume.lines).collect();
    if is_json {
        let mut document = json!(event);
        document["status"] = json!(lines);
        return format!("{document}\n");
    }
    let VolumeEvent { name, what, event_nr, unix_ms } = event;
    let begin = format!("{} {name}", utc(*unix_ms));
    let shown = match what.as_str() {
        "event" => format!("{begin} event {event_nr}\n"),
        _ => format!("{begin} {what}\n"),
    };
    let lines = lines.iter().map(|line| format!("{begin} status {line}\n"));
    std::iter::once(shown).chain(lines).collect()
}

/// A time as people and programs read it, in whole seconds.
fn utc(unix_ms: u64) -> String {
    let seconds = i64::try_from(unix_ms / 1000).unwrap_or(i64::MAX);
    let time = OffsetDateTime::from_unix_timestamp(seconds).ok();
    time.and_then(|time| time.format(&Rfc3339).ok()).unwrap_or_else(|| seconds.to_string())
}

#[cfg(test)]
mod tests {
    use super::{line, utc};
    use cairn_control::report::{ReportLine, VolumeLines};
    use cairn_control::watch::events::VolumeEvent;

    #[test]
    fn an_event_is_followed_by_the_status_of_its_volume_alone() {
        let lines = |name: &str| {
            let (target, params, fields) = ("zero".to_owned(), String::new(), Default::default());
            let line = ReportLine { start: 0, length: 8, target, params, fields };
            VolumeLines { name: name.to_owned(), lines: vec![line] }
        };
        let event = |what: &str| VolumeEvent {
            name: "vm".to_owned(),
            what: what.to_owned(),
            event_nr: 3,
            unix_ms: 951_868_799_999,
        };
        let status = [lines("other"), lines("vm")];
        assert_eq!(
            line(&event("event"), &status, false),
            "2000-02-29T23:59:59Z vm event 3\n2000-02-29T23:59:59Z vm status 0 8 zero \n"
        );
        assert_eq!(line(&event("removed"), &[], false), "2000-02-29T23:59:59Z vm removed\n");
        let document: serde_json::Value =
            serde_json::from_str(&line(&event("loss"), &status, true)).unwrap();
        assert_eq!((&document["what"], &document["event_nr"]), (&"loss".into(), &3.into()));
        assert_eq!(document["status"].as_array().map(Vec::len), Some(1));
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
    }
}
