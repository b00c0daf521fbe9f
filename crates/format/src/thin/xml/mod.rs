//! The XML of the thin-pool tools: written as thin_dump writes it, and read back.
//!
//! ```text
//! <superblock uuid="" time="2" transaction="42" flags="0" version="2" data_block_size="128"
//!     nr_data_blocks="32">
//!   <device dev_id="0" mapped_blocks="3" transaction="0" creation_time="0" snap_time="2">
//!     <single_mapping origin_block="0" data_block="9" time="2"/>
//!     <range_mapping origin_begin="1" data_begin="4" length="2" time="0"/>
//!   </device>
//! </superblock>
//! ```
//!
//! Promises that the XML written reads back as the same stream, and that nothing is silently
//! misread: an unknown element, or an unknown attribute that matters, is refused with its line
//! number.

mod read;
mod write;

pub use read::{Broken, Reader, TAG_BYTES_MAX, XmlError};
pub use write::Writer;
