//! New metadata from damaged metadata: from everything that the trees still contain, with new
//! counts.
//!
//! The old metadata is only read. Promises that every mapping that can be reached is kept, that
//! every one that cannot be reached is reported as a finding, and that shared leaves stay shared
//! and are kept unchanged. Reference counts, sizes of devices and the needs-check flag are derived
//! again, never copied; a metadata snapshot is dropped. Metadata with unknown features is refused.
//!
//! If the superblock or the root of its top-level tree is lost, the roots are searched for among
//! all blocks (`roots`). The values that only the superblock contained must then be [given](Given).
//! Lost details are made up; a lost top-level tree cannot be, since only it leads to the mappings.
//!
//! Roots that were searched for may come from different commits, and old details do not know of
//! later snapshots. A write to a block that looks unshared then goes to its old place, into another
//! volume's data. To prevent that, every mapping is made to look shared, that is, older than its
//! device's last snapshot; at worst this costs an unnecessary copy. The same is done where a block
//! in use [counted](Plan::heed) as free: it may have been given to a second volume, and neither
//! volume knows.

mod roots;
mod scan;
mod whole;

use std::collections::BTreeMap;

use super::blocks::{Bad, Blocks, read_one};
use super::build::{BuildError, Builder, Refusal, Room, WriteBlocks};
use super::check::{FINDINGS_MAX, Finding, Report};
use super::leaves::{LeafAt, each_leaf, entries};
use super::stream::{Pool, Run};
use super::walk::{Family, Fault, Tree};
use super::{
    DataBlockSize, DeviceDetails, DeviceId, Error, Mapping, MetadataBlock, Node, Superblock,
    TIME_MAX, VERSION, Value,
};
use roots::Roots;

/// What the user knows of the pool, in case the superblock is lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Given {
    /// The unit of mapping.
    pub data_block_size: Option<DataBlockSize>,
    /// Data blocks of the pool.
    pub data_blocks: Option<u64>,
    /// The user's transaction id; without it, the largest of any device.
    pub transaction_id: Option<u64>,
}

/// A value given by the user that differs from a sound superblock's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Differs {
    /// Its field in [`Given`].
    pub field: &'static str,
    /// The value given.
    pub found: u64,
    /// The superblock's value.
    pub expected: u64,
}

impl Given {
    /// The first value that differs from the superblock's.
    #[must_use]
    pub fn differs_from(&self, superblock: &Superblock) -> Option<Differs> {
        let known = Pool::of(superblock);
        let size = |size: DataBlockSize| u64::from(size.sectors());
        let fields = [
            ("data_block_size", self.data_block_size.map(size), size(known.data_block_size)),
            ("data_blocks", self.data_blocks, known.data_blocks),
            ("transaction_id", self.transaction_id, known.transaction_id),
        ];
        fields.into_iter().find_map(|(field, given, expected)| {
            let found = given.filter(|given| *given != expected)?;
            Some(Differs { field, found, expected })
        })
    }
}

/// The result of a repair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repaired {
    /// The superblock of the new metadata, to be written last.
    pub superblock: Superblock,
    /// Devices kept.
    pub devices: u64,
    /// Mappings kept.
    pub mapped_blocks: u64,
    /// Whether the roots were searched for, instead of taken from the superblock.
    pub roots_searched: bool,
    /// The losses, at most [`FINDINGS_MAX`].
    pub findings: Vec<Finding>,
    /// Findings beyond those.
    pub findings_left_out: u64,
}

/// Why a repair is not possible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RepairError<E> {
    /// Reading or writing has to end.
    Ended(E),
    /// The new metadata cannot be built.
    Refused(Refusal),
    /// There is no superblock, and the user did not give its values.
    NoSuperblock(Bad),
    /// The metadata needs a feature that cairn does not know.
    Unsupported(Error),
    /// There is a superblock, and it differs from the values given.
    Differs(Differs),
    /// No trees were found.
    NoRoots,
}

impl<E> From<E> for RepairError<E> {
    fn from(error: E) -> RepairError<E> {
        RepairError::Ended(error)
    }
}

fn built<E>(error: BuildError<E>) -> RepairError<E> {
    match error {
        BuildError::Write(error) => RepairError::Ended(error),
        BuildError::Refused(refusal) => RepairError::Refused(refusal),
    }
}

/// What is determined before anything is written.
#[derive(Debug)]
pub struct Plan {
    pool: Pool,
    /// No mapping can be newer than this time.
    newest: u32,
    devices: BTreeMap<DeviceId, (DeviceDetails, MetadataBlock)>,
    roots_searched: bool,
    /// Whether every mapping is made to look shared.
    all_shared: bool,
    findings: Findings,
}

#[derive(Debug, Default)]
struct Findings {
    list: Vec<Finding>,
    left_out: u64,
}

impl Findings {
    fn add(&mut self, finding: Finding) {
        match self.list.len() < FINDINGS_MAX {
            true => self.list.push(finding),
            false => self.left_out += 1,
        }
    }
}

impl Plan {
    /// Determines what can be saved: the pool, its devices, their roots.
    ///
    /// # Errors
    /// Nothing was found, a value given is wrong, or reading has to end.
    pub fn new<B: Blocks>(blocks: &mut B, given: Given) -> Result<Plan, RepairError<B::Error>> {
        let at = MetadataBlock::SUPERBLOCK;
        let superblock = read_one(blocks, at, |bytes| {
            let superblock = Superblock::decode(bytes, at)?;
            superblock.refuse_writing().map(|()| superblock)
        })?;
        // The meaning of an unknown feature is unknown: what would be lost without it, and what it
        // needs.
        if let Err(Bad::Wrong(error @ Error::UnknownFeature { .. })) = superblock {
            return Err(RepairError::Unsupported(error));
        }
        if let Some(differs) = superblock.as_ref().ok().and_then(|sound| given.differs_from(sound))
        {
            return Err(RepairError::Differs(differs));
        }
        // Fail before the search, which takes long and cannot find this number.
        if let (Err(bad), None) = (&superblock, given.data_blocks) {
            return Err(RepairError::NoSuperblock(bad.clone()));
        }
        let named = superblock.as_ref().ok().map(Roots::of);
        let kept = match named {
            Some(roots) => roots.lead_to_devices(blocks)?,
            None => false,
        };
        let (roots, lost) = match named {
            Some(roots) if kept => (roots, None),
            named => {
                let found = roots::search(blocks, named.and_then(|named| named.details))?;
                (found.roots.ok_or(RepairError::NoRoots)?, found.superblock)
            }
        };
        let superblock_lost = superblock.is_err();
        let transaction_lost = superblock_lost && given.transaction_id.is_none();
        let pool = pool(superblock, lost, given)?;
        let mut plan = Plan {
            pool,
            newest: pool.time,
            devices: BTreeMap::new(),
            roots_searched: !kept,
            all_shared: false,
            findings: Findings::default(),
        };
        plan.gather(blocks, roots, transaction_lost)?;
        if superblock_lost {
            plan.find_time(blocks)?;
        }
        if !kept {
            plan.share_everything();
        }
        Ok(plan)
    }

    /// Uses the report of a check of the same metadata: if a block counted less than its
    /// references, or may have, it may have been allocated a second time, and no mapping may look
    /// unshared.
    pub fn heed(&mut self, before: &Report) {
        let low = |finding: &Finding| match finding {
            Finding::Count { found, expected, .. } => found < expected,
            Finding::NoLargeCount { .. } => true,
            _ => false,
        };
        if before.findings_left_out > 0 || before.findings.iter().any(low) {
            self.share_everything();
        }
    }

    /// The pool of the new metadata.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Lists the devices. Lost details are made up as if the device had just been snapshotted, so
    /// that every mapping that may be shared looks shared.
    fn gather<B: Blocks>(
        &mut self,
        blocks: &mut B,
        roots: Roots,
        transaction_lost: bool,
    ) -> Result<(), B::Error> {
        let details = match roots.details {
            Some(root) => self.listed::<DeviceDetails, B>(blocks, Family::Details, root)?,
            None => BTreeMap::new(),
        };
        let tops = self.listed::<MetadataBlock, B>(blocks, Family::TopLevel, roots.top)?;
        for details in details.values() {
            let newest = details.creation_time.max(details.snapshotted_time);
            if transaction_lost {
                let transaction = self.pool.transaction_id.max(details.transaction_id);
                self.pool.transaction_id = transaction;
            }
            if self.roots_searched {
                self.newest = self.newest.max(newest.min(TIME_MAX));
            }
        }
        let held = false;
        for device in details.keys().filter(|device| !tops.contains_key(device)) {
            let (device, missing) = (*device, Family::TopLevel);
            self.findings.add(Finding::HalfADevice { device, held, missing });
        }
        for (device, root) in tops {
            let known = details.get(&device).copied();
            if known.is_none() {
                let missing = Family::Details;
                self.findings.add(Finding::HalfADevice { device, held, missing });
            }
            let made_up = DeviceDetails {
                mapped_blocks: 0,
                transaction_id: self.pool.transaction_id,
                creation_time: self.pool.time,
                snapshotted_time: self.pool.time,
            };
            self.devices.insert(device, (known.unwrap_or(made_up), root));
        }
        Ok(())
    }

    /// Raises the newest time to that of the newest mapping, if that is newer than every device's.
    fn find_time<B: Blocks>(&mut self, blocks: &mut B) -> Result<(), B::Error> {
        let newest = &mut self.newest;
        for (_, root) in self.devices.values() {
            each_leaf::<Mapping, B, B::Error>(blocks, *root, &mut |_, leaf| {
                let times = leaf.iter().flat_map(|leaf| leaf.entries::<Mapping>());
                *newest = times.fold(*newest, |newest, (_, mapping)| newest.max(mapping.time));
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Makes every mapping look shared: as if every device had been snapshotted afterwards. After
    /// the largest time there is no later one: mappings of that time are then stored with an older
    /// one.
    fn share_everything(&mut self) {
        self.all_shared = true;
        self.pool.time = (self.newest + 1).min(TIME_MAX);
        for (details, _) in self.devices.values_mut() {
            details.snapshotted_time = self.pool.time;
        }
    }

    fn listed<V: Value, B: Blocks>(
        &mut self,
        blocks: &mut B,
        family: Family,
        root: MetadataBlock,
    ) -> Result<BTreeMap<DeviceId, V>, B::Error> {
        let findings = &mut self.findings;
        let all = entries::<V, B>(blocks, root, &mut |at, fault| {
            let place = at.place(Tree::of(family));
            findings.add(Finding::Tree { place, fault });
        })?;
        let mut listed = BTreeMap::new();
        for (key, value) in all {
            match DeviceId::new(key) {
                Ok(device) => drop(listed.insert(device, value)),
                Err(_) => self.findings.add(Finding::BadDeviceId { family, key }),
            }
        }
        Ok(listed)
    }

    /// Builds the new metadata.
    ///
    /// # Errors
    /// The blocks do not fit, or reading or writing has to end.
    pub fn build<B: Blocks, W: WriteBlocks<Error = B::Error>>(
        mut self,
        blocks: &mut B,
        out: W,
        room: Room,
    ) -> Result<Repaired, RepairError<B::Error>> {
        let pool = Pool { flags: 0, ..self.pool };
        let mut builder = Builder::new(out, room, pool).map_err(RepairError::Refused)?;
        let latest = if self.all_shared { pool.time - 1 } else { self.newest };
        let mut mapped_blocks = 0;
        for (device, (details, root)) in &self.devices {
            builder.begin_device(*device, *details).map_err(RepairError::Refused)?;
            let tree = Tree { device: Some(*device), ..Tree::of(Family::Mappings) };
            let mut saving = Saving {
                blocks: pool.data_blocks,
                newest: self.newest,
                latest,
                tree,
                findings: &mut self.findings,
            };
            each_leaf::<Mapping, B, RepairError<B::Error>>(blocks, *root, &mut |at, leaf| {
                mapped_blocks += saving.save(at, leaf, &mut builder).map_err(built)?;
                Ok(())
            })?;
            builder.end_device().map_err(built)?;
        }
        Ok(Repaired {
            superblock: builder.finish().map_err(built)?,
            devices: self.devices.len() as u64,
            mapped_blocks,
            roots_searched: self.roots_searched,
            findings: self.findings.list,
            findings_left_out: self.findings.left_out,
        })
    }
}

/// The pool, from its superblock, or without one from its copy and the values given.
fn pool<E>(
    superblock: Result<Superblock, Bad>,
    copy: Option<Superblock>,
    given: Given,
) -> Result<Pool, RepairError<E>> {
    let bad = match superblock {
        Ok(superblock) => {
            let time = superblock.time.min(TIME_MAX);
            return Ok(Pool { time, ..Pool::of(&superblock) });
        }
        Err(bad) => bad,
    };
    let size = given.data_block_size.or(copy.as_ref().map(|copy| copy.data_block_size));
    let (Some(data_block_size), Some(data_blocks)) = (size, given.data_blocks) else {
        return Err(RepairError::NoSuperblock(bad));
    };
    let copied = |field: fn(&Superblock) -> u64| copy.as_ref().map_or(0, field);
    Ok(Pool {
        time: copy.as_ref().map_or(0, |copy| copy.time.min(TIME_MAX)),
        transaction_id: given.transaction_id.unwrap_or_else(|| copied(|copy| copy.transaction_id)),
        flags: 0,
        version: VERSION,
        data_block_size,
        data_blocks,
    })
}

/// Saves the leaves of one device.
struct Saving<'a> {
    /// Data blocks of the pool.
    blocks: u64,
    /// No mapping can be newer than this time.
    newest: u32,
    /// No mapping is stored with a newer time than this.
    latest: u32,
    tree: Tree,
    findings: &'a mut Findings,
}

impl Saving<'_> {
    /// Adds a leaf, or reports its loss. Returns the number of mappings kept.
    fn save<W: WriteBlocks>(
        &mut self,
        at: &LeafAt,
        leaf: Result<&Node<'_>, Fault>,
        builder: &mut Builder<W>,
    ) -> Result<u64, BuildError<W::Error>> {
        let leaf = match leaf {
            Ok(leaf) => leaf,
            Err(fault) => {
                let place = at.place(self.tree);
                self.findings.add(Finding::Tree { place, fault });
                return Ok(0);
            }
        };
        let (blocks, time) = (self.blocks, self.newest);
        let sound = |mapping: &Mapping| mapping.block.0 < blocks && mapping.time <= time;
        let as_it_is = |mapping: &Mapping| sound(mapping) && mapping.time <= self.latest;
        if leaf.entries::<Mapping>().all(|(_, mapping)| as_it_is(&mapping)) {
            builder.add_leaf(at.block, leaf)?;
            return Ok(leaf.len() as u64);
        }
        let mut kept = 0;
        for (key, mapping) in leaf.entries::<Mapping>() {
            if !sound(&mapping) {
                let place = LeafAt { first: key, last: key, ..*at }.place(self.tree);
                self.findings.add(Finding::Mapping { place, key, mapping, blocks, time });
            }
            if mapping.block.0 < blocks {
                // An impossible time is replaced by the oldest: such a mapping looks shared, if
                // anything.
                let time = if mapping.time <= time { mapping.time.min(self.latest) } else { 0 };
                builder.add(Run { origin: key, data: mapping.block.0, len: 1, time })?;
                kept += 1;
            }
        }
        Ok(kept)
    }
}
