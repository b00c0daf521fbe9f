//! Pools that grow by themselves: when no more data blocks are free than the low-water mark says,
//! the data file gets longer by `grow` of the table line, up to `grow_max`, as by `pool grow`.
//!
//! The thread that keeps snapshots acts, called by the events of the pool: its low-water mark, and
//! a write that finds no space. A pool that has grown has a new table, and raises them again.

use std::collections::HashSet;

use cairn_outcome::failure::Outcome;

use super::grow::PoolLine;
use crate::live_pool::LivePool;
use crate::verbs::Verbs;

/// How a pool may grow, in sectors.
struct Growth {
    step: u64,
    most: u64,
}

impl Growth {
    /// What the words of a pool's line say; none: it does not grow by itself.
    fn of_line(line: &PoolLine) -> Option<Growth> {
        let number = |option| line.option(option)?.first()?.parse::<u64>().ok();
        Some(Growth { step: number("grow")?, most: number("grow_max").unwrap_or(u64::MAX) })
    }

    /// The next size of a data device.
    fn next(&self, sectors: u64) -> u64 {
        sectors.saturating_add(self.step).min(self.most).max(sectors)
    }
}

impl Verbs {
    /// The pools that may grow by themselves.
    pub(in crate::verbs) fn growing_pools(&self) -> Vec<String> {
        let told = self.told();
        let pools = LivePool::all(&self.world.names()).into_iter().map(|pool| pool.name);
        let grows = |name: &String| {
            let table = told.get(name).and_then(|record| record.table.as_deref());
            let line = table.and_then(PoolLine::of_table);
            line.is_some_and(|line| Growth::of_line(&line).is_some())
        };
        pools.filter(grows).collect()
    }

    /// How large the data file of a pool is to be, in bytes, if few data blocks are free. `full`:
    /// the pools that have reached their limit.
    pub(in crate::verbs) fn size_to_grow_to(
        &self,
        name: &str,
        full: &mut HashSet<String>,
    ) -> Outcome<Option<u64>> {
        let figures = self.pool(name)?.figures()?;
        let (used, total) = figures.data_blocks;
        if total - used.min(total) > figures.low_water_blocks {
            return Ok(None);
        }
        let told = self.told();
        let table = told.get(name).and_then(|record| record.table.as_deref());
        let Some(line) = table.and_then(PoolLine::of_table) else { return Ok(None) };
        let Some(growth) = Growth::of_line(&line) else { return Ok(None) };
        let now = self.data_sectors(&line)?;
        let next = growth.next(now);
        if next - now >= figures.block.0 {
            return Ok(Some(next * 512));
        }
        if full.insert(name.to_owned()) {
            let free = total - used.min(total);
            tracing::warn!("{name}: {free} data blocks are free, and grow_max is reached");
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::{Growth, PoolLine};

    fn growth(options: &str) -> Option<Growth> {
        let table = format!("0 8192 thin-pool m d 128 16 {options}");
        Growth::of_line(&PoolLine::of_table(&table).unwrap())
    }

    #[test]
    fn pool_grows_by_its_step_up_to_its_limit() {
        assert!(growth("0").is_none() && growth("2 grow_max 9000").is_none());
        let growth = growth("4 grow 4096 grow_max 10000").unwrap();
        assert_eq!([8192, 10000, 12288].map(|now| growth.next(now)), [10000, 10000, 12288]);
    }
}
