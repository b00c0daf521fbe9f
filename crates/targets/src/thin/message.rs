//! The messages of a pool, in the kernel's words. Each is parsed to an edit (`edits`), which is
//! durable when the message is answered; `detect_zeroes` changes memory only.

use cairn_block::{Env, MessageError};
use cairn_format::thin::DeviceId;

use super::config::DetectZeroes;
use super::edits::Edit;
use super::metadata::MetadataError;
use super::pool::Pool;
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
enum Message {
    Edit(Edit),
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

impl Message {
    fn parse(words: &[&str]) -> Result<Message, MessageError> {
        let lower: Vec<String> = words.iter().map(|word| word.to_ascii_lowercase()).collect();
        let lower: Vec<&str> = lower.iter().map(String::as_str).collect();
        match lower.as_slice() {
            ["create_thin", id] => Ok(Message::Edit(Edit::CreateThin(device("id", id)?))),
            ["create_snap", id, origin] => {
                let (id, origin) = (device("id", id)?, device("origin", origin)?);
                Ok(Message::Edit(Edit::CreateSnapshot { id, origin }))
            }
            ["delete", id] => Ok(Message::Edit(Edit::Delete(device("id", id)?))),
            ["set_transaction_id", old, new] => Ok(Message::Edit(Edit::SetTransactionId {
                old: number("old transaction id", old, u64::MAX)?,
                new: number("new transaction id", new, u64::MAX)?,
            })),
            ["reserve_metadata_snap"] => Ok(Message::Edit(Edit::ReserveMetadataSnapshot)),
            ["release_metadata_snap"] => Ok(Message::Edit(Edit::ReleaseMetadataSnapshot)),
            ["detect_zeroes", mode] => {
                let known = DetectZeroes::of_word(mode).map(Message::Detect);
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
}

/// The answer of a table that has never served its pool.
pub(super) fn not_serving(words: &[&str]) -> MessageError {
    MessageError::Busy(format!("{}: the table of the pool is not live", words.join(" ")))
}

/// A refused edit, with the errno that the kernel gives.
pub(super) fn refused(error: &MetadataError) -> MessageError {
    if let MetadataError::InUse(_) | MetadataError::Metadata(Error::Held(_)) = error {
        return MessageError::Busy(format!("{error} (EBUSY)"));
    }
    if let MetadataError::Planned { .. } = error {
        return MessageError::Busy(error.to_string());
    }
    let errno = match error {
        MetadataError::Metadata(Error::NoDevice(_)) => "ENODATA",
        MetadataError::Metadata(Error::DeviceExists(_)) => "EEXIST",
        MetadataError::Metadata(Error::NotHeld | Error::TimeExhausted(_)) => "EINVAL",
        MetadataError::Metadata(Error::NoMetadataSpace) => "ENOSPC",
        MetadataError::TransactionId { .. } => "EINVAL",
        MetadataError::NotWritable => "EOPNOTSUPP",
        _ => "EIO",
    };
    MessageError::Failed(format!("{error} ({errno})"))
}

impl Pool {
    /// Acts on a message.
    pub async fn act_on_message(&self, env: &Env, words: &[&str]) -> Result<String, MessageError> {
        match Message::parse(words)? {
            Message::Detect(mode) => self.set_detect(mode),
            Message::Edit(edit) => {
                self.edit(env, edit.into()).await.map_err(|error| refused(&error))?;
            }
        }
        Ok(String::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Message, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        Message::parse(&words).map_err(|error| error.to_string())
    }

    #[test]
    fn messages_parse_as_in_the_kernel() {
        let id = |id| DeviceId::new(id).unwrap();
        for (line, message) in [
            ("create_thin 0", Message::Edit(Edit::CreateThin(id(0)))),
            ("CREATE_SNAP 1 0", Message::Edit(Edit::CreateSnapshot { id: id(1), origin: id(0) })),
            ("delete 16777215", Message::Edit(Edit::Delete(id(16_777_215)))),
            ("set_transaction_id 0 7", Message::Edit(Edit::SetTransactionId { old: 0, new: 7 })),
            ("reserve_metadata_snap", Message::Edit(Edit::ReserveMetadataSnapshot)),
            ("release_metadata_snap", Message::Edit(Edit::ReleaseMetadataSnapshot)),
            ("detect_zeroes unmap", Message::Detect(DetectZeroes::Unmap)),
        ] {
            assert_eq!(parse(line).unwrap(), message);
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
