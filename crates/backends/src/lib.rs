//! Real disks: files and block devices, memory, null; and the opener that turns a device argument
//! into one of them.
//!
//! Mechanism only: a disk here does what a request says and knows nothing of targets. Operations
//! that must wait go through the ring of the request's reactor ([`Driver`](cairn_reactor::Driver));
//! a disk stores no ring, buffer or environment.

mod answer;
mod argument;
mod crash_memory;
mod file;
mod handles;
mod held;
mod helper;
mod host;
mod marker;
mod memory;
pub mod nbd;
mod nonce;
mod null;
mod objects;
mod opener;
mod qcow2;
pub mod rbd;
mod remote;
mod shown;
mod size;
#[cfg(test)]
mod tests;

pub use argument::{is_image, is_path, is_remote, path_in};
pub use crash_memory::{CrashFiles, LeftLog};
pub use file::{FileDisk, FileOptions, standing_marker};
pub use handles::{Handle, Handles};
pub use held::{HeldElsewhere, patiently, very_patiently};
pub use host::host_name;
pub use marker::{name_in_notes, unmark};
pub use memory::MemoryDisk;
pub use nbd::NbdDisk;
pub use nonce::nonce;
pub use null::NullDisk;
pub use opener::DeviceOpener;
pub use rbd::RbdDisk;
pub use remote::{RemoteDisk, RemoteFigures, RemoteKind, RemoteState, ReplayFigures};
pub use size::{SizeError, parse_size};
