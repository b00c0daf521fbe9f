//! What the fuzzers do with the bytes they are given, a module for each crate whose decoders they
//! try (and one each for thin pools and images of qemu that are served). The property tests of
//! those crates compile the same modules.

pub mod bcache;
pub mod client;
pub mod exports;
pub mod format;
#[cfg(feature = "program")]
pub mod handover;
#[cfg(feature = "program")]
pub mod program;
#[cfg(feature = "program")]
pub mod qcow2_volume;
#[cfg(feature = "program")]
pub mod targets;
pub mod thin;
#[cfg(feature = "program")]
pub mod thin_pool;
#[cfg(feature = "program")]
mod volumes;
