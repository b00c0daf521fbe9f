//! `error`: every request fails.
//!
//! Promises: reads, writes, discards and write-zeroes end with an I/O error that is marked as
//! injected. A flush succeeds, as in the kernel: nothing was ever written that it could cover,
//! so the target asks for no copy of it.

use std::sync::Arc;

use cairn_block::{Disk, Env, ErrorKind, IoError, Request, Target, Verdict};

use crate::args::Args;
use crate::kind::{TargetKind, built};
use crate::spec::Spec;

/// What `error` declares.
pub const SPEC: Spec = Spec::plain("error", [1, 5, 0], &[]);

/// The kind of target.
pub const KIND: TargetKind = TargetKind {
    spec: &SPEC,
    construct: |_, ctor| built(Args::parse(&SPEC, &ctor).map(|_| Error)),
};

struct Error;

impl Target for Error {
    fn map<'a>(&'a self, _env: &Env, _request: &mut Request) -> Verdict<'a> {
        Verdict::Failed(IoError::injected(ErrorKind::Io))
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{OneVolume, range};
    use cairn_block::{Extent, ExtentKind, Op, SectorCount};

    #[test]
    fn everything_fails_as_injected_but_a_flush() {
        let test = OneVolume::new(&[]);
        test.load("0 16 error");
        let injected = IoError::injected(ErrorKind::Io);
        assert_eq!(test.read(0, 1), Err(injected));
        assert_eq!(test.write(15, 1, 7), Err(injected));
        assert_eq!(test.on(Op::Discard, 0, 16), Err(injected));
        assert_eq!(test.on(Op::WriteZeroes, 0, 16), Err(injected));
        assert_eq!(test.on(Op::Flush, 0, 0), Ok(()));
        assert_eq!((test.target().table(), test.target().status()), (String::new(), String::new()));
    }

    #[test]
    fn only_its_own_lines_fail() {
        let test = OneVolume::new(&[("a", 16)]);
        test.load("0 8 linear a 0\n8 8 error");
        assert!(test.read(0, 8).is_ok());
        assert!(test.read(7, 2).is_err());
    }

    #[test]
    fn it_counts_as_data() {
        let test = OneVolume::new(&[]);
        test.load("0 16 error");
        let data = Extent { count: SectorCount(16), kind: ExtentKind::Data };
        assert_eq!(test.extents(range(0, 16)).unwrap(), [data]);
    }

    #[test]
    fn arguments_are_refused() {
        let refusal = OneVolume::new(&[]).refusal("0 16 error x");
        assert_eq!(refusal, "error: trailing words: found 'x', expected the end of the line");
    }
}
