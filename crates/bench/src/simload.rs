//! Requests to a disk of a simulated world: clients in virtual time, each with one request.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use cairn_block::{Disk, Env, Io, IoError, Op, Sector, SectorCount, SectorRange};
use cairn_sim::SimWorld;

/// Reads or writes `sectors` at each of `places`, `depth` at a time, on the first reactor.
///
/// # Errors
/// A request failed.
pub fn run(
    world: &SimWorld,
    disk: &Arc<dyn Disk>,
    (op, sectors): (Op, u64),
    places: Arc<[u64]>,
    depth: usize,
) -> Result<(), IoError> {
    let (next, clients) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(depth)));
    let failed = Rc::new(Cell::new(None));
    for _ in 0..depth {
        let (env, disk, places): (Env, _, _) = (world.env(0).clone(), disk.clone(), places.clone());
        let (next, clients, failed) = (next.clone(), clients.clone(), failed.clone());
        world.env(0).spawn(async move {
            let segs = env.segs(SectorCount(sectors));
            while let Some(&place) = places.get(next.replace(next.get() + 1)) {
                let range = SectorRange::new(Sector(place), SectorCount(sectors));
                let io = Io { segs: segs.clone(), ..Io::on(op, range) };
                if let Err(error) = env.io(&disk, io).await {
                    failed.set(Some(error));
                }
            }
            clients.set(clients.get() - 1);
        });
    }
    world.run_until(|| clients.get() == 0);
    failed.get().map_or(Ok(()), Err)
}
