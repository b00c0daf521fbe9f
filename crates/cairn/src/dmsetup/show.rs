//! What verbs print, in dmsetup's words.

use cairn_control::report::Info;

use super::device::Numbers;
use crate::remote::text;

/// A volume as dmsetup shows it.
pub struct Shown<'a> {
    /// Its state.
    pub info: &'a Info,
    /// The numbers of its device; none if there is no device.
    pub numbers: Option<Numbers>,
    /// Its device or its table takes no writes.
    pub read_only: bool,
    /// How many use it.
    pub open_count: u64,
}

impl Shown<'_> {
    fn numbers(&self) -> Numbers {
        self.numbers.unwrap_or_default()
    }

    /// `info`: one block of lines.
    pub fn block(&self) -> String {
        let Info { name, event_nr, targets, .. } = self.info;
        let state = text::state(self.info, self.read_only);
        let tables = text::tables_present(self.info);
        let (open_count, (major, minor)) = (self.open_count, self.numbers());
        format!(
            "Name:              {name}\nState:             {state}\n\
             Read Ahead:        256\nTables present:    {tables}\n\
             Open count:        {open_count}\nEvent number:      {event_nr}\n\
             Major, minor:      {major}, {minor}\nNumber of targets: {targets}\n\n"
        )
    }

    /// One field of `info -c`; none if there is no such field.
    pub fn field(&self, name: &str) -> Option<String> {
        let Info { suspended, live, inactive, .. } = *self.info;
        let read_only = self.read_only;
        let (major, minor) = self.numbers();
        let word = |is: bool, yes: &str, no: &str| if is { yes } else { no }.to_owned();
        Some(match name {
            "name" => self.info.name.clone(),
            "major" => major.to_string(),
            "minor" => minor.to_string(),
            "devno" => format!("{major}:{minor}"),
            "attr" => {
                let letters = [
                    word(live, "L", "-"),
                    word(inactive, "I", "-"),
                    word(suspended, "s", "-"),
                    word(read_only, "r", "w"),
                ];
                letters.concat()
            }
            "open" => self.open_count.to_string(),
            "segments" => self.info.targets.to_string(),
            "events" => self.info.event_nr.to_string(),
            "uuid" => String::new(),
            "suspended" => word(suspended, "Suspended", "Active"),
            "readonly" => word(read_only, "Read-only", "Writeable"),
            "tables_loaded" => match (live, inactive) {
                (true, true) => "Both".to_owned(),
                (true, false) => "Live".to_owned(),
                (false, true) => "Inactive".to_owned(),
                (false, false) => "None".to_owned(),
            },
            _ => return None,
        })
    }
}

/// The fields of `info -c`, unless a user names others.
pub const FIELDS: [&str; 8] =
    ["name", "major", "minor", "attr", "open", "segments", "events", "uuid"];

/// The fields of `info -c` with the heads of their columns.
const HEADS: [(&str, &str); 12] = [
    ("name", "Name"),
    ("major", "Maj"),
    ("minor", "Min"),
    ("devno", "DevNo"),
    ("attr", "Stat"),
    ("open", "Open"),
    ("segments", "Targ"),
    ("events", "Event"),
    ("uuid", "UUID"),
    ("suspended", "Suspended"),
    ("readonly", "Read-only"),
    ("tables_loaded", "Tables"),
];

/// The name of a field in a form that scripts use: `open_count` is `open`.
pub fn field_name(word: &str) -> Option<&'static str> {
    let word = match word {
        "open_count" => "open",
        "target_count" => "segments",
        "event_nr" => "events",
        word => word,
    };
    HEADS.iter().find(|(name, _)| *name == word).map(|(name, _)| *name)
}

/// How `info -c` is printed.
pub struct Columns<'a> {
    /// Which.
    pub fields: Vec<&'static str>,
    /// With a line of heads.
    pub heads: bool,
    /// Between columns; none: they are aligned.
    pub separator: Option<&'a str>,
    /// As `DM_NAME='value'`.
    pub prefixes: bool,
}

/// `info -c`
pub fn columns(all: &[Shown<'_>], how: &Columns<'_>) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    if how.heads && !how.prefixes {
        let head = |field: &&str| HEADS.iter().find(|(name, _)| name == field).map(|it| it.1);
        rows.push(how.fields.iter().filter_map(head).map(str::to_owned).collect());
    }
    rows.extend(all.iter().map(|shown| {
        let cell = |field: &&str| {
            let value = shown.field(field).unwrap_or_default();
            match how.prefixes {
                true => format!("DM_{}='{value}'", field.to_uppercase()),
                false => value,
            }
        };
        how.fields.iter().map(cell).collect()
    }));
    let (separator, is_aligned) = match how.separator {
        Some(separator) => (separator, false),
        None => (" ", !how.prefixes),
    };
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..how.fields.len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| match is_aligned {
            true => format!("{cell:<width$}"),
            false => cell.clone(),
        });
        format!("{}\n", cells.collect::<Vec<_>>().join(separator).trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::{Columns, FIELDS, Shown, columns, field_name};
    use cairn_control::report::Info;

    fn info(name: &str) -> Info {
        Info {
            name: name.to_owned(),
            suspended: false,
            read_only: false,
            live: true,
            inactive: false,
            sectors: 8,
            open_count: 0,
            event_nr: 3,
            targets: 1,
            dirty_bytes: 0,
            dirty_markers: Vec::new(),
            deferred_remove: false,
            device_read_only: false,
            loaded_read_only: false,
            remotes: Vec::new(),
        }
    }

    #[test]
    fn info_is_printed_in_the_words_of_dmsetup() {
        let info = Info { suspended: true, inactive: true, ..info("vm") };
        let shown = Shown { info: &info, numbers: Some((43, 2)), read_only: true, open_count: 1 };
        let expected = "Name:              vm\nState:             SUSPENDED (READ-ONLY)\n\
                        Read Ahead:        256\nTables present:    LIVE & INACTIVE\n\
                        Open count:        1\nEvent number:      3\nMajor, minor:      43, 2\n\
                        Number of targets: 1\n\n";
        assert_eq!(shown.block(), expected);
        assert_eq!(shown.field("attr").unwrap(), "LIsr");
        let marked = Info { deferred_remove: true, ..info };
        let shown = Shown { info: &marked, numbers: None, read_only: false, open_count: 1 };
        assert!(shown.block().contains("\nState:             SUSPENDED (DEFERRED REMOVE)\n"));
    }

    #[test]
    fn columns_are_aligned_separated_or_named() {
        let infos = [info("vm"), info("scratch")];
        let shown = |info| Shown { info, numbers: Some((43, 0)), read_only: false, open_count: 0 };
        let all: Vec<_> = infos.iter().map(shown).collect();
        let how = |fields: &[&str], heads, separator, prefixes| {
            let fields = fields.iter().map(|field| field_name(field).unwrap()).collect();
            columns(&all, &Columns { fields, heads, separator, prefixes })
        };
        let expected = "Name    Maj Min Stat Open Targ Event UUID\n\
                        vm      43  0   L--w 0    1    3\nscratch 43  0   L--w 0    1    3\n";
        assert_eq!(how(&FIELDS, true, None, false), expected);
        assert_eq!(how(&["name", "open_count"], false, Some(":"), false), "vm:0\nscratch:0\n");
        let expected = "DM_NAME='vm' DM_EVENTS='3'\nDM_NAME='scratch' DM_EVENTS='3'\n";
        assert_eq!(how(&["name", "events"], true, None, true), expected);
        assert_eq!(field_name("colour"), None);
    }
}
