//! What happens to volumes in addition to requests: suspends and resumes by a user, and the stop of
//! the server.

use std::sync::Arc;

use cairn_block::{Disk, ErrorKind, IoError, MappedDevice, Registry, SuspendMode};

use super::life::Early;
use super::server::Generation;
use crate::workload::Connection;
use crate::world::SimWorld;

/// Suspends and resumes the volume a few times, if the disk is one, while other tasks run.
pub(super) fn start_suspending(generation: &Generation, disk: &Arc<dyn Disk>, may_fail: bool) {
    let disk = disk.clone();
    generation.start(1, async move |server| {
        let Some(device) = disk.mapped() else { return };
        for _ in 0..3 {
            server.pause(5000).await;
            server.suspend_somehow(device, may_fail).await;
            server.pause(1000).await;
            server.resume_or_end(device, may_fail).await;
        }
    });
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
