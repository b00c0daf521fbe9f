//! What the fuzzers do with the bytes they are given, a module for each crate whose decoders they
//! try (and one each for thin pools and images of qemu that are served). The property tests of
//! those crates compile the same modules.

pub mod bcache;
pub mod client;
pub mod exports;
pub mod format;
pub mod handover;
pub mod program;
pub mod qcow2_volume;
pub mod targets;
pub mod thin;
pub mod thin_pool;
