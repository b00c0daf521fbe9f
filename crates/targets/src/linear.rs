//! `linear`: a range of the mapped device is a range of one lower disk. Read this target first:
//! every other one adds a policy to it.
//!
//! A target has two parts. A [`TargetKind`] declares the table line and turns one into a target; a
//! [`Target`] answers each request with a [`Verdict`], on which the engine acts. Linear's verdict
//! is always the same: remapped, by a fixed offset.
//!
//! Promises: sector n of the target is sector `offset + n` of the disk, for every operation;
//! a flush goes to the disk once. Must never look at data, keep a request, or wait.

use std::sync::Arc;

use cairn_block::{
    ConfigError, Ctor, Disk, Env, Extent, IoError, LocalFuture, Nature, Request, Sector,
    SectorRange, Target, Verdict,
};

use crate::area::Area;
use crate::args::Args;
use crate::kind::{TargetKind, built};
use crate::spec::{Arg, Spec, Use};

/// What `linear` declares.
pub const SPEC: Spec = Spec::plain(
    "linear",
    [1, 4, 0],
    &[Arg::device("device", Use::Maps, "the device").gives_length(), Arg::offset("offset")],
);

/// The kind of target.
pub const KIND: TargetKind =
    TargetKind { spec: &SPEC, construct: |_, ctor| built(Linear::parse(&ctor)) };

struct Linear {
    area: Area,
}

impl Linear {
    fn parse(ctor: &Ctor<'_>) -> Result<Linear, ConfigError> {
        Ok(Linear { area: Args::parse(&SPEC, ctor)?.area()? })
    }
}

impl Target for Linear {
    /// The range of `request` is relative to the target. Returns its place on the lower disk.
    fn map<'a>(&'a self, _env: &Env, request: &mut Request) -> Verdict<'a> {
        self.area.remap(request)
    }

    fn straight(&self) -> Option<(Arc<dyn Disk>, Sector)> {
        Some((self.area.disk.clone(), self.area.start))
    }

    fn lowers(&self) -> Vec<Arc<dyn Disk>> {
        vec![self.area.disk.clone()]
    }

    fn remaps(&self, range: SectorRange) -> Option<Vec<(Arc<dyn Disk>, SectorRange)>> {
        Some(vec![self.area.place(range)])
    }

    fn nature(&self) -> Nature {
        self.area.disk.nature()
    }

    fn table(&self) -> String {
        self.area.to_string()
    }

    fn extents<'a>(
        &'a self,
        env: &'a Env,
        range: SectorRange,
    ) -> LocalFuture<'a, Result<Vec<Extent>, IoError>> {
        self.area.extents(env, range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{OneVolume, SECTOR, drive_options, initial, range};
    use cairn_block::{ErrorKind, ExtentKind, Op, SectorCount};
    use cairn_sim::{DriveOptions, Fault, OpSet};

    #[test]
    fn sectors_lie_at_the_offset_and_nothing_else_is_touched() {
        let test = OneVolume::new(&[("a", 64)]);
        test.load("0 16 linear a 40");
        let mut model = initial("a", 64);
        assert_eq!(test.read(0, 16).unwrap(), model[40 * SECTOR..56 * SECTOR]);
        test.write(15, 1, 200).unwrap();
        model[55 * SECTOR..56 * SECTOR].fill(200);
        test.on(Op::WriteZeroes, 0, 2).unwrap();
        model[40 * SECTOR..42 * SECTOR].fill(0);
        assert_eq!(test.contents("a"), model);
        assert_eq!(test.target().table(), "a 40");
        assert_eq!(test.target().status(), "");
    }

    #[test]
    fn a_flush_reaches_the_disk() {
        let test = OneVolume::new(&[("a", 64)]);
        test.load("0 16 linear a 0");
        test.drive("a").faults().add(Fault::error(OpSet::FLUSHES));
        assert!(test.on(Op::Flush, 0, 0).is_err());
    }

    #[test]
    fn extents_are_those_of_the_disk() {
        let test = OneVolume::new(&[("a", 64)]);
        test.fixture.load("half", "0 32 zero\n32 32 linear a 0");
        test.load("0 40 linear @half 16");
        let extents = test.extents(range(4, 36)).unwrap();
        assert_eq!(extents, [Extent { count: SectorCount(12), kind: ExtentKind::Hole }]);
        assert_eq!(test.extents(range(16, 4)).unwrap()[0].kind, ExtentKind::Data);
    }

    #[test]
    fn each_wrong_argument_is_named() {
        let test = OneVolume::new(&[("a", 64)]);
        for (table, expected) in [
            ("0 16 linear", "linear: device: found nothing, expected a device"),
            ("0 16 linear b 0", "b: device: found none of this name, expected a simulated drive"),
            (
                "0 16 linear a",
                "linear: offset: found nothing, expected a number from 0 to 36028797018963967",
            ),
            (
                "0 16 linear a 1s",
                "linear: offset: found '1s', expected a number from 0 to 36028797018963967",
            ),
            (
                "0 16 linear a 0 0",
                "linear: trailing words: found '0', expected the end of the line",
            ),
            (
                "0 16 linear a 49",
                "a: linear offset: found 49 for 16 sectors, expected a range inside the device, \
                 which has 64 sectors",
            ),
        ] {
            assert_eq!(test.refusal(table), expected);
        }
        assert_eq!(test.refusal("0 16 linear @b 0").split(':').next(), Some("b"));
        test.load("0 16 linear a 48");
    }

    #[test]
    fn a_start_inside_a_logical_block_is_refused() {
        let options = DriveOptions { logical_block: 4096, ..drive_options("a") };
        let test = OneVolume::with_options([(options, 64)]);
        assert_eq!(
            test.refusal("0 16 linear a 4"),
            "a: linear offset: found 4, expected a multiple of the logical block size, 8 sectors"
        );
        test.load("0 16 linear a 8");
        assert_eq!(test.target().limits(test.drive("a").limits()).logical_block, 4096);
    }

    #[test]
    fn a_read_only_table_refuses_writes() {
        let test = OneVolume::new(&[("a", 64)]);
        test.try_load_read_only("0 16 linear a 0").unwrap();
        let refused = test.write(0, 1, 1).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::ReadOnly);
        assert_eq!(test.read(0, 1).unwrap(), initial("a", 1));
    }
}
