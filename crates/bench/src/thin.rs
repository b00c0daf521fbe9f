//! `bench thin`: thin pools, nearly always on memory disks.
//!
//! - [`thinzeros`]: zeros, random bytes and zeros but for the last byte, under 1, 2 and 4 workers,
//!   and the zero test beside others. [`thinbeside`]: what it costs another running program.
//! - [`thinpeers`]: first writes, writing again, breaking sharing, beside plain copying.
//! - [`thinmaps`]: lookups among many mappings, a thousand snapshots; `thintools`: the check of
//!   the metadata and what two volumes differ in, beside other tools.
//! - [`thinkernel`]: the same jobs on the kernel's dm-thin, if asked for.
//!
//! Requests per second, and MiB/s of several workers or beside the kernel, are in wall time;
//! everything else in processor time of all workers together, which other programs on the machine
//! hardly lengthen.

use cairn_outcome::failure::Outcome;

use super::row::Report;
use super::settings::Settings;
use super::{thinbeside, thinkernel, thinmaps, thinpeers, thinzeros};

/// Runs the benchmark.
///
/// # Errors
/// A disk or a pool cannot be made or used.
pub fn run(settings: &Settings) -> Outcome<Report> {
    let mut report = Report::default();
    thinzeros::run(settings, &mut report)?;
    thinbeside::run(settings, &mut report)?;
    thinpeers::run(settings, &mut report)?;
    thinmaps::run(settings, &mut report)?;
    if let Some(uml) = &settings.uml {
        thinkernel::run(settings, uml, &mut report)?;
    }
    Ok(report)
}
