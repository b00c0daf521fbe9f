//! [`Export`]: one disk under one name, as connections use it.
//!
//! Owns what all connections of an export share: the disk with what all its clients share, and the
//! export's shutdown. The facts told to clients are read from the disk at each negotiation, so that
//! a volume that grew shows its new size.

use std::sync::Arc;

use cairn_block::{Disk, SECTOR_BYTES, SharedTraffic, Throttle};

use crate::front::{SharedDisk, Shutdown};

use super::contexts::Contexts;
use super::facts::{BlockSizes, ExportFacts};
use super::wire::{BASE_ALLOCATION, PAYLOAD_BYTES_USUAL_MAX, TransmissionFlags};

/// The preferred block size is at least a page: smaller requests cost as much.
const PREFERRED_BYTES_MIN: u32 = 4096;

/// What to serve under a name.
pub struct NbdExport {
    /// The name that clients ask for; not empty.
    pub name: String,
    /// A line for a person; may be empty.
    pub description: String,
    /// The disk.
    pub disk: Arc<dyn Disk>,
    /// Refuse writes, even if the disk would take them.
    pub read_only: bool,
    /// What all requests of its clients pass.
    pub throttle: Arc<Throttle>,
}

/// An export in service.
pub(super) struct Export {
    pub(super) name: String,
    description: String,
    read_only: bool,
    pub(super) shared: Arc<SharedDisk>,
    pub(super) throttle: Arc<Throttle>,
    pub(super) traffic: Arc<SharedTraffic>,
    /// Contexts other than `base:allocation`.
    pub(super) contexts: Arc<dyn Contexts>,
    /// See [`ExportFacts::clients`].
    clients: Vec<String>,
    pub(super) shutdown: Arc<Shutdown>,
}

impl Export {
    pub(super) fn new(
        export: NbdExport,
        contexts: Arc<dyn Contexts>,
        clients: Vec<String>,
        shared: Arc<SharedDisk>,
    ) -> Export {
        let NbdExport { name, description, read_only, throttle, .. } = export;
        let (shutdown, traffic) = (Arc::default(), shared.new_traffic());
        Export {
            name,
            description,
            read_only,
            shared,
            throttle,
            traffic,
            contexts,
            clients,
            shutdown,
        }
    }

    /// The smallest unit that the disk takes now, in bytes.
    pub(super) fn block_bytes(&self) -> u32 {
        self.shared.disk.limits().logical_block.max(SECTOR_BYTES as u32)
    }

    /// The size now in bytes, without a partial last block, which no request could reach.
    pub(super) fn size_bytes(&self, block_bytes: u32) -> u64 {
        let bytes = self.shared.disk.sectors().to_bytes();
        bytes - bytes % u64::from(block_bytes)
    }

    /// What clients may know about the export now.
    pub(super) fn facts(&self) -> ExportFacts {
        let limits = self.shared.disk.limits();
        let block = self.block_bytes();
        let wanted = limits.physical_block.max(limits.io_min).max(PREFERRED_BYTES_MIN).max(block);
        let preferred = match wanted.checked_next_power_of_two() {
            Some(bytes) => bytes.min(PAYLOAD_BYTES_USUAL_MAX),
            None => PAYLOAD_BYTES_USUAL_MAX,
        };
        ExportFacts {
            name: self.name.clone(),
            description: self.description.clone(),
            size_bytes: self.size_bytes(block),
            flags: flags(self.read_only || limits.read_only),
            // The server does the read-modify-write of partial blocks itself (`widen`).
            block_sizes: BlockSizes { minimum: 1, preferred, maximum: PAYLOAD_BYTES_USUAL_MAX },
            clients: self.clients.clone(),
            contexts: [vec![BASE_ALLOCATION.to_owned()], self.contexts.names()].concat(),
        }
    }
}

fn flags(read_only: bool) -> TransmissionFlags {
    let always = TransmissionFlags::SEND_FLUSH
        | TransmissionFlags::SEND_FUA
        | TransmissionFlags::SEND_CACHE
        | TransmissionFlags::CAN_MULTI_CONN;
    let writable = TransmissionFlags::SEND_TRIM
        | TransmissionFlags::SEND_WRITE_ZEROES
        | TransmissionFlags::SEND_FAST_ZERO;
    always | if read_only { TransmissionFlags::READ_ONLY } else { writable }
}
