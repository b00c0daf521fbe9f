//! `state forget` as a pure function over the records, for a running server and for a file alone.
//!
//! A volume is forgotten with its snapshots, their stores, and a merge. The content of these
//! snapshots is lost, because the server no longer copies chunks to their stores. So the verb needs
//! `--yes`. The next start brings up the configured table.

use cairn_block::ConfigKind;
use cairn_outcome::failure::{Outcome, refused, wrong};

use super::Record;
use crate::names::{is_hidden, merge_of, parent_of, real_of};

/// The new records, and the messages.
#[derive(Debug, PartialEq, Eq)]
pub struct Forgotten {
    /// The new records.
    pub after: Vec<Record>,
    /// One line for each dropped record.
    pub told: Vec<String>,
}

/// Forgets the volume `name`.
///
/// # Errors
/// Nothing is recorded of it, another recorded volume needs it, or `yes` is missing.
pub fn forget(all: &[Record], name: &str, yes: bool) -> Outcome<Forgotten> {
    let record_of = |name: &str| all.iter().find(|record| record.name == name);
    let Some(record) = record_of(name) else {
        let names: Vec<&str> = all.iter().map(|record| record.name.as_str()).collect();
        let expected = match names.is_empty() {
            true => "a record, and there are none".to_owned(),
            false => format!("one of {}", names.join(", ")),
        };
        return Err(wrong(name, "state", "no record of it", expected));
    };
    if let Some(volume) = parent_of(name).filter(|_| is_hidden(name)) {
        let found = format!("a part of {volume} with its snapshots");
        return Err(wrong(name, "state", found, format!("{volume}, or one of its snapshots")));
    }
    let gone: Vec<&Record> = match (&record.store, record_of(&real_of(name))) {
        (None, Some(_)) => all.iter().filter(|other| is_of_family(other, name)).collect(),
        _ => vec![record],
    };
    let mut after: Vec<Record> = gone.iter().map(|gone| without(gone)).collect();
    if record.store.is_some() {
        after.extend(after_a_snapshot(all, record)?);
    }
    let snapshots = gone.iter().filter(|record| record.store.is_some()).count();
    if snapshots > 0 && !yes {
        let found = format!("{snapshots} snapshots or merges, whose content is lost by it");
        return Err(refused(ConfigKind::Argument, name, "forget", found, "--yes as well"));
    }
    refuse_users(all, name, &after)?;
    Ok(Forgotten { told: gone.iter().map(|gone| farewell(gone)).collect(), after })
}

/// True for a volume and the parts that its snapshots with stores made of it.
fn is_of_family(record: &Record, volume: &str) -> bool {
    let part = parent_of(&record.name) == Some(volume);
    record.name == volume || (part && (record.store.is_some() || is_hidden(&record.name)))
}

fn without(record: &Record) -> Record {
    Record::as_configured(&record.name, record.configured.as_deref())
}

/// The other changes when a snapshot is forgotten: with the last one the volume gets its own table
/// back.
fn after_a_snapshot(all: &[Record], snapshot: &Record) -> Outcome<Vec<Record>> {
    let volume = parent_of(&snapshot.name).unwrap_or_default();
    let record_of = |name: &str| all.iter().find(|record| record.name == name);
    if record_of(&merge_of(volume)).is_some() {
        let found = "a merge or rollback under way";
        let expected = format!("none (forget {volume} as a whole)");
        return Err(refused(ConfigKind::Busy, &snapshot.name, "forget", found, expected));
    }
    let is_other = |other: &&Record| {
        is_of_family(other, volume) && other.store.is_some() && other.name != snapshot.name
    };
    if all.iter().any(|other| is_other(&other)) {
        return Ok(Vec::new());
    }
    let (Some(top), Some(real)) = (record_of(volume), record_of(&real_of(volume))) else {
        return Ok(Vec::new());
    };
    Ok(vec![Record { table: real.table.clone(), ..top.clone() }, without(real)])
}

/// Refuses if another record stands on a forgotten volume.
fn refuse_users(all: &[Record], name: &str, after: &[Record]) -> Outcome<()> {
    let is_gone =
        |lower: &str| after.iter().any(|record| record.name == lower && record.table.is_none());
    let mut users = all.iter().filter(|user| after.iter().all(|gone| gone.name != user.name));
    let user = users.find(|user| {
        let text = [&user.table, &user.inactive, &user.former].into_iter().flatten();
        let mut words = text.flat_map(|text| text.split_whitespace());
        words.any(|word| word.strip_prefix('@').is_some_and(is_gone))
    });
    let Some(user) = user else { return Ok(()) };
    let found = format!("volume '{}' on it", user.name);
    let expected = format!("none (forget {} first)", user.name);
    Err(refused(ConfigKind::Busy, name, "forget", found, expected))
}

/// The data that a user needs to restore the record by hand.
fn farewell(record: &Record) -> String {
    let table = record.table.as_deref().map_or_else(
        || "it was removed".to_owned(),
        |table| format!("its table was '{}'", table.trim().replace('\n', "', '")),
    );
    let store = record.store.as_ref().map_or_else(String::new, |store| {
        format!("; its store {} is of no use any more", store.argument)
    });
    format!("{}: forgotten: {table}{store}", record.name)
}

#[cfg(test)]
mod tests {
    use super::forget;
    use crate::state::{Record, Store};

    fn record(name: &str, configured: Option<&str>, table: &str) -> Record {
        Record { table: Some(table.to_owned()), ..Record::as_configured(name, configured) }
    }

    fn snapshot(name: &str) -> Record {
        let (snapshot, argument) = (name.to_owned(), format!("v@{name}.cow"));
        let store = Store { snapshot, argument, made: true, created_s: 5, grow_bytes: None };
        let table = format!("0 8 snapshot @v@real v@{name}.cow PO 8");
        Record { store: Some(store), ..record(&format!("v@{name}"), None, &table) }
    }

    fn family() -> Vec<Record> {
        let top = record("v", Some("0 8 linear a 0"), "0 8 snapshot-origin @v@real");
        vec![record("v@real", None, "0 8 linear a 0"), top, snapshot("mon"), snapshot("tue")]
    }

    fn names(records: &[Record]) -> Vec<&str> {
        records.iter().map(|record| record.name.as_str()).collect()
    }

    #[test]
    fn a_forgotten_volume_is_as_configured_again() {
        let all = [record("v", Some("0 8 zero"), "0 16 zero"), record("w", None, "0 8 zero")];
        let forgotten = forget(&all, "v", false).unwrap();
        assert_eq!(forgotten.after, [Record::as_configured("v", Some("0 8 zero"))]);
        assert_eq!(forgotten.told, ["v: forgotten: its table was '0 16 zero'"]);
        assert_eq!(forget(&all, "w", false).unwrap().after, [Record::as_configured("w", None)]);
        let line = forget(&all, "x", false).unwrap_err().to_string();
        assert!(line.contains("found no record of it, expected one of v, w"), "{line}");
    }

    #[test]
    fn snapshots_go_with_their_volume_and_only_with_a_yes() {
        let all = family();
        let line = forget(&all, "v", false).unwrap_err().to_string();
        assert!(line.contains("2 snapshots or merges"), "{line}");
        let forgotten = forget(&all, "v", true).unwrap();
        assert_eq!(names(&forgotten.after), ["v@real", "v", "v@mon", "v@tue"]);
        assert!(forgotten.told[2].ends_with("; its store v@mon.cow is of no use any more"));
        forget(&all, "v@real", true).unwrap_err();
    }

    #[test]
    fn with_its_last_snapshot_a_volume_gets_its_own_table_back() {
        let mut all = family();
        assert_eq!(names(&forget(&all, "v@mon", true).unwrap().after), ["v@mon"]);
        all.pop();
        let after = forget(&all, "v@mon", true).unwrap().after;
        assert_eq!(names(&after), ["v@mon", "v", "v@real"]);
        assert_eq!(after[1], Record::as_configured("v", Some("0 8 linear a 0")));
        let store = snapshot("mon").store;
        all.push(Record { store, ..record("v@merge", None, "0 8 snapshot-merge @v@real s P 8") });
        let line = forget(&all, "v@mon", true).unwrap_err().to_string();
        assert!(line.contains("a merge or rollback under way"), "{line}");
    }

    #[test]
    fn a_volume_that_others_stand_on_is_kept_unless_it_is_configured() {
        let on = record("on", None, "0 8 linear @v 0");
        let all = [record("v", None, "0 16 zero"), on.clone()];
        let line = forget(&all, "v", false).unwrap_err().to_string();
        assert!(
            line.contains("found volume 'on' on it, expected none (forget on first)"),
            "{line}"
        );
        forget(&[record("v", Some("0 8 zero"), "0 16 zero"), on], "v", false).unwrap();
    }
}
