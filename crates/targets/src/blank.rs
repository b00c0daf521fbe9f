//! Checks before a target formats a device: whether the device is blank, and the reads for it.
//!
//! A target knows its own magic only; a device that looks blank to it may hold other data. Every
//! target that formats checks here first. The decision itself is [`cairn_format::probe::blank`].
//! This file must never write.

use std::sync::Arc;

use cairn_block::{
    ConfigError, ConfigKind, Disk, Env, Io, IoError, Sector, SectorCount, SectorRange,
};
use cairn_format::probe::blank::{Area, Verdict, way_on};
use cairn_format::probe::{self, Kind};

use crate::args::Device;

/// Bytes at the start of a device that hold the signature of every cache, store and pool.
const LAYER_BYTES: u64 = 8 << 10;

/// The error for a device that fails while a table is loaded.
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

/// The range of a device that a target is about to format, from a sector to the end.
pub struct Formatting<'a> {
    /// The device.
    pub device: &'a Device,
    /// Where the range begins.
    pub start: SectorCount,
    /// The kind, as `cairn format` calls it.
    pub kind: &'static str,
    /// Options of that command, each with a space in front.
    pub options: String,
    /// Recognises the remains of an interrupted format by the same target in the first 4 KiB.
    pub is_own_remainder: fn(&[u8]) -> bool,
}

impl Formatting<'_> {
    /// Refuses unless the range is blank.
    ///
    /// # Errors
    /// It is not; or the device failed.
    pub async fn refuse_unless_blank(&self, env: &Env) -> Result<(), ConfigError> {
        match self.judge(env).await? {
            Verdict::Blank => Ok(()),
            found => {
                let detail = format!("not blank: found {found}; {}", self.way_on());
                Err(ConfigError::new(ConfigKind::Argument, &self.device.argument, detail))
            }
        }
    }

    /// Refuses an origin that is itself a cache, an exception store or the metadata of a pool. To
    /// format in front of one is a mistake, such as two swapped arguments. An existing cache or
    /// store is never refused for the device beneath it.
    ///
    /// An origin whose requests would wait is not read.
    ///
    /// # Errors
    /// It is one; or the origin failed.
    pub async fn refuse_layer(&self, env: &Env, origin: &Device) -> Result<(), ConfigError> {
        if is_waiting(&origin.disk) {
            return Ok(());
        }
        let Some(found) = layer_on(env, origin).await? else { return Ok(()) };
        let way_on = match self.device.argument.starts_with('@') {
            true => String::new(),
            false => format!(
                "; to format {device} in front of it all the same: cairn format {} {device}{} \
                 --yes",
                self.kind,
                self.options,
                device = self.device.argument,
            ),
        };
        let detail = format!("the origin is itself a cache, store or pool: found {found}{way_on}");
        Err(ConfigError::new(ConfigKind::Argument, &origin.argument, detail))
    }

    /// Adds to the refusal of a wrong header the signatures that the device carries.
    pub async fn with_signatures(&self, env: &Env, own: Kind, refusal: ConfigError) -> ConfigError {
        match self.judge(env).await {
            Ok(Verdict::Signatures(found)) if found.iter().all(|other| other.kind != own) => {
                let found = Verdict::Signatures(found);
                let detail = format!("{}; found {found}; {}", refusal.detail, self.way_on());
                ConfigError { detail, ..refusal }
            }
            _ => refusal,
        }
    }

    fn way_on(&self) -> String {
        way_on(self.kind, &self.device.argument, &self.options)
    }

    /// What the range holds, unless it is blank.
    ///
    /// # Errors
    /// The device failed.
    pub async fn found(&self, env: &Env) -> Result<Option<String>, ConfigError> {
        match self.judge(env).await? {
            Verdict::Blank => Ok(None),
            found => Ok(Some(found.to_string())),
        }
    }

    async fn judge(&self, env: &Env) -> Result<Verdict, ConfigError> {
        let size = self.device.disk.sectors().to_bytes();
        let area = Area::new(size, self.start.to_bytes()).or_own_remainder(self.is_own_remainder);
        let mut windows = Vec::new();
        for window in area.windows() {
            let range =
                SectorRange::between(Sector::of_byte(window.start), Sector::of_byte(window.end));
            windows.push((window.start, read_sectors(env, self.device, range).await?));
        }
        let views: Vec<(u64, &[u8])> = windows.iter().map(|(at, b)| (*at, b.as_slice())).collect();
        Ok(area.judge(&views).expect("every window was read"))
    }
}

/// The signature of a cache, an exception store or a pool at the start of a device, as one line.
///
/// # Errors
/// The device failed.
pub async fn layer_on(env: &Env, device: &Device) -> Result<Option<String>, ConfigError> {
    let bytes = device.disk.sectors().to_bytes().min(LAYER_BYTES);
    let head = SectorRange::new(Sector(0), SectorCount::of_bytes(bytes));
    let head = read_sectors(env, device, head).await?;
    let found = probe::identify(bytes, &[(0, &head)]).expect("all of it was read");
    let layer = found.into_iter().find(|signature| signature.kind.is_layer());
    Ok(layer.map(|layer| format!("{} at byte {}", layer.kind.name(), layer.offset)))
}

/// Whether requests to a disk would wait: it is suspended, or a volume beneath it is.
fn is_waiting(disk: &Arc<dyn Disk>) -> bool {
    disk.mapped().is_some_and(|volume| {
        let table = volume.live_table();
        let lines = table.iter().flat_map(|table| table.lines());
        volume.is_suspended()
            || lines.flat_map(|line| line.target.lowers()).any(|on| is_waiting(&on))
    })
}
