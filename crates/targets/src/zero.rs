//! `zero`: reads give zeros, writes are forgotten.
//!
//! Promises: every read is filled with zeros, everything else succeeds without effect. There is
//! nothing to make durable, so it asks for no copy of a flush.

use std::future::ready;
use std::sync::Arc;

use cairn_block::{
    ConfigError, Ctor, Disk, Env, Extent, ExtentKind, IoError, LocalFuture, Op, Request,
    SectorRange, Target, TargetType, Verdict,
};

use crate::args::{Args, Spec};

/// The words of `zero`.
pub const SPEC: Spec = Spec::NONE;

/// The kind of target.
pub struct ZeroType;

impl TargetType for ZeroType {
    fn name(&self) -> &'static str {
        "zero"
    }

    fn version(&self) -> [u32; 3] {
        [1, 1, 0]
    }

    fn construct<'a>(
        &'a self,
        _env: &'a Env,
        ctor: Ctor<'a>,
    ) -> LocalFuture<'a, Result<Arc<dyn Target>, ConfigError>> {
        let parsed = Args::new("zero", &ctor).finish();
        Box::pin(ready(parsed.map(|()| Arc::new(Zero) as _)))
    }
}

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
