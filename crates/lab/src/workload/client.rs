//! [`Client`]: one client of a workload.

use cairn_block::{Op, Sector, SectorCount, SectorRange};
use cairn_outcome::failure::{Outcome, wrong};

use super::pause::Pause;
use super::places::{Order, Places};
use super::{Operation, Source, choose};

/// How a client makes its writes durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// It does not.
    #[default]
    None,
    /// Each write has FUA.
    Fua,
    /// Each write is followed by a flush.
    WriteAndFlush,
    /// Each write has FUA and is followed by a flush, as a block device that was opened with
    /// `O_DSYNC` sends it.
    FuaAndFlush,
}

impl Durability {
    fn is_fua(self) -> bool {
        matches!(self, Durability::Fua | Durability::FuaAndFlush)
    }

    fn has_flush(self) -> bool {
        matches!(self, Durability::WriteAndFlush | Durability::FuaAndFlush)
    }
}

/// What a client does.
///
/// The flush of a [`Durability`] is the operation after its write. It covers the write only if the
/// client waits for the write first, so that such a client keeps one operation in flight.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// Where it works.
    pub region: SectorRange,
    /// Where its operations go.
    pub order: Order,
    /// Sizes of its operations, with their weights. Each is a multiple of the smallest.
    pub sizes: Vec<(SectorCount, u32)>,
    /// How many of a hundred operations, flushes not counted, are reads.
    pub read_percent: u8,
    /// What it does for its writes.
    pub durability: Durability,
    /// How long it waits before an operation. A flush follows its write without waiting.
    pub pause: Pause,
}

impl Behaviour {
    /// Random writes of one size.
    pub fn writes(region: SectorRange, size: SectorCount) -> Behaviour {
        Behaviour {
            region,
            order: Order::Random,
            sizes: vec![(size, 1)],
            read_percent: 0,
            durability: Durability::None,
            pause: Pause::None,
        }
    }

    /// The smallest size.
    fn unit(&self) -> SectorCount {
        self.sizes.iter().map(|size| size.0).min().unwrap_or_default()
    }

    fn check(&self) -> Outcome<()> {
        let refuse =
            |field, found: String, expected: String| Err(wrong("workload", field, found, expected));
        let (unit, region) = (self.unit(), self.region.count);
        let weights: u64 = self.sizes.iter().map(|size| u64::from(size.1)).sum();
        if unit == SectorCount::ZERO || weights == 0 {
            let found = format!("{:?}", self.sizes);
            return refuse("size", found, "one above zero with a weight above zero".to_owned());
        }
        for &(size, _) in &self.sizes {
            if !size.0.is_multiple_of(unit.0) {
                let expected = format!("a multiple of the smallest, {unit} sectors");
                return refuse("size", format!("{size} sectors"), expected);
            }
            if size > region {
                let expected = format!("at most the region, {region} sectors");
                return refuse("size", format!("{size} sectors"), expected);
            }
        }
        if self.read_percent > 100 {
            return refuse("reads", format!("{} %", self.read_percent), "at most 100 %".to_owned());
        }
        self.order.check(self.sizes.len() > 1)
    }
}

/// One client, from a seed.
pub struct Client {
    behaviour: Behaviour,
    /// Of the sizes.
    weights: u64,
    unit: SectorCount,
    places: Places,
    flush_is_next: bool,
    rng: fastrand::Rng,
}

impl Client {
    /// A client that behaves so.
    ///
    /// # Errors
    /// A size or the region does not fit the others, or a number is out of its range.
    pub fn new(behaviour: Behaviour, seed: u64) -> Outcome<Client> {
        behaviour.check()?;
        let mut rng = fastrand::Rng::with_seed(seed);
        let unit = behaviour.unit();
        let places = Places::new(behaviour.order, behaviour.region.count.0 / unit.0, &mut rng);
        let weights = behaviour.sizes.iter().map(|size| u64::from(size.1)).sum();
        Ok(Client { behaviour, weights, unit, places, flush_is_next: false, rng })
    }

    fn size(&mut self) -> SectorCount {
        let sizes = &self.behaviour.sizes;
        match sizes.as_slice() {
            [only] => only.0,
            _ => {
                let weights = sizes.iter().map(|size| u64::from(size.1));
                sizes[choose(weights, self.weights, &mut self.rng)].0
            }
        }
    }
}

impl Source for Client {
    fn next(&mut self) -> Operation {
        if self.flush_is_next {
            self.flush_is_next = false;
            return Operation::flush();
        }
        let size = self.size();
        let place = self.places.next(size.0 / self.unit.0, &mut self.rng);
        let start = Sector(self.behaviour.region.start.0 + place * self.unit.0);
        let reads = u64::from(self.behaviour.read_percent);
        let is_read = reads > 0 && self.rng.u64(..100) < reads;
        let (op, durability) = match is_read {
            true => (Op::Read, Durability::None),
            false => (Op::Write, self.behaviour.durability),
        };
        self.flush_is_next = durability.has_flush();
        Operation {
            is_fua: durability.is_fua(),
            think: self.behaviour.pause.next(&mut self.rng),
            ..Operation::on(op, SectorRange::new(start, size))
        }
    }
}

/// `count` clients of one behaviour, each with a seed of its own that follows from `seed`. If
/// `has_own_region`, the region is divided among them in equal parts, in units of the smallest
/// size; what is left over belongs to none.
///
/// # Errors
/// As [`Client::new`]; a part of the region may be too small.
pub fn clients(
    behaviour: &Behaviour,
    count: u64,
    has_own_region: bool,
    seed: u64,
) -> Outcome<Vec<Client>> {
    let mut seeds = fastrand::Rng::with_seed(seed);
    let region = behaviour.region;
    let unit = behaviour.unit().0.max(1);
    let part = region.count.0 / count.max(1) / unit * unit;
    let client = |i: u64| {
        let region = if has_own_region {
            SectorRange::new(Sector(region.start.0 + i * part), SectorCount(part))
        } else {
            region
        };
        Client::new(Behaviour { region, ..behaviour.clone() }, seeds.u64(..))
    };
    (0..count).map(client).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cairn_block::{Op, Sector, SectorCount, SectorRange};
    use proptest::prelude::*;

    use super::{Behaviour, Client, Durability, clients};
    use crate::workload::testing::{assert_fits, take};
    use crate::workload::{Order, Pause};

    const REGION: SectorRange = SectorRange::new(Sector(1000), SectorCount(8 * 4096));

    fn behaviour() -> Behaviour {
        Behaviour::writes(REGION, SectorCount(8))
    }

    #[test]
    fn writes_are_made_durable_in_three_shapes() {
        let shapes = |durability| {
            let behaviour = Behaviour { durability, ..behaviour() };
            let operations = take(&mut Client::new(behaviour, 1).unwrap(), 4);
            operations.into_iter().map(|op| (op.op, op.is_fua)).collect::<Vec<_>>()
        };
        let (write, fua, flush) = ((Op::Write, false), (Op::Write, true), (Op::Flush, false));
        assert_eq!(shapes(Durability::None), [write; 4]);
        assert_eq!(shapes(Durability::Fua), [fua; 4]);
        assert_eq!(shapes(Durability::WriteAndFlush), [write, flush, write, flush]);
        assert_eq!(shapes(Durability::FuaAndFlush), [fua, flush, fua, flush]);
    }

    #[test]
    fn reads_have_their_share_and_neither_fua_nor_flush() {
        let durability = Durability::FuaAndFlush;
        let behaviour = Behaviour { read_percent: 30, durability, ..behaviour() };
        let operations = take(&mut Client::new(behaviour, 1).unwrap(), 100_000);
        let count = |op| operations.iter().filter(|found| found.op == op).count() as u64;
        assert_fits(&[count(Op::Read), count(Op::Write)], &[0.3, 0.7]);
        for pair in operations.windows(2) {
            assert_eq!(pair[1].op == Op::Flush, pair[0].op == Op::Write);
            assert_eq!(pair[0].is_fua, pair[0].op == Op::Write);
        }
    }

    #[test]
    fn sizes_come_by_weight_and_pauses_come_before_operations_but_flushes() {
        let pause = Duration::from_micros(7);
        let behaviour = Behaviour {
            sizes: vec![(SectorCount(8), 3), (SectorCount(128), 1), (SectorCount(16), 0)],
            pause: Pause::Fixed(pause),
            durability: Durability::WriteAndFlush,
            ..behaviour()
        };
        let mut counts = [0, 0];
        for operation in take(&mut Client::new(behaviour, 1).unwrap(), 20_000) {
            match operation.range.count.0 {
                0 => assert_eq!(operation.think, Duration::ZERO),
                8 => counts[0] += 1,
                128 => counts[1] += 1,
                size => panic!("a size of {size}"),
            }
            assert_eq!(operation.op != Op::Flush, operation.think == pause);
        }
        assert_fits(&counts, &[0.75, 0.25]);
    }

    #[test]
    fn clients_have_their_own_seeds_and_regions() {
        let ranges = |has_own_region| {
            let clients = clients(&behaviour(), 3, has_own_region, 1).unwrap();
            let ranges = clients.into_iter().map(|mut client| {
                let operations = take(&mut client, 1000).into_iter();
                operations.map(|operation| operation.range.start.0).collect::<Vec<_>>()
            });
            ranges.collect::<Vec<_>>()
        };
        let shared = ranges(false);
        assert!(shared[0] != shared[1] && shared[1] != shared[2]);
        // 4096 blocks: 1365 for each, and one left over.
        let part = 1365 * 8;
        for (i, starts) in (0..).zip(ranges(true)) {
            let own = 1000 + i * part..1000 + (i + 1) * part;
            assert!(starts.iter().all(|start| own.contains(start)), "{i}");
        }
    }

    #[test]
    fn behaviour_that_cannot_be_is_refused_with_what_was_expected() {
        let sizes = |sizes: &[(u64, u32)]| Behaviour {
            sizes: sizes.iter().map(|&(size, weight)| (SectorCount(size), weight)).collect(),
            ..behaviour()
        };
        let wrong = [
            (sizes(&[]), "size: found []"),
            (sizes(&[(0, 1)]), "size: found"),
            (sizes(&[(8, 0)]), "with a weight above zero"),
            (sizes(&[(8, 1), (12, 1)]), "found 12 sectors, expected a multiple of the smallest, 8"),
            (sizes(&[(1 << 20, 1)]), "expected at most the region, 32768 sectors"),
            (Behaviour { read_percent: 101, ..behaviour() }, "reads: found 101 %"),
            (Behaviour { order: Order::Zipf(9.0), ..behaviour() }, "exponent: found 9"),
        ];
        for (behaviour, expected) in wrong {
            let error = Client::new(behaviour, 1).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        assert!(clients(&behaviour(), 5000, true, 1).is_err());
    }

    fn orders() -> impl Strategy<Value = Order> {
        prop_oneof![
            Just(Order::Random),
            Just(Order::RandomOnce),
            Just(Order::Sequential),
            (0.0..8.0).prop_map(Order::Zipf),
            (1_u32..50, 1_u32..9).prop_map(|(pieces, runs)| Order::Neighbours { pieces, runs }),
        ]
    }

    proptest! {
        #[test]
        fn ranges_lie_in_the_region_at_multiples_of_the_smallest_size_and_repeat(
            order in orders(),
            start in 0_u64..1 << 62,
            (count, unit, multiples) in (1_u64..1 << 40).prop_flat_map(|count| {
                let unit = 1..=count.min(5000);
                (Just(count), unit, proptest::collection::vec((1_u64..20, 0_u32..5), 0..4))
            }),
            read_percent in 0_u8..=100,
            seed: u64,
        ) {
            let region = SectorRange::new(Sector(start), SectorCount(count));
            let mut sizes = vec![(SectorCount(unit), 1)];
            let has_one_size =
                matches!(order, Order::RandomOnce | Order::Neighbours { .. });
            let more = multiples.into_iter().map(|(times, weight)| (times * unit, weight));
            for (size, weight) in more.filter(|(size, _)| *size <= count && !has_one_size) {
                sizes.push((SectorCount(size), weight));
            }
            let pause = Pause::Exponential(Duration::from_micros(50));
            let durability = Durability::WriteAndFlush;
            let behaviour = Behaviour { region, order, sizes, read_percent, durability, pause };
            let operations = take(&mut Client::new(behaviour.clone(), seed).unwrap(), 300);
            for operation in operations.iter().filter(|operation| operation.op != Op::Flush) {
                prop_assert_eq!(operation.range.intersect(region), Some(operation.range));
                prop_assert!((operation.range.start.0 - start).is_multiple_of(unit));
            }
            prop_assert_eq!(take(&mut Client::new(behaviour, seed).unwrap(), 300), operations);
        }
    }
}
