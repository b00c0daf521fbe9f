//! A disk of memory under shuttle, with a volatile cache: requests take some turns, and a power cut
//! loses all that no flush has covered.

use std::sync::Arc;

use cairn_block::sync::Mutex;
use cairn_block::{Disk, Env, Flow, Op, Request, SECTOR_BYTES, SectorCount, yield_once};

/// How many turns a request takes at most.
const TURNS_MAX: u64 = 3;

#[derive(Default)]
struct State {
    /// What a read gets.
    visible: Vec<u8>,
    /// What a power cut leaves.
    durable: Vec<u8>,
    /// What was written since, in order.
    volatile: Vec<Volatile>,
    count: u64,
}

/// A write that no flush has covered.
struct Volatile {
    number: u64,
    offset: usize,
    bytes: Vec<u8>,
    has_ended: bool,
}

impl State {
    /// Writes, and answers the number of the write.
    fn write(&mut self, offset: usize, bytes: Vec<u8>) -> u64 {
        self.visible[offset..][..bytes.len()].copy_from_slice(&bytes);
        self.count += 1;
        self.volatile.push(Volatile { number: self.count, offset, bytes, has_ended: false });
        self.count
    }

    fn end(&mut self, number: u64) {
        if let Some(own) = self.volatile.iter_mut().find(|own| own.number == number) {
            own.has_ended = true;
        }
    }

    /// These become durable, in order; what was written to their places before, too.
    fn settle(&mut self, is_covered: impl Fn(&Volatile) -> bool) {
        let mut covered: Vec<bool> = self.volatile.iter().map(is_covered).collect();
        for newer in (0..covered.len()).rev() {
            if covered[newer] {
                let (before, rest) = self.volatile.split_at(newer);
                for (older, is_covered) in before.iter().zip(&mut covered) {
                    *is_covered |= older.overlaps(&rest[0]);
                }
            }
        }
        let mut covered = covered.into_iter();
        let is_next = |_: &mut Volatile| covered.next().expect("one for each");
        for Volatile { offset, bytes, .. } in self.volatile.extract_if(.., is_next) {
            self.durable[offset..][..bytes.len()].copy_from_slice(&bytes);
        }
    }
}

impl Volatile {
    fn overlaps(&self, other: &Volatile) -> bool {
        let end = |it: &Volatile| it.offset + it.bytes.len();
        self.offset < end(other) && other.offset < end(self)
    }
}

/// See the module's description.
pub struct Plate {
    name: &'static str,
    sectors: u64,
    state: Arc<Mutex<State>>,
}

impl Plate {
    /// A disk of this name that holds these bytes.
    pub fn new(name: &'static str, bytes: Vec<u8>) -> Arc<Plate> {
        let sectors = bytes.len() as u64 / SECTOR_BYTES;
        let state = State { durable: bytes.clone(), visible: bytes, ..State::default() };
        Arc::new(Plate { name, sectors, state: Arc::new(Mutex::new(state)) })
    }

    /// What a read finds now.
    pub fn visible(&self) -> Vec<u8> {
        self.state.lock().visible.clone()
    }

    /// What a power cut at this moment certainly leaves of these disks.
    pub fn durable<const N: usize>(plates: [&Plate; N]) -> [Vec<u8>; N] {
        let states = plates.map(|plate| plate.state.lock());
        states.map(|state| state.durable.clone())
    }
}

impl Disk for Plate {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn sectors(&self) -> SectorCount {
        SectorCount(self.sectors)
    }

    fn submit(&self, env: &Env, request: &mut Request) -> Flow {
        let (id, op, is_fua) = (request.id(), request.op, request.is_fua());
        let (offset, length) =
            (request.range.start.to_bytes() as usize, request.range.count.to_bytes() as usize);
        let (segs, state, own) = (request.segs.clone(), self.state.clone(), env.clone());
        // A flush covers what has ended when it is submitted, and nothing else.
        let covered: Vec<u64> = match op {
            Op::Flush => {
                let ended = |it: &Volatile| it.has_ended.then_some(it.number);
                state.lock().volatile.iter().filter_map(ended).collect()
            }
            _ => Vec::new(),
        };
        let turns = [env.random_below(TURNS_MAX), env.random_below(TURNS_MAX)];
        env.spawn(async move {
            for _ in 0..turns[0] {
                yield_once().await;
            }
            let number = {
                let mut state = state.lock();
                match op {
                    Op::Read => segs.copy_in(0, &state.visible[offset..][..length]),
                    Op::Flush => state.settle(|own| covered.contains(&own.number)),
                    Op::Write | Op::WriteZeroes | Op::Discard => {}
                }
                match op {
                    Op::Write => state.write(offset, segs.to_vec()),
                    Op::WriteZeroes => state.write(offset, vec![0; length]),
                    Op::Read | Op::Flush | Op::Discard => 0,
                }
            };
            for _ in 0..turns[1] {
                yield_once().await;
            }
            {
                let mut state = state.lock();
                state.end(number);
                if is_fua {
                    state.settle(|it| it.number == number);
                }
            }
            own.complete(id, Ok(()));
        });
        Flow::Queued
    }
}
