//! What a client prints again and again: `status --interval`, and `events`. It goes on with the
//! server after this one: an upgraded one, or one that was started again.

use std::thread::sleep;
use std::time::{Duration, Instant};

use cairn_block::{ConfigError, ConfigKind};
use cairn_outcome::exit;
use cairn_outcome::failure::Outcome;
use cairn_outcome::stderr::say;
use cairn_outcome::stdout::{print, print_json, print_more};
use serde_json::json;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::text;
use crate::cli::{EventsArgs, StatusArgs};
use cairn_control::client::Client;
use cairn_control::report::VolumeLines;
use cairn_control::verbs::volume::VolumeInfo;
use cairn_control::verbs::watch::ServerEvents;
use cairn_control::watch::events::{EventsSince, Marks, VolumeEvent};

/// How long a client asks again while its server is away.
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks, and asks again while the server is away. The parameter of `ask` is true
/// the first time.
///
/// # Errors
/// The server is away for too long, or refuses.
pub fn patiently<T>(mut ask: impl FnMut(bool) -> Outcome<T>) -> Outcome<T> {
    const PAUSE: Duration = Duration::from_millis(100);
    let mut answer = ask(true);
    let until = Instant::now() + PATIENCE;
    let is_away = |error: &ConfigError| matches!(error.kind, ConfigKind::System | ConfigKind::Busy);
    while answer.as_ref().is_err_and(is_away) && Instant::now() < until {
        sleep(PAUSE);
        answer = ask(false);
    }
    answer
}

/// `status`, once or at an interval.
///
/// # Errors
/// There is no server or volume, or stdout refuses.
pub fn status(server: &Client, args: &StatusArgs) -> Outcome<u8> {
    let is_of_all = args.query.verb.name.is_none();
    let Some(interval) = args.repeat.interval else {
        let volumes = server.ask(&args.query.verb)?;
        return match args.query.json {
            true => print_json(&json!(volumes)),
            false => print(&text::lines(&volumes, is_of_all)),
        };
    };
    let mut due = Instant::now();
    for answers in 1u64.. {
        // One that was never there is no server to wait for.
        let volumes = match answers {
            1 => server.ask(&args.query.verb)?,
            _ => patiently(|_| server.ask(&args.query.verb))?,
        };
        let text = match args.query.json {
            true => format!("{}\n", json!(volumes)),
            false => text::lines(&volumes, is_of_all),
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
    for name in &args.names {
        // One that is not there now may come, but is more likely a mistake.
        server.ask(&VolumeInfo { name: Some(name.clone()) })?;
    }
    let begin = server.ask(&ServerEvents { marks: None, now: true })?;
    let volumes = if args.names.is_empty() { begin.marks.volumes() } else { args.names.len() };
    let plural = if volumes == 1 { "" } else { "s" };
    say(format_args!("events: following {volumes} volume{plural}"));
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

/// The next events.
fn next(server: &Client, marks: &Marks) -> Outcome<EventsSince> {
    // Another server answers at once: it may have nothing to tell for long.
    patiently(|is_first| server.ask(&ServerEvents { marks: Some(marks.clone()), now: !is_first }))
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
    let VolumeEvent { name, what, device, event_nr, unix_ms } = event;
    let begin = format!("{} {name}", utc(*unix_ms));
    let shown = match (what.as_str(), device) {
        ("event", _) => format!("{begin} event {event_nr}\n"),
        (_, Some(device)) => format!("{begin} {what} {device}\n"),
        (_, None) => format!("{begin} {what}\n"),
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
    use super::{line, patiently, utc};
    use cairn_block::{ConfigError, ConfigKind};
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
            device: None,
            event_nr: 3,
            unix_ms: 951_868_799_999,
        };
        let status = [lines("other"), lines("vm")];
        assert_eq!(
            line(&event("event"), &status, false),
            "2000-02-29T23:59:59Z vm event 3\n2000-02-29T23:59:59Z vm status 0 8 zero \n"
        );
        assert_eq!(line(&event("removed"), &[], false), "2000-02-29T23:59:59Z vm removed\n");
        let fenced = VolumeEvent { device: Some("rbd:a/b".to_owned()), ..event("fenced") };
        assert_eq!(line(&fenced, &[], false), "2000-02-29T23:59:59Z vm fenced rbd:a/b\n");
        let document: serde_json::Value =
            serde_json::from_str(&line(&event("loss"), &status, true)).unwrap();
        assert_eq!((&document["what"], &document["event_nr"]), (&"loss".into(), &3.into()));
        assert_eq!(document["status"].as_array().map(Vec::len), Some(1));
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
    }

    #[test]
    fn a_server_that_is_away_is_asked_again_and_one_that_refuses_is_not() {
        let mut asked = Vec::new();
        let answer = patiently(|is_first| {
            asked.push(is_first);
            let away = ConfigError::new(ConfigKind::System, "control.sock", "nothing listens");
            if asked.len() < 3 { Err(away) } else { Ok(7) }
        });
        assert_eq!((answer.unwrap(), asked), (7, vec![true, false, false]));
        let mut asked = 0;
        let refused: Result<(), _> = patiently(|_| {
            asked += 1;
            Err(ConfigError::new(ConfigKind::Argument, "vm", "there is no volume of this name"))
        });
        assert_eq!((refused.unwrap_err().kind, asked), (ConfigKind::Argument, 1));
    }
}
