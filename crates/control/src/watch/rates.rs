//! [`Rates`]: what passed a volume between two moments, per second.

use std::time::Duration;

use cairn_block::{Op, quantile};
use serde::{Deserialize, Serialize};

use super::figures::{CacheFigures, Figures, OpFigures, VolumeFigures};

/// A volume between two moments.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Reads.
    pub reads: OpRates,
    /// Writes, with those of zeroes.
    pub writes: OpRates,
    /// What writeback copied, in bytes per second.
    pub writeback_bytes_per_second: f64,
    /// How long writeback takes for all that is dirty now, at that speed.
    pub seconds_left: Option<f64>,
    /// Of the reads, how many the caches answered. None if they had none to answer.
    pub hit_percent: Option<f64>,
}

/// Requests of a direction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OpRates {
    /// Requests per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// The time that half of them did not exceed: the bound of a bucket of the histogram.
    pub p50_ns: Option<u64>,
    /// The time that 99 of 100 did not exceed.
    pub p99_ns: Option<u64>,
}

/// The rates of the volumes of `now`, in its order. A volume that was not there before, or whose
/// counts have fallen because it is another one of that name, has none yet.
pub fn rates(before: &Figures, now: &Figures) -> Vec<Rates> {
    let seconds = now.time_ns.saturating_sub(before.time_ns) as f64 / 1e9;
    let of = |volume: &VolumeFigures| {
        let earlier = before.volumes.iter().find(|it| it.name == volume.name);
        let earlier = earlier.filter(|_| seconds > 0.0 && before.server == now.server)?;
        between(earlier, volume, seconds)
    };
    now.volumes.iter().map(|volume| of(volume).unwrap_or_default()).collect()
}

fn between(before: &VolumeFigures, now: &VolumeFigures, seconds: f64) -> Option<Rates> {
    let op = |op: Op| now.ops.get(op.name())?.since(before.ops.get(op.name())?);
    let (reads, writes) = (op(Op::Read)?, op(Op::Write)?.with(op(Op::WriteZeroes)?));
    let mut rates =
        Rates { reads: reads.rates(seconds), writes: writes.rates(seconds), ..Rates::default() };
    if let (Some(before), Some(now)) = (&before.cache, &now.cache) {
        rates.add_cache(before, now, seconds);
    }
    Some(rates)
}

impl Rates {
    /// The counts of a cache begin again with a new table: then there is no rate yet.
    fn add_cache(&mut self, before: &CacheFigures, now: &CacheFigures, seconds: f64) {
        let copied = now.written_back_bytes.checked_sub(before.written_back_bytes);
        let Some(copied) = copied.map(|bytes| bytes as f64 / seconds) else { return };
        self.writeback_bytes_per_second = copied;
        self.seconds_left = (copied > 0.0).then(|| now.dirty_bytes as f64 / copied);
        let hits = now.hits.checked_sub(before.hits);
        let misses = now.misses.checked_sub(before.misses);
        self.hit_percent = hits
            .zip(misses)
            .filter(|(hits, misses)| hits + misses > 0)
            .map(|(hits, misses)| hits as f64 * 100.0 / (hits + misses) as f64);
    }
}

impl OpFigures {
    /// The counts since an earlier moment; none if one of them has fallen.
    fn since(&self, before: &OpFigures) -> Option<OpFigures> {
        let mut buckets = self.buckets.clone();
        for (now, before) in buckets.iter_mut().zip(&before.buckets) {
            *now = now.checked_sub(*before)?;
        }
        Some(OpFigures {
            requests: self.requests.checked_sub(before.requests)?,
            bytes: self.bytes.checked_sub(before.bytes)?,
            errors: self.errors.checked_sub(before.errors)?,
            total_ns: self.total_ns.saturating_sub(before.total_ns),
            buckets,
        })
    }

    fn with(mut self, other: OpFigures) -> OpFigures {
        self.requests += other.requests;
        self.bytes += other.bytes;
        self.errors += other.errors;
        self.total_ns += other.total_ns;
        self.buckets.iter_mut().zip(other.buckets).for_each(|(sum, more)| *sum += more);
        self
    }

    fn rates(&self, seconds: f64) -> OpRates {
        let quantile = |share| quantile(&self.buckets, share).map(nanos);
        OpRates {
            iops: self.requests as f64 / seconds,
            bytes_per_second: self.bytes as f64 / seconds,
            p50_ns: quantile(0.5),
            p99_ns: quantile(0.99),
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::{Rates, rates};
    use crate::watch::figures::{CacheFigures, Figures, OpFigures, VolumeFigures};
    use cairn_block::Op;

    fn volume(requests: u64, dirty_bytes: u64) -> VolumeFigures {
        let op = OpFigures {
            requests,
            bytes: requests * 4096,
            errors: 0,
            total_ns: requests * 3000,
            buckets: vec![0, requests, 0],
        };
        let none = OpFigures { buckets: vec![0; 3], ..OpFigures::default() };
        let zeroes = OpFigures { requests: requests / 10, ..none.clone() };
        let ops = [(Op::Read, none), (Op::Write, op), (Op::WriteZeroes, zeroes)];
        let cache = CacheFigures {
            dirty_bytes,
            oldest_dirty_seconds: None,
            written_back_bytes: requests * 100,
            hits: requests * 3,
            misses: requests,
        };
        VolumeFigures {
            name: "vm".to_owned(),
            ops: ops.map(|(op, figures)| (op.name().to_owned(), figures)).into(),
            cache: Some(cache),
            ..VolumeFigures::default()
        }
    }

    fn at(time_ns: u64, volume: VolumeFigures) -> Figures {
        Figures { time_ns, volumes: vec![volume], ..Figures::default() }
    }

    #[test]
    fn what_passed_is_divided_by_the_time_between() {
        let between = rates(&at(0, volume(10, 5000)), &at(2_000_000_000, volume(110, 1000)));
        let [found] = &between[..] else { panic!("{between:?}") };
        assert_eq!((found.writes.iops, found.writes.bytes_per_second), (55.0, 204_800.0));
        assert_eq!((found.writes.p50_ns, found.writes.p99_ns), (Some(4096), Some(4096)));
        assert_eq!((found.reads.iops, found.reads.p50_ns), (0.0, None));
        assert_eq!(found.writeback_bytes_per_second, 5000.0);
        assert_eq!((found.seconds_left, found.hit_percent), (Some(0.2), Some(75.0)));
    }

    #[test]
    fn a_new_volume_of_the_name_or_another_server_has_no_rates_yet() {
        let before = at(0, volume(10, 0));
        for now in [
            at(1_000_000_000, volume(9, 0)),
            at(0, volume(11, 0)),
            Figures { server: 7, ..at(1_000_000_000, volume(11, 0)) },
            at(1_000_000_000, VolumeFigures { name: "other".to_owned(), ..volume(11, 0) }),
        ] {
            assert_eq!(rates(&before, &now), [Rates::default()], "{now:?}");
        }
    }

    #[test]
    fn without_writeback_or_with_a_new_table_there_is_no_time_left_to_tell() {
        let found = &rates(&at(0, volume(10, 5000)), &at(1_000_000_000, volume(10, 4000)))[0];
        assert_eq!((found.seconds_left, found.writeback_bytes_per_second), (None, 0.0));
        let mut reloaded = volume(20, 5000);
        reloaded.cache.as_mut().unwrap().written_back_bytes = 5;
        let found = &rates(&at(0, volume(10, 5000)), &at(1_000_000_000, reloaded))[0];
        assert_eq!((found.seconds_left, found.writeback_bytes_per_second), (None, 0.0));
        assert_eq!(found.writes.iops, 11.0);
    }
}
