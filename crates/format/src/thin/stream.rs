//! A pool's metadata as a stream of its contents: the pool, its devices, and their mappings in
//! runs.
//!
//! The common form of metadata on disk, of XML, and of metadata being built. Promises devices by
//! ascending id and mappings by ascending virtual block, and never to read beyond the end of a run.

use super::blocks::{Bad, Blocks};
use super::leaves::{LeafAt, each_leaf};
use super::walk::{Family, Fault, NodeLocation, Tree};
use super::{DataBlockSize, DeviceDetails, DeviceId, Mapping, MetadataBlock, Superblock, Value};

/// The properties of the pool as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool {
    /// Snapshots taken since the pool was created.
    pub time: u32,
    /// The user's transaction id.
    pub transaction_id: u64,
    /// The superblock's flags.
    pub flags: u32,
    /// The superblock's version.
    pub version: u32,
    /// The unit of mapping.
    pub data_block_size: DataBlockSize,
    /// Data blocks; 0 for a metadata snapshot, which does not store them.
    pub data_blocks: u64,
}

impl Pool {
    /// Taken from a superblock.
    #[must_use]
    pub fn of(superblock: &Superblock) -> Pool {
        Pool {
            time: superblock.time,
            transaction_id: superblock.transaction_id,
            flags: superblock.flags,
            version: superblock.version,
            data_block_size: superblock.data_block_size,
            data_blocks: superblock.data_space_map.blocks,
        }
    }
}

/// Consecutive virtual blocks mapped to consecutive data blocks, with the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The first virtual block.
    pub origin: u64,
    /// The data block that it is mapped to.
    pub data: u64,
    /// Mappings.
    pub len: u64,
    /// When they were made.
    pub time: u32,
}

impl Run {
    /// Adds the next mapping to the run, if it continues it.
    fn extend(&mut self, key: u64, mapping: Mapping) -> bool {
        let goes_on = self.origin.checked_add(self.len) == Some(key)
            && self.data + self.len == mapping.block.0
            && self.time == mapping.time;
        self.len += u64::from(goes_on);
        goes_on
    }
}

/// Receives the stream.
pub trait Sink {
    /// Why it stops receiving.
    type Error;

    /// The pool; first.
    ///
    /// # Errors
    /// It stops receiving; likewise for all methods.
    fn pool(&mut self, pool: &Pool) -> Result<(), Self::Error>;

    /// A device begins.
    ///
    /// # Errors
    /// As for [`Sink::pool`].
    fn device(&mut self, id: DeviceId, details: &DeviceDetails) -> Result<(), Self::Error>;

    /// Mappings of the device.
    ///
    /// # Errors
    /// As for [`Sink::pool`].
    fn run(&mut self, run: Run) -> Result<(), Self::Error>;

    /// The device ends.
    ///
    /// # Errors
    /// As for [`Sink::pool`].
    fn end_device(&mut self) -> Result<(), Self::Error>;

    /// The pool ends.
    ///
    /// # Errors
    /// As for [`Sink::pool`].
    fn end(&mut self) -> Result<(), Self::Error>;
}

/// Why a dump stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop<E> {
    /// Reading or writing has to end.
    Ended(E),
    /// Part of the metadata is damaged.
    Damaged(NodeLocation, Fault),
}

impl<E> From<E> for Stop<E> {
    fn from(error: E) -> Stop<E> {
        Stop::Ended(error)
    }
}

/// Streams a pool, or its metadata snapshot if `held`, from its superblock.
///
/// # Errors
/// The first damage, or reading or writing has to end.
pub fn dump<B: Blocks, S: Sink<Error = B::Error>>(
    blocks: &mut B,
    superblock: &Superblock,
    held: bool,
    sink: &mut S,
) -> Result<(), Stop<B::Error>> {
    sink.pool(&Pool::of(superblock))?;
    for (id, details, root) in devices(blocks, superblock, held)? {
        sink.device(id, &details)?;
        each_run(blocks, id, held, root, &mut |run| sink.run(run))?;
        sink.end_device()?;
    }
    Ok(sink.end()?)
}

/// A device: its id, its details, the root of its mappings.
pub type Device = (DeviceId, DeviceDetails, MetadataBlock);

/// The devices of a superblock. A device that one of the trees lacks is damage.
///
/// # Errors
/// As [`dump`].
pub fn devices<B: Blocks>(
    blocks: &mut B,
    superblock: &Superblock,
    held: bool,
) -> Result<Vec<Device>, Stop<B::Error>> {
    let (details_root, top_root) = (superblock.details_root, superblock.mapping_root);
    let details = whole::<DeviceDetails, B>(blocks, tree(Family::Details, held), details_root)?;
    let roots = whole::<MetadataBlock, B>(blocks, tree(Family::TopLevel, held), top_root)?;
    if let Some((id, missing)) = odd(details.iter().map(|e| e.0), roots.iter().map(|e| e.0)) {
        let (tree, block) = (tree(Family::TopLevel, held), top_root);
        let place = NodeLocation { tree, block, first: id, last: id };
        return Err(Stop::Damaged(place, Fault::OtherDevices { at: block, id, missing }));
    }
    let pairs = details.into_iter().zip(roots);
    let device = |((key, details), (_, root))| match DeviceId::new(key) {
        Ok(id) => Ok((id, details, root)),
        Err(error) => {
            let (tree, block) = (tree(Family::TopLevel, held), top_root);
            let place = NodeLocation { tree, block, first: key, last: key };
            Err(Stop::Damaged(place, Bad::from(error).into()))
        }
    };
    pairs.map(device).collect()
}

/// The first key that is in only one of two ascending lists, and whether the second list lacks it.
fn odd(
    mut left: impl Iterator<Item = u64>,
    mut right: impl Iterator<Item = u64>,
) -> Option<(u64, bool)> {
    loop {
        match (left.next(), right.next()) {
            (None, None) => return None,
            (Some(left), Some(right)) if left == right => {}
            (Some(left), right) if right.is_none_or(|right| left < right) => {
                return Some((left, true));
            }
            (_, right) => return right.map(|right| (right, false)),
        }
    }
}

/// The mappings of one device, in runs.
///
/// # Errors
/// As [`dump`].
pub fn each_run<B: Blocks>(
    blocks: &mut B,
    id: DeviceId,
    held: bool,
    root: MetadataBlock,
    each: &mut dyn FnMut(Run) -> Result<(), B::Error>,
) -> Result<(), Stop<B::Error>> {
    let tree = Tree { family: Family::Mappings, device: Some(id), held };
    let mut open: Option<Run> = None;
    each_leaf::<Mapping, B, Stop<B::Error>>(blocks, root, &mut |at, leaf| {
        let leaf = leaf.map_err(|fault| Stop::Damaged(at.place(tree), fault))?;
        for (key, mapping) in leaf.entries::<Mapping>() {
            if open.as_mut().is_some_and(|run| run.extend(key, mapping)) {
                continue;
            }
            let next = Run { origin: key, data: mapping.block.0, len: 1, time: mapping.time };
            if let Some(run) = open.replace(next) {
                each(run)?;
            }
        }
        Ok(())
    })?;
    open.map_or(Ok(()), |run| Ok(each(run)?))
}

fn tree(family: Family, held: bool) -> Tree {
    Tree { held, ..Tree::of(family) }
}

/// Every entry of a small tree, or the first gap as damage.
fn whole<V: Value, B: Blocks>(
    blocks: &mut B,
    tree: Tree,
    root: MetadataBlock,
) -> Result<Vec<(u64, V)>, Stop<B::Error>> {
    let mut all = Vec::new();
    let mut take = |at: &LeafAt, leaf: Result<&super::Node<'_>, Fault>| {
        let leaf = leaf.map_err(|fault| Stop::Damaged(at.place(tree), fault))?;
        all.extend(leaf.entries::<V>());
        Ok(())
    };
    each_leaf::<V, B, Stop<B::Error>>(blocks, root, &mut take)?;
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::odd;

    #[test]
    fn the_first_device_that_one_tree_lacks_is_found() {
        let odd = |left: &[u64], right: &[u64]| odd(left.iter().copied(), right.iter().copied());
        assert_eq!(odd(&[1, 5, 9], &[1, 5, 9]), None);
        assert_eq!(odd(&[1, 5, 9], &[1, 6, 9]), Some((5, true)));
        assert_eq!(odd(&[1, 6, 9], &[1, 5, 9]), Some((5, false)));
        assert_eq!(odd(&[1, 5], &[1]), Some((5, true)));
        assert_eq!(odd(&[], &[3]), Some((3, false)));
    }
}
