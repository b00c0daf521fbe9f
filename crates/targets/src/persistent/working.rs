//! [`Working`]: the right to change the metadata, held by one owner at a time.
//!
//! All methods change memory only (and read the device). [`commit`](Working::commit) makes the
//! changes durable, [`abort`](Working::abort) drops them. Changed devices are kept in a list and
//! are entered in the top-level and the details tree by the commit, in one batch.
//!
//! W1. After an error inside a change the transaction is incomplete: every further call except
//!     `abort` is refused.
//! W2. While a metadata snapshot is held, the top-level leaf with a device's root is fresh before
//!     that root is shadowed or deleted. Otherwise the snapshot's pointer to the root would not be
//!     counted when it must be.
//! W3. Metadata that was opened read-only may be in the drive's cache only, and blocks that are
//!     free in it may be in use by the durable state. Changes are refused until it was flushed.
//! W4. `most_mapped` is a bound of the blocks that any device maps, and the time counter never
//! falls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cairn_block::sync::atomic::Ordering;
use cairn_block::{Env, mutants};
use cairn_format::thin::{
    BITMAP_ENTRIES, Bitmap, Block, DeviceDetails, DeviceId, METADATA_BLOCKS_MAX, Mapping,
    MetadataBlock, Superblock, TIME_MAX,
};

use super::allocator::DataRun;
use super::cost;
use super::edit::Editor;
use super::error::{Error, MetadataPart};
use super::load::load;
use super::nodes::Bounds;
use super::store::{Device, Store, read_existing};
use super::transaction::{Transaction, outside};

/// The state that the next commit makes durable.
pub struct Working {
    pub(super) store: Arc<Store>,
    /// The superblock on the device.
    pub(super) durable: Superblock,
    /// The superblock that the next commit writes.
    pub(super) next: Superblock,
    pub(super) txn: Transaction,
    pub(super) devices: BTreeMap<DeviceId, Device>,
    /// An upper bound of the blocks mapped by any device since the state was loaded. A bound, so
    /// that no change costs more where there are many devices.
    most_mapped: u64,
    /// Devices that differ from the durable state, including new and deleted ones.
    pub(super) changed: BTreeSet<DeviceId>,
    /// The held copy of the superblock, to be written by the next commit.
    pub(super) held: Option<(MetadataBlock, Box<Block>)>,
    /// The superblock is marked in memory, but not on the device.
    pub(super) mark_due: bool,
    /// Blocks that the last commit wrote, without the superblock.
    pub(super) written: u64,
    /// W1.
    pub(super) broken: bool,
    /// The metadata on the device may not be durable. No change is allowed until it is opened
    /// again.
    unsure: bool,
    /// A crash may leave another superblock than the one that was read (see `commit`).
    pub(super) doubtful: bool,
    /// W3.
    pub(super) unflushed: bool,
}

impl Working {
    /// Reads the state that a superblock leads to.
    pub(super) async fn load(
        env: &Env,
        store: Arc<Store>,
        superblock: Superblock,
    ) -> Result<Working, Error> {
        let loaded = load(env, &store.nodes, &superblock).await?;
        let working = Working::fresh(store, superblock, loaded.txn);
        let mapped = loaded.devices.values().map(|device| device.details.mapped_blocks);
        let most_mapped = mapped.max().unwrap_or(0);
        Ok(Working { devices: loaded.devices, most_mapped, ..working })
    }

    /// A state without devices.
    pub(super) fn fresh(store: Arc<Store>, superblock: Superblock, txn: Transaction) -> Working {
        Working {
            store,
            durable: superblock.clone(),
            next: superblock,
            txn,
            devices: BTreeMap::new(),
            most_mapped: 0,
            changed: BTreeSet::new(),
            held: None,
            mark_due: false,
            written: 0,
            broken: false,
            unsure: false,
            doubtful: false,
            unflushed: false,
        }
    }

    /// The sizes of both maps.
    pub(super) fn bounds(&self) -> Bounds {
        self.txn.bounds()
    }

    /// Data blocks with a count of zero.
    pub(super) fn free_data(&self) -> impl Iterator<Item = DataRun> + '_ {
        let pages = self.txn.data.pages().iter().zip(0..);
        pages.flat_map(|(page, number)| {
            let first = number * BITMAP_ENTRIES;
            let len = BITMAP_ENTRIES.min(self.txn.data.blocks() - first) as usize;
            let bitmap = Bitmap::cached(&page.bits);
            let mut at = 0;
            std::iter::from_fn(move || {
                let start = bitmap.find_free(at..len)?;
                at = (start..len).find(|&index| bitmap.get(index) != 0).unwrap_or(len);
                Some(DataRun::new(first + start as u64, (at - start) as u64))
            })
        })
    }

    /// Updates the shared account of used and free blocks.
    pub(super) fn settle_account(&self) {
        let (account, txn) = (&self.store.account, &self.txn);
        account.total.store(txn.metadata.blocks(), Ordering::Release);
        account.free.store(txn.free(), Ordering::Release);
        account.data_used.store(txn.data.allocated(), Ordering::Release);
        account.height.store(cost::height(self.most_mapped), Ordering::Release);
        account.overhead.store(cost::overhead(txn, self.devices.len() as u64), Ordering::Release);
    }

    // What there is.

    /// The store that this is the working state of.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// A device, as changed so far.
    pub fn device(&self, device: DeviceId) -> Option<Device> {
        self.devices.get(&device).copied()
    }

    /// Every device, as changed so far, by id.
    pub fn devices(&self) -> impl Iterator<Item = (DeviceId, Device)> + '_ {
        self.devices.iter().map(|(id, device)| (*id, *device))
    }

    /// The snapshot counter: what a mapping inserted now carries.
    pub fn time(&self) -> u32 {
        self.next.time
    }

    /// The user's transaction id.
    pub fn transaction_id(&self) -> u64 {
        self.next.transaction_id
    }

    /// The metadata snapshot, if one is held.
    pub fn held_root(&self) -> Option<MetadataBlock> {
        self.next.held_root
    }

    /// True if the superblock forbids changes until the metadata was checked.
    pub fn needs_check(&self) -> bool {
        self.next.needs_check()
    }

    /// Blocks of the data map.
    pub fn data_blocks(&self) -> u64 {
        self.txn.data.blocks()
    }

    /// Blocks of the metadata map.
    pub fn metadata_blocks(&self) -> u64 {
        self.txn.metadata.blocks()
    }

    /// How many mappings lead to a data block; `None` beyond the end of the map. The mappings of
    /// devices that share a leaf count once.
    pub fn data_count(&self, block: cairn_format::thin::DataBlock) -> Option<u32> {
        self.txn.data.get(block.0)
    }

    /// True if a commit would write something.
    pub fn is_changed(&self) -> bool {
        let maps = self.txn.metadata.is_unchanged() && self.txn.data.is_unchanged();
        self.next != self.durable || !self.changed.is_empty() || !maps
    }

    /// Metadata blocks that the last commit wrote, without the superblock.
    pub fn blocks_written(&self) -> u64 {
        self.written
    }

    /// Checks what must hold between any two changes.
    pub fn check_state(&self) {
        let known = |id: &DeviceId| self.devices.get(id);
        let most = self.changed.iter().filter_map(known).map(|own| own.details.mapped_blocks).max();
        assert!(most.is_none_or(|most| most <= self.most_mapped), "W4");
        assert!(self.next.time >= self.durable.time, "W4");
        assert!(self.broken || self.changed.is_empty() || !self.unflushed, "W3");
        self.txn.check_state();
    }

    /// True after an error that only an abort ends.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    // Changes.

    /// Allows changes, also if the metadata was opened read-only (W3).
    ///
    /// # Errors
    /// The device failed, or changes are refused for another reason.
    pub async fn allow_changes(&mut self, env: &Env) -> Result<(), Error> {
        if self.unflushed {
            let disk = &self.store.nodes.disk;
            let flush = disk.flush(env, disk.failures());
            let flushed = mutants::step("metadata: flush before the first change", (), flush).await;
            // A later flush that succeeds would prove nothing.
            self.unsure |= flushed.is_err();
            flushed?;
            self.unflushed = false;
            self.make_sure(env).await?;
        }
        self.guard()
    }

    /// Writes the superblock again if a flush of this device failed before. That flush may have
    /// been the one after the superblock that was read, and later changes would depend on it.
    pub(super) async fn make_sure(&mut self, env: &Env) -> Result<(), Error> {
        let name = "metadata: another write of the superblock";
        if mutants::same(name, 0, self.store.nodes.disk.failures())
            || self.durable.refuse_writing().is_err()
        {
            return Ok(());
        }
        let written = self.write_again(env).await;
        self.unsure |= written.is_err();
        written
    }

    /// True if a crash may leave another state than the one that was read.
    pub fn is_doubtful(&self) -> bool {
        self.doubtful
    }

    /// Refuses changes that the state does not allow.
    pub(super) fn guard(&self) -> Result<(), Error> {
        if self.broken || self.unsure {
            return Err(Error::Broken);
        }
        if self.unflushed {
            return Err(Error::ReadOnly);
        }
        if self.durable.needs_check() {
            return Err(Error::NeedsCheck);
        }
        if self.durable.time > TIME_MAX {
            return Err(Error::TimeExhausted(self.durable.time));
        }
        self.durable.refuse_writing().map_err(|error| Error::Unsupported(error.to_string()))
    }

    /// Refuses to read a transaction that an error left incomplete.
    pub(super) fn guard_reading(&self) -> Result<(), Error> {
        if self.broken { Err(Error::Broken) } else { Ok(()) }
    }

    /// W1: an error from here on breaks the transaction.
    fn settle<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        self.broken |= result.is_err();
        self.settle_account();
        result
    }

    fn known(&self, device: DeviceId) -> Result<Device, Error> {
        self.guard()?;
        self.device(device).ok_or(Error::NoDevice(device))
    }

    fn unknown(&self, device: DeviceId) -> Result<(), Error> {
        self.guard()?;
        match self.device(device) {
            Some(_) => Err(Error::DeviceExists(device)),
            None => Ok(()),
        }
    }

    fn put(&mut self, id: DeviceId, device: Device) {
        self.most_mapped = self.most_mapped.max(device.details.mapped_blocks);
        self.devices.insert(id, device);
        self.changed.insert(id);
    }

    /// Creates an empty device.
    ///
    /// # Errors
    /// There is one of this id; or no metadata block is left.
    pub fn create_device(&mut self, env: &Env, device: DeviceId) -> Result<(), Error> {
        self.unknown(device)?;
        let place = MetadataPart::Mappings(device);
        let store = self.store.clone();
        let created = Editor::<Mapping>::new(env, &store.nodes, &mut self.txn, place).create();
        let root = self.settle(created)?;
        let time = self.next.time;
        self.put(device, Device { root, details: self.new_details(0, time) });
        Ok(())
    }

    /// Creates a device with the mappings of another, which must have no writes in flight. Both are
    /// shared from now on: mapped blocks have an older time than `snapshotted_time`.
    ///
    /// # Errors
    /// The origin does not exist, the new id exists, or the time counter is exhausted.
    pub fn create_snapshot(&mut self, origin: DeviceId, new: DeviceId) -> Result<(), Error> {
        self.unknown(new)?;
        let mut from = self.known(origin)?;
        if self.next.time >= TIME_MAX {
            return Err(Error::TimeExhausted(self.next.time));
        }
        let path = outside(MetadataPart::Mappings(origin), from.root);
        let raised = self.txn.raise(&path, from.root);
        self.settle(raised)?;
        self.next.time += 1;
        let time = self.next.time;
        from.details.snapshotted_time = time;
        self.put(origin, from);
        let details = self.new_details(from.details.mapped_blocks, time);
        self.put(new, Device { root: from.root, details });
        Ok(())
    }

    fn new_details(&self, mapped_blocks: u64, time: u32) -> DeviceDetails {
        let transaction_id = self.next.transaction_id;
        DeviceDetails { mapped_blocks, transaction_id, creation_time: time, snapshotted_time: time }
    }

    /// Deletes a device and frees everything that only it used.
    ///
    /// # Errors
    /// There is no such device; or its metadata can't be read or is damaged.
    pub async fn delete_device(&mut self, env: &Env, device: DeviceId) -> Result<(), Error> {
        let own = self.known(device)?;
        let deleted = self.delete_tree(env, device, own.root).await;
        self.settle(deleted)?;
        self.devices.remove(&device);
        self.changed.insert(device);
        Ok(())
    }

    async fn delete_tree(
        &mut self,
        env: &Env,
        device: DeviceId,
        root: MetadataBlock,
    ) -> Result<(), Error> {
        self.unshare_top_level(env, device, root).await?;
        let (place, store) = (MetadataPart::Mappings(device), self.store.clone());
        Editor::<Mapping>::new(env, &store.nodes, &mut self.txn, place).delete(root).await
    }

    /// W2.
    async fn unshare_top_level(
        &mut self,
        env: &Env,
        device: DeviceId,
        root: MetadataBlock,
    ) -> Result<(), Error> {
        if self.next.held_root.is_none() {
            return Ok(());
        }
        let (top, store) = (self.next.mapping_root, self.store.clone());
        let mut editor = Editor::new(env, &store.nodes, &mut self.txn, MetadataPart::TopLevel);
        editor.rewrite = true;
        let put = [(device.key(), Some(root))];
        self.next.mapping_root = editor.edit(top, &put).await?;
        self.changed.insert(device);
        Ok(())
    }

    /// Sets the user's transaction id.
    ///
    /// # Errors
    /// Changes are refused.
    pub fn set_transaction_id(&mut self, id: u64) -> Result<(), Error> {
        self.guard()?;
        self.next.transaction_id = id;
        Ok(())
    }

    /// Inserts, overwrites or (`None`) removes mappings, each leaf once. Virtual blocks strictly
    /// increase. An inserted data block was taken from [`Store::data`] or is mapped already.
    ///
    /// # Panics
    /// Virtual blocks do not increase.
    ///
    /// # Errors
    /// The device does not exist; its metadata can't be read or is damaged; or metadata runs out,
    /// which a reservation prevents. After the last two the transaction must be aborted.
    pub async fn apply(
        &mut self,
        env: &Env,
        device: DeviceId,
        changes: &[(u64, Option<Mapping>)],
    ) -> Result<(), Error> {
        assert!(changes.is_sorted_by(|a, b| a.0 < b.0), "virtual blocks increase");
        self.known(device)?;
        let edited = self.edit(env, device, changes).await;
        self.settle(edited)
    }

    async fn edit(
        &mut self,
        env: &Env,
        id: DeviceId,
        changes: &[(u64, Option<Mapping>)],
    ) -> Result<(), Error> {
        let mut device = self.known(id)?;
        self.unshare_top_level(env, id, device.root).await?;
        let store = self.store.clone();
        let mut editor = Editor::new(env, &store.nodes, &mut self.txn, MetadataPart::Mappings(id));
        let root = editor.edit(device.root, changes).await?;
        let tally = editor.tally;
        let mapped = device.details.mapped_blocks.checked_add(tally.inserted);
        let Some(mapped) = mapped.and_then(|mapped| mapped.checked_sub(tally.removed)) else {
            let path = outside(MetadataPart::Details, self.next.details_root);
            let detail = format!(
                "mapped_blocks of device {id}: found {}, of which {} were removed",
                device.details.mapped_blocks, tally.removed
            );
            return Err(Error::damaged(path, detail));
        };
        if root != device.root || tally != super::edit::Tally::default() {
            device.root = root;
            device.details.mapped_blocks = mapped;
            self.put(id, device);
        }
        Ok(())
    }

    /// Makes the data map longer. The new blocks can be taken after the next commit.
    ///
    /// # Errors
    /// The map is longer already, or would be longer than a mapping can name; or changes are
    /// refused.
    pub fn grow_data(&mut self, blocks: u64) -> Result<(), Error> {
        self.guard()?;
        let (found, most) = (self.txn.data.blocks(), cairn_format::thin::DataBlock::END.0);
        if blocks < found || blocks > most {
            return Err(Error::Geometry(format!(
                "data blocks: found {blocks}, expected {found} or more, up to {most}"
            )));
        }
        self.txn.data.grow(blocks);
        self.next.data_space_map.blocks = blocks;
        self.settle_account();
        Ok(())
    }

    /// Makes the metadata map longer, up to what the format can count.
    ///
    /// # Errors
    /// The map is longer already, or the device shorter; or changes are refused.
    pub fn grow_metadata(&mut self, blocks: u64) -> Result<(), Error> {
        self.guard()?;
        let (found, device) = (self.txn.metadata.blocks(), self.store.nodes.disk.blocks());
        if blocks < found || blocks > device {
            return Err(Error::Geometry(format!(
                "metadata blocks: found {blocks}, expected {found} or more, up to {device}"
            )));
        }
        let blocks = blocks.min(METADATA_BLOCKS_MAX);
        self.txn.grow_metadata(blocks);
        self.next.metadata_space_map.blocks = blocks;
        self.settle_account();
        Ok(())
    }

    /// Takes a metadata snapshot of the durable state. The next commit completes it.
    ///
    /// # Errors
    /// There is one already; or there are changes, which have to be committed before; or no
    /// metadata block is left.
    pub fn reserve_metadata_snap(&mut self) -> Result<(), Error> {
        self.guard()?;
        if let Some(held) = self.next.held_root {
            return Err(Error::Held(held));
        }
        if self.is_changed() {
            return Err(Error::Uncommitted);
        }
        let held = self.hold();
        self.settle(held)
    }

    fn hold(&mut self) -> Result<(), Error> {
        let at = self.txn.allocate()?;
        for (place, root) in [
            (MetadataPart::TopLevel, self.next.mapping_root),
            (MetadataPart::Details, self.next.details_root),
        ] {
            self.txn.raise(&outside(place, root), root)?;
        }
        self.held = Some((at, Box::new(self.durable.held_copy().encode(at))));
        self.next.held_root = Some(at);
        Ok(())
    }

    /// Releases the metadata snapshot.
    ///
    /// # Errors
    /// There is none; or its metadata can't be read or is damaged.
    pub async fn release_metadata_snap(&mut self, env: &Env) -> Result<(), Error> {
        self.guard()?;
        let held = self.next.held_root.ok_or(Error::NotHeld)?;
        if self.txn.is_fresh(held) {
            // It was reserved and not committed yet, so nothing of it is on the device.
            return Err(Error::Uncommitted);
        }
        let released = self.release(env, held).await;
        self.settle(released)
    }

    async fn release(&mut self, env: &Env, held: MetadataBlock) -> Result<(), Error> {
        let store = self.store.clone();
        let path = outside(MetadataPart::Superblock, held);
        self.bounds().check(&path, "held_root", held)?;
        let copy = read_existing(env, &store.nodes.disk, held).await?;
        let nodes = &store.nodes;
        let mut top =
            Editor::<MetadataBlock>::new(env, nodes, &mut self.txn, MetadataPart::TopLevel);
        top.delete(copy.mapping_root).await?;
        for root in std::mem::take(&mut top.orphans) {
            let place = MetadataPart::SomeMappings;
            Editor::<Mapping>::new(env, nodes, &mut self.txn, place).delete(root).await?;
        }
        let mut details =
            Editor::<DeviceDetails>::new(env, nodes, &mut self.txn, MetadataPart::Details);
        details.delete(copy.details_root).await?;
        self.txn.lower(&path, held)?;
        self.next.held_root = None;
        Ok(())
    }

    /// Drops every change since the last commit and reads the state that is on the device. Data
    /// blocks that were taken stay taken until they are put back.
    ///
    /// # Errors
    /// The device failed, or is damaged. Readers keep the state that they had.
    pub async fn abort(&mut self, env: &Env) -> Result<(), Error> {
        self.broken = true;
        let disk = &self.store.nodes.disk;
        let name = "metadata: flush of a commit that failed";
        let flush = || disk.flush(env, disk.failures());
        let unsure = self.unsure || mutants::step(name, (), flush()).await.is_err();
        let doubtful = self.doubtful;
        let superblock =
            read_existing(env, &self.store.nodes.disk, MetadataBlock::SUPERBLOCK).await?;
        let store = self.store.clone();
        // If the failed commit's state is on the device, it uses blocks that were free before, and
        // the cache may have their former content.
        store.nodes.cache.clear();
        *self = Working::load(env, store.clone(), superblock).await?;
        self.unsure = unsure;
        if doubtful && !mutants::skips("metadata: another write after a failed commit") {
            self.unsure |= self.write_again(env).await.is_err();
        }
        store.publish_all(self);
        // A commit that made the map longer may be on the device after all.
        store.extend_data(self.data_blocks());
        Ok(())
    }
}
