//! What happens to volumes in addition to requests: suspends, resumes, and the stop of the server.
//!
//! Where drives fail, verbs may fail too. A user then tries again, and later replaces the failing
//! drives. If a volume cannot be resumed even then, the generation ends.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{Disk, Env, ErrorKind, IoError, MappedDevice, Registry, SuspendMode};

use super::life::Early;
use crate::drive::SimDrive;
use crate::mechanics::Mechanics;
use crate::workload::Connection;
use crate::world::SimWorld;

/// How many times a resume is tried before the drives are replaced, and again afterwards.
const TRIES: u32 = 4;

/// Suspends and resumes the volume a few times, if the disk is one, while other tasks run.
pub(super) fn start_suspending(world: &SimWorld, disk: &Arc<dyn Disk>, tolerate: bool) {
    let (env, disk, drives) = (world.env(1).clone(), disk.clone(), world.all_drives());
    world.env(1).spawn(async move {
        let Some(device) = disk.mapped() else { return };
        for _ in 0..3 {
            env.sleep(Duration::from_micros(env.random_below(5000))).await;
            let modes = [SuspendMode::Flush, SuspendMode::NoFlush];
            let suspended = device.suspend(&env, modes[env.random_below(2) as usize]).await;
            let excused = || tolerate || drives.iter().any(|drive| drive.faults().injected() > 0);
            if let Err(lost) = suspended {
                assert!(excused(), "an error that was not planted: {lost}");
            }
            env.sleep(Duration::from_micros(env.random_below(1000))).await;
            resume_or_end(&env, device, &drives, tolerate).await;
        }
    });
}

/// Resumes the volume as a patient user does: tries again, and later replaces the failing drives.
/// If that does not help, the generation ends here.
///
/// # Panics
/// The volume is not resumed at once and whole, although no fault was planted and `tolerate` is
/// false.
pub async fn resume_or_end(
    env: &Env,
    device: &MappedDevice,
    drives: &[Arc<SimDrive>],
    tolerate: bool,
) {
    let excused = || tolerate || drives.iter().any(|drive| drive.faults().injected() > 0);
    for tried in 0..2 * TRIES {
        let resumed = device.resume(env).await;
        let resumed_whole = match resumed {
            Ok(resumed) => resumed.whole().map_err(|lost| (true, lost)),
            Err(refused) => Err((false, refused)),
        };
        let Err((live, error)) = resumed_whole else { return };
        assert!(excused(), "an error that was not planted: {error}");
        if live {
            return;
        }
        if tried == TRIES {
            drives.iter().for_each(|drive| drive.faults().clear());
        }
        env.sleep(Duration::from_millis(1)).await;
    }
    let mechanics: &Rc<Mechanics> = env.mechanism().expect("a simulated world");
    mechanics.power_off();
}

/// Suspends every volume and flushes its disks, as a server does when it ends; a volume is
/// suspended before those that it stands on. If that succeeds and there is no loss to report,
/// everything is durable.
pub(super) fn close(
    world: &SimWorld,
    registry: &Registry,
    clients: &[Vec<Connection>],
) -> Result<(), Early> {
    let clients = clients.iter().flatten().filter(|client| client.disk().mapped().is_some());
    let flushes: Vec<_> = clients.map(|client| (client, client.begin_flush())).collect();
    let mut result = Ok(());
    for device in users_first(registry) {
        let stopped = world.try_block_on(0, |env| async move {
            let suspended = device.suspend(&env, SuspendMode::Flush).await;
            suspended.and(device.flush_disks(&env).await)
        })?;
        if let (Err(lost), 0) = (&stopped, world.injected()) {
            return Err(Early::Failed(format!("lost in the last suspend: {lost}")));
        }
        result = result.and(stopped.map_err(|_| IoError::injected(ErrorKind::Io)));
    }
    flushes.into_iter().for_each(|(client, flush)| client.end_flush(flush, result));
    Ok(())
}

/// All volumes of a registry; each comes before those that it stands on.
pub fn users_first(registry: &Registry) -> Vec<Arc<MappedDevice>> {
    let (mut left, mut sorted) = (registry.volumes(), Vec::new());
    while !left.is_empty() {
        let stands_on = |user: &MappedDevice, id| user.id() != id && user.stands_on(id);
        let used = |at: &usize| left.iter().any(|user| stands_on(user, left[*at].id()));
        let top = (0..left.len()).find(|at| !used(at)).expect("no volume stands on itself");
        sorted.push(left.remove(top));
    }
    sorted
}
