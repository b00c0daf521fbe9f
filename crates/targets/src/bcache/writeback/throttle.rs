//! How fast data is written back in the background: the controller of [`super::rate`] with the
//! settings that messages change, the pace of writes, and the boost of an idle device.
//!
//! Only the task of the background writeback updates the throttle. Requests do not touch it: the
//! task sees by their counter whether clients are idle.

use std::time::Duration;

use cairn_block::sync::Mutex;
use cairn_block::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use cairn_block::{Env, Time};

use super::batch::PACED_TIME;
use super::policy::Policy;
use super::rate::{Idle, Load, Memory, Pacer, RATE_FIRST, Step, Terms, step};
use crate::bcache::human::human;
use crate::bcache::set::Set;
use crate::bcache::volume::Bcache;
use crate::planner::Prices;

/// The rate of an idle device, in sectors each second.
const RATE_BOOSTED: u64 = i32::MAX as u64;

/// What messages set; switches are 0 or 1.
pub(in super::super) struct Settings {
    pub running: AtomicU64,
    pub percent: AtomicU64,
    /// In seconds.
    pub delay: AtomicU64,
    /// The rate while clients are active, in sectors each second. The controller changes it, too.
    pub rate: AtomicU64,
    pub minimum: AtomicU64,
    pub update_seconds: AtomicU64,
    pub p_inverse: AtomicU64,
    pub i_inverse: AtomicU64,
    pub considers_fragments: AtomicU64,
    pub fragment_low: AtomicU64,
    pub fragment_mid: AtomicU64,
    pub fragment_high: AtomicU64,
    /// An idle device is written back as fast as it can.
    pub boosts_idle: AtomicU64,
    /// A [`Policy`], as a number.
    policy: AtomicU8,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            running: AtomicU64::new(1),
            percent: AtomicU64::new(10),
            delay: AtomicU64::new(30),
            rate: AtomicU64::new(RATE_FIRST),
            minimum: AtomicU64::new(8),
            update_seconds: AtomicU64::new(5),
            p_inverse: AtomicU64::new(40),
            i_inverse: AtomicU64::new(10_000),
            considers_fragments: AtomicU64::new(1),
            fragment_low: AtomicU64::new(1),
            fragment_mid: AtomicU64::new(10),
            fragment_high: AtomicU64::new(1000),
            boosts_idle: AtomicU64::new(1),
            policy: AtomicU8::new(Policy::Sweep as u8),
        }
    }
}

impl Settings {
    /// True if data is written back in the background.
    pub fn is_running(&self) -> bool {
        self.running.load(Ordering::Relaxed) != 0
    }

    /// What is written back next, and how.
    pub fn policy(&self) -> Policy {
        Policy::of_number(self.policy.load(Ordering::Relaxed))
    }

    /// The next batch follows this policy.
    pub fn set_policy(&self, policy: Policy) {
        self.policy.store(policy as u8, Ordering::Relaxed);
    }

    fn terms(&self) -> Terms {
        let of = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        Terms {
            percent: of(&self.percent),
            p_inverse: of(&self.p_inverse),
            i_inverse: of(&self.i_inverse),
            minimum: of(&self.minimum),
            update_seconds: of(&self.update_seconds),
            considers_fragments: of(&self.considers_fragments) != 0,
            fragment_low: of(&self.fragment_low),
            fragment_mid: of(&self.fragment_mid),
            fragment_high: of(&self.fragment_high),
        }
    }
}

#[derive(Default)]
struct State {
    /// The sum of the integral term.
    sum: i64,
    /// The last step, for reports.
    last: Step,
    pacer: Pacer,
    idle: Idle,
    update_at: Time,
}

/// See the module's description.
#[derive(Default)]
pub(in super::super) struct Throttle {
    pub settings: Settings,
    /// What writes to the backing device take.
    pub(super) prices: Mutex<Prices>,
    state: Mutex<State>,
}

impl Bcache {
    /// Requests that clients have sent to the volumes of the set: all of them share its cache
    /// device. And how many backing devices these have.
    pub(super) fn requests(&self) -> (u64, u64) {
        let core = self.core.as_ref().expect("a cache is written back");
        let users = core.users();
        (users.requests(), users.attached().1)
    }

    fn load_of(&self, set: &Set) -> Load {
        let core = self.core.as_ref().expect("a set is looked at");
        let backing = self.backing_sectors();
        let (attached, _) = core.users().attached();
        Load {
            dirty: self.dirty_sectors(),
            flash_dirty: core.flash_dirty(),
            bucket_sectors: set.superblock.geometry().bucket_sectors(),
            buckets: set.buckets.count_all() as u64,
            buckets_in_use: set.buckets.in_use() as u64,
            backing,
            attached: attached.max(backing).max(1),
        }
    }

    /// How many sectors may be dirty.
    pub(super) fn dirty_target(&self, set: &Set) -> u64 {
        self.load_of(set).target(self.throttle.settings.percent.load(Ordering::Relaxed))
    }

    /// Updates the rate if that is due. Answers when it will be due.
    pub(super) fn update_rate(&self, env: &Env) -> Time {
        let (settings, now) = (&self.throttle.settings, env.now());
        let mut state = self.throttle.state.lock();
        if now < state.update_at {
            return state.update_at;
        }
        let is_first = state.update_at == Time(0);
        let mut terms = settings.terms();
        terms.considers_fragments &= self.core.as_ref().is_none_or(|core| !core.gc.packs());
        state.update_at = now + Duration::from_secs(terms.update_seconds);
        let load = if is_first { None } else { self.look(|set| self.load_of(set)) };
        if let Some(load) = load.filter(|load| load.dirty > 0) {
            let rate = settings.rate.load(Ordering::Relaxed);
            let keeps_up = state.pacer.keeps_up(now);
            state.last = step(Memory { rate, sum: state.sum }, &terms, &load, keeps_up);
            state.sum = state.last.sum;
            settings.rate.store(state.last.rate, Ordering::Relaxed);
        }
        state.idle.update(self.requests().0);
        state.update_at
    }

    /// How many sectors are written back in the longest time of a batch.
    pub(super) fn paced_batch(&self) -> u64 {
        let settings = &self.throttle.settings;
        if self.is_unthrottled() {
            return u64::MAX;
        }
        settings.rate.load(Ordering::Relaxed).saturating_mul(PACED_TIME.as_secs())
    }

    /// True if no write has to wait.
    fn is_unthrottled(&self) -> bool {
        self.throttle.settings.percent.load(Ordering::Relaxed) == 0 || self.is_boosted()
    }

    /// True if clients are idle, and that raises the rate.
    pub(super) fn is_boosted(&self) -> bool {
        let boosts = self.throttle.settings.boosts_idle.load(Ordering::Relaxed) != 0;
        let (requests, attached) = self.requests();
        boosts && self.throttle.state.lock().idle.is_idle(requests, attached)
    }

    /// Waits until a write of so many sectors may begin, or `ends` answers true. False if it does.
    pub(super) async fn wait_for_turn(
        &self,
        env: &Env,
        sectors: u64,
        ends: &dyn Fn() -> bool,
    ) -> bool {
        let core = self.core.as_ref().expect("a cache is written back");
        loop {
            let update_at = self.update_rate(env);
            let next = self.throttle.state.lock().pacer.next();
            if self.is_unthrottled() || env.now() >= next || ends() {
                break;
            }
            env.until_or_time(&core.changed, Some(next.min(update_at)), ends).await;
        }
        self.take_turn(env, sectors, ends)
    }

    /// The same without the wait, for a write that goes with the one before.
    pub(super) fn take_turn(&self, env: &Env, sectors: u64, ends: &dyn Fn() -> bool) -> bool {
        if ends() {
            return false;
        }
        let settings = &self.throttle.settings;
        let rate = match self.is_unthrottled() {
            true => RATE_BOOSTED,
            false => settings.rate.load(Ordering::Relaxed),
        };
        self.throttle.state.lock().pacer.begin(env.now(), sectors, rate);
        true
    }

    /// The lines of sysfs's `writeback_rate_debug`. All but the amounts are 0 while nothing is
    /// written back in the background.
    pub(in super::super) fn rate_debug(&self, env: &Env) -> String {
        let settings = &self.throttle.settings;
        let target = self.look(|set| self.dirty_target(set)).unwrap_or_default();
        let is_boosted = self.is_boosted();
        let state = self.throttle.state.lock();
        let is_running = settings.is_running();
        let shown = |number: i64| if is_running { number } else { 0 };
        let size = |sectors: i64| human(sectors.saturating_mul(512));
        let rate = if is_boosted { RATE_BOOSTED } else { settings.rate.load(Ordering::Relaxed) };
        let ahead = i128::from(state.pacer.next().0) - i128::from(env.now().0);
        let lines = [
            format!("rate:\t\t{}/sec", size(shown(rate as i64))),
            format!("dirty:\t\t{}", size(self.dirty_sectors() as i64)),
            format!("target:\t\t{}", size(target as i64)),
            format!("proportional:\t{}", size(shown(state.last.proportional))),
            format!("integral:\t{}", size(shown(state.last.integral))),
            format!("change:\t\t{}/sec", size(shown(state.last.change))),
            format!("next io:\t{}ms", shown((ahead / 1_000_000) as i64)),
        ];
        lines.join("\n")
    }
}
