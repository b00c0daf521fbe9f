//! From table lines to targets: the kinds of target, and [`Table::build`].

use std::sync::Arc;

use crate::device::MappedDevice;
use crate::disk::{Disk, Limits, LocalFuture};
use crate::env::Env;
use crate::error::ConfigError;
use crate::events::Events;
use crate::failures::FailureCount;
use crate::read_only::refuses_all;
use crate::registry::Registry;
use crate::request::MAX_DEPTH;
use crate::table::{Line, Straight, Table, TableLine};
use crate::target::Target;
use crate::units::{Sector, SectorCount, SectorRange};

/// Arguments of a constructor.
pub struct Ctor<'a> {
    /// Where the table line begins on the mapped device.
    pub start: Sector,
    /// Length of the table line.
    pub len: SectorCount,
    /// The words after the target's name.
    pub args: &'a [&'a str],
    /// Opens devices and finds kin.
    pub registry: &'a Registry,
    /// The events of the mapped device, to raise when something deserves attention.
    pub events: &'a Events,
    /// The failure count of the mapped device, to raise when acknowledged writes may be lost.
    pub failures: &'a Arc<FailureCount>,
    /// Open everything read-only and write no byte.
    pub read_only: bool,
}

/// A kind of target, by name.
pub trait TargetType: Send + Sync {
    /// The word in the table line.
    fn name(&self) -> &'static str;

    /// The kernel's version of the same target, for `targets`.
    fn version(&self) -> [u32; 3];

    /// Builds a target from its table line. Checks arguments and fixed header fields only; no
    /// byte is written.
    ///
    /// # Errors
    /// One line that names the argument or device, what was found and what was expected.
    fn construct<'a>(
        &'a self,
        env: &'a Env,
        ctor: Ctor<'a>,
    ) -> LocalFuture<'a, Result<Arc<dyn Target>, ConfigError>>;
}

/// The kinds of target this program knows.
#[derive(Clone, Default)]
pub struct TargetTypes(Vec<Arc<dyn TargetType>>);

impl TargetTypes {
    /// A list of kinds.
    pub fn new(types: Vec<Arc<dyn TargetType>>) -> TargetTypes {
        TargetTypes(types)
    }

    /// All kinds, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn TargetType>> {
        self.0.iter()
    }

    fn find(&self, name: &str) -> Result<&Arc<dyn TargetType>, ConfigError> {
        self.0.iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let names: Vec<_> = self.0.iter().map(|kind| kind.name()).collect();
            let expected = format!("one of {}", names.join(", "));
            ConfigError::argument("table", "target", format!("'{name}'"), &expected)
        })
    }
}

/// What [`Table::build`] needs besides the lines.
#[derive(Clone, Copy)]
pub struct TableContext<'a> {
    /// The kinds of target.
    pub types: &'a TargetTypes,
    /// Opens devices and finds kin.
    pub registry: &'a Registry,
    /// Open everything read-only and write no byte.
    pub read_only: bool,
}

impl Table {
    /// Constructs the targets of `lines`.
    ///
    /// # Errors
    /// A constructor's refusal, a line that is not aligned to the logical block size, a stack
    /// that is too deep or leads back to `device`.
    pub async fn build(
        env: &Env,
        device: &MappedDevice,
        lines: &[TableLine],
        context: TableContext<'_>,
    ) -> Result<Table, ConfigError> {
        let mut built = Vec::with_capacity(lines.len());
        for line in lines {
            let kind = context.types.find(&line.target)?;
            if line.len == TableLine::WHOLE {
                return Err(ConfigError::argument(kind.name(), "length", "no number", "one"));
            }
            let args: Vec<&str> = line.args.iter().map(String::as_str).collect();
            let (registry, read_only) = (context.registry, context.read_only);
            // The device has no size yet, and a refusal for that would say less.
            if args.iter().any(|arg| arg.strip_prefix('@') == Some(device.volume())) {
                return Err(refuse_loop(device, device));
            }
            let (start, len, events) = (line.start, line.len, device.events());
            let failures = device.failure_count();
            let ctor = Ctor { start, len, args: &args, registry, events, failures, read_only };
            let target = kind.construct(env, ctor).await?;
            let (name, straight) = (line.target.clone(), Straight::of(target.as_ref()));
            let (start, len, read_only) = (line.start, line.len, false);
            built.push(Line { start, len, name, target, straight, read_only });
        }
        Table::of_lines(device, built, context.read_only)
    }

    fn of_lines(
        device: &MappedDevice,
        mut lines: Vec<Line>,
        read_only: bool,
    ) -> Result<Table, ConfigError> {
        let mut limits: Option<Limits> = None;
        for line in &mut lines {
            let own = limits_of(line);
            line.read_only = own.read_only;
            limits = Some(limits.map_or(own, |limits| limits.stack(own)));
            for lower in line.target.lowers() {
                refuse_loops(device, lower.as_ref(), 1)?;
            }
        }
        let mut limits = limits.unwrap_or_default();
        // A line that takes writes makes the device one that takes them.
        limits.read_only = read_only || lines.iter().all(|line| line.read_only);
        let block = limits.logical_sectors();
        for line in &lines {
            if !line.range().is_aligned(block) {
                let expected = format!("a multiple of the logical block size, {block} sectors");
                let field = format!("line {} {}", line.range(), line.name);
                return Err(ConfigError::argument(
                    device.volume(),
                    &field,
                    "misaligned",
                    &expected,
                ));
            }
        }
        Ok(Table::new(lines, limits, read_only))
    }
}

fn limits_of(line: &Line) -> Limits {
    let stacked = line.target.lowers().iter().map(|lower| lower.limits()).reduce(Limits::stack);
    let stacked = stacked.unwrap_or_default();
    let whole = SectorRange::new(Sector(0), line.len);
    let read_only = refuses_all(line.target.as_ref(), whole).unwrap_or(stacked.read_only);
    line.target.limits(Limits { read_only, ..stacked })
}

fn refuse_loop(device: &MappedDevice, through: &MappedDevice) -> ConfigError {
    let found = format!("a loop through '@{}'", through.volume());
    ConfigError::argument(device.volume(), "table", found, "other volumes beneath")
}

/// A stack must not lead back to the device it is for, nor be deeper than [`MAX_DEPTH`].
fn refuse_loops(device: &MappedDevice, lower: &dyn Disk, depth: usize) -> Result<(), ConfigError> {
    let Some(mapped) = lower.mapped() else { return Ok(()) };
    if mapped.id() == device.id() {
        return Err(refuse_loop(device, mapped));
    }
    if depth >= MAX_DEPTH {
        let found = format!("a stack deeper than {MAX_DEPTH} devices");
        let expected = format!("at most {MAX_DEPTH}");
        return Err(ConfigError::argument(device.volume(), "table", found, &expected));
    }
    let Some(table) = mapped.newest_table() else { return Ok(()) };
    for line in table.lines() {
        for lower in line.target.lowers() {
            refuse_loops(device, lower.as_ref(), depth + 1)?;
        }
    }
    Ok(())
}
