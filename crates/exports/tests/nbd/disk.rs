//! A sparse disk in memory that completes late, optionally in another order, and keeps a log.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cairn_block::{
    Disk, Env, Extent, ExtentKind, FailureCount, Flags, Flow, IoError, Limits, LocalFuture, Op,
    Request, Sector, SectorCount, SectorRange, StreamId,
};

type Block = [u8; 512];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub op: Op,
    pub flags: Flags,
    pub range: SectorRange,
}

#[derive(Default)]
pub struct Shared {
    blocks: Mutex<BTreeMap<u64, Block>>,
    log: Mutex<Vec<Seen>>,
    /// The stream of each request in the log.
    streams: Mutex<Vec<StreamId>>,
    /// Requests that begin at these sectors wait until the sectors are removed from here.
    held: Mutex<HashSet<u64>>,
    /// Requests that begin at these sectors fail.
    failing: Mutex<BTreeMap<u64, IoError>>,
    in_flight: AtomicUsize,
    most_in_flight: AtomicUsize,
    /// Raised by a test, as a flush that loses writes would.
    pub failures: FailureCount,
}

pub struct TestDisk {
    pub sectors: Mutex<SectorCount>,
    pub limits: Limits,
    pub shared: Arc<Shared>,
}

impl TestDisk {
    pub fn new(bytes: u64) -> Arc<TestDisk> {
        TestDisk::with_limits(bytes, Limits::default())
    }

    pub fn with_block(bytes: u64, logical_block: u32) -> Arc<TestDisk> {
        TestDisk::with_limits(bytes, Limits { logical_block, ..Limits::default() })
    }

    pub fn with_limits(bytes: u64, limits: Limits) -> Arc<TestDisk> {
        let sectors = Mutex::new(SectorCount::of_bytes(bytes));
        Arc::new(TestDisk { sectors, limits, shared: Arc::default() })
    }

    pub fn hold(&self, sector: u64) {
        self.shared.held.lock().unwrap().insert(sector);
    }

    pub fn release(&self, sector: u64) {
        self.shared.held.lock().unwrap().remove(&sector);
    }

    pub fn fail(&self, sector: u64, error: IoError) {
        self.shared.failing.lock().unwrap().insert(sector, error);
    }

    pub fn log(&self) -> Vec<Seen> {
        self.shared.log.lock().unwrap().clone()
    }

    /// The streams of the requests seen since the last look.
    pub fn take_streams(&self) -> Vec<StreamId> {
        std::mem::take(&mut *self.shared.streams.lock().unwrap())
    }

    pub fn in_flight(&self) -> usize {
        self.shared.in_flight.load(Ordering::SeqCst)
    }

    pub fn most_in_flight(&self) -> usize {
        self.shared.most_in_flight.load(Ordering::SeqCst)
    }

    pub fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let blocks = self.shared.blocks.lock().unwrap();
        let byte = |at: u64| blocks.get(&(at / 512)).map_or(0, |block| block[(at % 512) as usize]);
        (offset..offset + len as u64).map(byte).collect()
    }

    fn perform(&self, request: &Request) -> Result<(), IoError> {
        let start = request.range.start.0;
        if let Some(error) = self.shared.failing.lock().unwrap().get(&start) {
            return Err(*error);
        }
        let mut blocks = self.shared.blocks.lock().unwrap();
        let sectors = start..request.range.end().0;
        match request.op {
            Op::Read => {
                for (index, sector) in sectors.enumerate() {
                    let block = blocks.get(&sector).unwrap_or(&[0; 512]);
                    request.segs.copy_in(index * 512, block);
                }
            }
            Op::Write => {
                for (index, sector) in sectors.enumerate() {
                    let mut block = [0; 512];
                    request.segs.copy_out(index * 512, &mut block);
                    blocks.insert(sector, block);
                }
            }
            Op::Flush => {}
            Op::WriteZeroes if request.flags.contains(Flags::NO_UNMAP) => {
                blocks.extend(sectors.map(|sector| (sector, [0; 512])));
            }
            Op::Discard | Op::WriteZeroes => {
                blocks.retain(|sector, _| !sectors.contains(sector));
            }
        }
        Ok(())
    }
}

impl Disk for TestDisk {
    fn name(&self) -> String {
        "test".to_owned()
    }

    fn sectors(&self) -> SectorCount {
        *self.sectors.lock().unwrap()
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    /// Performs the request at once and completes it some turns later.
    fn submit(&self, env: &Env, request: &mut Request) -> Flow {
        let seen = Seen { op: request.op, flags: request.flags, range: request.range };
        self.shared.log.lock().unwrap().push(seen);
        self.shared.streams.lock().unwrap().push(request.stream());
        let now = self.shared.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        self.shared.most_in_flight.fetch_max(now, Ordering::SeqCst);
        let result = self.perform(request);
        let (id, start) = (request.id(), request.range.start.0);
        let (task, shared) = (env.clone(), self.shared.clone());
        let pause = Duration::from_micros(env.random_below(50));
        env.spawn(async move {
            task.sleep(pause).await;
            while shared.held.lock().unwrap().contains(&start) {
                task.sleep(Duration::from_micros(100)).await;
            }
            shared.in_flight.fetch_sub(1, Ordering::SeqCst);
            task.complete(id, result);
        });
        Flow::Queued
    }

    fn failures(&self) -> u64 {
        self.shared.failures.count()
    }

    fn failures_told(&self) -> u64 {
        self.shared.failures.told()
    }

    fn acknowledge_failures(&self, upto: u64) {
        self.shared.failures.acknowledge(upto);
    }

    fn extents<'a>(
        &'a self,
        _env: &'a Env,
        range: SectorRange,
    ) -> LocalFuture<'a, Result<Vec<Extent>, IoError>> {
        let mut list = Vec::new();
        let blocks = self.shared.blocks.lock().unwrap();
        let mut at = range.start.0;
        // Reports few extents at a time, as a disk may.
        while at < range.end().0 && list.len() < 3 {
            let next = blocks.range(at..range.end().0).next();
            let (kind, end) = match next {
                Some((&sector, block)) if sector == at => {
                    let zero = block.iter().all(|byte| *byte == 0);
                    (if zero { ExtentKind::Zero } else { ExtentKind::Data }, at + 1)
                }
                Some((&sector, _)) => (ExtentKind::Hole, sector),
                None => (ExtentKind::Hole, range.end().0),
            };
            let extent = SectorRange::between(Sector(at), Sector(end));
            list.push(Extent { count: extent.count, kind });
            at = end;
        }
        Box::pin(std::future::ready(Ok(list)))
    }
}
