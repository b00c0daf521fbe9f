//! What reading verbs answer: values with stable field names.
//!
//! The client prints them as JSON or as text. Field names are part of the interface: they are added
//! to, never renamed.

mod remotes;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use cairn_block::{ConfigKind, Field, Line, MappedDevice, Report, Table, Target, Value as Told};
use cairn_outcome::failure::{Outcome, refused};
use cairn_targets::spec::{Arg, Opt, Spec};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use self::remotes::{RemoteInfo, RemoteOp};
use crate::exports::Exports;
use crate::world::{World, remotes_of};

/// Fields by name.
pub type Fields = BTreeMap<String, Value>;

/// The state of a volume.
#[derive(Debug, Serialize, Deserialize)]
pub struct Info {
    /// Its name.
    pub name: String,
    /// Requests wait.
    pub suspended: bool,
    /// Writes are refused.
    pub read_only: bool,
    /// There is a live table.
    pub live: bool,
    /// A table waits for a resume.
    pub inactive: bool,
    /// Length of the live table, in sectors.
    pub sectors: u64,
    /// Volumes that stand on it, and its exports.
    pub open_count: u64,
    /// Events so far.
    pub event_nr: u64,
    /// Lines of the live table.
    pub targets: u64,
    /// What only the caches of the live table have.
    #[serde(default)]
    pub dirty_bytes: u64,
    /// The generations of the dirty markers that they have put beside their origins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dirty_markers: Vec<String>,
    /// It is removed once it is not in use.
    #[serde(default)]
    pub deferred_remove: bool,
    /// Its block devices of the kernel are to be read-only.
    #[serde(default)]
    pub device_read_only: bool,
    /// They are to be once the loaded table is live.
    #[serde(default)]
    pub loaded_read_only: bool,
    /// The remote disks that its live table names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remotes: Vec<RemoteInfo>,
}

impl Info {
    /// Its state in a word or two.
    pub fn state(&self) -> &'static str {
        match (self.live, self.suspended) {
            (false, _) => "no table",
            (true, true) => "suspended",
            (true, false) if self.read_only => "read-only",
            (true, false) => "active",
        }
    }
}

/// The lines of one volume.
#[derive(Debug, Serialize, Deserialize)]
pub struct VolumeLines {
    /// The volume.
    pub name: String,
    /// Its lines, in order.
    pub lines: Vec<ReportLine>,
}

/// One line of a table or status.
#[derive(Debug, Serialize, Deserialize)]
pub struct ReportLine {
    /// First sector.
    pub start: u64,
    /// Length in sectors.
    pub length: u64,
    /// The target's name.
    pub target: String,
    /// The rest of the line, as dmsetup prints it.
    pub params: String,
    /// The status fields by name, if the target names them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fields: Fields,
}

/// As dmsetup prints it.
impl fmt::Display for ReportLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ReportLine { start, length, target, params, .. } = self;
        write!(f, "{start} {length} {target} {params}")
    }
}

/// A kind of target.
#[derive(Debug, Serialize, Deserialize)]
pub struct TargetInfo {
    /// Its name.
    pub name: String,
    /// The kernel's version of the same target.
    pub version: [u32; 3],
}

fn chosen(world: &World, name: Option<&str>) -> Outcome<Vec<Arc<MappedDevice>>> {
    match name {
        Some(name) => Ok(vec![world.volume(name)?]),
        None => Ok(world.volumes()),
    }
}

/// The kinds of target.
pub fn targets() -> Vec<TargetInfo> {
    let info = |name: &str, version| TargetInfo { name: name.to_owned(), version };
    cairn_targets::types().iter().map(|kind| info(kind.name(), kind.version())).collect()
}

/// The state of one volume, or of all.
///
/// # Errors
/// There is no such volume.
pub fn infos(world: &World, exports: &Exports, name: Option<&str>) -> Outcome<Vec<Info>> {
    let (volumes, remotes) = (chosen(world, name)?, world.remotes());
    let told = |volume: Arc<MappedDevice>| {
        let on = remotes_of(&volume, &remotes).into_iter().map(RemoteInfo::from);
        Info { remotes: on.collect(), ..info(world, exports, &volume) }
    };
    Ok(volumes.into_iter().map(told).collect())
}

/// The state of a volume, without its remote disks.
pub fn info(world: &World, exports: &Exports, volume: &MappedDevice) -> Info {
    let live = volume.live_table();
    let lines = live.as_ref().map(|table| table.lines()).unwrap_or_default();
    let users = world.users_of(volume.volume()).len() + exports.count_of(volume.volume());
    Info {
        name: volume.volume().to_owned(),
        suspended: volume.is_suspended(),
        read_only: live.as_ref().is_some_and(|table| table.limits().read_only),
        sectors: live.as_ref().map_or(0, |table| table.sectors().0),
        targets: live.as_ref().map_or(0, |table| table.lines().len() as u64),
        live: live.is_some(),
        inactive: volume.inactive_table().is_some(),
        open_count: users as u64,
        event_nr: volume.event_nr(),
        deferred_remove: world.is_removal_deferred(volume),
        device_read_only: world.is_device_read_only(volume),
        loaded_read_only: world.is_loaded_read_only(volume),
        dirty_bytes: volume.dirty().iter().map(|dirty| dirty.sectors.to_bytes()).sum(),
        dirty_markers: lines.iter().filter_map(|line| line.target.dirty_marker()).collect(),
        remotes: Vec::new(),
    }
}

/// The status lines of one volume, or of all.
///
/// # Errors
/// There is no such volume.
pub fn status(world: &World, name: Option<&str>) -> Outcome<Vec<VolumeLines>> {
    let volumes = chosen(world, name)?.into_iter();
    Ok(volumes
        .map(|volume| {
            let table = volume.live_table();
            let lines = lines_of(table.as_deref(), |line| {
                let report = line.target.report();
                (report.line(), fields_of(&report))
            });
            VolumeLines { name: volume.volume().to_owned(), lines }
        })
        .collect())
}

/// The table lines of one volume, or of all.
///
/// # Errors
/// There is no such volume, or the kernel has no such target and its words were asked for.
pub fn tables(
    world: &World,
    name: Option<&str>,
    inactive: bool,
    kernel: bool,
) -> Outcome<Vec<VolumeLines>> {
    let mut all = Vec::new();
    for volume in chosen(world, name)? {
        let table = if inactive { volume.inactive_table() } else { volume.live_table() };
        let name = volume.volume().to_owned();
        let mut lines =
            lines_of(table.as_deref(), |line| (line.target.table(), attributes_of(&*line.target)));
        if kernel {
            for line in &mut lines {
                kernel_words(&name, line)?;
            }
        }
        all.push(VolumeLines { name, lines });
    }
    Ok(all)
}

/// The lines of a table, each with the text and the fields that `tell` answers.
fn lines_of(table: Option<&Table>, tell: impl Fn(&Line) -> (String, Fields)) -> Vec<ReportLine> {
    let lines = table.into_iter().flat_map(Table::lines);
    lines
        .map(|line| {
            let (params, fields) = tell(line);
            let (start, length, target) = (line.start.0, line.len.0, line.name.clone());
            ReportLine { start, length, target, params, fields }
        })
        .collect()
}

/// The options and attributes of a target by name, as they are now.
pub fn attributes_of(target: &dyn Target) -> Fields {
    let attributes = target.attributes().into_iter();
    attributes.map(|it| (it.name.to_owned(), json_of(&it.value))).collect()
}

/// A report's fields as JSON. A share is two numbers beside its text; a target that has no fields
/// to show has its state.
fn fields_of(report: &Report) -> Fields {
    let mut fields = Fields::new();
    let mut add = |name: &str, value: Value| _ = fields.insert(name.to_owned(), value);
    if let Some(state) = report.state() {
        add("state", Value::from(state));
    }
    for (field, value) in report.fields() {
        add(field.name, json_of(value));
        if let Told::Share(used, total) = value {
            let (first, rest) = field.name.split_once('/').unwrap_or((field.name, "total"));
            let what = rest.strip_prefix("total").unwrap_or_default();
            add(&format!("{first}{what}"), Value::from(*used));
            add(&format!("total{what}"), Value::from(*total));
        }
    }
    fields
}

fn json_of(value: &Told) -> Value {
    match value {
        Told::Counter(number) | Told::Gauge(number) => Value::from(*number),
        Told::Names(names) => Value::from(names.clone()),
        Told::Share(..) | Told::State(_) => Value::from(value.to_string()),
        Told::Absent => Value::Null,
    }
}

/// Writes a line as the kernel takes it: volumes by their place under /dev/mapper.
fn kernel_words(volume: &str, line: &mut ReportLine) -> Outcome<()> {
    let spec = cairn_targets::spec(&line.target).filter(|spec| !spec.own);
    let Some(spec) = spec else {
        let (found, expected) = (format!("'{}'", line.target), "a target the kernel has");
        return Err(refused(ConfigKind::Unsupported, volume, "table target", found, expected));
    };
    line.params = spec.kernel_words(&line.params);
    let words = line.params.split(' ').map(|word| match word.strip_prefix('@') {
        Some(name) => format!("/dev/mapper/{name}"),
        None => word.to_owned(),
    });
    line.params = words.collect::<Vec<_>>().join(" ");
    Ok(())
}

/// What a kind of target declares.
///
/// # Errors
/// There is none of this name.
pub fn declared(name: &str) -> Outcome<&'static Spec> {
    cairn_targets::spec(name).ok_or_else(|| {
        let names: Vec<_> = cairn_targets::KINDS.iter().map(|kind| kind.spec.name).collect();
        let expected = format!("one of {}", names.join(", "));
        refused(ConfigKind::Argument, "targets", "NAME", format!("'{name}'"), expected)
    })
}

/// The same as JSON.
pub fn spec_json(spec: &Spec) -> Value {
    let argument = |arg: &Arg| {
        json!({"name": arg.name, "doc": arg.doc, "expected": arg.kind.expected(),
               "optional": arg.optional, "repeated": arg.repeated})
    };
    let option = |option: &Opt| {
        let values: Vec<Value> = option.values.iter().map(argument).collect();
        json!({"word": option.word, "doc": option.doc, "values": values,
               "default": option.default, "cairn_only": option.own,
               "settable": spec.messages.contains(&option.word)})
    };
    let field = |field: &Field| json!({"name": field.name, "unit": field.unit.word()});
    json!({
        "name": spec.name,
        "version": spec.version,
        "syntax": spec.synopsis(),
        "arguments": spec.arguments.iter().map(argument).collect::<Vec<_>>(),
        "options": spec.options().map(option).collect::<Vec<_>>(),
        "status": spec.status_fields.iter().map(field).collect::<Vec<_>>(),
        "messages": spec.messages,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_block::Unit;
    use std::collections::BTreeMap;

    fn line(target: &str, params: &str) -> ReportLine {
        let (target, params) = (target.to_owned(), params.to_owned());
        ReportLine { start: 0, length: 8, target, params, fields: BTreeMap::new() }
    }

    #[test]
    fn fields_of_a_report_are_typed() {
        let spec = cairn_targets::snapshot::SNAPSHOT_SPEC.status_fields;
        let fields = fields_of(&Report::new(spec, [Told::Share(48, 128), Told::Gauge(16)]));
        let text = serde_json::to_string(&fields).unwrap();
        let expected = r#"{"allocated":48,"allocated/total":"48/128","metadata":16,"total":128}"#;
        assert_eq!(text, expected);
        const HELD: &[Field] = &[Field::new("held_metadata_root", Unit::Blocks)];
        let absent = fields_of(&Report::new(HELD, [Told::Absent]));
        assert_eq!(serde_json::to_string(&absent).unwrap(), r#"{"held_metadata_root":null}"#);
        let failed = fields_of(&Report::State("Fail"));
        assert_eq!(serde_json::to_string(&failed).unwrap(), r#"{"state":"Fail"}"#);
    }

    #[test]
    fn a_declared_target_is_shown_as_text_and_json() {
        let spec = declared("thin").unwrap();
        let expected = "START LENGTH thin <pool> <id> [<origin>]\n  \
            <pool>    the pool, as @NAME (a device)\n  \
            <id>      which volume of the pool (a number from 0 to 16777215)\n  \
            <origin>  an external origin (a device)\n\
            Status: mapped_sectors highest_mapped_sector\n";
        assert_eq!(spec.to_string(), expected);
        let json = spec_json(declared("thin-pool").unwrap());
        assert_eq!(json["options"][5]["word"], "no_space_timeout");
        assert_eq!(json["options"][5]["default"], 60);
        let field = |at: usize| (&json["status"][at]["name"], &json["status"][at]["unit"]);
        assert_eq!(field(0), (&"transaction_id".into(), &Value::Null));
        assert_eq!(field(1), (&"used/total_metadata".into(), &"blocks".into()));
        let refused = declared("linaer").unwrap_err().to_string();
        assert!(refused.starts_with("targets: NAME: found 'linaer', expected one of linear, "));
    }

    #[test]
    fn the_kernel_is_told_of_volumes_under_dev_mapper_and_of_no_foreign_target() {
        let mut linear = line("linear", "@pool 0");
        kernel_words("vm", &mut linear).unwrap();
        assert_eq!(linear.params, "/dev/mapper/pool 0");
        let refused = kernel_words("vm", &mut line("passthrough", "a 0")).unwrap_err();
        assert!(refused.to_string().starts_with("vm: table target: found 'passthrough'"));
    }
}
