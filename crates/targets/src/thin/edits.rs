//! Edits: the changes of a pool that no client's write makes. Verbs call them as typed functions of
//! [`ThinPool`], and messages are parsed to them. Volumes are created and deleted, the transaction
//! id is set, the metadata snapshot is reserved and released.
//!
//! X1. One edit is made at a time: its caller holds the pool's `verb_lock` until it is answered.
//! X2. An edit is made by one commit, with the changes of writes that the commit takes and with the
//!     transaction id that the edit raises. It is durable when it is answered, or the answer is an
//!     error.
//! X3. An edit with a plan is made only if the pool has the counters of the plan: the caller has
//!     recorded them. So the record names this device, and after the edit has raised the
//!     transaction id no other device gets the same counters.
//! X4. A snapshot contains every write that its origin completed before, and none that is mapped
//!     after it (T5).
//!
//! # The steps of a snapshot, and what a crash between them leaves
//! 1. A commit, with the gate open: step 3 will find little to flush and to write. *Crash*: the
//!    state before the edit, with more of the writes.
//! 2. The gate of the origin closes, and the requests in flight to the pool end. *Crash*: as
//!    before.
//! 3. One commit: flush the data device, apply the frozen changes, make the edit, raise the
//!    transaction id, write the superblock. *Crash* before the superblock is durable: no snapshot,
//!    and the old transaction id; after it: the snapshot, and the new one.
//! 4. The gate opens, and the edit is answered. *Crash*: the snapshot.
//!
//! The data device is flushed twice, once with the gate shut. The other edits are step 3 alone;
//! a deletion is preceded by a commit if the volume has changes that are not durable, because the
//! store cannot free what it never saw mapped.
//!
//! The mapped device orders edits with suspend and resume of the pool. An edit may close the pool
//! and open it again. A suspended pool is edited too, as the kernel's is. It stays closed, and no
//! task of it runs once the edit is answered.

use std::sync::Arc;

use cairn_block::sync::atomic::Ordering;
use cairn_block::{Env, MessageError};
use cairn_format::thin::DeviceId;

use super::inspect::{ThinDevice, device_id};
use super::message::{not_serving, refused};
use super::metadata::MetadataError;
use super::pool::{Mode, Pool};
use super::recover::ThinPool;
use super::stock::Purpose;
use super::volume::Volume;
use crate::persistent::{Error, Working};

/// A change of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Edit {
    CreateThin(DeviceId),
    CreateSnapshot { id: DeviceId, origin: DeviceId },
    Delete(DeviceId),
    SetTransactionId { old: u64, new: u64 },
    ReserveMetadataSnapshot,
    ReleaseMetadataSnapshot,
}

impl Edit {
    /// How much metadata it may leave.
    fn purpose(self) -> Purpose {
        match self {
            Edit::CreateThin(_) | Edit::CreateSnapshot { .. } | Edit::ReserveMetadataSnapshot => {
                Purpose::Provide
            }
            Edit::Delete(_) | Edit::ReleaseMetadataSnapshot | Edit::SetTransactionId { .. } => {
                Purpose::Delete
            }
        }
    }

    /// True if metadata may be shared after it.
    fn shares(self) -> bool {
        matches!(self, Edit::CreateSnapshot { .. } | Edit::ReserveMetadataSnapshot)
    }

    /// True if its commit makes it before the changes of writes: a metadata snapshot is of the
    /// durable state. Other edits come after them: a volume's snapshot contains them (X4).
    pub fn precedes_changes(self) -> bool {
        matches!(self, Edit::ReserveMetadataSnapshot | Edit::ReleaseMetadataSnapshot)
    }
}

/// What the caller of an edit knows of the pool, and has recorded: the counters that the new device
/// gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The pool's transaction id.
    pub transaction_id: u64,
    /// How many snapshots the pool has made.
    pub time: u32,
    /// Raises the transaction id in the same commit, so that no later device has the same.
    pub raises: bool,
}

/// An edit for the next commit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    pub edit: Edit,
    pub plan: Option<Plan>,
}

impl ThinPool {
    /// Creates an empty device.
    ///
    /// # Errors
    /// There is one of this id; or the pool's counters are not those of the plan; or the pool takes
    /// no changes, or fails. Then there is no new device.
    pub async fn create_thin(
        &self,
        env: &Env,
        id: u32,
        plan: Plan,
    ) -> Result<ThinDevice, MessageError> {
        self.create(env, id, plan, Edit::CreateThin).await
    }

    /// Creates a snapshot of the device `origin` (X4).
    ///
    /// # Errors
    /// As for [`ThinPool::create_thin`]; or there is no such origin.
    pub async fn create_snapshot(
        &self,
        env: &Env,
        id: u32,
        origin: u32,
        plan: Plan,
    ) -> Result<ThinDevice, MessageError> {
        let origin = device_id(origin).map_err(|error| refused(&error))?;
        self.create(env, id, plan, |id| Edit::CreateSnapshot { id, origin }).await
    }

    /// Deletes a device.
    ///
    /// # Errors
    /// There is none of this id, or a table uses it; or the pool takes no changes, or fails.
    pub async fn delete(&self, env: &Env, id: u32) -> Result<(), MessageError> {
        let pool = self.pool().ok_or_else(|| not_serving(&["delete"]))?;
        let delete = async { pool.edit(env, Edit::Delete(device_id(id)?).into()).await };
        delete.await.map_err(|error| refused(&error))
    }

    async fn create(
        &self,
        env: &Env,
        id: u32,
        plan: Plan,
        edit: impl FnOnce(DeviceId) -> Edit,
    ) -> Result<ThinDevice, MessageError> {
        let pool = self.pool().ok_or_else(|| not_serving(&["create"]))?;
        let create = async {
            let id = device_id(id)?;
            pool.edit(env, Order { edit: edit(id), plan: Some(plan) }).await?;
            Ok(ThinDevice::of(id, pool.metadata.details(id)?))
        };
        create.await.map_err(|error: MetadataError| refused(&error))
    }
}

impl From<Edit> for Order {
    fn from(edit: Edit) -> Order {
        Order { edit, plan: None }
    }
}

impl Pool {
    /// Makes an edit; it is durable when this returns (X2).
    pub async fn edit(&self, env: &Env, order: Order) -> Result<(), MetadataError> {
        let _verb = self.verb_lock.lock().await;
        let suspended = self.is_closed();
        let edited = self.edit_in_turn(env, order).await;
        if suspended {
            self.tasks.idle().await;
        }
        edited
    }

    async fn edit_in_turn(&self, env: &Env, order: Order) -> Result<(), MetadataError> {
        let edit = order.edit;
        self.refuse_edit(edit)?;
        self.prepare(env, edit).await?;
        let cost = self.room_for(env, edit.purpose()).await?;
        let origin = match edit {
            Edit::CreateSnapshot { origin, .. } => self.open_volume_of(origin),
            _ => None,
        };
        let edited = match origin {
            Some(origin) => self.commit_behind_gate(env, order, &origin).await,
            None => self.commit_edit(env, order).await,
        };
        self.metadata.unreserve(cost);
        self.metadata_came();
        edited
    }

    fn refuse_edit(&self, edit: Edit) -> Result<(), MetadataError> {
        if !self.mode().is_writable() {
            return Err(MetadataError::NotWritable);
        }
        if self.mode() == Mode::OutOfMetadata && edit.purpose() == Purpose::Provide {
            return Err(Error::NoMetadataSpace.into());
        }
        match edit {
            Edit::Delete(id) if self.open_volume_of(id).is_some_and(|volume| volume.is_used()) => {
                Err(MetadataError::InUse(id))
            }
            _ => Ok(()),
        }
    }

    fn open_volume_of(&self, id: DeviceId) -> Option<Arc<Volume>> {
        self.volumes.lock().get(&id).cloned()
    }

    /// Step 1: the commit that an edit needs before its own.
    async fn prepare(&self, env: &Env, edit: Edit) -> Result<(), MetadataError> {
        if edit.shares() && self.begin_sharing(env).await? {
            return Ok(());
        }
        let is_due = match edit {
            Edit::CreateThin(_) | Edit::SetTransactionId { .. } | Edit::ReleaseMetadataSnapshot => {
                false
            }
            Edit::CreateSnapshot { origin, .. } => self.open_volume_of(origin).is_some(),
            Edit::Delete(id) => self.open_volume_of(id).is_some_and(|volume| volume.is_changed()),
            Edit::ReserveMetadataSnapshot => true,
        };
        if is_due { self.commit_now(env).await } else { Ok(()) }
    }

    /// Before metadata is shared for the first time: changes cost more from then on, so that none
    /// may be under way that was granted for less. True if this took a commit.
    async fn begin_sharing(&self, env: &Env) -> Result<bool, MetadataError> {
        if self.metadata.facts().shares() || self.prices_sharing() {
            return Ok(false);
        }
        let suspended = self.is_closed();
        self.close().await;
        let committed = self.commit_now(env).await;
        if committed.is_ok() {
            self.price(true);
        }
        if !suspended {
            self.open(env);
        }
        committed.map(|()| true)
    }

    /// Reserves metadata for an edit. The reservations of writes in flight return with a commit,
    /// and after it no more will come: until then no other change gets a reservation.
    async fn room_for(&self, env: &Env, purpose: Purpose) -> Result<u64, MetadataError> {
        if let Some(cost) = self.room.for_message(&self.metadata, purpose) {
            return Ok(cost);
        }
        let suspended = self.is_closed();
        self.close().await;
        let committed = self.commit_now(env).await;
        let cost = committed.map(|()| {
            self.stocks.empty(&self.room, &self.metadata);
            self.room.for_message(&self.metadata, purpose)
        });
        if !suspended {
            self.open(env);
        }
        cost?.ok_or(MetadataError::Metadata(Error::NoMetadataSpace))
    }

    async fn commit_now(&self, env: &Env) -> Result<(), MetadataError> {
        self.commit(env).await.map_err(MetadataError::Commit)
    }

    /// Steps 2 to 4 (X4): requests to the origin wait, so that every write that was mapped before
    /// is in the snapshot, and has ended.
    async fn commit_behind_gate(
        &self,
        env: &Env,
        order: Order,
        origin: &Volume,
    ) -> Result<(), MetadataError> {
        origin.close_gate();
        self.epochs.quiesce(0).await;
        let edited = self.commit_edit(env, order).await;
        origin.open_gate();
        self.let_in(env);
        edited
    }

    /// Inside a commit: makes its edit, if there is one. A refused edit has changed nothing, and
    /// the commit goes on without it.
    ///
    /// # Errors
    /// The edit failed half way, so that only the durable state helps.
    pub async fn make_edit(
        &self,
        env: &Env,
        working: &mut Working,
        order: Option<Order>,
    ) -> Result<Option<Result<(), MetadataError>>, MetadataError> {
        let Some(order) = order else { return Ok(None) };
        match self.change_metadata(env, working, order).await {
            Err(error) if working.is_broken() => Err(error),
            edited => Ok(Some(edited)),
        }
    }

    async fn change_metadata(
        &self,
        env: &Env,
        working: &mut Working,
        Order { edit, plan }: Order,
    ) -> Result<(), MetadataError> {
        if let Some(plan) = plan {
            let (found, expected) =
                ((working.transaction_id(), working.time()), (plan.transaction_id, plan.time));
            if found != expected {
                return Err(MetadataError::Planned { found, expected });
            }
        }
        match edit {
            Edit::CreateThin(id) => working.create_device(env, id)?,
            Edit::CreateSnapshot { id, origin } => {
                working.create_snapshot(origin, id)?;
                let time = working.time();
                // Before any request sees the snapshot: blocks mapped from now on are not in it.
                self.time.store(time, Ordering::Release);
                if let Some(volume) = self.open_volume_of(origin) {
                    volume.set_snapshotted(time);
                }
            }
            Edit::Delete(id) => working.delete_device(env, id).await?,
            Edit::SetTransactionId { old, new } => {
                let found = working.transaction_id();
                if found != old {
                    return Err(MetadataError::TransactionId { found, expected: old });
                }
                working.set_transaction_id(new)?;
            }
            Edit::ReserveMetadataSnapshot => working.reserve_metadata_snap()?,
            Edit::ReleaseMetadataSnapshot => working.release_metadata_snap(env).await?,
        }
        if let Some(plan) = plan.filter(|plan| plan.raises) {
            // The same guards let the creation pass.
            working.set_transaction_id(plan.transaction_id.saturating_add(1))?;
        }
        Ok(())
    }
}
