//! What a fuzzer does with an image of qemu that is served and written: start over it, read, write,
//! zero and discard, stop, start again.
//!
//! Shared with the ordinary property test of `crates/targets`. A body panics when a promise is
//! broken, and must never depend on anything but its input.

use std::sync::Arc;
use std::time::Duration;

use cairn_block::{
    ConfigError, Disk, Env, Io, IoResult, MappedDevice, Op, Registry, Resumed, Sector, SectorCount,
    SectorRange, Table, TableContext, TableLine, TargetTypes,
};
use cairn_format::Severity;
use cairn_format::qcow2::{Header, Layout, check};
use cairn_sim::{DriveOptions, Image, SimWorld};

const SECTOR: usize = 512;
/// Sectors of the largest content that is tried.
const CONTENT_MAX: u64 = 4096;
/// Sectors by which the image can grow.
const ROOM: u64 = 1024;

/// An image under a volume. True if the volume was opened.
pub fn qcow2_volume(bytes: &[u8]) -> bool {
    let mut image = bytes.to_vec();
    image.resize(bytes.len().next_multiple_of(SECTOR), 0);
    let Some(judged) = Judged::of(&image) else { return false };
    let (sectors, severity) = (judged.sectors, judged.severity);
    if sectors == 0 || sectors > CONTENT_MAX {
        return false;
    }
    let world = SimWorld::new(1, 1);
    world.set_patience(Duration::from_secs(3600));
    let grows_to = SectorCount((image.len() / SECTOR) as u64 + ROOM);
    let options = DriveOptions { grows_to, ..DriveOptions::named("image") };
    world.add_drive(options, Image::of_bytes(&image));
    let content: Vec<u8> = (0..8 * SECTOR).map(|at| (at / SECTOR) as u8 + 1).collect();
    world.add_drive(DriveOptions::named("base"), Image::of_bytes(&content));
    let registry = Arc::new(Registry::new(Box::new(world.opener())));
    let backing = if judged.has_backing { "base" } else { "-" };
    let line = format!("0 {sectors} qcow2 image {backing}");
    let opened = world.block_on(0, |env| serve(env, registry, line, sectors));
    if opened {
        assert!(severity < Severity::Damaged, "a damaged image is refused");
        let left = Judged::of(&world.drive("image").durable().to_vec()).expect("it has a header");
        assert_eq!(left.severity, Severity::Sound, "what is left is sound");
    } else {
        assert_eq!(world.drive("image").visible().to_vec(), image, "what is refused is kept");
    }
    opened
}

/// What a check says of an image.
struct Judged {
    severity: Severity,
    /// Of the content.
    sectors: u64,
    has_backing: bool,
}

impl Judged {
    fn of(image: &[u8]) -> Option<Judged> {
        let header = Header::parse(image, image.len() as u64).ok()?;
        let layout = Layout::parse(image, &header).ok()?;
        let read = &mut |at: u64, out: &mut [u8]| {
            let at = usize::try_from(at).expect("it is in the image");
            out.copy_from_slice(&image[at..at + out.len()]);
            Ok::<(), std::convert::Infallible>(())
        };
        let Ok(report) = check(&header, &layout, read);
        let (sectors, has_backing) = (header.size / SECTOR as u64, header.backing.is_some());
        Some(Judged { severity: report.severity, sectors, has_backing })
    }
}

/// A live volume, or one line that says why there is none.
async fn load(
    env: &Env,
    registry: &Registry,
    line: &str,
) -> Result<Arc<MappedDevice>, ConfigError> {
    let types = TargetTypes::new(cairn_targets::types());
    let device = registry.create_volume("v")?;
    let lines = TableLine::parse_all(line)?;
    let context = TableContext { types: &types, registry, read_only: false };
    let loaded = match Table::build(env, &device, &lines, context).await {
        Ok(table) => {
            device.load(table).await;
            device.resume(env).await.and_then(Resumed::whole)
        }
        Err(error) => Err(error),
    };
    if let Err(error) = loaded {
        let text = error.to_string();
        assert!(!text.is_empty() && !text.chars().any(char::is_control), "{text:?}");
        end(env, registry, device).await;
        return Err(error);
    }
    Ok(device)
}

async fn end(env: &Env, registry: &Registry, device: Arc<MappedDevice>) {
    registry.remove_volume("v").expect("it was created");
    device.remove(env).await.expect("no device fails");
}

/// Writes to the volume in every way, twice, and compares what it holds with a model.
async fn serve(env: Env, registry: Arc<Registry>, line: String, sectors: u64) -> bool {
    let env = &env;
    let mut model = None;
    for start in 0..2 {
        let Ok(device) = load(env, &registry, &line).await else {
            assert_eq!(start, 0, "what was served can be served again");
            return false;
        };
        let disk: Arc<dyn Disk> = device.clone();
        let mut held = read(env, &disk, sectors).await;
        assert!(model.is_none_or(|model| model == held), "the content is as it was left");
        change(env, &disk, (sectors, start as u8 + 0x81), &mut held).await;
        assert_eq!(read(env, &disk, sectors).await, held);
        drop(disk);
        end(env, &registry, device).await;
        model = Some(held);
    }
    true
}

async fn read(env: &Env, disk: &Arc<dyn Disk>, sectors: u64) -> Vec<u8> {
    let all = SectorRange::new(Sector(0), SectorCount(sectors));
    let segs = env.segs(all.count);
    env.io(disk, Io::read(all, segs.clone())).await.expect("no device fails");
    segs.to_vec()
}

/// Parts of clusters, whole ones, and all kinds of requests.
async fn change(env: &Env, disk: &Arc<dyn Disk>, (sectors, byte): (u64, u8), held: &mut [u8]) {
    let parts = [(0, 1), (3, 9), (sectors / 2, 40), (sectors - 1, 1), (sectors / 3, 130)];
    for (number, (at, count)) in parts.into_iter().enumerate() {
        let range = SectorRange::between(Sector(at), Sector((at + count).min(sectors)));
        let (from, end) = (range.start.to_bytes() as usize, range.end().to_bytes() as usize);
        let segs = env.segs(range.count);
        segs.for_each_mut(0, segs.bytes(), |out| out.fill(byte));
        let io = match number % 3 {
            0 => Io::write(range, segs),
            1 => Io::on(Op::WriteZeroes, range),
            _ => Io::on(Op::Discard, range),
        };
        if range.count == SectorCount::ZERO {
            continue;
        }
        let is_discard = io.op == Op::Discard;
        let done: IoResult = env.io(disk, io).await;
        done.expect("no device fails, and the image can grow");
        match number % 3 {
            0 => held[from..end].fill(byte),
            1 => held[from..end].fill(0),
            _ => held.copy_from_slice(&read(env, disk, sectors).await),
        }
        if is_discard {
            env.io(disk, Io::flush()).await.expect("no device fails");
        }
    }
}
