//! The end of the volumes when their server stops.
//!
//! A stop always ends. A device of this machine ends its requests by itself. A cluster that is
//! silent does not ([`cairn_backends::RemoteFigures::is_silent`]), and no request on its way may be
//! called off. So the stop gives up a volume over it, and its task stays where it waits. The other
//! volumes are suspended and closed as at every stop; then the process has to leave without the
//! rest. No request is answered for that: for the cluster, the process was killed.
//!
//! What a volume waits for is not always below it: an origin waits for the copies in the stores of
//! its snapshots, a pool for the external origins of its thin volumes, and a table that a verb is
//! about to start is in no volume yet. So a volume that waits for long is given up, too, if a
//! remote disk of the server is silent, whichever, or if another volume was given up already.
//! Each volume has the whole time for itself.

use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use cairn_block::{ConfigError, ConfigKind, Env, MappedDevice, SuspendMode};
use futures_util::future::{Either, select};

use super::{World, is_of, lost, remotes_of};

/// How long the requests of a volume may wait before those beneath it are let go, and how long a
/// stop waits at least for a cluster.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a stop waits for a volume if what is silent is not known to be below it.
const PATIENCE_ANY: Duration = Duration::from_secs(30);
/// How often a stop that waits looks at the remote disks.
const LOOK: Duration = Duration::from_millis(100);

/// How the volumes of a server ended.
#[derive(Debug, Default)]
pub struct Ended {
    /// Notes for a person: volume and text.
    pub said: Vec<(String, String)>,
    /// Volumes whose last commit failed, or that were given up: acknowledged writes may be lost.
    pub lost: Vec<ConfigError>,
    /// The volumes that were given up: the process has to leave without them.
    pub given_up: Vec<String>,
}

impl Ended {
    /// True if the last commit of this volume failed.
    pub fn has_lost(&self, name: &str) -> bool {
        self.lost.iter().any(|lost| is_of(&lost.device, name))
    }
}

/// Suspends a volume and flushes its drives.
async fn end(
    env: Env,
    volume: Arc<MappedDevice>,
    all: Vec<Arc<MappedDevice>>,
) -> Result<(), ConfigError> {
    let end = pin!(volume.suspend(&env, SuspendMode::NoFlush));
    let committed = match select(end, env.sleep(PATIENCE)).await {
        Either::Left((result, _)) => result,
        Either::Right(((), end)) => {
            for beneath in all.iter().filter(|other| volume.stands_on(other.id())) {
                beneath.let_go(&env).await;
            }
            end.await
        }
    };
    committed.and(volume.flush_drives(&env).await)
}

impl World {
    /// Suspends every volume, the upper ones first, so that their commits go down before the lower
    /// volumes commit. Then flushes the drives. So every acknowledged write is durable, with any
    /// target.
    ///
    /// Does not wait for requests that wait for a suspended volume or for space: their clients are
    /// gone. Requests of a volume itself may take a while, for instance those of a commit.
    pub fn suspend_all(&self) -> Ended {
        self.give_up_waiting();
        self.suspend_each()
    }

    /// The same for volumes with which another process goes on. No request and no verb waits. What
    /// lives as long as the server stays, too.
    pub fn suspend_each(&self) -> Ended {
        let mut ended = Ended::default();
        for name in self.users_first() {
            let Ok(volume) = self.volume(&name) else { continue };
            let (suspended, all) = (volume.clone(), self.volumes());
            let task = self.begin(&name, move |env| end(env, suspended, all));
            match self.wait(&volume, &ended.given_up, &task) {
                Ok(result) => {
                    ended.lost.extend(result.err().map(|error| lost(&name, "stop", error)));
                }
                Err(silent) => {
                    ended.lost.push(given_up(&name, &silent));
                    ended.given_up.push(name.clone());
                }
            }
            for line in volume.live_table().iter().flat_map(|table| table.lines()) {
                let stays = || line.target.dirty().map(|dirty| self.what_stays(&dirty));
                let words = line.target.parting_word().or_else(stays);
                ended.said.extend(words.map(|words| (name.clone(), words)));
            }
        }
        ended
    }

    /// Closes the devices of the volumes that a stop has not given up: their locks are given back.
    /// Called before the process leaves without the others.
    pub fn close_others(&self, ended: &Ended) {
        let mut left = ended.given_up.clone();
        for name in self.users_first().into_iter().filter(|name| !ended.given_up.contains(name)) {
            let Ok(volume) = self.volume(&name) else { continue };
            let removed = volume.clone();
            let task = self.begin(&name, |env| async move { removed.remove(&env).await });
            match self.wait(&volume, &left, &task) {
                Ok(Err(error)) => tracing::warn!("{name}: {error}"),
                Ok(Ok(())) => {}
                Err(silent) => {
                    tracing::warn!("{name}: {silent} does not answer: not closed");
                    left.push(name);
                }
            }
        }
    }

    /// True if a remote disk does not answer, and a stop will leave without it.
    pub fn is_any_silent(&self) -> bool {
        self.remotes().iter().any(|remote| remote.is_silent)
    }

    /// Starts a task on the home of a volume.
    fn begin<F>(
        &self,
        name: &str,
        make: impl FnOnce(Env) -> F + Send + 'static,
    ) -> Receiver<Result<(), ConfigError>>
    where
        F: Future<Output = Result<(), ConfigError>> + 'static,
    {
        let (send, receive) = channel();
        self.reactors.spawn(self.home(name), move |env| {
            let task = make(env);
            async move { drop(send.send(task.await)) }
        });
        receive
    }

    /// Waits for a task of a volume. If it has to be given up, answers the name of the remote disk,
    /// or of the volume, that it may wait for.
    fn wait(
        &self,
        volume: &MappedDevice,
        given_up: &[String],
        task: &Receiver<Result<(), ConfigError>>,
    ) -> Result<Result<(), ConfigError>, String> {
        let began = Instant::now();
        loop {
            match task.recv_timeout(LOOK) {
                Ok(result) => return Ok(result),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    unreachable!("a reactor runs until it is stopped by its owner")
                }
            }
            let waited = began.elapsed();
            if waited < PATIENCE {
                continue;
            }
            let silent = self.silent_below(volume).or_else(|| {
                let remote = || self.remotes().into_iter().find(|remote| remote.is_silent);
                let any = || remote().map(|it| it.shown).or_else(|| given_up.first().cloned());
                (waited >= PATIENCE_ANY).then(any).flatten()
            });
            if let Some(silent) = silent {
                return Err(silent);
            }
        }
    }

    /// A silent remote disk that the live table of a volume, or of one beneath it, names.
    fn silent_below(&self, volume: &MappedDevice) -> Option<String> {
        let remotes = self.remotes();
        let beneath = |other: &Arc<MappedDevice>| volume.stands_on(other.id());
        let beneath: Vec<_> = self.volumes().into_iter().filter(beneath).collect();
        let mut below = beneath.iter().flat_map(|volume| remotes_of(volume, &remotes));
        below.find(|remote| remote.is_silent).map(|remote| remote.shown.clone())
    }
}

fn given_up(name: &str, silent: &str) -> ConfigError {
    let detail = format!(
        "stop: {silent} does not answer: left without it, requests that wait and writes since the \
         last flush may be lost"
    );
    ConfigError::new(ConfigKind::Lost, name, detail)
}
