//! `snapshot-origin`: the origin, whose snapshots keep the old content of what is written here.

use std::sync::Arc;

use cairn_block::{
    Claim, ConfigError, Ctor, Disk, Env, Extent, IoError, IoResult, LocalFuture, Op, Request,
    Sector, SectorCount, SectorRange, SuspendMode, Target, Verdict,
};

use super::attachment::origin_claim;
use super::config::ORIGIN_SPEC;
use super::copying::{Copying, Want, Wanter};
use super::core::SHUTDOWN;
use super::kin::Kin;
use super::table::{Bell, OriginPlan, Until, Waiter};
use crate::args::{Args, Device};
use crate::kind::{TargetKind, built};
use cairn_block::TaskGroup;

/// Longest range that is kept for the snapshots at once.
const PIECE_SECTORS: u64 = 2048;

/// The kind of target `snapshot-origin`.
pub const KIND: TargetKind =
    TargetKind { spec: &ORIGIN_SPEC, construct: |env, ctor| built(Origin::new(env, &ctor)) };

/// Writing the origin under its snapshots' eyes; `snapshot-merge` does it too.
pub(super) struct OriginSide {
    pub device: Device,
    pub kin: Arc<Kin>,
    copying: Arc<Copying>,
}

impl OriginSide {
    pub fn new(env: &Env, device: Device, kin: Arc<Kin>, tasks: &Arc<TaskGroup>) -> OriginSide {
        let copying = Copying::new(env, kin.clone(), tasks.clone(), Until::Settled);
        OriginSide { device, kin, copying }
    }

    /// Serves from now on.
    pub fn begin(&self) {
        self.copying.set_hands_back(false);
    }

    /// A suspend begins, with or without a flush: requests that wait for room are handed back. The
    /// verb that enlarges the store may be waiting for the suspend.
    pub fn presuspend(&self) {
        self.copying.set_hands_back(true);
    }

    /// Sends a request on to the origin at `sector`.
    pub fn pass(&self, sector: Sector) -> Verdict<'_> {
        Verdict::Remapped { disk: self.device.disk.as_ref(), sector }
    }

    /// Maps something that changes the origin at `sector`.
    pub fn map_write<'a>(
        &'a self,
        env: &Env,
        request: &mut Request,
        sector: Sector,
    ) -> Verdict<'a> {
        if self.kin.is_empty(env) {
            return self.pass(sector);
        }
        let count = SectorCount(request.range.count.0.min(PIECE_SECTORS));
        request.accept(count);
        let range = SectorRange::new(sector, count);
        let id = request.id();
        match self.kin.plan(env, range, &|| Waiter::Request(id)) {
            OriginPlan::Clear => self.pass(sector),
            OriginPlan::Waits => Verdict::Queued,
            OriginPlan::Refused => Verdict::Failed(SHUTDOWN),
            OriginPlan::Missing => {
                let by = Wanter::Request(id);
                self.copying.want(env, Want { by, range }, None);
                Verdict::Queued
            }
        }
    }

    /// Copies a range for every snapshot before a task changes it.
    ///
    /// # Errors
    /// The server ends, or no caller is to wait.
    pub async fn keep(&self, env: &Env, range: SectorRange) -> IoResult {
        loop {
            if self.copying.gives_up(env) {
                return Err(SHUTDOWN);
            }
            let bell = Arc::new(Bell::default());
            match self.kin.plan(env, range, &|| Waiter::Bell(bell.clone())) {
                OriginPlan::Clear => return Ok(()),
                OriginPlan::Refused => return Err(SHUTDOWN),
                OriginPlan::Waits => (),
                OriginPlan::Missing => {
                    let by = Wanter::Bell(bell.clone());
                    self.copying.want(env, Want { by, range }, None);
                }
            }
            bell.wait().await;
        }
    }
}

/// The target.
struct Origin {
    side: OriginSide,
    tasks: Arc<TaskGroup>,
    start: Sector,
}

impl Origin {
    fn new(env: &Env, ctor: &Ctor<'_>) -> Result<Origin, ConfigError> {
        let device = Args::parse(&ORIGIN_SPEC, ctor)?.device("origin");
        let (end, size) = (ctor.start + ctor.len, device.disk.sectors());
        if end.0 > size.0 {
            let expected = format!("at least the end of the table line, sector {end}");
            let found = format!("{size} sectors");
            return Err(ConfigError::argument(&device.argument, "size", found, &expected));
        }
        let identity = ctor.registry.identify(&device.argument)?;
        let kin = ctor.registry.kin(&identity, || Kin::new(env));
        let tasks = Arc::new(TaskGroup::default());
        let side = OriginSide::new(env, device, kin, &tasks);
        Ok(Origin { side, tasks, start: ctor.start })
    }

    /// Where a sector of the line lies on the origin: sectors are counted from the device's start.
    fn sector(&self, sector: Sector) -> Sector {
        self.start + SectorCount(sector.0)
    }
}

impl Target for Origin {
    fn map<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        let sector = self.sector(request.range.start);
        match request.op {
            Op::Read | Op::Flush => self.side.pass(sector),
            Op::Write | Op::WriteZeroes | Op::Discard => self.side.map_write(env, request, sector),
        }
    }

    fn lowers(&self) -> Vec<Arc<dyn Disk>> {
        vec![self.side.device.disk.clone()]
    }

    fn claims(&self) -> Vec<Claim> {
        vec![origin_claim(&self.side.device.disk)]
    }

    fn resume<'a>(&'a self, _env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        self.side.begin();
        Box::pin(std::future::ready(Ok(())))
    }

    fn presuspend(&self, _env: &Env, _mode: SuspendMode) {
        self.side.presuspend();
    }

    fn presuspend_undo<'a>(&'a self, _env: &'a Env) -> LocalFuture<'a, ()> {
        self.side.begin();
        Box::pin(std::future::ready(()))
    }

    fn suspend<'a>(&'a self, _env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(async {
            self.tasks.idle().await;
            Ok(())
        })
    }

    fn table(&self) -> String {
        self.side.device.argument.clone()
    }

    fn extents<'a>(
        &'a self,
        env: &'a Env,
        range: SectorRange,
    ) -> LocalFuture<'a, Result<Vec<Extent>, IoError>> {
        let range = SectorRange::new(self.sector(range.start), range.count);
        self.side.device.disk.extents(env, range)
    }
}
