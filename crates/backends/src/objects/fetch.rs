//! [`Object`]: one object at its server, and the check of every answer.
//!
//! - F1. Bytes are used only if the answer names the range that was asked for, the length that the
//!   object had when it was opened, and its ETag; if it is not compressed or encoded in another
//!   way; and if all of them have come.
//! - F2. An answer that names another length or ETag, or that refuses the ETag, means that the
//!   object was changed. What was read before and what would come do not fit together.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cairn_block::{ConfigError, ConfigKind};
use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{Attribute, GetOptions, GetRange, GetResult, ObjectStore};
use tokio::time::{Instant, timeout, timeout_at};

use super::client::store_of;
use super::uri::Address;

/// How long a server may take until its answer begins, and for each [`STEP_BYTES`] of it.
const PATIENCE: Duration = Duration::from_secs(15);

/// The least time until an answer begins, also if a read has no time left for another try.
const PATIENCE_MIN: Duration = Duration::from_secs(2);

/// A link is slow and works, or does not work: less than this within the patience is no progress.
const STEP_BYTES: usize = 64 << 10;

/// How much is read when an object is opened: what looks at a disk first looks there.
const FIRST_BYTES: u64 = 64 << 10;

/// The longest text of a server that is repeated.
const TEXT_CHARS_MAX: usize = 160;

/// Why a range was not read.
#[derive(Debug)]
pub enum Fault {
    /// The object is not the one that was opened (F2).
    Changed(String),
    /// The server refuses it: the same question has the same answer.
    Refused(String),
    /// It may succeed later.
    Again(String),
}

/// An object.
pub struct Object {
    /// Its URI.
    pub address: Address,
    store: Arc<dyn ObjectStore>,
    path: Path,
    /// Its length in bytes.
    pub bytes: u64,
    etag: Option<String>,
}

/// An ETag that equal objects alone have.
fn is_strong(etag: &str) -> bool {
    !etag.starts_with("W/")
}

impl Object {
    /// Asks for the begin of an object: its length and ETag, and whether the server has ranges.
    /// Answers the bytes, too.
    ///
    /// # Errors
    /// There is none, the server does not answer or refuses, it takes longer than `patience`, or
    /// it has no ranges or no strong ETag.
    pub async fn open(
        address: Address,
        patience: Duration,
    ) -> Result<(Object, Bytes), ConfigError> {
        let argument = address.argument.clone();
        timeout(patience, Object::look(address)).await.unwrap_or_else(|_| {
            let detail = format!("open: it took longer than {} s", patience.as_secs());
            Err(ConfigError::new(ConfigKind::System, argument, detail))
        })
    }

    async fn look(address: Address) -> Result<(Object, Bytes), ConfigError> {
        let argument = address.argument.clone();
        let refused = |detail: String| ConfigError::new(ConfigKind::System, &argument, detail);
        let (store, path) =
            store_of(&address).map_err(|error| refused(format!("open: {}", line_of(&error))))?;
        let mut object = Object { address, store, path, bytes: 0, etag: None };
        let result = object.ask(0..FIRST_BYTES, PATIENCE).await.map_err(|fault| match fault {
            Fault::Changed(why) | Fault::Refused(why) | Fault::Again(why) => {
                refused(format!("open: {why}"))
            }
        })?;
        (object.bytes, object.etag) = (result.meta.size, result.meta.e_tag.clone());
        object.accept(&argument)?;
        let range = result.range.clone();
        let first = body_of(result, &range).await.map_err(|why| refused(format!("open: {why}")))?;
        Ok((object, first))
    }

    /// Refuses an object whose change would not be noticed, or that is not the one that was meant.
    fn accept(&self, argument: &str) -> Result<(), ConfigError> {
        let wrong = |found: String, expected: &str| {
            Err(ConfigError::argument(argument, "ETag", found, expected))
        };
        if self.bytes == 0 {
            return Err(ConfigError::argument(argument, "size", "0 bytes", "some"));
        }
        let found = self.etag.as_deref();
        match &self.address.etag {
            Some(expected) if found.map(|etag| etag.trim_matches('"')) != Some(expected) => {
                return wrong(found.unwrap_or("none").to_owned(), &format!("\"{expected}\""));
            }
            _ => {}
        }
        let is_proof = found.is_some_and(is_strong);
        if !is_proof && !self.address.unchecked {
            let expected = "a strong one, or #unchecked if the object never changes";
            return wrong(found.unwrap_or("none").to_owned(), expected);
        }
        Ok(())
    }

    async fn ask(&self, range: Range<u64>, patience: Duration) -> Result<GetResult, Fault> {
        let strong = self.etag.clone().filter(|etag| is_strong(etag));
        let options = GetOptions {
            if_match: strong,
            range: Some(GetRange::Bounded(range)),
            ..GetOptions::default()
        };
        let asked = timeout(patience, self.store.get_opts(&self.path, options)).await;
        let result = asked
            .map_err(|_| Fault::Again(format!("no answer within {} s", patience.as_secs())))?
            .map_err(|error| fault_of(&error))?;
        match result.attributes.get(&Attribute::ContentEncoding) {
            Some(found) if !found.as_ref().eq_ignore_ascii_case("identity") => {
                let found = found.as_ref();
                let line = format!("Content-Encoding: found {found}, expected the data as it is");
                Err(Fault::Refused(line))
            }
            _ => Ok(result),
        }
    }

    /// Reads a range: one question, one answer. The answer should begin before `end`, which does
    /// not limit how long the data takes that comes.
    ///
    /// # Errors
    /// See [`Fault`].
    pub async fn read(&self, range: &Range<u64>, end: Instant) -> Result<Bytes, Fault> {
        let patience = end.saturating_duration_since(Instant::now());
        let result = self.ask(range.clone(), patience.clamp(PATIENCE_MIN, PATIENCE)).await?;
        let (bytes, etag) = (result.meta.size, &result.meta.e_tag);
        if bytes != self.bytes {
            let was = self.bytes;
            return Err(Fault::Changed(format!("length: found {bytes} bytes, expected {was}")));
        }
        if *etag != self.etag {
            let text = |etag: &Option<String>| etag.clone().unwrap_or("none".to_owned());
            let (found, expected) = (text(etag), text(&self.etag));
            return Err(Fault::Changed(format!("ETag: found {found}, expected {expected}")));
        }
        if result.range != *range {
            return Err(Fault::Again(format!(
                "range: found {:?}, expected {range:?}",
                result.range
            )));
        }
        body_of(result, range).await.map_err(Fault::Again)
    }
}

/// The bytes of an answer: as many as it has announced.
async fn body_of(result: GetResult, range: &Range<u64>) -> Result<Bytes, String> {
    let expected = (range.end - range.start) as usize;
    let wrong = |found: usize, more: &str| {
        Err(format!("data: found {found} bytes{more}, expected {expected}"))
    };
    let (mut stream, mut pieces, mut found) = (result.into_stream(), Vec::<Bytes>::new(), 0);
    let (mut end, mut step) = (Instant::now() + PATIENCE, STEP_BYTES);
    loop {
        let next = timeout_at(end, stream.next()).await;
        let next = next.map_err(|_| {
            format!("data: less than {STEP_BYTES} bytes in {} s", PATIENCE.as_secs())
        })?;
        match next.transpose().map_err(|error| line_of(&error))? {
            Some(piece) => pieces.push(piece),
            None if found == expected => break,
            None => return wrong(found, ""),
        }
        found += pieces.last().map_or(0, Bytes::len);
        if found > expected {
            return wrong(found, " or more");
        }
        if found >= step {
            (end, step) = (Instant::now() + PATIENCE, found + STEP_BYTES);
        }
    }
    Ok(match &pieces[..] {
        [one] => one.clone(),
        _ => pieces.concat().into(),
    })
}

fn fault_of(error: &object_store::Error) -> Fault {
    use object_store::Error::{
        NotFound, NotModified, PermissionDenied, Precondition, Unauthenticated,
    };
    match error {
        Precondition { .. } => Fault::Changed("the server has another object now".to_owned()),
        NotFound { .. } => Fault::Refused("the server has no such object (404)".to_owned()),
        PermissionDenied { .. } => Fault::Refused("the server refuses access (403)".to_owned()),
        Unauthenticated { .. } => {
            Fault::Refused("the server asks for credentials (401)".to_owned())
        }
        NotModified { .. } => Fault::Refused("the server sends no data (304)".to_owned()),
        error => Fault::Again(line_of(error)),
    }
}

/// The innermost cause of an error, which says what the system or the server said, in one line.
fn line_of(error: &object_store::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let text = cause.to_string();
    let mut line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = line.char_indices().nth(TEXT_CHARS_MAX) {
        line.truncate(end);
        line.push_str("...");
    }
    line
}
