//! Status line, messages, extents and the amount of dirty data.

use cairn_block::{
    Dirty, Env, Extent, ExtentKind, Field, IoError, MessageError, Report, SectorCount, SectorRange,
    Target, Unit, Value,
};

use super::index::QueuePosition;
use super::writeback::Undrained;
use super::{Count, WriteCache};

/// The fields of the status line, in order.
pub const STATUS_FIELDS: &[Field] = &[
    Field::new("error", Unit::None),
    Field::new("blocks", Unit::Blocks),
    Field::new("free_blocks", Unit::Blocks),
    Field::new("blocks_in_writeback", Unit::Blocks),
    Field::new("reads", Unit::Blocks),
    Field::new("read_hits", Unit::Blocks),
    Field::new("writes", Unit::Blocks),
    Field::new("write_hits_uncommitted", Unit::Blocks),
    Field::new("write_hits_committed", Unit::Blocks),
    Field::new("writes_around", Unit::Blocks),
    Field::new("writes_allocated", Unit::Blocks),
    Field::new("writes_blocked_on_freelist", Unit::Blocks),
    Field::new("flushes", Unit::Requests),
    Field::new("discards", Unit::Blocks),
];

/// The messages.
pub const MESSAGES: &[&str] = &["flush", "flush_on_suspend", "cleaner", "clear_stats"];

/// Most blocks one answer about extents looks at.
const EXTENT_BLOCKS_MAX: u64 = 1 << 16;

impl WriteCache {
    pub(super) fn make_report(&self) -> Report {
        let counters = self.counters.read();
        let count = |counter: Count| Value::Counter(counters[counter as usize]);
        let state = self.state.lock();
        let error = u64::from(state.broken || state.origin_has_failed());
        let (blocks, in_writeback) = (self.geometry.n_blocks(), state.index.in_writeback);
        let free = if state.index.len() == 0 { blocks } else { state.index.free_count().into() };
        drop(state);
        let values = [
            Value::Gauge(error),
            Value::Gauge(blocks),
            Value::Gauge(free),
            Value::Gauge(u64::from(in_writeback)),
            count(Count::Reads),
            count(Count::ReadHits),
            count(Count::Writes),
            count(Count::WriteHitsUncommitted),
            count(Count::WriteHitsCommitted),
            count(Count::WritesAround),
            count(Count::WritesAllocated),
            count(Count::WritesBlocked),
            count(Count::Flushes),
            count(Count::Discards),
        ];
        Report::new(STATUS_FIELDS, values)
    }

    pub(super) async fn act_on_message(
        &self,
        env: &Env,
        words: &[&str],
    ) -> Result<String, MessageError> {
        let [word] = words else {
            let text = format!("message: found {} words, expected one", words.len());
            return Err(MessageError::Invalid(text));
        };
        match word.to_ascii_lowercase().as_str() {
            "flush" => self.write_all_back(env).await?,
            "flush_on_suspend" => {
                self.drain_in_suspend(true);
            }
            "cleaner" => {
                let mut state = self.state.lock();
                state.cleaner = true;
                self.begin_sweep(&mut state);
                drop(state);
                self.changed.notify(usize::MAX);
            }
            "clear_stats" => self.counters.clear(),
            _ => {
                let expected = MESSAGES.join(", ");
                let text = format!("message: found '{word}', expected one of {expected}");
                return Err(MessageError::Invalid(text));
            }
        }
        Ok(String::new())
    }

    /// The message `flush`, and what `cairn flush` asks for.
    pub(super) async fn write_all_back(&self, env: &Env) -> Result<(), MessageError> {
        let (suspended, broken) = {
            let state = self.state.lock();
            (state.suspended, state.broken)
        };
        if self.read_only {
            let text = "flush: the device is open read-only".to_owned();
            return Err(MessageError::Failed(text));
        }
        if suspended {
            return Err(MessageError::Busy("flush: the device is suspended".to_owned()));
        }
        let (origin, cache) = (&self.config.origin.argument, &self.config.cache.argument);
        if broken {
            let text = format!("flush: {cache}: the cache device has failed: input/output error");
            return Err(MessageError::Failed(text));
        }
        let failed = |error: IoError| {
            let text = format!("flush: {origin} or {cache} failed: {error}; see the log");
            MessageError::Failed(text)
        };
        match self.drain(env, true).await {
            Ok(()) => self.flush_both(env).await.map_err(failed),
            Err(Undrained::Failed(error)) => Err(failed(error)),
            Err(Undrained::Suspending) => {
                let dirty = self.state.lock().index.cached_blocks();
                let text = format!(
                    "flush: a suspend came meanwhile, {dirty} blocks are still dirty; send it \
                     again after the resume"
                );
                Err(MessageError::Busy(text))
            }
        }
    }

    pub(super) async fn extents_of(
        &self,
        env: &Env,
        range: SectorRange,
    ) -> Result<Vec<Extent>, IoError> {
        let (block, count) = self.blocks_of(range);
        let want = count.min(EXTENT_BLOCKS_MAX);
        let (cached, run) = {
            let state = self.state.lock();
            match state.index.misses(block, want) {
                0 => (true, state.index.cached_run(block, want)),
                misses => (false, misses),
            }
        };
        if !cached {
            return self.origin.extents(env, self.origin_range(block, run)).await;
        }
        let count = SectorCount(run * self.block_sectors);
        Ok(vec![Extent { count, kind: ExtentKind::Data }])
    }

    /// The dirty blocks, as of the last resume and the changes since.
    pub(super) fn what_is_dirty(&self) -> Option<Dirty> {
        let state = self.state.lock();
        let blocks = state.index.cached_blocks();
        let oldest = state.index.inserted_from(QueuePosition::default());
        let since = oldest.map(|inserted| inserted.born);
        drop(state);
        let sectors = SectorCount(blocks * self.block_sectors);
        let (origin, device) = (self.origin.clone(), self.config.cache.argument.clone());
        let block = SectorCount(self.block_sectors);
        (blocks > 0).then_some(Dirty { sectors, block, origin, device, since })
    }
}
