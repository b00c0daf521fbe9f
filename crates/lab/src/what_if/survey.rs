//! [`Survey`]: a trace, read whole before it is replayed, so that a line that cannot be read is
//! found before anything runs, and so that advice can say what the trace asks for.

use std::collections::BTreeMap;
use std::time::Duration;

use cairn_block::{Op, SectorCount, SectorRange};
use cairn_outcome::failure::Outcome;

use crate::workload::Operation;

/// Sectors of a block: what all volumes of a comparison have.
pub const BLOCK: SectorCount = SectorCount(8);

/// What a trace asks for, in whole blocks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Survey {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Bytes of all reads.
    pub read_bytes: u64,
    /// Bytes of all writes.
    pub written_bytes: u64,
    /// Operations that begin or end within a block; discards that cover no whole block among them.
    pub changed: u64,
    /// The moment of the last operation; zero if the trace has no times.
    pub span: Duration,
    /// Bytes of all blocks that are read or written, each counted once.
    pub touched_bytes: u64,
}

impl Survey {
    /// Reads a trace to its end.
    ///
    /// # Errors
    /// A line cannot be read.
    pub fn of(trace: impl Iterator<Item = Outcome<Operation>>) -> Outcome<Survey> {
        let (mut survey, mut touched) = (Survey::default(), Blocks::default());
        for operation in trace {
            let operation = operation?;
            survey.span = Duration::from_nanos(operation.not_before.0);
            let whole = operation.of_whole_blocks(BLOCK);
            survey.changed += u64::from(whole != Some(operation));
            let Some(Operation { op, range, .. }) = whole else { continue };
            match op {
                Op::Flush => survey.flushes += 1,
                Op::Discard => survey.discards += 1,
                Op::Read => {
                    survey.reads += 1;
                    survey.read_bytes += range.to_bytes();
                    touched.add(range);
                }
                Op::Write | Op::WriteZeroes => {
                    survey.writes += 1;
                    survey.written_bytes += range.to_bytes();
                    touched.add(range);
                }
            }
        }
        survey.touched_bytes = touched.count() * BLOCK.to_bytes();
        Ok(survey)
    }

    /// All that it asks for.
    pub fn operations(&self) -> u64 {
        self.reads + self.writes + self.flushes + self.discards
    }
}

/// A set of blocks: 512 in 64 bytes.
#[derive(Default)]
struct Blocks(BTreeMap<u64, [u64; 8]>);

impl Blocks {
    fn add(&mut self, range: SectorRange) {
        for block in range.start.0 / BLOCK.0..range.end().0.div_ceil(BLOCK.0) {
            let words = self.0.entry(block / 512).or_default();
            words[(block / 64 % 8) as usize] |= 1 << (block % 64);
        }
    }

    fn count(&self) -> u64 {
        self.0.values().flatten().map(|word| u64::from(word.count_ones())).sum()
    }
}

#[cfg(test)]
mod tests {
    use cairn_block::{Op, Time};

    use super::{Blocks, Survey};
    use crate::workload::Operation;

    #[test]
    fn survey_counts_whole_blocks_and_each_touched_block_once() {
        let at = |nanos, operation| Operation { not_before: Time(nanos), ..operation };
        let operations = [
            Operation::new(Op::Write, 0, 16),
            at(5, Operation::new(Op::Read, 9, 1)),
            at(7, Operation::new(Op::Read, 1 << 30, 8)),
            at(7, Operation::new(Op::Discard, 1, 2)),
            at(8, Operation::new(Op::Discard, 0, 16)),
            at(9, Operation::flush()),
        ];
        let survey = Survey::of(operations.into_iter().map(Ok)).unwrap();
        let counts = [survey.reads, survey.writes, survey.flushes, survey.discards];
        assert_eq!((counts, survey.operations()), ([2, 1, 1, 1], 5));
        assert_eq!((survey.read_bytes, survey.written_bytes), (8192, 8192));
        assert_eq!((survey.changed, survey.touched_bytes), (2, 3 * 4096));
        assert_eq!(survey.span.as_nanos(), 9);
    }

    #[test]
    fn blocks_are_counted_as_a_set_counts_them() {
        let mut rng = fastrand::Rng::with_seed(1);
        let (mut blocks, mut expected) = (Blocks::default(), std::collections::BTreeSet::new());
        for _ in 0..2000 {
            let (start, count) = (rng.u64(..100_000), rng.u64(1..2000));
            blocks.add(Operation::new(Op::Write, start, count).range);
            expected.extend(start / 8..(start + count).div_ceil(8));
            assert!(blocks.count() <= expected.len() as u64);
        }
        assert_eq!(blocks.count(), expected.len() as u64);
    }
}
