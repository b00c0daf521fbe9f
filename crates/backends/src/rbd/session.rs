//! The session of an open that may write: a random word in the metadata of the image.
//!
//! The lock says who has the image now, and not who had it in between. librbd gives a lock back by
//! itself when it has lost its watch twice, or cannot give the lock another cookie, and takes it
//! again later. No entry in the blocklist stands then, and cookies, which are addresses of objects,
//! can recur. So each server writes a word of its own.
//!
//! N1. The word is written under the lock, at each open that may write, before anything else is.
//! N2. The word of another session, or none, fences this one, whatever the cookie and the time.
//!
//! Clients that are not cairn write no word: for these the cookie says it (F2 in the module above).

use std::ffi::CStr;

use cairn_block::{ConfigError, ConfigKind};

use super::image::{Image, text_of};
use super::lock::Owner;
use super::metadata::Editor;
use super::uri::Target;
use super::within::Care;
use crate::nonce::nonce;

const KEY: &CStr = c"cairn.session";

/// The word of the session that has the image.
pub(super) fn now(image: &Image) -> Result<Option<String>, i32> {
    image.metadata(KEY)
}

/// Begins a session of this client, the owner of the lock (N1). Blocks the thread.
pub(super) fn begin(
    image: &Image,
    target: &Target,
    owner: &Owner,
    care: &Care,
) -> Result<String, ConfigError> {
    care.check(target)?;
    let session = nonce();
    let editor = Editor { image, owner, may: &|| Ok(()) };
    editor.set(KEY, Some(&session)).map_err(|errno| {
        target.refused(ConfigKind::System, format!("session: {}", text_of(errno)))
    })?;
    Ok(session)
}
