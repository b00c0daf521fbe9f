//! Writing: a stream as text, passed on in pieces.

use core::fmt::Write;

use crate::thin::stream::{Pool, Run, Sink};
use crate::thin::{DeviceDetails, DeviceId};

const PIECE_BYTES: usize = 1 << 16;

/// Writes a stream as XML.
pub struct Writer<F> {
    text: String,
    out: F,
}

impl<F, E> Writer<F>
where
    F: FnMut(&str) -> Result<(), E>,
{
    /// A writer that passes the text to `out`, some 64 KiB at a time.
    pub fn new(out: F) -> Writer<F> {
        Writer { text: String::with_capacity(PIECE_BYTES + 256), out }
    }

    fn put(&mut self, line: core::fmt::Arguments<'_>) -> Result<(), E> {
        self.text.write_fmt(line).expect("writing to a string cannot fail");
        if self.text.len() < PIECE_BYTES {
            return Ok(());
        }
        self.hand_on()
    }

    /// Passes the remaining text on, also after an early end.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn hand_on(&mut self) -> Result<(), E> {
        let handed = (self.out)(&self.text);
        self.text.clear();
        handed
    }
}

impl<F, E> Sink for Writer<F>
where
    F: FnMut(&str) -> Result<(), E>,
{
    type Error = E;

    fn pool(&mut self, pool: &Pool) -> Result<(), E> {
        let Pool { time, transaction_id, flags, version, data_block_size, data_blocks } = pool;
        self.put(format_args!(
            "<superblock uuid=\"\" time=\"{time}\" transaction=\"{transaction_id}\" \
             flags=\"{flags}\" version=\"{version}\" data_block_size=\"{}\" \
             nr_data_blocks=\"{data_blocks}\">\n",
            data_block_size.sectors()
        ))
    }

    fn device(&mut self, id: DeviceId, details: &DeviceDetails) -> Result<(), E> {
        self.put(format_args!(
            "  <device dev_id=\"{id}\" mapped_blocks=\"{}\" transaction=\"{}\" \
             creation_time=\"{}\" snap_time=\"{}\">\n",
            details.mapped_blocks,
            details.transaction_id,
            details.creation_time,
            details.snapshotted_time
        ))
    }

    fn run(&mut self, run: Run) -> Result<(), E> {
        let Run { origin, data, len, time } = run;
        match len {
            1 => self.put(format_args!(
                "    <single_mapping origin_block=\"{origin}\" data_block=\"{data}\" \
                 time=\"{time}\"/>\n"
            )),
            _ => self.put(format_args!(
                "    <range_mapping origin_begin=\"{origin}\" data_begin=\"{data}\" \
                 length=\"{len}\" time=\"{time}\"/>\n"
            )),
        }
    }

    fn end_device(&mut self) -> Result<(), E> {
        self.put(format_args!("  </device>\n"))
    }

    fn end(&mut self) -> Result<(), E> {
        self.put(format_args!("</superblock>\n"))?;
        self.hand_on()
    }
}
