//! [`NullDisk`]: reads zeros, forgets writes. For measuring the layers above it.

use cairn_block::{
    Disk, Env, Extent, ExtentKind, Flow, IoError, LocalFuture, Op, Request, SectorCount,
    SectorRange,
};

/// A disk without contents.
pub struct NullDisk {
    sectors: SectorCount,
    name: String,
}

impl NullDisk {
    /// A disk of this size.
    pub fn new(sectors: SectorCount) -> NullDisk {
        NullDisk { sectors, name: format!("null:{sectors}s") }
    }

    /// The same disk with the display name `name`.
    #[must_use]
    pub fn named(self, name: &str) -> NullDisk {
        NullDisk { name: name.to_owned(), ..self }
    }
}

impl Disk for NullDisk {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn sectors(&self) -> SectorCount {
        self.sectors
    }

    fn submit(&self, _env: &Env, request: &mut Request) -> Flow {
        if request.op == Op::Read {
            request.segs.zero(0, request.range.to_bytes() as usize);
        }
        Flow::Done
    }

    fn extents<'a>(
        &'a self,
        _env: &'a Env,
        range: SectorRange,
    ) -> LocalFuture<'a, Result<Vec<Extent>, IoError>> {
        let all = Extent { count: range.count, kind: ExtentKind::Hole };
        Box::pin(std::future::ready(Ok(vec![all])))
    }
}
