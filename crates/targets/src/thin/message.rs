//! The messages of a pool: they create and delete volumes, one message at a time, and every effect
//! of a message is durable when it is answered. The mapped device suspends and resumes the pool
//! before or after a message; a message may also close the pool and open it again. A suspended pool
//! handles messages too, as the kernel's does. It stays closed, and no task of it runs once the
//! message is answered.

use std::sync::Arc;

use cairn_block::sync::atomic::Ordering;
use cairn_block::{Env, MessageError};
use cairn_format::thin::DeviceId;

use super::config::DetectZeroes;
use super::metadata::MetadataError;
use super::pool::{Mode, Pool};
use super::stock::Purpose;
use super::volume::Volume;
use crate::persistent::Error;

/// The messages.
pub const MESSAGES: &[&str] = &[
    "create_thin",
    "create_snap",
    "delete",
    "set_transaction_id",
    "reserve_metadata_snap",
    "release_metadata_snap",
    "detect_zeroes",
];

/// A parsed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    CreateThin(DeviceId),
    CreateSnap { id: DeviceId, origin: DeviceId },
    Delete(DeviceId),
    SetTransactionId { old: u64, new: u64 },
    ReserveSnap,
    ReleaseSnap,
    Detect(DetectZeroes),
}

fn invalid(text: String) -> MessageError {
    MessageError::Invalid(format!("{text} (EINVAL)"))
}

fn number(field: &str, word: &str, most: u64) -> Result<u64, MessageError> {
    let parsed = word.parse().ok().filter(|number| *number <= most);
    parsed.ok_or_else(|| {
        let expected = if most == u64::MAX { String::new() } else { format!(" from 0 to {most}") };
        invalid(format!("{field}: found '{word}', expected a number{expected}"))
    })
}

fn device(field: &str, word: &str) -> Result<DeviceId, MessageError> {
    let id = number(field, word, DeviceId::MAX.key())?;
    Ok(DeviceId::new(id).expect("below its maximum"))
}

impl Act {
    fn parse(words: &[&str]) -> Result<Act, MessageError> {
        let lower: Vec<String> = words.iter().map(|word| word.to_ascii_lowercase()).collect();
        let lower: Vec<&str> = lower.iter().map(String::as_str).collect();
        match lower.as_slice() {
            ["create_thin", id] => Ok(Act::CreateThin(device("id", id)?)),
            ["create_snap", id, origin] => {
                Ok(Act::CreateSnap { id: device("id", id)?, origin: device("origin", origin)? })
            }
            ["delete", id] => Ok(Act::Delete(device("id", id)?)),
            ["set_transaction_id", old, new] => Ok(Act::SetTransactionId {
                old: number("old transaction id", old, u64::MAX)?,
                new: number("new transaction id", new, u64::MAX)?,
            }),
            ["reserve_metadata_snap"] => Ok(Act::ReserveSnap),
            ["release_metadata_snap"] => Ok(Act::ReleaseSnap),
            ["detect_zeroes", mode] => {
                let known = DetectZeroes::of_word(mode).map(Act::Detect);
                let wrong = || invalid(format!("mode: found '{mode}', expected off or unmap"));
                known.ok_or_else(wrong)
            }
            [word, rest @ ..] if MESSAGES.contains(word) => {
                Err(invalid(format!("{word}: found {} words after it", rest.len())))
            }
            _ => {
                let expected = MESSAGES.join(", ");
                let found = words.join(" ");
                Err(invalid(format!("message: found '{found}', expected one of {expected}")))
            }
        }
    }

    /// How much metadata it may leave.
    fn purpose(self) -> Purpose {
        match self {
            Act::CreateThin(_) | Act::CreateSnap { .. } | Act::ReserveSnap => Purpose::Provide,
            Act::Delete(_) | Act::ReleaseSnap | Act::SetTransactionId { .. } | Act::Detect(_) => {
                Purpose::Delete
            }
        }
    }
}

/// The answer of a table that has never served its pool.
pub(super) fn not_serving(words: &[&str]) -> MessageError {
    MessageError::Busy(format!("{}: the table of the pool is not live", words.join(" ")))
}

/// The store's refusal, with the errno that the kernel gives.
fn refused(error: &MetadataError) -> MessageError {
    if let MetadataError::InUse(_) | MetadataError::Metadata(Error::Held(_)) = error {
        return MessageError::Busy(format!("{error} (EBUSY)"));
    }
    let errno = match error {
        MetadataError::Metadata(Error::NoDevice(_)) => "ENODATA",
        MetadataError::Metadata(Error::DeviceExists(_)) => "EEXIST",
        MetadataError::Metadata(Error::NotHeld | Error::TimeExhausted(_)) => "EINVAL",
        MetadataError::Metadata(Error::NoMetadataSpace) => "ENOSPC",
        MetadataError::TransactionId { .. } => "EINVAL",
        _ => "EIO",
    };
    MessageError::Failed(format!("{error} ({errno})"))
}

impl Pool {
    /// Acts on a message.
    pub async fn act_on_message(&self, env: &Env, words: &[&str]) -> Result<String, MessageError> {
        let act = Act::parse(words)?;
        let _verb = self.verb_lock.lock().await;
        let suspended = self.is_closed();
        let answer = self.act_in_turn(env, act, words).await;
        if suspended {
            self.tasks.idle().await;
        }
        answer
    }

    async fn act_in_turn(
        &self,
        env: &Env,
        act: Act,
        words: &[&str],
    ) -> Result<String, MessageError> {
        if let Act::Detect(mode) = act {
            self.set_detect(mode);
            return Ok(String::new());
        }
        if !self.mode().is_writable() {
            let text = format!("{}: the pool is read-only (EOPNOTSUPP)", words.join(" "));
            return Err(MessageError::Failed(text));
        }
        if self.mode() == Mode::OutOfMetadata && act.purpose() == Purpose::Provide {
            return Err(refused(&MetadataError::Metadata(Error::NoMetadataSpace)));
        }
        let lost = |_| MessageError::Failed("the commit failed; see the log (EIO)".to_owned());
        self.commit(env).await.map_err(lost)?;
        if matches!(act, Act::CreateSnap { .. } | Act::ReserveSnap) {
            self.begin_sharing(env).await.map_err(|error| refused(&error))?;
        }
        let granted = self.room_for(env, act.purpose()).await;
        let cost = granted.map_err(|error| refused(&error))?;
        let done = self.act(env, act).await;
        self.metadata.unreserve(cost);
        self.metadata_came();
        if let Err(error) = &done {
            self.recover_from(env, error).await;
        }
        done.map_err(|error| refused(&error))?;
        Ok(String::new())
    }

    async fn act(&self, env: &Env, act: Act) -> Result<(), MetadataError> {
        match act {
            Act::CreateThin(id) => {
                self.metadata.working().await.create_device(env, id)?;
            }
            Act::CreateSnap { id, origin } => return self.create_snap(env, id, origin).await,
            Act::Delete(id) => {
                if self.is_used(id) {
                    return Err(MetadataError::InUse(id));
                }
                self.metadata.working().await.delete_device(env, id).await?;
            }
            Act::SetTransactionId { old, new } => {
                let mut working = self.metadata.working().await;
                let found = working.transaction_id();
                if found != old {
                    return Err(MetadataError::TransactionId { found, expected: old });
                }
                working.set_transaction_id(new)?;
            }
            Act::ReserveSnap => self.metadata.working().await.reserve_metadata_snap()?,
            Act::ReleaseSnap => self.metadata.working().await.release_metadata_snap(env).await?,
            Act::Detect(_) => unreachable!("done before"),
        }
        self.commit_act(env).await
    }

    /// Before metadata is shared for the first time: changes cost more from then on, so that none
    /// may be under way that was granted for less.
    async fn begin_sharing(&self, env: &Env) -> Result<(), MetadataError> {
        if self.metadata.facts().shares() || self.prices_sharing() {
            return Ok(());
        }
        let suspended = self.is_closed();
        self.close().await;
        let committed = self.commit_act(env).await;
        if committed.is_ok() {
            self.price(true);
        }
        if !suspended {
            self.open(env);
        }
        committed
    }

    /// Reserves metadata for a message. The reservations of writes in flight return with a commit,
    /// and after it no more will come: until then no other change gets a reservation.
    async fn room_for(&self, env: &Env, purpose: Purpose) -> Result<u64, MetadataError> {
        if let Some(cost) = self.room.for_message(&self.metadata, purpose) {
            return Ok(cost);
        }
        let suspended = self.is_closed();
        self.close().await;
        let committed = self.commit_act(env).await;
        let cost = committed.map(|()| {
            self.stocks.empty(&self.room, &self.metadata);
            self.room.for_message(&self.metadata, purpose)
        });
        if !suspended {
            self.open(env);
        }
        cost?.ok_or(MetadataError::Metadata(Error::NoMetadataSpace))
    }

    async fn commit_act(&self, env: &Env) -> Result<(), MetadataError> {
        self.commit(env).await.map_err(MetadataError::Commit)
    }

    fn is_used(&self, id: DeviceId) -> bool {
        self.volumes.lock().get(&id).is_some_and(|volume| volume.is_used())
    }

    /// A snapshot of one moment: requests to the origin wait during it, so that every write that
    /// was mapped before is in it, and has ended.
    async fn create_snap(
        &self,
        env: &Env,
        id: DeviceId,
        origin: DeviceId,
    ) -> Result<(), MetadataError> {
        let volume = self.volumes.lock().get(&origin).cloned();
        let Some(volume) = volume else {
            return self.snapshot(env, id, origin, None).await;
        };
        volume.close_gate();
        self.epochs.quiesce(0).await;
        let done = match self.commit_act(env).await {
            Ok(()) => self.snapshot(env, id, origin, Some(&volume)).await,
            Err(error) => Err(error),
        };
        volume.open_gate();
        self.let_in(env);
        done
    }

    async fn snapshot(
        &self,
        env: &Env,
        id: DeviceId,
        origin: DeviceId,
        volume: Option<&Arc<Volume>>,
    ) -> Result<(), MetadataError> {
        {
            let mut working = self.metadata.working().await;
            working.create_snapshot(origin, id)?;
            let time = working.time();
            // Before any request sees the snapshot: blocks mapped from now on are not in it.
            self.time.store(time, Ordering::Release);
            if let Some(volume) = volume {
                volume.set_snapshotted(time);
            }
        }
        self.commit_act(env).await
    }

    /// After an error half way through a change only the durable state helps.
    async fn recover_from(&self, env: &Env, error: &MetadataError) {
        if self.metadata.working().await.is_broken() {
            self.roll_back(env, error).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Act, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        Act::parse(&words).map_err(|error| error.to_string())
    }

    #[test]
    fn messages_parse_as_in_the_kernel() {
        let id = |id| DeviceId::new(id).unwrap();
        for (line, act) in [
            ("create_thin 0", Act::CreateThin(id(0))),
            ("CREATE_SNAP 1 0", Act::CreateSnap { id: id(1), origin: id(0) }),
            ("delete 16777215", Act::Delete(id(16_777_215))),
            ("set_transaction_id 0 7", Act::SetTransactionId { old: 0, new: 7 }),
            ("reserve_metadata_snap", Act::ReserveSnap),
            ("release_metadata_snap", Act::ReleaseSnap),
            ("detect_zeroes unmap", Act::Detect(DetectZeroes::Unmap)),
        ] {
            assert_eq!(parse(line).unwrap(), act);
        }
        for (line, part) in [
            ("create_thin", "create_thin: found 0 words after it"),
            ("create_thin 16777216", "id: found '16777216', expected a number from 0 to 16777215"),
            ("create_snap 1", "create_snap: found 1 words"),
            ("create_snap 1 x", "origin: found 'x'"),
            ("set_transaction_id 0 -1", "new transaction id: found '-1', expected a number"),
            ("detect_zeroes on", "mode: found 'on', expected off or unmap"),
            ("reserve_metadata_snap 1", "found 1 words after it"),
            ("trim 0", "message: found 'trim 0', expected one of create_thin"),
            ("", "message: found ''"),
        ] {
            let error = parse(line).expect_err(line);
            assert!(error.contains(part) && error.contains("EINVAL"), "{line}: {error}");
        }
    }
}
