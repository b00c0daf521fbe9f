//! Maps of dirty zones of a server whose disk is slow, and fails now and then.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use cairn_block::{Env, Receipt, ZoneMaps, until_some};
use event_listener::Event;

/// Sectors of a zone.
pub const ZONE_SECTORS: u64 = 64;

struct Job {
    name: String,
    map: Vec<u8>,
    receipt: Receipt,
}

#[derive(Default)]
struct State {
    kept: BTreeMap<String, Vec<u8>>,
    jobs: Vec<Job>,
}

/// See the module's description. It outlives the servers of a life.
#[derive(Default)]
pub struct SlowMaps {
    state: Mutex<State>,
    news: Event,
}

impl SlowMaps {
    /// A server starts after another one ended: what was being written is there, or not.
    pub fn start(self: &Arc<Self>, env: &Env) {
        let jobs = std::mem::take(&mut self.state.lock().expect("no panic").jobs);
        jobs.into_iter().for_each(|job| self.end(env, job));
        let (own, env) = (self.clone(), env.clone());
        env.clone().spawn(async move {
            loop {
                let first = || {
                    let state = own.state.lock().expect("no panic");
                    state.jobs.first().map(|job| (job.name.clone(), job.map.clone()))
                };
                let (name, map) = until_some(&own.news, first).await;
                let micros = [100, 5000][env.random_below(2) as usize];
                env.sleep(std::time::Duration::from_micros(1 + env.random_below(micros))).await;
                let mut state = own.state.lock().expect("no panic");
                let job = state.jobs.remove(0);
                if env.random_below(8) == 0 {
                    drop(state);
                    own.end(&env, job);
                } else {
                    state.kept.insert(name, map);
                    job.receipt.give();
                }
            }
        });
    }

    /// Either map is kept, and no receipt given.
    fn end(&self, env: &Env, job: Job) {
        if env.random_below(2) == 0 {
            self.state.lock().expect("no panic").kept.insert(job.name, job.map);
        }
    }

    /// A server that found one map.
    pub fn with(name: &str, map: &[u8]) -> SlowMaps {
        let maps = SlowMaps::default();
        maps.state.lock().expect("no panic").kept.insert(name.to_owned(), map.to_vec());
        maps
    }

    /// The map of a volume that is kept, and those that are being written: the next start may find
    /// any of them.
    pub fn may_find(&self, name: &str) -> Vec<Vec<u8>> {
        let state = self.state.lock().expect("no panic");
        let pending = state.jobs.iter().filter(|job| job.name == name).map(|job| &job.map);
        state.kept.get(name).into_iter().chain(pending).cloned().collect()
    }
}

impl ZoneMaps for SlowMaps {
    fn all(&self) -> Vec<(String, Vec<u8>)> {
        let state = self.state.lock().expect("no panic");
        state.kept.iter().map(|(name, map)| (name.clone(), map.clone())).collect()
    }

    fn zone_sectors(&self) -> u64 {
        ZONE_SECTORS
    }

    fn keep(&self, name: &str, map: Vec<u8>, receipt: Receipt) {
        let job = Job { name: name.to_owned(), map, receipt };
        self.state.lock().expect("no panic").jobs.push(job);
        self.news.notify(usize::MAX);
    }

    fn forget(&self, name: &str) {
        self.state.lock().expect("no panic").kept.remove(name);
    }
}
