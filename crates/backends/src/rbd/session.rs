//! The session of an open that may write: a random word in the lock of the image.
//!
//! librbd gives a lock back by itself when it has lost its watch twice, or cannot give the lock
//! another cookie, and takes it again later. Then another client may have had the image, no entry
//! in the blocklist stands, and the cookie, which is the address of an object, may even be the
//! former one. A lock has a description, which librbd leaves empty when it takes one, and keeps
//! when it gives a lock another cookie, as it does when it has lost its watch and watches again.
//!
//! N1. Each open that may write puts a word of its own into the description of the lock that it has
//!     taken, before it reads anything else. This takes no lock that is not there any more.
//! N2. A lock with the word has been this client's ever since. A lock without it, or none, has been
//!     lost in between, whatever its cookie, and whatever the other client was.

use cairn_block::{ConfigError, ConfigKind};

use super::class::Call;
use super::image::{Image, text_of};
use super::uri::Target;
use super::within::Care;
use crate::nonce::nonce;

/// The word.
pub(super) struct Session(String);

impl Session {
    /// Begins a session of this client, which has just taken the lock (N1). Blocks the thread.
    pub fn begin(image: &Image, target: &Target, care: &Care) -> Result<Session, ConfigError> {
        const TRIES: u32 = 3;
        let session = Session(nonce());
        let failed = |errno: i32| {
            let detail = format!("lock: its session: {}", text_of(errno));
            target.refused(ConfigKind::System, detail)
        };
        for left in (0..TRIES).rev() {
            let holder = image.holder().and_then(|holder| holder.ok_or(-libc::ENOLCK));
            let cookie = holder.map_err(failed)?.cookie;
            care.check(target)?;
            match image.execute(&[Call::describe(&cookie, &session.0)]) {
                // librbd has given the lock another cookie.
                Err(error) if -error == libc::ENOENT && left > 0 => {}
                result => {
                    result.map_err(failed)?;
                    break;
                }
            }
        }
        match session.cookie(image).map_err(failed)? {
            Some(_) => Ok(session),
            None => {
                let detail = "lock: its description is not found again, as if the lock was lost";
                Err(target.refused(ConfigKind::Unsupported, detail))
            }
        }
    }

    /// The cookie of the lock, if it has been this client's ever since (N2). Blocks the thread.
    pub fn cookie(&self, image: &Image) -> Result<Option<String>, i32> {
        let holder = image.holder()?.filter(|holder| holder.says(&self.0));
        Ok(holder.map(|holder| holder.cookie))
    }
}
