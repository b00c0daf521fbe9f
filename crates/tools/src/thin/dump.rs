//! A thin pool's metadata for `cairn dump`: the XML that thin_dump writes, or JSON.

use cairn_block::ConfigError;
use cairn_format::thin::stream::{Pool, Run, Sink, dump};
use cairn_format::thin::{DeviceDetails, DeviceId, xml};
use cairn_outcome::failure::Outcome;
use cairn_outcome::{exit, stdout};

use super::{MetadataDevice, expect_volumes, stopped, superblock, while_held};
use crate::source::Source;

/// Shows the metadata that begins at `start_sector`, or the snapshot of it that the pool holds.
///
/// # Errors
/// The device cannot be read, or its metadata is damaged; what came before the damage is printed.
pub fn show(source: &Source, start_sector: u64, held: bool, as_json: bool) -> Outcome<u8> {
    let mut device = MetadataDevice::at(source, start_sector, "dump")?;
    let superblock = superblock(&mut device, held)?;
    expect_volumes(&mut device, &superblock, held);
    let print = |text: &str| stdout::print(text).map(drop);
    let (dumped, printed) = match as_json {
        true => {
            let mut text = Json::new(print);
            (dump(&mut device, &superblock, held, &mut text), text.hand_on())
        }
        false => {
            let mut text = xml::Writer::new(print);
            (dump(&mut device, &superblock, held, &mut text), text.hand_on())
        }
    };
    let mut dumped = dumped.map_err(|stop| stopped(&device, stop)).and(printed);
    if held {
        dumped = while_held(&mut device, &superblock, dumped);
    }
    device.done();
    dumped.map(|()| exit::OK)
}

const PIECE_BYTES: usize = 1 << 16;

/// Writes a stream as JSON.
struct Json<F> {
    text: String,
    out: F,
    /// The separators before the next device and the next run.
    device_comma: &'static str,
    run_comma: &'static str,
}

impl<F: FnMut(&str) -> Outcome<()>> Json<F> {
    fn new(out: F) -> Json<F> {
        Json { text: String::new(), out, device_comma: "", run_comma: "" }
    }

    fn put(&mut self, text: &str) -> Outcome<()> {
        self.text.push_str(text);
        if self.text.len() < PIECE_BYTES {
            return Ok(());
        }
        self.hand_on()
    }

    fn hand_on(&mut self) -> Outcome<()> {
        let handed = (self.out)(&self.text);
        self.text.clear();
        handed
    }
}

impl<F: FnMut(&str) -> Outcome<()>> Sink for Json<F> {
    type Error = ConfigError;

    fn pool(&mut self, pool: &Pool) -> Outcome<()> {
        self.put(&format!(
            "{{\"time\": {}, \"transaction_id\": {}, \"flags\": {}, \"version\": {}, \
             \"data_block_size\": {}, \"data_blocks\": {}, \"devices\": [",
            pool.time,
            pool.transaction_id,
            pool.flags,
            pool.version,
            pool.data_block_size.sectors(),
            pool.data_blocks
        ))
    }

    fn device(&mut self, id: DeviceId, details: &DeviceDetails) -> Outcome<()> {
        let comma = std::mem::replace(&mut self.device_comma, ",");
        self.run_comma = "";
        self.put(&format!(
            "{comma}\n  {{\"id\": {id}, \"mapped_blocks\": {}, \"transaction_id\": {}, \
             \"creation_time\": {}, \"snapshotted_time\": {}, \"mappings\": [",
            details.mapped_blocks,
            details.transaction_id,
            details.creation_time,
            details.snapshotted_time
        ))
    }

    fn run(&mut self, run: Run) -> Outcome<()> {
        let comma = std::mem::replace(&mut self.run_comma, ",");
        let Run { origin, data, len, time } = run;
        self.put(&format!(
            "{comma}\n    {{\"origin\": {origin}, \"data\": {data}, \"length\": {len}, \"time\": \
             {time}}}"
        ))
    }

    fn end_device(&mut self) -> Outcome<()> {
        self.put("]}")
    }

    fn end(&mut self) -> Outcome<()> {
        self.put("]}\n")?;
        self.hand_on()
    }
}
