//! A test fixture to run disks in, and a reference model to compare them with.

mod disks;
mod far;
mod lanes;
mod marker;
mod model;
mod nbd;
#[cfg(feature = "objects")]
mod objects;
mod qcow2;
#[cfg(feature = "objects")]
pub mod web;

use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::Arc;

use cairn_block::{
    Buf, Disk, Env, Extent, Flags, Io, IoError, IoResult, Op, ReactorId, Sector, SectorCount,
    SectorRange, Segs,
};
use cairn_reactor::{Options, Reactors, RingKind};
use proptest::prelude::{Strategy, any, prop_oneof};

/// Two reactors over each kind of ring.
pub fn worlds() -> [Reactors; 2] {
    [RingKind::Auto, RingKind::Threads]
        .map(|ring| Reactors::start(Options { count: 2, ring }).unwrap())
}

pub fn range(start: u64, count: u64) -> SectorRange {
    SectorRange::new(Sector(start), SectorCount(count))
}

/// Segments over `data` of this shape.
fn segs_of(env: &Env, data: &[u8], Shape { skew, cut, foreign }: Shape) -> Segs {
    let cut = cut.map_or(data.len(), |cut| cut % data.len());
    let mut segs = Segs::default();
    for piece in [&data[..cut], &data[cut..]] {
        if !piece.is_empty() {
            let bytes = piece.len() + skew;
            let buf = if foreign { guest_memory(bytes) } else { env.buf(bytes) };
            segs.push(buf, skew, piece.len());
        }
    }
    segs.copy_in(0, data);
    segs
}

/// The shape of a request's memory: one piece `skew` bytes into its buffer, or with `cut` two
/// pieces that meet there; the reactor's own, or memory of another owner.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shape {
    pub skew: usize,
    pub cut: Option<usize>,
    pub foreign: bool,
}

#[repr(align(4096))]
#[expect(dead_code, reason = "used by its address alone")]
struct Page(UnsafeCell<[u8; 4096]>);

// SAFETY: only the request that names the page touches it.
unsafe impl Sync for Page {}

/// Memory as a virtual machine has it: whole pages, not from any pool.
fn guest_memory(bytes: usize) -> Buf {
    let pages = bytes.div_ceil(4096);
    let guest: Arc<[Page]> = (0..pages).map(|_| Page(UnsafeCell::new([0xa5; 4096]))).collect();
    let base = NonNull::new(guest.as_ptr().cast_mut().cast()).expect("an address in memory");
    // SAFETY: the pages live as long as the owner, in cells, and only this address is used.
    unsafe { Buf::foreign(Arc::new(guest), base, pages * 4096) }
}

/// Runs a request without data on a reactor, from any thread.
pub fn act(on: &Reactors, disk: &Arc<dyn Disk>, op: Op, at: SectorRange, flags: Flags) -> IoResult {
    let disk = disk.clone();
    let io = move || Io::on(op, at).with(flags);
    on.block_on(ReactorId(0), move |env| async move { env.io(&disk, io()).await })
}

pub fn write(
    on: &Reactors,
    disk: &Arc<dyn Disk>,
    (at, flags): (SectorRange, Flags),
    data: Vec<u8>,
    shape: Shape,
) -> IoResult {
    let disk = disk.clone();
    on.block_on(ReactorId(1), move |env| async move {
        let segs = segs_of(&env, &data, shape);
        env.io(&disk, Io::write(at, segs).with(flags)).await
    })
}

pub fn read(
    on: &Reactors,
    disk: &Arc<dyn Disk>,
    at: SectorRange,
    shape: Shape,
) -> Result<Vec<u8>, cairn_block::IoError> {
    let disk = disk.clone();
    on.block_on(ReactorId(0), move |env| async move {
        let stale = vec![0xee; at.to_bytes() as usize];
        let segs = segs_of(&env, &stale, shape);
        let result = env.io(&disk, Io::read(at, segs.clone())).await;
        result.map(|()| segs.to_vec())
    })
}

pub fn extents(on: &Reactors, disk: &Arc<dyn Disk>, at: SectorRange) -> Vec<Extent> {
    let disk = disk.clone();
    on.block_on(ReactorId(0), move |env| async move { disk.extents(&env, at).await.unwrap() })
}

pub fn grow(on: &Reactors, disk: &Arc<dyn Disk>, sectors: u64) -> Result<SectorCount, IoError> {
    let disk = disk.clone();
    on.block_on(ReactorId(0), move |env| async move { disk.grow(&env, SectorCount(sectors)).await })
}

/// One step of a random run; positions are in logical blocks and not yet limited to the disk.
#[derive(Clone, Debug)]
pub enum Step {
    Write { at: (u64, u64), seed: u8, fua: bool, shape: Shape },
    Read { at: (u64, u64), shape: Shape },
    Zero { at: (u64, u64), no_unmap: bool, fua: bool },
    Discard { at: (u64, u64) },
    Flush,
}

pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    let at = || (any::<u64>(), 1..400u64);
    let skew = prop_oneof![proptest::strategy::Just(0usize), 1..600usize];
    let cut = proptest::option::of(any::<usize>());
    let shape = || {
        let parts = (skew.clone(), cut.clone(), any::<bool>());
        parts.prop_map(|(skew, cut, foreign)| Shape { skew, cut, foreign })
    };
    let write = (at(), any::<u8>(), any::<bool>(), shape());
    let step = prop_oneof![
        4 => write.prop_map(|(at, seed, fua, shape)| Step::Write { at, seed, fua, shape }),
        4 => (at(), shape()).prop_map(|(at, shape)| Step::Read { at, shape }),
        2 => (at(), any::<bool>(), any::<bool>())
            .prop_map(|(at, no_unmap, fua)| Step::Zero { at, no_unmap, fua }),
        1 => at().prop_map(|at| Step::Discard { at }),
        1 => proptest::strategy::Just(Step::Flush),
    ];
    proptest::collection::vec(step, 1..40)
}

/// What a sector may hold: known bytes, or anything after a discard.
pub struct Model {
    bytes: Vec<u8>,
    known: Vec<bool>,
}

impl Model {
    pub fn zeros(sectors: SectorCount) -> Model {
        Model { bytes: vec![0; sectors.to_bytes() as usize], known: vec![true; sectors.0 as usize] }
    }

    fn set(&mut self, at: SectorRange, bytes: &[u8]) {
        let start = at.start.to_bytes() as usize;
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        self.known[at.start.0 as usize..at.end().0 as usize].fill(true);
    }

    fn check(&self, at: SectorRange, found: &[u8]) {
        for (sector, found) in (at.start.0 as usize..).zip(found.chunks(512)) {
            let expected = &self.bytes[sector * 512..][..512];
            assert!(!self.known[sector] || found == expected, "sector {sector}");
        }
    }
}

/// Runs the steps on the disk and the model, and compares all contents at the end.
pub fn run(on: &Reactors, disk: &Arc<dyn Disk>, model: &mut Model, steps: Vec<Step>) {
    let block = disk.limits().logical_sectors().0;
    let blocks = disk.sectors().0 / block;
    let fit = |(start, count): (u64, u64)| {
        let start = start % blocks;
        range(start * block, count.min(blocks - start) * block)
    };
    for step in steps {
        match step {
            Step::Write { at, seed, fua, shape } => {
                let at = fit(at);
                let data: Vec<u8> = (0..at.to_bytes())
                    .map(|i| (i / 7) as u8 ^ seed.wrapping_add(i as u8))
                    .collect();
                let flags = if fua { Flags::FUA } else { Flags::empty() };
                model.set(at, &data);
                write(on, disk, (at, flags), data, shape).unwrap();
            }
            Step::Read { at, shape } => {
                model.check(fit(at), &read(on, disk, fit(at), shape).unwrap());
            }
            Step::Zero { at, no_unmap, fua } => {
                let mut flags = Flags::empty();
                flags.set(Flags::NO_UNMAP, no_unmap);
                flags.set(Flags::FUA, fua);
                act(on, disk, Op::WriteZeroes, fit(at), flags).unwrap();
                model.set(fit(at), &vec![0; fit(at).to_bytes() as usize]);
            }
            Step::Discard { at } => {
                let at = fit(at);
                act(on, disk, Op::Discard, at, Flags::empty()).unwrap();
                model.known[at.start.0 as usize..at.end().0 as usize].fill(false);
            }
            Step::Flush => act(on, disk, Op::Flush, range(0, 0), Flags::empty()).unwrap(),
        }
    }
    let all = SectorRange::new(Sector(0), disk.sectors());
    let covered: u64 = extents(on, disk, all).iter().map(|extent| extent.count.0).sum();
    assert_eq!(covered, all.count.0);
    model.check(all, &read(on, disk, all, Shape::default()).unwrap());
}
