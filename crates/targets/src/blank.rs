//! Before a target formats a device: is it really blank? And the reads that ask so.
//!
//! A target looks at its own magic only; a device that looks blank to it may carry somebody
//! else's data. Everything that formats asks here first. Must never write.

use cairn_block::{ConfigError, ConfigKind, Env, Io, IoError, Sector, SectorCount, SectorRange};
use cairn_format::probe;

use crate::args::Device;

/// What is said when a device fails while a table is loaded.
pub fn unreadable(device: &Device, what: &str, error: IoError) -> ConfigError {
    let detail = format!("{what}: could not be read or written");
    ConfigError::new(ConfigKind::System, &device.argument, detail).with_source(error)
}

/// Reads a range of a device, whatever its logical block size.
///
/// # Errors
/// The device failed.
pub async fn read_sectors(
    env: &Env,
    device: &Device,
    range: SectorRange,
) -> Result<Vec<u8>, ConfigError> {
    let wide = range.widen(device.disk.limits().logical_sectors());
    let segs = env.segs(wide.count);
    let read = env.io(&device.disk, Io::read(wide, segs.clone())).await;
    read.map_err(|error| unreadable(device, &format!("sectors {wide}"), error))?;
    let skip = (range.start - wide.start).to_bytes() as usize;
    Ok(segs.slice(skip, range.to_bytes() as usize).to_vec())
}

/// Refuses to take a device for blank that carries somebody's signature at or after `start`.
///
/// # Errors
/// It does; or the device failed.
pub async fn refuse_signatures(
    env: &Env,
    device: &Device,
    start: SectorCount,
) -> Result<(), ConfigError> {
    let (start, size) = (start.to_bytes(), device.disk.sectors().to_bytes());
    let mut windows = Vec::new();
    for window in probe::windows(size) {
        let first = Sector::of_byte(window.start);
        let end = Sector(window.end.div_ceil(512));
        let bytes = read_sectors(env, device, SectorRange::between(first, end)).await?;
        windows.push((first.to_bytes(), bytes));
    }
    let views: Vec<(u64, &[u8])> = windows.iter().map(|(at, b)| (*at, b.as_slice())).collect();
    let found = probe::identify(size, &views).map_err(|missing| {
        let detail = format!("probe: a window was not read: {missing:?}");
        ConfigError::new(ConfigKind::System, &device.argument, detail)
    })?;
    let Some(signature) = found.iter().find(|signature| signature.offset >= start) else {
        return Ok(());
    };
    let detail = format!(
        "signature: found {} at byte {}, expected a blank device (cairn format --yes formats it)",
        signature.kind.name(),
        signature.offset
    );
    Err(ConfigError::new(ConfigKind::Argument, &device.argument, detail))
}
