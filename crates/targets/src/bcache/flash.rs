//! Volumes that lie in the cache alone: making one in an open set, and taking it away again.
//!
//! The messages are sent to any served volume of the set: `flash_vol_create BYTES`, as the kernel's
//! attribute of that name, answers the UUID of the new volume once the array of the set has it,
//! durably (`set::uuids`). `flash_vol_remove UUID` takes away one that nothing was written to, so
//! that a verb which cannot serve the new volume leaves no trace but a number that is used up.
//!
//! A power cut leaves the array with the volume, or without it.

use cairn_block::{Env, MessageError, SECTOR_BYTES};
use cairn_format::bcache::Uuid;
use cairn_format::bcache::uuids::UuidEntry;

use super::set::{Core, Entered};
use super::volume::Bcache;

/// The largest volume: the ends of its extents are numbers of 63 bits, in bytes too.
const SECTORS_MAX: u64 = (i64::MAX as u64) / SECTOR_BYTES;

fn failed(text: String) -> MessageError {
    MessageError::Failed(text)
}

impl Bcache {
    /// The core of a set that may be written. The caller takes the handover before it asks whether
    /// the volume serves the set, so that the last volume does not leave it in between.
    fn core_to_change(&self, message: &str) -> Result<&Core, MessageError> {
        let Some(core) = &self.core else {
            return Err(failed(format!("{message}: found a volume without a cache, expected one")));
        };
        if self.read_only {
            return Err(failed(format!("{message}: the volume is open read-only")));
        }
        Ok(core)
    }

    /// Refuses a volume that is suspended: another program may change the set then.
    fn refuse_suspended(&self, core: &Core, message: &str) -> Result<(), MessageError> {
        match core.users().serves(self.inode()) {
            Some(_) => Ok(()),
            None => Err(MessageError::Busy(format!("{message}: the volume is suspended"))),
        }
    }

    /// Makes a volume of so many bytes, durably. Answers its UUID.
    ///
    /// # Errors
    /// The size is wrong, or the set has no place for it or cannot be written.
    pub(super) async fn create_flash(&self, env: &Env, word: &str) -> Result<String, MessageError> {
        const MESSAGE: &str = "flash_vol_create";
        let core = self.core_to_change(MESSAGE)?;
        let _handover = core.handover().await;
        self.refuse_suspended(core, MESSAGE)?;
        let block = core.with(|set| set.superblock.geometry().block_bytes()) as u64;
        let bytes = word.parse::<u64>().ok().filter(|bytes| bytes.is_multiple_of(block));
        let sectors = bytes.map(|bytes| bytes / SECTOR_BYTES);
        let Some(sectors) = sectors.filter(|sectors| (1..=SECTORS_MAX).contains(sectors)) else {
            let expected = format!("a multiple of {block} bytes, above 0 and below 2^63");
            let text = format!("{MESSAGE}: found '{word}', expected {expected}");
            return Err(MessageError::Invalid(text));
        };
        let random = || 1 + env.random_below(u64::MAX - 1);
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&random().to_le_bytes());
        uuid[8..].copy_from_slice(&random().to_le_bytes());
        let now_s = env.unix_time().as_secs() as u32;
        let entry = UuidEntry::flash_only(Uuid(uuid), sectors, now_s);
        let entered = core.change(env, async |session| session.enter_volume(entry).await).await;
        match entered {
            Ok(Entered::At(_)) => Ok(entry.uuid.to_string()),
            Ok(refused) => Err(failed(format!("{MESSAGE}: {}", refused.text()))),
            Err(error) => Err(failed(format!("{MESSAGE}: {error}"))),
        }
    }

    /// Takes a volume away that nothing was written to, and that is not served.
    ///
    /// # Errors
    /// There is none, or the set cannot be written.
    pub(super) async fn remove_flash(&self, env: &Env, word: &str) -> Result<String, MessageError> {
        const MESSAGE: &str = "flash_vol_remove";
        let core = self.core_to_change(MESSAGE)?;
        let _handover = core.handover().await;
        self.refuse_suspended(core, MESSAGE)?;
        let of_word = word.parse::<Uuid>().ok();
        let found = core.with(|set| {
            let (inode, entry) = set.volume(of_word?)?;
            entry.is_flash_only().then_some((entry.uuid, inode))
        });
        let is_used = match found {
            Some((_, inode)) => core.has_extents(env, inode).await,
            None => Ok(false),
        };
        let is_used = is_used.map_err(|error| failed(format!("{MESSAGE}: {error}")))?;
        let found = found.filter(|_| !is_used);
        let unserved = found.filter(|(_, inode)| core.users().serves(*inode).is_none());
        let Some((uuid, _)) = unserved else {
            let expected = "a volume without a backing device, without data, that is not served";
            let text = format!("{MESSAGE}: found '{word}', expected {expected}");
            return Err(MessageError::Invalid(text));
        };
        let now_s = env.unix_time().as_secs() as u32;
        let forget =
            async |session: &super::set::Session<'_>| session.forget_volume(uuid, now_s).await;
        match core.change(env, forget).await {
            Ok(true) => Ok(String::new()),
            Ok(false) => Err(failed(format!("{MESSAGE}: {}", Entered::NoBucket.text()))),
            Err(error) => Err(failed(format!("{MESSAGE}: {error}"))),
        }
    }
}
