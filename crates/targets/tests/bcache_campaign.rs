//! The crash campaign of bcache in service: power cuts at seeded writes, of the cache device and
//! the backing device independently, in group commits, checkpoints, drains and suspends, over
//! drives that lose, reorder and tear, and with drives that fail. Lives end by kills of the
//! process, too. Backing devices leave their set, serve alone and join it again. `bcache_drain.rs`
//! is the campaign of sets that are only drained, `bcache_life.rs` that of attaches.
//!
//! `CAIRN_CUTS=10000 cargo test -p cairn-targets --release --test bcache_campaign` is the long run.
//! With `--features canary` known ordering bugs are planted: each must be caught.

mod bcache_lab;

use std::rc::Rc;
use std::sync::Arc;

use bcache_lab::judge::Devices;
use bcache_lab::several::{MODES, SETTINGS, SHAPES, Shape, VOLUMES};
use bcache_lab::superblock_of;
use cairn_block::{LocalFuture, SuspendMode, TargetType};
use cairn_format::bcache::{CacheMode, Superblock};
use cairn_sim::campaign::{Campaign, Generation, Images, Opened, Scenario, Server, plant_failures};
use cairn_sim::{DriveOptions, Image, SimDrive, Workload};
use cairn_targets::args::Device;
use cairn_targets::bcache::Attached;

/// Which drives fail now and then, and how.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Failing {
    Nothing,
    Everything,
}

struct Bcache {
    failing: Failing,
    shapes: &'static [Shape],
    modes: &'static [CacheMode],
    /// Backing devices leave their set, are used alone, and join it again.
    moves: bool,
}

impl Scenario for Bcache {
    type Case = Shape;

    fn types(&self) -> Vec<Arc<dyn TargetType>> {
        cairn_targets::types()
    }

    fn begin(&self, rng: &mut fastrand::Rng) -> (Shape, Vec<(DriveOptions, Image)>) {
        let mode = self.modes[rng.usize(..self.modes.len())];
        let shape = Shape { mode, ..self.shapes[rng.usize(..self.shapes.len())] };
        (shape, shape.drives())
    }

    fn open(&self, shape: Rc<Shape>, server: Server) -> LocalFuture<'static, Opened> {
        let moves = self.moves;
        Box::pin(async move {
            let mut opened = Vec::new();
            for (index, (name, _)) in VOLUMES.iter().enumerate().take(shape.volumes) {
                opened.push(server.create(name, &table_of(&shape, index, moves)).await?);
            }
            Ok(opened)
        })
    }

    fn check_metadata(&self, shape: &Shape, images: &Images) -> Result<(), String> {
        let cache = images["cache"].to_vec();
        let all = shape.cached().map(|index| images[VOLUMES[index].1].to_vec());
        // The cache counts for no other device.
        let backings: Vec<Vec<u8>> = all.filter(|bytes| is_attached(bytes)).collect();
        Devices { cache: &cache, backings: &backings }.judge().map(drop)
    }

    fn workload(&self, _shape: &Shape, rng: &mut fastrand::Rng) -> Workload {
        let (seed, ops) = (rng.u64(..), rng.u64(..400));
        Workload::mixed(seed, ops)
    }

    /// A swap of tables is one user's; another one's resume would make its table live.
    fn suspends(&self) -> bool {
        !self.moves
    }

    fn rolls_back(&self) -> bool {
        self.failing != Failing::Nothing
    }

    fn fails_at_start(&self) -> bool {
        self.failing == Failing::Everything
    }

    fn trouble(&self, shape: &Rc<Shape>, generation: &Generation, rng: &mut fastrand::Rng) -> bool {
        let world = generation.world;
        let backing = shape.cached().map(|index| VOLUMES[index].1);
        let drives: Vec<_> =
            ["cache"].into_iter().chain(backing).map(|it| world.drive(it)).collect();
        if self.failing == Failing::Everything {
            plant_failures(&drives, [5, 50][rng.usize(..2)], None, rng);
        }
        for index in shape.cached().filter(|_| self.moves) {
            let (shape, drive) = (shape.clone(), world.drive(VOLUMES[index].1));
            generation.start(1, async move |server| {
                for _ in 0..4 {
                    server.pause(8000).await;
                    move_out_and_in(&server, &shape, index, drive.clone()).await;
                }
            });
        }
        let (modes, volume) = (self.modes, VOLUMES[rng.usize(..shape.cached().count())].0);
        if rng.bool() {
            generation.start(2, async move |server| {
                for _ in 0..4 {
                    server.pause(6000).await;
                    let mode = modes[server.env.random_below(modes.len() as u64) as usize];
                    server.message(volume, &["set", "cache_mode", mode.word()]).await;
                    for _ in 0..2 {
                        let setting = server.env.random_below(SETTINGS.len() as u64) as usize;
                        let [name, value] = SETTINGS[setting];
                        server.message(volume, &["set", name, value]).await;
                    }
                }
            });
        }
        if rng.bool() {
            generation.start(0, async move |server| {
                for _ in 0..3 {
                    server.pause(8000).await;
                    // Drives fail, or a suspend ends it.
                    let _ = server.volume(volume).drain_caches(&server.env).await;
                }
            });
        }
        self.failing != Failing::Nothing
    }
}

/// The table of a volume. Where devices move, it attaches one that belongs to no set.
fn table_of(shape: &Shape, index: usize, moves: bool) -> String {
    let table = shape.table(index);
    match table.strip_suffix(" cache 0").filter(|_| moves) {
        Some(backing) => format!("{backing} cache 1 attach"),
        None => table,
    }
}

/// True if a set counts for the backing device with these bytes.
fn is_attached(backing: &[u8]) -> bool {
    match superblock_of(backing) {
        Superblock::Backing(superblock) => !superblock.set_uuid().is_zero(),
        Superblock::Cache(_) => panic!("it is a backing device"),
    }
}

/// Has a backing device leave its set, as a `cache detach` does; it is used alone for a time, and
/// joins the set again. Sometimes the detach is called off after its drain.
async fn move_out_and_in(server: &Server, shape: &Shape, index: usize, drive: Arc<SimDrive>) {
    let (name, backing) = VOLUMES[index];
    let (volume, env) = (server.volume(name), &server.env);
    let Some(target) = server.target(name) else { return };
    target.set_leaving(true);
    let drained = volume.drain_caches(env).await;
    if drained.is_err() || env.random_below(3) == 0 {
        return target.set_leaving(false);
    }
    target.drain_in_suspend();
    volume.suspend(env, SuspendMode::Flush).await.expect("no drive fails");
    let device = Device { argument: backing.to_owned(), disk: drive };
    let attached = Attached::of(env, device).await.expect("no drive fails");
    let attached = attached.expect("it belongs to the set");
    assert!(!attached.is_dirty(), "nothing became dirty since the drain");
    attached.leave(env).await.expect("no drive fails");
    let alone = format!("0 {} bcache {backing} - 0", shape.sectors);
    server.load(name, &alone).await.expect("no drive fails");
    server.pause(4000).await;
    server.load(name, &table_of(shape, index, true)).await.expect("no drive fails");
}

fn campaign(failing: Failing) -> Campaign<Bcache> {
    Campaign::new(Bcache { failing, shapes: SHAPES, modes: MODES, moves: false })
}

#[test]
fn nothing_acknowledged_is_lost_by_a_power_cut() {
    campaign(Failing::Nothing).run();
}

#[test]
fn nothing_acknowledged_is_lost_while_devices_leave_and_join_their_set() {
    let failing = Failing::Nothing;
    Campaign::new(Bcache { failing, shapes: SHAPES, modes: MODES, moves: true }).run();
}

#[test]
fn losses_of_any_drive_are_told_to_each_client() {
    campaign(Failing::Everything).run();
}

#[cfg(feature = "canary")]
mod canaries {
    use cairn_targets::bcache::canary::{Bug, plant};

    use super::bcache_lab::several::{ROOMY, TIGHT};
    use super::{Bcache, CacheMode, Campaign, Failing, MODES, SHAPES, Shape};

    /// Lives in which a planted bug must be found.
    const CUTS: u64 = 20_000;

    fn is_caught(bug: Bug) {
        is_caught_in(bug, SHAPES, MODES);
    }

    fn is_caught_in(bug: Bug, shapes: &'static [Shape], modes: &'static [CacheMode]) {
        plant(Some(bug));
        let scenario = Bcache { failing: Failing::Nothing, shapes, modes, moves: false };
        Campaign::new(scenario).cuts(CUTS).expect_caught(&format!("{bug:?}"));
        plant(None);
    }

    #[test]
    fn copies_of_data_whose_key_is_not_durable_are_caught() {
        is_caught_in(Bug::CopyBeforeCommit, &[TIGHT], &[CacheMode::Writeback]);
    }

    #[test]
    fn writes_around_the_cache_over_dirty_data_are_caught() {
        is_caught(Bug::HoleOverDirty);
    }

    #[test]
    fn writes_around_the_cache_where_a_clean_key_may_come_back_are_caught() {
        is_caught_in(Bug::GhostsForgotten, &[TIGHT], &[CacheMode::Writethrough]);
    }

    #[test]
    fn clean_data_that_a_power_cut_takes_back_is_caught() {
        is_caught_in(Bug::FillBeforeFlush, &[ROOMY], &[CacheMode::Writethrough]);
    }

    #[test]
    fn clean_data_older_than_a_write_is_caught() {
        is_caught(Bug::FillOverWrite);
    }

    #[test]
    fn buckets_that_are_reused_before_a_checkpoint_are_caught() {
        is_caught(Bug::ReuseBeforeCheckpoint);
    }
}
