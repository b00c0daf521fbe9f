//! `linear`: a range of the mapped device is a range of one lower disk. The first reading:
//! every other target is this one with a policy.
//!
//! A target is two things. A [`TargetType`] turns the words of a table line into a target; a
//! [`Target`] answers each request with a [`Verdict`], on which the engine acts. Linear's
//! verdict is always the same: remapped, so many sectors further on.
//!
//! Promises: sector n of the target is sector `offset + n` of the disk, for every operation;
//! a flush goes to the disk once. Must never look at data, keep a request, or wait.

use std::future::ready;
use std::sync::Arc;

use cairn_block::{
    ConfigError, Ctor, Disk, Env, Extent, IoError, LocalFuture, Request, SectorRange, Target,
    TargetType, Verdict,
};

use crate::area::Area;
use crate::args::{Args, Spec};

/// The words of `linear`.
pub const SPEC: Spec = Spec::NONE;

/// The kind of target.
pub struct LinearType;

impl TargetType for LinearType {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn version(&self) -> [u32; 3] {
        [1, 4, 0]
    }

    fn construct<'a>(
        &'a self,
        _env: &'a Env,
        ctor: Ctor<'a>,
    ) -> LocalFuture<'a, Result<Arc<dyn Target>, ConfigError>> {
        Box::pin(ready(Linear::parse(&ctor).map(|target| Arc::new(target) as _)))
    }
}

struct Linear {
    area: Area,
}

impl Linear {
    /// `<device> <offset>`
    fn parse(ctor: &Ctor<'_>) -> Result<Linear, ConfigError> {
        let mut args = Args::new("linear", ctor);
        let area = args.area("device", "offset", ctor.len)?;
        args.finish()?;
        Ok(Linear { area })
    }
}

impl Target for Linear {
    /// The range of `request` is relative to the target; what comes back is the place on the
    /// lower disk.
    fn map<'a>(&'a self, _env: &Env, request: &mut Request) -> Verdict<'a> {
        self.area.remap(request)
    }

    fn lowers(&self) -> Vec<Arc<dyn Disk>> {
        vec![self.area.disk.clone()]
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
