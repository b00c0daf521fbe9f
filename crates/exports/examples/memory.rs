//! A server of one disk in memory:
//! `cargo run --release --example memory -- SOCKET MEBIBYTES [REACTORS [SPIN_MICROSECONDS]]`.
//!
//! Shows what embedding the server takes: reactors, a disk, an export, an address.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cairn_backends::MemoryDisk;
use cairn_block::SectorCount;
use cairn_exports::nbd::{ListenAddress, NbdExport, NbdOptions, NbdServer};
use cairn_reactor::{Options, Reactors, RingKind};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(socket), Some(mebibytes)) = (args.next(), args.next()) else {
        return Err("expected a socket path and a size in MiB".into());
    };
    let sectors = SectorCount::of_bytes(mebibytes.parse::<u64>()? << 20);
    let count = args.next().map_or(Ok(1), |count| count.parse())?;
    let spin = args.next().map_or(Ok(0), |micros| micros.parse())?;
    let reactors = Reactors::start(Options { count, ring: RingKind::Auto })?;
    reactors.set_spin(Duration::from_micros(spin));
    let server = NbdServer::new(reactors.post(), NbdOptions::default());
    server.add_export(NbdExport {
        name: "memory".to_owned(),
        description: String::new(),
        disk: Arc::new(MemoryDisk::new(sectors)?),
        read_only: false,
        throttle: Arc::default(),
    })?;
    server.listen(&ListenAddress::Unix(PathBuf::from(socket)))?;
    println!("{}", server.uri("").expect("it listens"));
    loop {
        std::thread::park();
    }
}
