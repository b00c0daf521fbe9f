//! A volume whose set or backing device has failed: it goes on without its cache, or is stopped.
//!
//! ```text
//!            set in error, nothing dirty, auto: superblock says `none`, durably
//!   Cached ---------------------------------------------------------------------> Uncached
//!      |
//!      '-- set in error otherwise; backing device at its limit ----------------> Stopped
//! ```
//!
//! - *Uncached*: all requests go to the backing device. It belongs to no set.
//! - *Stopped*: all requests fail. What is dirty stays in the cache; nothing is given up.
//!
//! # Order
//! 1. The set is in error (`set::core`, C1). Requests that are mapped from then on wait; those that
//!    waited for a commit are mapped again. No write into the cache succeeds, so no sector becomes
//!    dirty.
//! 2. A batch of writeback that runs ends, and a change of the state.
//! 3. Without dirty data, and without lost keys of dirty data, the superblock of the backing device
//!    gets the state `none` and no set, with FUA, unless `stop_when_cache_set_failed` is `always`.
//!    A volume that is read only writes nothing, and needs no such state.
//! 4. The requests of 1 go to the backing device, or fail.
//!
//! # What a crash leaves
//! - Before the end of 3: a set as it was. No write was sent past the failed cache, but for those
//!   in flight at 1, for which the cache had nothing (A1).
//! - After it: a backing device of no set. Its former cache counts nowhere, here or in a kernel, so
//!   that a cache that comes back hides nothing that was written since (R11).
//!
//! If the superblock cannot be written, the device may have either state; the volume is stopped, so
//! nothing is written past the cache.
//!
//! From then on the table line prints as that of a backing device alone, `BACKING - 0`, as the one
//! that was given would be refused at the next start. This is an event of the volume, so that the
//! server can record the table that is true now.
//!
//! A set that another volume broke is noticed by the next request. A volume without requests stays
//! attached: a later start may find its cache well.
//!
//! # Invariants
//! X1. No request is sent to the backing device as if there were no cache before 3 has ended.
//! X2. A volume that has lost acknowledged writes is stopped, so that each flush fails.
//! X3. Only a resume takes a volume from `Stopped` to `Cached`, and nothing takes it from
//!     `Uncached` there: its set does not know it any more.

use cairn_block::sync::Mutex;
use cairn_block::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use cairn_block::{
    ConfigError, Env, Flags, IoError, IoResult, MessageError, Op, Request, RequestId, Sector,
    Verdict, mutants,
};
use cairn_format::bcache::{BackingState, Uuid};

use super::canary::{Bug, planted};
use super::config::Devices;
use super::status::Count;
use super::superblocks::read_backing;
use super::volume::Bcache;
use super::word::{Class, Waited, Word};
use crate::epochs::Epoch;

/// How a volume is served. See the module's description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Service {
    Cached,
    Uncached,
    Stopped,
}

/// See the module's description.
#[derive(Default)]
pub(super) struct Degraded {
    /// A [`Service`]. It changes under the lock of `waiting`.
    service: AtomicU8,
    waiting: Mutex<Waiting>,
    /// The attribute `stop_when_cache_set_failed` is `always`.
    stops_always: AtomicU64,
}

/// Requests that wait for step 4.
#[derive(Default)]
struct Waiting {
    requests: Vec<RequestId>,
    /// A task takes steps 2 to 4.
    is_deciding: bool,
}

/// The words of `stop_when_cache_set_failed`.
const WORDS: [&str; 2] = ["auto", "always"];

impl Degraded {
    fn service(&self) -> Service {
        match self.service.load(Ordering::Relaxed) {
            service if service == Service::Cached as u8 => Service::Cached,
            service if service == Service::Uncached as u8 => Service::Uncached,
            _ => Service::Stopped,
        }
    }

    /// Answers the requests that waited for this.
    fn change(&self, service: Service) -> Vec<RequestId> {
        let mut waiting = self.waiting.lock();
        // X3: a decision that ends later changes nothing.
        if service == Service::Cached || self.service() != Service::Stopped {
            self.service.store(service as u8, Ordering::Relaxed);
        }
        waiting.is_deciding = false;
        std::mem::take(&mut waiting.requests)
    }
}

impl Bcache {
    /// How the volume is served.
    #[inline]
    pub(super) fn service(&self) -> Service {
        self.degraded.service()
    }

    /// True if requests are not mapped as the cache says.
    #[inline]
    pub(super) fn is_degraded(&self) -> bool {
        self.is_broken() || self.service() != Service::Cached
    }

    /// True if the backing device has left the set that the line names.
    pub(super) fn has_left_set(&self) -> bool {
        self.service() == Service::Uncached && !self.read_only
    }

    /// The word of `stop_when_cache_set_failed`.
    pub(super) fn stop_word(&self) -> &'static str {
        WORDS[self.degraded.stops_always.load(Ordering::Relaxed) as usize]
    }

    /// Sets `stop_when_cache_set_failed`.
    ///
    /// # Errors
    /// It is not one of its words, or the volume has no use for it.
    pub(super) fn set_stop_word(&self, word: &str) -> Result<String, MessageError> {
        let Some(at) = WORDS.iter().position(|own| *own == word) else {
            let text =
                format!("stop_when_cache_set_failed: found '{word}', expected auto or always");
            return Err(MessageError::Invalid(text));
        };
        if !matches!(self.config.devices, Devices::Cached { .. }) {
            let text = "stop_when_cache_set_failed: found a volume without it, expected a backing \
                        device with its cache";
            return Err(MessageError::Failed(text.to_owned()));
        }
        self.degraded.stops_always.store(at as u64, Ordering::Relaxed);
        Ok(String::new())
    }

    /// Maps a request of a volume that is degraded, or will be.
    pub(super) fn map_degraded<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        let (service, starts) = {
            let mut waiting = self.degraded.waiting.lock();
            let service = self.service();
            let mut starts = false;
            if service == Service::Cached {
                waiting.requests.push(request.id());
                starts = !std::mem::replace(&mut waiting.is_deciding, true);
            }
            (service, starts)
        };
        if starts {
            self.spawn(env, async |volume, env| volume.degrade(env).await);
        }
        match service {
            Service::Cached => Verdict::Queued,
            Service::Uncached => self.map_past(env, request),
            Service::Stopped => Verdict::Failed(IoError::IO),
        }
    }

    /// Maps a request to the backing device.
    fn map_past<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        let backing = self.config.devices.backing().expect("it goes on without its cache");
        let span = self.span_of(request);
        let (epoch, waited) = (Epoch::default(), Waited::default());
        match request.op {
            Op::Read => {
                self.counters.add(env, Count::Misses as usize, 1);
                request.watch(Word { class: Class::Miss, epoch, waited, number: 0 }.to_word());
            }
            Op::Flush if self.is_traffic_durable() => return Verdict::Completed,
            Op::Flush => {
                let id = request.id();
                self.spawn(env, async move |volume, env| {
                    env.complete(id, volume.flush_traffic(env).await);
                });
                return Verdict::Queued;
            }
            Op::Write | Op::WriteZeroes | Op::Discard if self.read_only => {
                return self.refuse_write();
            }
            Op::Discard if !backing.disk.limits().discard => return Verdict::Completed,
            Op::Write | Op::WriteZeroes | Op::Discard => {
                let number = u64::from(self.traffic.begin(span));
                request.watch(Word { class: Class::Around, epoch, waited, number }.to_word());
            }
        }
        Verdict::Remapped { disk: backing.disk.as_ref(), sector: Sector(span.start) }
    }

    /// Steps 2 to 4.
    async fn degrade(&self, env: &Env) {
        if planted(Bug::UncachedBeforeDetach) && self.may_go_on() {
            self.serve(env, Service::Uncached);
        }
        let service = self.decide(env).await;
        self.serve(env, service);
        if self.has_left_set() {
            self.config.events.raise();
        }
    }

    fn serve(&self, env: &Env, service: Service) {
        self.degraded.change(service).into_iter().for_each(|id| env.remap(id));
    }

    async fn decide(&self, env: &Env) -> Service {
        let _batch = self.batching.lock().await;
        let _turn = self.states.lock().await;
        let volume = &self.config.volume;
        if self.service() == Service::Stopped {
            return Service::Stopped;
        }
        if !self.may_go_on() {
            tracing::error!("{volume}: stopped: its cache set failed: all requests fail");
            return Service::Stopped;
        }
        match self.leave_set(env).await {
            Ok(()) => {
                tracing::error!("{volume}: its cache set failed: it goes on without its cache");
                Service::Uncached
            }
            Err(error) => {
                tracing::error!(
                    "{volume}: stopped: its cache set failed, and the superblock of the backing \
                     device could not be written: {error}"
                );
                Service::Stopped
            }
        }
    }

    /// True if the backing device has all data, and the volume may be served without its cache.
    fn may_go_on(&self) -> bool {
        let is_cached = matches!(self.config.devices, Devices::Cached { .. });
        let stops_always = self.degraded.stops_always.load(Ordering::Relaxed) != 0;
        let has_all = |set: &super::set::Set| {
            self.dirty_sectors() == 0 && !set.changes.have_lost_data(self.inode())
        };
        is_cached && !stops_always && self.look(has_all).unwrap_or_default()
    }

    /// Step 3.
    async fn leave_set(&self, env: &Env) -> IoResult {
        if self.read_only {
            return Ok(());
        }
        let backing = self.config.devices.backing().expect("it goes on without its cache");
        let superblock = self.backing.lock().clone();
        let mut superblock = superblock.expect("a live volume has read its superblock");
        superblock.set_set_uuid(Uuid::ZERO);
        superblock.set_state(BackingState::None);
        let fua = match planted(Bug::UncachedBeforeDetach) {
            true => Flags::empty(),
            false => mutants::fua("bcache: FUA of a failed cache"),
        };
        self.write_own_backing(env, backing, &superblock, fua).await?;
        self.set_backing(Some(superblock));
        if let Some(marker) = &self.marker {
            marker.fall(env).await;
        }
        Ok(())
    }

    /// True if all requests fail.
    pub(super) fn is_disabled(&self) -> bool {
        match self.service() {
            Service::Cached => self.is_broken() && !self.may_go_on(),
            Service::Uncached => false,
            Service::Stopped => true,
        }
    }

    /// The backing device failed too often, or is another host's: the volume is stopped.
    pub(super) fn stop_serving(&self, env: &Env, why: &str) {
        if self.service() == Service::Stopped {
            return;
        }
        let (volume, backing) = (&self.config.volume, self.config.devices.backing());
        let backing = backing.map_or("", |device| &device.argument);
        tracing::error!("{volume}: stopped: {backing}: {why}: all requests fail");
        self.serve(env, Service::Stopped);
        if let Some(core) = &self.core {
            // No writeback makes a bucket free for these.
            let waiting = core.lock().as_mut().map(|set| set.changes.take_waiting_of(self.inode()));
            core.remap_all(env, waiting.unwrap_or_default());
            core.changed.notify(usize::MAX);
        }
    }

    /// A request of a client to the backing device has ended.
    #[inline]
    pub(super) fn count_backing(&self, env: &Env, result: IoResult) {
        if self.traffic.errors.ended(result) && !self.read_only {
            self.stop_serving(env, "too many errors");
        }
    }

    /// A request to the cache device has ended that is not one of its metadata.
    #[inline]
    pub(super) fn count_cache(&self, env: &Env, result: IoResult) {
        if !self.read_only {
            self.core.as_ref().expect("it has a cache").count(env, result);
        }
    }

    /// A resume begins. True if the volume goes on without its cache (X3).
    ///
    /// # Errors
    /// It does, but its backing device belongs to a set again, or cannot be read.
    pub(super) async fn resume_degraded(&self, env: &Env) -> Result<bool, ConfigError> {
        self.traffic.errors.reset();
        if self.service() != Service::Uncached {
            self.degraded.change(Service::Cached);
            return Ok(false);
        }
        let backing = self.config.devices.backing().expect("it goes on without its cache");
        self.flush_at_opening(env, backing).await?;
        let superblock = read_backing(env, backing).await?;
        if !self.read_only && superblock.state() != BackingState::None {
            let found = superblock.state().word();
            let expected = "none, as when its cache failed; load its table again";
            return Err(ConfigError::argument(&backing.argument, "state", found, expected));
        }
        self.check_first(superblock.data_offset())?;
        self.set_backing(Some(superblock));
        Ok(true)
    }
}
