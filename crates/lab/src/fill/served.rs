//! For tests: volumes over images, served by the targets in a simulated world.

use std::sync::Arc;

use cairn_block::{
    Disk, Io, MappedDevice, Registry, Sector, SectorCount, SectorRange, Table, TableContext,
    TableLine, Target, TargetTypes, Value,
};
use cairn_sim::{DriveOptions, Image, SimWorld};

/// Volumes that are served.
pub struct Served {
    pub world: SimWorld,
    registry: Arc<Registry>,
}

impl Served {
    /// Over drives of these names.
    pub fn new(drives: impl IntoIterator<Item = (String, Image)>) -> Served {
        let world = SimWorld::new(5, 1);
        for (name, image) in drives {
            world.add_drive(DriveOptions::named(&name), image);
        }
        let registry = Arc::new(Registry::new(Box::new(world.opener())));
        Served { world, registry }
    }

    /// Makes a volume of this table live.
    pub fn load(&self, name: &str, table: &str) -> Arc<MappedDevice> {
        let volume = self.registry.create_volume(name).expect("a name");
        let (device, registry) = (volume.clone(), self.registry.clone());
        let lines = TableLine::parse_all(table).expect("a table");
        self.world.block_on(0, |env| async move {
            let types = TargetTypes::new(cairn_targets::types());
            let context = TableContext { types: &types, registry: &registry, read_only: false };
            let table = Table::build(&env, &device, &lines, context).await.expect("it fits");
            device.load(table).await;
            device.resume(&env).await.expect("it opens").whole().expect("nothing is lost");
        });
        volume
    }

    /// Reads sectors of a volume.
    pub fn read(&self, volume: &Arc<MappedDevice>, start: u64, count: u64) {
        let disk: Arc<dyn Disk> = volume.clone();
        let range = SectorRange::new(Sector(start), SectorCount(count));
        self.world.block_on(0, |env| async move {
            let read = Io::read(range, env.segs(range.count));
            env.io(&disk, read).await.expect("the drives are well");
        });
    }

    /// Writes all dirty data of a volume back.
    pub fn drain(&self, volume: &Arc<MappedDevice>) {
        let volume = volume.clone();
        self.world.block_on(0, |env| async move { volume.drain_caches(&env).await.expect("all") });
    }

    /// Removes volumes.
    pub fn end(self, volumes: impl IntoIterator<Item = Arc<MappedDevice>>) {
        for volume in volumes {
            self.world.block_on(0, |env| async move { volume.remove(&env).await.expect("idle") });
        }
    }
}

fn target(volume: &MappedDevice) -> Arc<dyn Target> {
    volume.live_table().expect("it is live").lines()[0].target.clone()
}

/// A number of a volume's status.
pub fn status(volume: &MappedDevice, field: &str) -> u64 {
    match target(volume).report().value(field) {
        Some(Value::Gauge(number) | Value::Counter(number)) => *number,
        other => panic!("{field}: {other:?}"),
    }
}
