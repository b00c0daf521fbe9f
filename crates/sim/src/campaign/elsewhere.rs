//! [`Elsewhere`]: a scenario some of whose drives are at servers, over connections that are lost.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{LocalFuture, TargetType};
use cairn_nbd::session::Care;

use super::{Generation, Images, Opened, Scenario, Server};
use crate::drive::{DriveOptions, Remote};
use crate::image::Image;
use crate::workload::Workload;

const RECONNECT: Duration = Duration::from_secs(1);

/// The longest time until another host opens the drives.
const TAKEN: Duration = Duration::from_millis(20);

/// What becomes of the connections and servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// Connections are lost, and come again in time. The client keeps what is not flushed.
    Cut,
    /// Servers die, too, and lose what is volatile.
    ServersDie,
    /// Connections come again too late, too: requests fail.
    TooLate,
    /// As `ServersDie`; the client keeps nothing, and tells of losses.
    Told,
    /// Connections are lost, and at some moment another host opens the drives: this one is fenced.
    Taken,
}

/// See the module's description.
pub struct Elsewhere<S> {
    inner: S,
    drives: &'static [&'static str],
    links: Links,
}

impl<S> Elsewhere<S> {
    /// The scenario with these of its drives at servers.
    pub(super) fn new(inner: S, drives: &'static [&'static str], links: Links) -> Elsewhere<S> {
        Elsewhere { inner, drives, links }
    }

    fn remote(&self, rng: &mut fastrand::Rng) -> Remote {
        // A few KiB are full most of the time.
        let kept = [4 << 10, 16 << 10, 64 << 10, 1 << 20][rng.usize(..4)];
        let per_mille = [1, 5, 20, 100][rng.usize(..4)];
        let brief = [Duration::from_micros(50), Duration::from_millis(20)][rng.usize(..2)];
        Remote {
            care: if self.links == Links::Told { Care::Tell } else { Care::Keep(kept) },
            per_mille,
            kills: !matches!(self.links, Links::Cut | Links::Taken),
            outage: if self.links == Links::TooLate { 2 * RECONNECT } else { brief },
            reconnect: RECONNECT,
            begins_well: self.fails(),
        }
    }

    /// What the client has told its users was lost, or has failed.
    fn fails(&self) -> bool {
        matches!(self.links, Links::TooLate | Links::Told | Links::Taken)
    }
}

impl<S: Scenario> Scenario for Elsewhere<S> {
    type Case = S::Case;

    fn types(&self) -> Vec<Arc<dyn TargetType>> {
        self.inner.types()
    }

    fn begin(&self, rng: &mut fastrand::Rng) -> (S::Case, Vec<(DriveOptions, Image)>) {
        let (case, mut drives) = self.inner.begin(rng);
        let mut found = 0;
        for (options, _) in &mut drives {
            if self.drives.contains(&options.name.as_str()) {
                options.remote = Some(self.remote(rng));
                found += 1;
            }
        }
        assert_eq!(found, self.drives.len(), "the scenario has the drives {:?}", self.drives);
        (case, drives)
    }

    fn open(&self, case: Rc<S::Case>, server: Server) -> LocalFuture<'static, Opened> {
        self.inner.open(case, server)
    }

    fn check_metadata(&self, case: &S::Case, images: &Images) -> Result<(), String> {
        self.inner.check_metadata(case, images)
    }

    fn workload(&self, case: &S::Case, rng: &mut fastrand::Rng) -> Workload {
        self.inner.workload(case, rng)
    }

    fn suspends(&self) -> bool {
        self.inner.suspends()
    }

    /// What a session keeps, and what it sends again, is lost with the process.
    fn outlives_kills(&self) -> bool {
        false
    }

    fn outlives_cuts(&self) -> bool {
        self.inner.outlives_cuts()
    }

    fn fails_at_start(&self) -> bool {
        self.inner.fails_at_start()
    }

    fn rolls_back(&self) -> bool {
        self.fails() || self.inner.rolls_back()
    }

    fn trouble(
        &self,
        case: &Rc<S::Case>,
        generation: &Generation,
        rng: &mut fastrand::Rng,
    ) -> bool {
        let drives: Vec<_> = self.drives.iter().map(|name| generation.world.drive(name)).collect();
        drives.iter().for_each(|drive| drive.faults().lose_connections());
        if self.links == Links::Taken {
            let (env, after) = (&generation.server.env, TAKEN.mul_f64(rng.f64()));
            let own = env.clone();
            env.spawn(async move {
                own.sleep(after).await;
                drives.iter().for_each(|drive| drive.faults().take_away());
            });
        }
        self.inner.trouble(case, generation, rng) | self.fails()
    }
}
