//! Planted faults: errors by range, operation and chance, once or repeatedly, and added delays.
//! They can be changed while the world runs. Every planted error is labelled as injected.

use std::time::Duration;

use cairn_block::{ErrorKind, IoError, Op, SectorRange};
use parking_lot::Mutex;

/// A set of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpSet(u8);

impl OpSet {
    /// Every operation.
    pub const ALL: OpSet = OpSet(63);
    /// Only reads.
    pub const READS: OpSet = OpSet(1);
    /// Only flushes.
    pub const FLUSHES: OpSet = OpSet(4);
    /// The operations that change contents: write, write-zeroes, discard.
    pub const WRITES: OpSet = OpSet(2 | 8 | 16);

    /// Writes with FUA.
    pub const DURABLE_WRITES: OpSet = OpSet(32);

    /// True if `op`, with FUA if `fua`, is in the set.
    pub fn contains(self, op: Op, fua: bool) -> bool {
        let bit = match op {
            Op::Read => 1,
            Op::Write => 2,
            Op::Flush => 4,
            Op::Discard => 8,
            Op::WriteZeroes => 16,
        };
        self.0 & (bit | if fua { 32 } else { 0 }) != 0
    }
}

/// What a fault does to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It fails. A write may have been done in part.
    Error(ErrorKind),
    /// It fails. A flush, or a write with FUA, then also loses every volatile write: reads still
    /// show these writes, but no later flush makes them durable, and no other flush fails for them.
    Lose(ErrorKind),
    /// It takes this much longer.
    Delay(Duration),
}

/// A rule of the injector.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// Which operations.
    pub ops: OpSet,
    /// Only operations that touch this range; none: all, flushes too.
    pub range: Option<SectorRange>,
    /// The chance, in a thousand.
    pub per_mille: u16,
    /// How often at most; none: unlimited.
    pub shots: Option<u32>,
    /// What happens.
    pub effect: Effect,
}

impl Fault {
    /// Every operation of `ops` fails with EIO, an unlimited number of times.
    pub fn error(ops: OpSet) -> Fault {
        let effect = Effect::Error(ErrorKind::Io);
        Fault { ops, range: None, per_mille: 1000, shots: None, effect }
    }

    /// Every flush fails and loses the volatile writes, an unlimited number of times.
    pub fn losing_flushes() -> Fault {
        Fault { effect: Effect::Lose(ErrorKind::Io), ..Fault::error(OpSet::FLUSHES) }
    }

    /// Every write with FUA fails and loses the volatile writes, an unlimited number of times.
    pub fn losing_durable_writes() -> Fault {
        Fault { ops: OpSet::DURABLE_WRITES, ..Fault::losing_flushes() }
    }

    /// Only on this range.
    #[must_use]
    pub fn on(mut self, range: SectorRange) -> Fault {
        self.range = Some(range);
        self
    }

    /// Only with this chance in a thousand.
    #[must_use]
    pub fn per_mille(mut self, per_mille: u16) -> Fault {
        self.per_mille = per_mille;
        self
    }

    /// At most this many times.
    #[must_use]
    pub fn shots(mut self, shots: u32) -> Fault {
        self.shots = Some(shots);
        self
    }

    fn hits(&self, (op, fua): (Op, bool), range: SectorRange) -> bool {
        self.ops.contains(op, fua) && self.range.is_none_or(|own| own.overlaps(range))
    }
}

/// Names a fault, for its removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultId(u64);

#[derive(Default)]
struct Rules {
    list: Vec<(FaultId, Fault)>,
    next: u64,
    injected: u64,
    loses_connections: bool,
    is_taken: bool,
}

/// The faults of one drive.
#[derive(Default)]
pub struct Faults(Mutex<Rules>);

/// What the rules decided about one operation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Planted {
    pub error: Option<IoError>,
    pub loses: bool,
    pub delay: Duration,
}

impl Faults {
    /// Adds a rule.
    pub fn add(&self, fault: Fault) -> FaultId {
        let mut rules = self.0.lock();
        let id = FaultId(rules.next);
        rules.next += 1;
        rules.list.push((id, fault));
        id
    }

    /// Removes a rule.
    pub fn remove(&self, id: FaultId) {
        self.0.lock().list.retain(|(other, _)| *other != id);
    }

    /// From now on a drive at a server whose connections begin well may lose them.
    pub fn lose_connections(&self) {
        self.0.lock().loses_connections = true;
    }

    /// Another host opens the drive, which is at a server, now: the connection of this one ends,
    /// and the next one finds it out.
    pub fn take_away(&self) {
        self.0.lock().is_taken = true;
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.0.lock().is_taken
    }

    pub(crate) fn loses_connections(&self) -> bool {
        self.0.lock().loses_connections
    }

    /// Removes every rule.
    pub fn clear(&self) {
        let mut rules = self.0.lock();
        rules.list.clear();
        (rules.loses_connections, rules.is_taken) = (false, false);
    }

    /// Removes every rule and resets the count of planted errors.
    pub(crate) fn forget(&self) {
        *self.0.lock() = Rules::default();
    }

    /// True if a rule makes failed flushes lose writes.
    pub fn lose(&self) -> bool {
        self.0.lock().list.iter().any(|(_, fault)| matches!(fault.effect, Effect::Lose(_)))
    }

    /// How many errors were planted so far.
    pub fn injected(&self) -> u64 {
        self.0.lock().injected
    }

    /// Counts one that something else planted.
    pub(crate) fn count(&self) {
        self.0.lock().injected += 1;
    }

    /// Decides what happens to an operation; `op` is its kind and whether it has FUA.
    pub(crate) fn decide(
        &self,
        rng: &mut fastrand::Rng,
        op: (Op, bool),
        range: SectorRange,
    ) -> Planted {
        let mut planted = Planted::default();
        let mut rules = self.0.lock();
        for (_, fault) in &mut rules.list {
            if !fault.hits(op, range) || rng.u16(..1000) >= fault.per_mille {
                continue;
            }
            fault.shots = fault.shots.map(|shots| shots - 1);
            match fault.effect {
                Effect::Error(kind) => planted.error = Some(IoError::injected(kind)),
                Effect::Lose(kind) => {
                    planted.error = Some(IoError::injected(kind));
                    planted.loses = true;
                }
                Effect::Delay(delay) => planted.delay += delay,
            }
        }
        rules.list.retain(|(_, fault)| fault.shots != Some(0));
        rules.injected += u64::from(planted.error.is_some());
        planted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_block::{Sector, SectorCount};

    fn range(start: u64) -> SectorRange {
        SectorRange::new(Sector(start), SectorCount(8))
    }

    #[test]
    fn fault_hits_its_operations_on_its_range_up_to_its_shots() {
        let (faults, mut rng) = (Faults::default(), fastrand::Rng::with_seed(1));
        faults.add(Fault::error(OpSet::WRITES).on(range(8)).shots(2));
        let mut failed = |op, at| faults.decide(&mut rng, (op, false), range(at)).error.is_some();
        assert!(!failed(Op::Read, 8));
        assert!(!failed(Op::Write, 16));
        assert!(failed(Op::Write, 4));
        assert!(failed(Op::Discard, 8));
        assert!(!failed(Op::Write, 8), "both shots are spent");
        assert_eq!(faults.injected(), 2);
    }

    #[test]
    fn planted_errors_are_labelled_and_can_be_removed() {
        let (faults, mut rng) = (Faults::default(), fastrand::Rng::with_seed(1));
        let id = faults.add(Fault::error(OpSet::FLUSHES));
        let planted = faults.decide(&mut rng, (Op::Flush, false), SectorRange::default());
        assert_eq!(planted.error, Some(IoError::injected(ErrorKind::Io)));
        faults.remove(id);
        assert!(
            faults.decide(&mut rng, (Op::Flush, false), SectorRange::default()).error.is_none()
        );
    }
}
