//! D3 over machines and changes of the code: the ends of seeded loads have recorded fingerprints.
//!
//! A change that only makes a model faster leaves them alone. One that changes when operations end
//! changes them, and the rows of `cairn lab drives` with them.

use cairn_block::{Op, SectorCount, Time};

use super::testing::arrival;
use super::{Arrival, Hdd, HddFigures, OpId, Raid5, Raid5Figures, Ssd, SsdFigures, Timing, Used};

/// 2 TB.
const SECTORS: u64 = 4_000_000_000;

/// Operations of several kinds, one after another.
struct Mixture {
    rng: fastrand::Rng,
    next_id: OpId,
    /// Where streams go on.
    streams: [u64; 3],
}

impl Mixture {
    fn draw(&mut self, phase: u64) -> Arrival {
        let id = self.next_id;
        self.next_id += 1;
        let rng = &mut self.rng;
        let anywhere = rng.u64(..SECTORS / 8 - 300) * 8;
        let count = 8 * [1, 1, 1, 1, 2, 5, 32, 256][rng.usize(..8)];
        let stream = rng.usize(..3);
        let on = self.streams[stream];
        let (op, start, count) = match (phase % 6, rng.u8(..100)) {
            (_, 0) if phase.is_multiple_of(2) => (Op::Flush, 0, 0),
            (_, 1) => (Op::Discard, anywhere, count),
            (_, 2) => (Op::WriteZeroes, anywhere, count),
            (0, _) => (Op::Write, anywhere, 8),
            (1, _) => (Op::Read, anywhere, 8),
            // Streams of reads and writes, with gaps and steps back.
            (2, 3..95) => (Op::Read, on, count),
            (2 | 3, _) => (Op::Write, on.saturating_sub(8 * rng.u64(..9)), count),
            // Places in order, some of which touch.
            (4, _) => (Op::Write, on + 8 * rng.u64(..40), 8),
            _ => ([Op::Read, Op::Write][rng.usize(..2)], anywhere, count),
        };
        if op != Op::Flush && start != anywhere {
            self.streams[stream] = (start + count) % (SECTORS / 2);
        }
        let is_fua = op == Op::Write && rng.u8(..20) == 0;
        Arrival { is_fua, ..arrival(id, op, start, count) }
    }
}

/// Runs a closed loop of changing depth, and pauses; returns a hash (FNV-1a over words) of the ends
/// and of what the model counted.
fn fingerprint(model: &mut dyn Timing) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut note = |word: u64| hash = (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
    let streams = [0, SECTORS / 4, SECTORS / 5 * 4];
    let mut mixture = Mixture { rng: fastrand::Rng::with_seed(7), next_id: 0, streams };
    let (mut now, mut in_flight, mut ended) = (Time(0), 0, Vec::new());
    for phase in 0..36 {
        let depth = [1, 40, 3, 80, 32][phase as usize % 5];
        let end = mixture.next_id + 400;
        while mixture.next_id < end || in_flight > 0 {
            while mixture.next_id < end && in_flight < depth {
                model.arrive(now, mixture.draw(phase));
                in_flight += 1;
            }
            now = model.next().expect("an operation in flight ends");
            model.go_on(now, &mut ended);
            in_flight -= ended.len();
            ended.drain(..).for_each(|id| [now.0, id].into_iter().for_each(&mut note));
        }
        // Into the middle of what a drive does of itself.
        now = Time(now.0 + 10_000_000);
        model.go_on(now, &mut ended);
        assert!(ended.is_empty(), "nothing is in flight");
    }
    let Used { seek_ns, rotation_ns, transfer_ns, other_ns, idle_ns, .. } = model.used();
    [seek_ns, rotation_ns, transfer_ns, other_ns, idle_ns].into_iter().for_each(&mut note);
    let Used { requests, merges, operations, flushes, depth_ns, .. } = model.used();
    [requests, merges, operations, flushes, depth_ns].into_iter().for_each(&mut note);
    hash
}

fn hdd(figures: HddFigures) -> Box<dyn Timing> {
    Box::new(Hdd::new(figures, SectorCount(SECTORS)))
}

fn array(member: impl Fn(u64) -> Box<dyn Timing>) -> Box<dyn Timing> {
    Box::new(Raid5::new(Raid5Figures::MD, (0..4).map(member).collect()))
}

#[test]
fn ends_of_operations_are_the_recorded_ones() {
    let small = HddFigures { cache: SectorCount(4096), ..HddFigures::NEARLINE };
    let tiny = HddFigures { cache: SectorCount(512), window: 16, ..HddFigures::NEARLINE };
    let uncached = HddFigures { cache: SectorCount::ZERO, ..HddFigures::NEARLINE };
    let ssd = |figures| -> Box<dyn Timing> { Box::new(Ssd::new(figures, 1)) };
    let nvme = |seed| -> Box<dyn Timing> { Box::new(Ssd::new(SsdFigures::NVME, seed)) };
    let models = [
        ("hdd", hdd(HddFigures::NEARLINE), 0x8d65_b895_113c_39c0),
        ("hdd, small cache", hdd(small), 0xce32_9015_533d_6ce4),
        ("hdd, tiny cache", hdd(tiny), 0xdab8_1b96_52bf_fe34),
        ("hdd, no cache", hdd(uncached), 0xbf15_b199_1fa3_b93e),
        ("sata", ssd(SsdFigures::SATA), 0xce4e_9d27_9b37_2f4f),
        ("nvme", ssd(SsdFigures::NVME), 0x875a_eb55_78c9_48e5),
        ("optane", ssd(SsdFigures::OPTANE), 0x9959_8a32_3302_5c96),
        ("raid5 of nvme", array(nvme), 0x2319_1662_70f4_fdc4),
        ("raid5 of hdd", array(|_| hdd(small)), 0x4f14_a23e_7a37_713b),
    ];
    let found = models.map(|(name, mut model, recorded)| {
        let fingerprint = fingerprint(&mut *model);
        (fingerprint != recorded).then(|| format!("{name}: {fingerprint:#x}"))
    });
    let changed: Vec<String> = found.into_iter().flatten().collect();
    assert!(changed.is_empty(), "{changed:#?}");
}
