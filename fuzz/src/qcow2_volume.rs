//! What a fuzzer does with an image of qemu that is served and written: start over it, read, write,
//! zero and discard, stop, start again.
//!
//! Shared with the ordinary property test of `crates/targets`. A body panics when a promise is
//! broken, and must never depend on anything but its input.

use std::sync::Arc;
use std::time::Duration;

use cairn_block::{Disk, Env, Io, Op, Registry, Sector, SectorCount, SectorRange};
use cairn_format::Severity;
use cairn_format::qcow2::{Header, Layout, check};
use cairn_sim::{DriveOptions, Image, SimWorld};

use super::volumes::load;

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

/// Writes to the volume in every way, twice, and compares what it holds with a model.
async fn serve(env: Env, registry: Arc<Registry>, line: String, sectors: u64) -> bool {
    let env = &env;
    let mut model = None;
    for start in 0..2 {
        let Ok(device) = load(env, &registry, ("v", false), &line).await else {
            assert_eq!(start, 0, "what was served can be served again");
            return false;
        };
        let disk: Arc<dyn Disk> = device.clone();
        let mut held = read(env, &disk, sectors).await;
        assert!(model.is_none_or(|model| model == held), "the content is as it was left");
        change(env, &disk, (sectors, start as u8 + 0x81), &mut held).await;
        assert_eq!(read(env, &disk, sectors).await, held);
        drop(disk);
        registry.remove_volume("v").expect("it was created");
        device.remove(env).await.expect("no device fails");
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
    let part = |at: u64, count: u64| {
        let ends = [at, at + count].map(|sector| Sector(sector.min(sectors)));
        SectorRange::between(ends[0], ends[1])
    };
    let write = |range: SectorRange| {
        let segs = env.segs(range.count);
        segs.for_each_mut(0, segs.bytes(), |out| out.fill(byte));
        Io::write(range, segs)
    };
    let requests = [
        (write(part(0, 1)), Some(byte)),
        (Io::on(Op::WriteZeroes, part(3, 9)), Some(0)),
        (Io::on(Op::Discard, part(sectors / 2, 40)), None),
        (Io::flush(), None),
        (write(part(sectors - 1, 1)), Some(byte)),
        (Io::on(Op::WriteZeroes, part(sectors / 3, 130)), Some(0)),
    ];
    for (io, becomes) in requests {
        let range = io.range;
        if io.op != Op::Flush && range.count == SectorCount::ZERO {
            continue;
        }
        env.io(disk, io).await.expect("no device fails, and the image can grow");
        match becomes {
            Some(byte) => {
                let bytes = range.start.to_bytes() as usize..range.end().to_bytes() as usize;
                held[bytes].fill(byte);
            }
            // A discard leaves anything, the same from then on.
            None => held.copy_from_slice(&read(env, disk, sectors).await),
        }
    }
}
