//! `zero`: reads return zeros, writes are discarded.
//!
//! Promises: every read is filled with zeros; every other operation succeeds without effect.
//! Nothing has to be made durable, so it asks for no copy of a flush.

use std::future::ready;
use std::sync::Arc;

use cairn_block::{
    Disk, Env, Extent, ExtentKind, IoError, LocalFuture, Op, Request, SectorRange, Target, Verdict,
};

use crate::args::Args;
use crate::kind::{TargetKind, built};
use crate::spec::Spec;

/// What `zero` declares.
pub const SPEC: Spec = Spec::plain("zero", [1, 1, 0], &[]);

/// The kind of target.
pub const KIND: TargetKind =
    TargetKind { spec: &SPEC, construct: |_, ctor| built(Args::parse(&SPEC, &ctor).map(|_| Zero)) };

struct Zero;

impl Target for Zero {
    fn map<'a>(&'a self, _env: &Env, request: &mut Request) -> Verdict<'a> {
        if request.op == Op::Read {
            request.segs.zero(0, request.range.to_bytes() as usize);
        }
        Verdict::Completed
    }

    fn flush_copies(&self) -> u16 {
        0
    }

    fn lowers(&self) -> Vec<Arc<dyn Disk>> {
        Vec::new()
    }

    fn table(&self) -> String {
        String::new()
    }

    fn extents<'a>(
        &'a self,
        _env: &'a Env,
        range: SectorRange,
    ) -> LocalFuture<'a, Result<Vec<Extent>, IoError>> {
        let hole = Extent { count: range.count, kind: ExtentKind::Hole };
        Box::pin(ready(Ok(vec![hole])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{OneVolume, SECTOR, range};
    use cairn_block::{Io, SectorCount};

    #[test]
    fn reads_give_zeros_whatever_was_written() {
        let test = OneVolume::new(&[]);
        test.load("0 16 zero");
        test.write(0, 4, 7).unwrap();
        test.on(Op::Discard, 0, 16).unwrap();
        test.on(Op::WriteZeroes, 0, 16).unwrap();
        test.io(|_| Io::flush()).unwrap();
        let segs = std::cell::RefCell::new(None);
        test.io(|env| {
            let dirty = env.segs(SectorCount(4));
            dirty.copy_in(0, &[9; 4 * SECTOR]);
            *segs.borrow_mut() = Some(dirty.clone());
            Io::read(range(2, 4), dirty)
        })
        .unwrap();
        assert_eq!(segs.take().unwrap().to_vec(), [0; 4 * SECTOR]);
        assert_eq!((test.target().table(), test.target().status()), (String::new(), String::new()));
    }

    #[test]
    fn only_the_part_of_a_read_inside_the_line_is_zeroed() {
        let test = OneVolume::new(&[("a", 16)]);
        test.load("0 4 zero\n4 12 linear a 4");
        let read = test.read(2, 4).unwrap();
        assert_eq!(read[..2 * SECTOR], [0; 2 * SECTOR]);
        assert_eq!(read[2 * SECTOR..], crate::fixture::initial("a", 6)[4 * SECTOR..]);
    }

    #[test]
    fn all_of_it_is_a_hole() {
        let test = OneVolume::new(&[]);
        test.load("0 16 zero");
        let hole = Extent { count: SectorCount(12), kind: ExtentKind::Hole };
        assert_eq!(test.extents(range(4, 12)).unwrap(), [hole]);
    }

    #[test]
    fn arguments_are_refused() {
        let refusal = OneVolume::new(&[]).refusal("0 16 zero x");
        assert_eq!(refusal, "zero: trailing words: found 'x', expected the end of the line");
    }
}
