//! The commit, and formatting.
//!
//! # The order, and what a crash between its steps leaves
//! 0. The caller has flushed the data device: the data blocks of new mappings are durable.
//! 1. Changed devices are entered in the top-level and the details tree. Both space maps get
//!    shadows of their changed bitmaps and of the nodes of their trees, until nothing changes any
//!    more (see below). All in memory. *Crash*: nothing was written.
//! 2. Every fresh block is written, sorted, in large requests. *Crash*: fresh blocks were free in
//!    the durable state (T2), which is intact. No pointer leads to them, so their content does not
//!    matter.
//! 3. Flush. *Crash*: as before.
//! 4. The superblock is written. Only its first sector, with all roots, changes. *Crash*: the
//!    sector is old or new, and everything that either one leads to is durable.
//! 5. Flush. Only now readers get the new roots, and blocks that only the old state uses may be
//!    allocated. *Crash*: the new state.
//!
//! # When a flush fails
//! A failed flush by any user of the device may have dropped completed writes of this commit, while
//! a later flush succeeds. So the commit reads the device's failure count before step 2 and
//! compares it after the flush of step 3, and again around steps 4 and 5. A difference in step 3
//! leaves the old superblock, whose blocks are durable. After a difference in step 5 the device
//! *shows* the new superblock, but may have kept the old one. The state is `doubtful` until a
//! superblock is written again, from memory, and flushed. Either one is valid: all blocks of both
//! are durable. The superblock is written again by an abort, by the mark of `set_needs_check`, and
//! by opening a device of which a flush failed before.
//!
//! # The fixed point of step 1
//! See `shadow`.

use std::sync::Arc;

use cairn_block::sync::atomic::Ordering;
use cairn_block::{Disk, Env, invariants, mutants};
use cairn_format::bcache::crc64;
use cairn_format::thin::block::{Kind, seal};
use cairn_format::thin::{
    Block, DataBlockSize, DeviceDetails, IndexEntry, METADATA_BLOCKS_MAX, MetadataBlock, Opening,
    RefCount, SpaceMapRoot, Superblock, VERSION,
};

use super::allocator::DataRun;
use super::canary::{Bug, planted};
use super::counts::Counts;
use super::disk::MetaDisk;
use super::edit::Editor;
use super::error::{Error, MetadataPart};
use super::nodes::TreeValue;
use super::shadow::{MapBlock, shadow_metadata_map};
use super::store::{Options, Store, check_device, read_superblock};
use super::transaction::{Transaction, outside};
use super::working::Working;

/// Where the contents of a fresh block come from.
#[derive(Clone, Copy)]
enum Source {
    Node,
    DataPage(usize),
    Map(MapBlock),
    Held,
}

impl Working {
    /// Makes every change durable, in one step. The caller has flushed the data device before.
    /// Returns the data blocks that the commit freed: after a crash no mapping leads to them any
    /// more. The caller gives them back with
    /// [`DataAllocator::release`](super::DataAllocator::release) once no request in flight and no
    /// discard touches them.
    ///
    /// # Errors
    /// The device failed, or is damaged or full. The transaction must be aborted: the abort reads
    /// which of both states is on the device.
    pub async fn commit(&mut self, env: &Env) -> Result<Vec<DataRun>, Error> {
        self.commit_naming(env, None::<fn(u64)>).await
    }

    /// Like [`Self::commit`]; `name` gets the state that the commit leaves ([`Self::state`]),
    /// before the device can have it. Without it no checksum is computed for that.
    ///
    /// # Errors
    /// As for [`Self::commit`].
    pub async fn commit_naming(
        &mut self,
        env: &Env,
        name: Option<impl FnOnce(u64)>,
    ) -> Result<Vec<DataRun>, Error> {
        self.guard()?;
        if !self.is_changed() {
            if let Some(name) = name {
                name(self.state());
            }
            return Ok(Vec::new());
        }
        // Marked broken while it runs, so that a commit whose future is dropped stays broken.
        self.broken = true;
        let sources = self.prepare(env).await?;
        invariants::sample(|| self.check_state());
        let superblock = self.next.encode(MetadataBlock::SUPERBLOCK);
        let failures = self.store.nodes.disk.failures();
        self.write(env, &sources).await?;
        if !planted(Bug::SuperblockBeforeFlush) {
            let flush = self.store.nodes.disk.flush(env, failures);
            mutants::step("metadata: flush before the superblock", (), flush).await?;
        }
        if let Some(name) = name {
            name(state_of(&self.next));
        }
        self.doubtful = true;
        self.write_superblock(env, &superblock).await?;
        (self.doubtful, self.broken) = (false, false);
        self.written = sources.len() as u64;
        Ok(self.publish(&sources))
    }

    /// A number for the state on the device: two states that follow each other have different ones,
    /// since every commit with changes moves a root. The mark of a check that is due does not
    /// count: it changes no mapping.
    pub fn state(&self) -> u64 {
        state_of(&self.durable)
    }

    /// Step 1. Returns the fresh blocks in order, and the source of the content of each.
    async fn prepare(&mut self, env: &Env) -> Result<Vec<(MetadataBlock, Source)>, Error> {
        self.enter_devices(env).await?;
        let mut sources = self.shadow_data_map(env).await?;
        let (store, map) = (self.store.clone(), &mut self.next.metadata_space_map);
        let shadows = shadow_metadata_map(env, &store.nodes, &mut self.txn, map).await?;
        sources.extend(shadows.into_iter().map(|(at, block)| (at, Source::Map(block))));
        sources.extend(self.held.iter().map(|(at, _)| (*at, Source::Held)));
        let nodes = self.txn.fresh.iter().filter(|(_, bytes)| bytes.is_some());
        sources.extend(nodes.map(|(at, _)| (*at, Source::Node)));
        sources.sort_unstable_by_key(|(at, _)| *at);
        self.check_fresh(&sources)?;
        self.next.data_space_map.allocated = self.txn.data.allocated();
        self.next.metadata_space_map.allocated = self.txn.metadata.allocated();
        Ok(sources)
    }

    /// Checks that every fresh block is written once. It fails only if a block in use was counted
    /// as free.
    fn check_fresh(&self, sources: &[(MetadataBlock, Source)]) -> Result<(), Error> {
        let once = sources.is_sorted_by(|(a, _), (b, _)| a < b);
        if once && sources.len() == self.txn.fresh.len() {
            return Ok(());
        }
        let path =
            outside(MetadataPart::MetadataIndex, self.durable.metadata_space_map.bitmap_root);
        let detail = "counts: found 0 for blocks of a space map, expected 1";
        Err(Error::damaged(path, detail))
    }

    async fn enter_devices(&mut self, env: &Env) -> Result<(), Error> {
        if self.changed.is_empty() {
            return Ok(());
        }
        let changed = || self.changed.iter().map(|id| (id.key(), self.devices.get(id)));
        let roots: Vec<_> = changed().map(|(id, own)| (id, own.map(|own| own.root))).collect();
        let details: Vec<_> = changed().map(|(id, own)| (id, own.map(|own| own.details))).collect();
        let (top, own) = (self.next.mapping_root, self.next.details_root);
        self.next.mapping_root = self.edit_tree(env, MetadataPart::TopLevel, top, &roots).await?;
        self.next.details_root =
            self.edit_tree::<DeviceDetails>(env, MetadataPart::Details, own, &details).await?;
        Ok(())
    }

    async fn edit_tree<V: TreeValue>(
        &mut self,
        env: &Env,
        place: MetadataPart,
        root: MetadataBlock,
        changes: &[(u64, Option<V>)],
    ) -> Result<MetadataBlock, Error> {
        if changes.is_empty() {
            return Ok(root);
        }
        let store = self.store.clone();
        let mut editor = Editor::new(env, &store.nodes, &mut self.txn, place);
        editor.edit(root, changes).await
    }

    /// The data map counts no metadata, so one pass is enough.
    async fn shadow_data_map(&mut self, env: &Env) -> Result<Vec<(MetadataBlock, Source)>, Error> {
        let large = self.txn.data.take_changed_large();
        let root = self.next.data_space_map.ref_count_root;
        self.next.data_space_map.ref_count_root =
            self.edit_tree::<RefCount>(env, MetadataPart::DataCounts, root, &large).await?;
        let mut sources = Vec::new();
        let mut entries: Vec<(u64, Option<IndexEntry>)> = Vec::new();
        for page in self.txn.data.take_changed_pages() {
            let shadow = self.txn.allocate()?;
            if let Some(old) = self.txn.data.move_page(page, shadow) {
                self.txn.lower(&outside(MetadataPart::DataBitmap, old), old)?;
            }
            entries.push((page as u64, Some(self.txn.data.index_entry(page))));
            sources.push((shadow, Source::DataPage(page)));
        }
        let root = self.next.data_space_map.bitmap_root;
        self.next.data_space_map.bitmap_root =
            self.edit_tree(env, MetadataPart::DataIndex, root, &entries).await?;
        Ok(sources)
    }

    /// Step 2.
    async fn write(&self, env: &Env, sources: &[(MetadataBlock, Source)]) -> Result<(), Error> {
        let blocks: Vec<MetadataBlock> = sources.iter().map(|(at, _)| *at).collect();
        let mut next = sources.iter();
        let disk = &self.store.nodes.disk;
        let fill = |at, out: &mut [u8]| {
            let (own, source) = next.next().expect("blocks come in the order they were given");
            assert_eq!(*own, at, "blocks come in the order they were given");
            let out: &mut Block = out.try_into().expect("a block is written whole");
            self.fill(at, *source, out);
        };
        disk.write(env, &blocks, fill).await
    }

    fn fill(&self, at: MetadataBlock, source: Source, out: &mut Block) {
        let kind = match source {
            Source::Node => {
                let bytes = self.txn.fresh[&at].as_ref();
                out.copy_from_slice(&bytes.expect("a node has contents")[..]);
                Kind::Node
            }
            Source::DataPage(page) => {
                out.copy_from_slice(&self.txn.data.pages()[page].bits[..]);
                Kind::Bitmap
            }
            Source::Map(block) => block.fill(&self.txn, out),
            Source::Held => {
                let (_, bytes) = self.held.as_ref().expect("it is one of the fresh blocks");
                out.copy_from_slice(&bytes[..]);
                Kind::Superblock
            }
        };
        seal(out, kind, at);
    }

    /// Steps 4 and 5.
    async fn write_superblock(&self, env: &Env, superblock: &Block) -> Result<(), Error> {
        let disk = &self.store.nodes.disk;
        let failures = disk.failures();
        let fill = |_, out: &mut [u8]| out.copy_from_slice(superblock);
        disk.write(env, &[MetadataBlock::SUPERBLOCK], fill).await?;
        mutants::step("metadata: flush of the superblock", (), disk.flush(env, failures)).await
    }

    /// Writes again the superblock that was read: the device may show it without having kept it.
    ///
    /// # Errors
    /// The device failed: it is still unknown which superblock a crash leaves.
    pub(super) async fn write_again(&mut self, env: &Env) -> Result<(), Error> {
        self.doubtful = true;
        let superblock = self.durable.encode(MetadataBlock::SUPERBLOCK);
        self.write_superblock(env, &superblock).await?;
        self.doubtful = false;
        Ok(())
    }

    /// After step 5: makes the new state the durable one.
    fn publish(&mut self, sources: &[(MetadataBlock, Source)]) -> Vec<DataRun> {
        let store = self.store.clone();
        for (at, source) in sources {
            // Before readers get the new roots: see `Cache`.
            match (source, self.txn.fresh.get_mut(at).and_then(Option::take)) {
                (Source::Node, Some(bytes)) => store.nodes.cache.put(*at, Arc::from(bytes)),
                _ => store.nodes.cache.remove(*at),
            }
        }
        self.durable = self.next.clone();
        self.held = None;
        let freed = self.txn.turn();
        {
            let mut published = store.published.lock();
            for id in std::mem::take(&mut self.changed) {
                match self.devices.get(&id) {
                    Some(device) => _ = published.devices.insert(id, *device),
                    None => _ = published.devices.remove(&id),
                }
            }
            published.bounds = self.bounds();
            published.generation += 1;
            let generation = published.generation;
            store.nodes.generation.store(generation, Ordering::Release);
            store.account.used.store(self.txn.metadata.allocated(), Ordering::Release);
        }
        store.extend_data(self.data_blocks());
        self.settle_account();
        freed
    }

    /// Marks the superblock on the device: the metadata has to be checked before it may be
    /// changed. What is not committed must have been aborted.
    ///
    /// # Errors
    /// There are changes; or the device failed: the mark is in memory only then, and another try
    /// may put it on the device.
    pub async fn set_needs_check(&mut self, env: &Env) -> Result<(), Error> {
        if self.broken {
            return Err(Error::Broken);
        }
        if self.is_changed() {
            return Err(Error::Uncommitted);
        }
        self.mark_due |= !self.durable.needs_check();
        if self.mark_due {
            self.next.set_needs_check(true);
            self.durable.set_needs_check(true);
            let superblock = self.durable.encode(MetadataBlock::SUPERBLOCK);
            self.write_superblock(env, &superblock).await?;
            (self.mark_due, self.doubtful) = (false, false);
        }
        Ok(())
    }
}

impl Store {
    /// Makes the metadata of an empty pool on a device whose block 0 is all zero: no devices, no
    /// data blocks. A crash leaves a blank device or the empty pool.
    ///
    /// # Errors
    /// The device is not blank, too small, or failed.
    pub async fn format_fresh(
        env: &Env,
        disk: &Arc<dyn Disk>,
        data_block_size: DataBlockSize,
    ) -> Result<(), Error> {
        let disk = MetaDisk(disk.clone());
        check_device(&disk)?;
        if read_superblock(env, &disk).await? != Opening::Blank {
            let path = outside(MetadataPart::Superblock, MetadataBlock::SUPERBLOCK);
            return Err(Error::damaged(path, "superblock: found one, expected zeros"));
        }
        let blocks = disk.blocks().min(METADATA_BLOCKS_MAX);
        let store = Arc::new(Store::new(disk, Options::CACHE_BYTES, data_block_size));
        let mut metadata = Counts::empty();
        metadata.grow(blocks);
        metadata.raise(0).expect("the device has a block 0, and its count was zero");
        let txn = Transaction::new(metadata, Counts::empty());
        let mut working = Working::fresh(store.clone(), superblock(data_block_size, blocks), txn);
        working.plant(env)?;
        working.commit(env).await.map(drop)
    }
}

impl Working {
    /// Plants an empty tree at each root but the index block.
    fn plant(&mut self, env: &Env) -> Result<(), Error> {
        let store = self.store.clone();
        let (nodes, txn, next) = (&store.nodes, &mut self.txn, &mut self.next);
        let place = MetadataPart::TopLevel;
        next.mapping_root = Editor::<MetadataBlock>::new(env, nodes, txn, place).create()?;
        let place = MetadataPart::Details;
        next.details_root = Editor::<DeviceDetails>::new(env, nodes, txn, place).create()?;
        let place = MetadataPart::DataIndex;
        next.data_space_map.bitmap_root =
            Editor::<IndexEntry>::new(env, nodes, txn, place).create()?;
        let place = MetadataPart::DataCounts;
        next.data_space_map.ref_count_root =
            Editor::<RefCount>::new(env, nodes, txn, place).create()?;
        let place = MetadataPart::MetadataCounts;
        next.metadata_space_map.ref_count_root =
            Editor::<RefCount>::new(env, nodes, txn, place).create()?;
        Ok(())
    }
}

/// See [`Working::state`].
fn state_of(superblock: &Superblock) -> u64 {
    let mut unmarked = superblock.clone();
    unmarked.set_needs_check(false);
    crc64(&unmarked.encode(MetadataBlock::SUPERBLOCK))
}

fn superblock(data_block_size: DataBlockSize, metadata_blocks: u64) -> Superblock {
    let none = MetadataBlock::SUPERBLOCK;
    let metadata_space_map = SpaceMapRoot { blocks: metadata_blocks, ..SpaceMapRoot::EMPTY };
    Superblock {
        flags: 0,
        uuid: [0; 16],
        version: VERSION,
        time: 0,
        transaction_id: 0,
        held_root: None,
        data_space_map: SpaceMapRoot::EMPTY,
        metadata_space_map,
        mapping_root: none,
        details_root: none,
        data_block_size,
        metadata_blocks_at_format: metadata_blocks,
        compat_flags: 0,
        compat_ro_flags: 0,
    }
}
