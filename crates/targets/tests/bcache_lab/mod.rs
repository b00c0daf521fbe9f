//! A set of bcache on simulated drives, and what it means by its bytes.
#![allow(dead_code, reason = "each test uses a part")]

pub mod forced;
pub mod judge;
pub mod make;
pub mod model;
pub mod several;
pub mod tagged;
pub mod zone_maps;

use std::cell::{Cell, RefCell};
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;

use cairn_block::{
    ConfigError, Disk, Env, Io, IoError, IoResult, MappedDevice, Registry, Sector, SectorCount,
    SectorRange, SuspendMode, Table, TableContext, TableLine, TargetTypes, ZoneMaps,
};
use cairn_format::bcache::load::{Fault as FormatFault, Loaded, NodePlace, Visitor, load_now};
use cairn_format::bcache::node::Node;
use cairn_format::bcache::uuids::UuidEntry;
use cairn_format::bcache::{
    CacheSuperblock, Key, SECTOR_BYTES, SUPERBLOCK_SECTOR, Superblock, Uuid,
};
use cairn_sim::{DriveOptions, Fault, Image, SimDrive, SimWorld, Stopped};
use futures_util::future::{join, join_all};
use sha2::{Digest, Sha256};

/// What a read that was started gave, once it has ended.
pub type Reading = Rc<RefCell<Option<Result<Vec<u8>, IoError>>>>;

/// A set on drives `cache` and `backing`, in a world of its own.
pub struct Lab {
    pub world: SimWorld,
    registry: Arc<Registry>,
}

impl Lab {
    /// These images; a drive of one sector where there is none.
    pub fn new(seed: u64, cache: Option<Vec<u8>>, backing: Option<Vec<u8>>) -> Lab {
        let image = |bytes: Option<Vec<u8>>| match bytes {
            Some(bytes) => Image::of_bytes(&bytes),
            None => Image::new(SectorCount(1)),
        };
        Lab::of_images(seed, [image(cache), image(backing)])
    }

    pub fn of_images(seed: u64, [cache, backing]: [Image; 2]) -> Lab {
        let world = SimWorld::new(seed, 2);
        for (name, image) in [("cache", cache), ("backing", backing)] {
            world.add_drive(DriveOptions::named(name), image);
        }
        let registry = Arc::new(Registry::new(Box::new(world.opener())));
        Lab { world, registry }
    }

    /// The drives that another lab left when its process was killed.
    pub fn of_survivors(seed: u64, dead: &Lab) -> Lab {
        let world = SimWorld::new(seed, 2);
        for drive in dead.drives() {
            world.add_survivor(drive.after_kill());
        }
        let registry = Arc::new(Registry::new(Box::new(world.opener())));
        Lab { world, registry }
    }

    pub fn drives(&self) -> [Arc<SimDrive>; 2] {
        ["cache", "backing"].map(|name| self.world.drive(name))
    }

    /// Opens the volume and drains it, until the power is cut.
    ///
    /// # Errors
    /// It is refused, or the drain fails.
    pub fn open_and_drain(&self, line: &str) -> Result<Result<(), String>, Stopped> {
        self.open_and_drain_beside(line, None, 1)
    }

    /// Opens the volume and drains it `drains` times at once, beside one that reads the volume,
    /// which must have this content, and flushes the drives. A drain does not see the failure of
    /// such a flush. Answers how the last drain ended.
    ///
    /// # Errors
    /// It is refused, or the last drain fails.
    ///
    /// # Panics
    /// Something else is read.
    pub fn open_and_drain_beside(
        &self,
        line: &str,
        content: Option<&[u8]>,
        drains: usize,
    ) -> Result<Result<(), String>, Stopped> {
        let other = content.map(|content| (content.to_vec(), self.drives()));
        let volume = self.registry.create_volume("volume").expect("a new name");
        let (registry, line) = (self.registry.clone(), line.to_owned());
        self.world.try_block_on(0, |env| async move {
            start(&env, &registry, &volume, &line).await?;
            let is_done = Cell::new(false);
            let drain = async {
                let drained = join_all((0..drains).map(|_| volume.drain_caches(&env))).await;
                is_done.set(true);
                drained.into_iter().last().expect("one at least")
            };
            let other = async {
                if let Some((content, drives)) = other {
                    use_beside(&env, &volume, &content, drives, &is_done).await;
                }
            };
            let (drained, ()) = join(drain, other).await;
            let text = |error: ConfigError| error.to_string();
            volume.suspend(&env, SuspendMode::Flush).await.map_err(text)?;
            volume.remove(&env).await.map_err(text)?;
            drop(registry.remove_volume("volume"));
            drained.map_err(|error| error.to_string())
        })
    }

    /// Opens the volume, drains it and detaches the backing device, until the power is cut.
    ///
    /// # Errors
    /// It is refused, or the drain or the detach fails.
    pub fn open_and_detach(&self, line: &str) -> Result<Result<(), String>, Stopped> {
        self.open_and_use(line, async |env, volume| {
            volume.drain_caches(&env).await.map_err(|error| error.to_string())?;
            let detached = volume.detach_caches(&env, None).await;
            detached.map(drop).map_err(|error| error.to_string())
        })
    }

    /// Opens the volume, and has it used, until the power is cut. It is not closed.
    ///
    /// # Errors
    /// It is refused, or the use fails.
    pub fn open_and_use(
        &self,
        line: &str,
        user: impl AsyncFnOnce(Env, Arc<MappedDevice>) -> Result<(), String> + 'static,
    ) -> Result<Result<(), String>, Stopped> {
        let volume = self.registry.create_volume("volume").expect("a new name");
        let (registry, line) = (self.registry.clone(), line.to_owned());
        self.world.try_block_on(0, |env| async move {
            start(&env, &registry, &volume, &line).await?;
            user(env, volume).await
        })
    }

    /// Opens the volume and ends it, until the power is cut.
    ///
    /// # Errors
    /// It is refused, or cannot be ended well.
    pub fn open_and_close(&self, line: &str) -> Result<Result<(), String>, Stopped> {
        self.open_and_write(line, &[])
    }

    /// Opens the volume, writes its first bytes and ends it, until the power is cut.
    ///
    /// # Errors
    /// It is refused, a write fails, or it cannot be ended well.
    pub fn open_and_write(&self, line: &str, bytes: &[u8]) -> Result<Result<(), String>, Stopped> {
        let volume = self.registry.create_volume("volume").expect("a new name");
        let (registry, line, bytes) = (self.registry.clone(), line.to_owned(), bytes.to_vec());
        self.world.try_block_on(0, |env| async move {
            start(&env, &registry, &volume, &line).await?;
            let count = SectorCount::of_bytes(bytes.len() as u64);
            if count > SectorCount::ZERO {
                let disk: Arc<dyn Disk> = volume.clone();
                let segs = env.segs(count);
                segs.copy_in(0, &bytes);
                let write = Io::write(SectorRange::new(Sector(0), count), segs);
                env.io(&disk, write).await.map_err(|error| error.to_string())?;
            }
            let text = |error: ConfigError| error.to_string();
            volume.suspend(&env, SuspendMode::Flush).await.map_err(text)?;
            volume.remove(&env).await.map_err(text)?;
            drop(registry.remove_volume("volume"));
            Ok(())
        })
    }

    /// The server keeps maps of dirty zones.
    pub fn keep_zones(&self, maps: Arc<dyn ZoneMaps>) {
        self.registry.set_zone_maps(maps);
    }

    /// Builds the table and resumes it.
    pub fn try_open(&self, line: &str, read_only: bool) -> Result<Arc<MappedDevice>, ConfigError> {
        let volume = self.registry.create_volume("volume").expect("a new name");
        let (device, registry) = (volume.clone(), self.registry.clone());
        let lines = TableLine::parse_all(line)?;
        let opened = self.world.block_on(0, |env| async move {
            let types = TargetTypes::new(cairn_targets::types());
            let context = TableContext { types: &types, registry: &registry, read_only };
            let table = Table::build(&env, &device, &lines, context).await?;
            device.load(table).await;
            device.resume(&env).await.and_then(cairn_block::Resumed::whole)
        });
        if opened.is_err() {
            drop(self.registry.remove_volume("volume"));
        }
        opened.map(|()| volume)
    }

    pub fn open(&self, line: &str, read_only: bool) -> Arc<MappedDevice> {
        self.try_open(line, read_only).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    /// Why a table is refused.
    pub fn refusal(&self, line: &str, read_only: bool) -> String {
        self.try_open(line, read_only)
            .err()
            .unwrap_or_else(|| panic!("{line}: it opens"))
            .to_string()
    }

    pub fn read_all(&self, volume: &Arc<MappedDevice>) -> Vec<u8> {
        self.try_read_all(volume).expect("it reads")
    }

    pub fn try_read_all(&self, volume: &Arc<MappedDevice>) -> Result<Vec<u8>, IoError> {
        let disk: Arc<dyn Disk> = volume.clone();
        self.world.block_on(1, |env| async move {
            let range = SectorRange::new(Sector(0), disk.sectors());
            let segs = env.segs(range.count);
            env.io(&disk, Io::read(range, segs.clone())).await.map(|()| segs.to_vec())
        })
    }

    /// Starts a read.
    pub fn start_read(&self, volume: &Arc<MappedDevice>, start: u64, count: u64) -> Reading {
        let (disk, ended): (Arc<dyn Disk>, _) = (volume.clone(), Rc::new(RefCell::new(None)));
        let out = ended.clone();
        self.world.block_on(1, |env| {
            env.clone().spawn(async move {
                let range = SectorRange::new(Sector(start), SectorCount(count));
                let segs = env.segs(range.count);
                let read = env.io(&disk, Io::read(range, segs.clone())).await;
                *out.borrow_mut() = Some(read.map(|()| segs.to_vec()));
            });
            std::future::ready(())
        });
        ended
    }

    pub fn try_write(&self, volume: &Arc<MappedDevice>, start: u64, bytes: &[u8]) -> IoResult {
        let (disk, bytes): (Arc<dyn Disk>, _) = (volume.clone(), bytes.to_vec());
        self.world.block_on(1, |env| async move {
            let count = SectorCount::of_bytes(bytes.len() as u64);
            let segs = env.segs(count);
            segs.copy_in(0, &bytes);
            env.io(&disk, Io::write(SectorRange::new(Sector(start), count), segs)).await
        })
    }

    pub fn flush(&self, volume: &Arc<MappedDevice>) -> IoResult {
        let disk: Arc<dyn Disk> = volume.clone();
        self.world.block_on(1, |env| async move { env.io(&disk, Io::flush()).await })
    }

    pub fn drain(&self, volume: &Arc<MappedDevice>) -> Result<(), String> {
        let volume = volume.clone();
        self.world.block_on(0, |env| async move {
            volume.drain_caches(&env).await.map_err(|error| error.to_string())
        })
    }

    /// Drains the volume; `meddle` does something when the world has done so many steps since.
    /// Answers how the drain ended, and whether it came to that step.
    pub fn drain_until(
        &self,
        volume: &Arc<MappedDevice>,
        step: u64,
        meddle: impl FnOnce(),
    ) -> (Result<(), String>, bool) {
        let (volume, ended) = (volume.clone(), Rc::new(RefCell::new(None)));
        let out = ended.clone();
        self.world.block_on(0, |env| {
            env.clone().spawn(async move {
                let drained = volume.drain_caches(&env).await;
                *out.borrow_mut() = Some(drained.map_err(|error| error.to_string()));
            });
            std::future::ready(())
        });
        let (mut meddle, mut steps) = (Some(meddle), 0);
        while ended.borrow().is_none() {
            if steps == step {
                meddle.take().expect("once")();
            }
            steps += 1;
            assert!(ended.borrow().is_some() || self.world.step(), "a drain ends");
        }
        (ended.take().expect("it has ended"), meddle.is_none())
    }

    /// Starts a suspend.
    pub fn start_suspend(&self, volume: &Arc<MappedDevice>) {
        let volume = volume.clone();
        self.world.block_on(1, |env| {
            env.clone().spawn(async move {
                let _ = volume.suspend(&env, SuspendMode::Flush).await;
            });
            std::future::ready(())
        });
    }

    /// Starts a flush of a drive by another user; it fails, and loses what is volatile.
    pub fn lose_by_another(&self, name: &str) {
        let drive = self.world.drive(name);
        drive.faults().add(Fault::losing_flushes().shots(1));
        let disk: Arc<dyn Disk> = drive;
        self.world.block_on(1, |env| {
            env.clone().spawn(async move {
                let _ = env.io(&disk, Io::flush()).await;
            });
            std::future::ready(())
        });
    }

    pub fn close(&self, volume: &Arc<MappedDevice>) {
        let volume = volume.clone();
        self.world.block_on(0, |env| async move {
            volume.suspend(&env, SuspendMode::Flush).await.expect("nothing is lost");
            volume.remove(&env).await.expect("it ends well");
        });
        drop(self.registry.remove_volume("volume"));
        assert_eq!(self.world.contract_violations(), 0);
        assert_eq!(self.world.requests_in_use(), 0);
    }

    /// What the drives hold, durably.
    pub fn images(&self) -> [Vec<u8>; 2] {
        ["cache", "backing"].map(|name| self.world.drive(name).durable().to_vec())
    }

    pub fn cache(&self) -> Cache {
        Cache::read(&self.images()[0])
    }

    /// Sectors of data on the backing device.
    pub fn data_sectors(&self) -> u64 {
        let [_, backing] = self.images();
        let Superblock::Backing(superblock) = superblock_of(&backing) else {
            panic!("it is a backing device")
        };
        superblock.data_sectors((backing.len() / SECTOR_BYTES) as u64).expect("it has data")
    }
}

/// Builds the table of a volume, writable, and resumes it.
async fn start(
    env: &Env,
    registry: &Arc<Registry>,
    volume: &Arc<MappedDevice>,
    line: &str,
) -> Result<(), String> {
    let types = TargetTypes::new(cairn_targets::types());
    let context = TableContext { types: &types, registry, read_only: false };
    let lines = TableLine::parse_all(line).expect("a table");
    let text = |error: ConfigError| error.to_string();
    let table = Table::build(env, volume, &lines, context).await.map_err(text)?;
    volume.load(table).await;
    volume.resume(env).await.and_then(cairn_block::Resumed::whole).map_err(text)
}

/// Reads the volume and flushes the drives until a drain is done. Errors are in order.
async fn use_beside(
    env: &Env,
    volume: &Arc<MappedDevice>,
    content: &[u8],
    drives: [Arc<SimDrive>; 2],
    is_done: &Cell<bool>,
) {
    let disk: Arc<dyn Disk> = volume.clone();
    while !is_done.get() {
        let drive: Arc<dyn Disk> = drives[env.random_below(2) as usize].clone();
        let count = 1 + env.random_below(64.min(disk.sectors().0));
        let start = env.random_below(disk.sectors().0 - count + 1);
        let range = SectorRange::new(Sector(start), SectorCount(count));
        let segs = env.segs(range.count);
        let read = env.io(&disk, Io::read(range, segs.clone()));
        let (read, _) = join(read, env.io(&drive, Io::flush())).await;
        let (from, bytes) = (start as usize * SECTOR_BYTES, count as usize * SECTOR_BYTES);
        let is_right = segs.to_vec() == content[from..from + bytes];
        assert!(read.is_err() || is_right, "sectors {range:?} read wrong during a drain");
    }
}

/// A cache, read whole.
pub struct Cache {
    pub superblock: CacheSuperblock,
    pub loaded: Loaded,
    /// The keys that lead to the nodes.
    pub nodes: Vec<Key>,
    pub extents: Vec<Key>,
}

/// Takes nodes and extents, and refuses every fault.
#[derive(Default)]
struct Strict {
    nodes: Vec<Key>,
    extents: Vec<Key>,
}

impl Visitor for Strict {
    fn fault(&mut self, _: &FormatFault) -> ControlFlow<()> {
        ControlFlow::Break(())
    }

    fn node(&mut self, at: &NodePlace, _: &Node<'_>) {
        self.nodes.push(at.key);
    }

    fn extent(&mut self, key: Key) {
        self.extents.push(key);
    }
}

impl Cache {
    pub fn read(image: &[u8]) -> Cache {
        Cache::try_read(image).expect("it is sound")
    }

    pub fn try_read(image: &[u8]) -> Result<Cache, String> {
        let Superblock::Cache(superblock) = superblock_of(image) else {
            return Err("found a backing device, expected a cache".to_owned());
        };
        let mut visitor = Strict::default();
        let loaded = load_now(image, &superblock, &mut visitor).map_err(|e| e.to_string())?;
        let Strict { nodes, extents } = visitor;
        let extents = loaded.extents(superblock.geometry(), extents);
        Ok(Cache { superblock, loaded, nodes, extents })
    }

    pub fn volume(&self, inode: u32) -> &UuidEntry {
        &self.loaded.volumes[inode as usize]
    }

    /// Dirty sectors of a volume.
    pub fn dirty_sectors(&self, volume: Uuid) -> u64 {
        let inode = self.loaded.volumes.iter().position(|entry| entry.uuid == volume);
        let inode = inode.expect("it is attached") as u32;
        let own = self.extents.iter().filter(|key| key.is_dirty() && key.inode() == inode);
        own.map(Key::sectors).sum()
    }
}

pub fn superblock_of(image: &[u8]) -> Superblock {
    Superblock::decode(&image[SUPERBLOCK_SECTOR as usize * SECTOR_BYTES..]).expect("a superblock")
}

pub fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
