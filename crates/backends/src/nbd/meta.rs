//! [`Meta`]: what this client keeps in a small export beside the one with the data (`meta=`).
//!
//! NBD has no locks and does not tell one client from another. So the start of a table that writes
//! puts a session there: a random number, the host and the time. After a lost connection the client
//! reads the session again before it sends anything:
//!
//! - K1. The session is durable before the first table over the device starts, and so before a
//!   write of this client. A start that is refused, because a dirty marker stands, leaves that of
//!   the client before it.
//! - K2. A client sends nothing over a later connection, unless its own session was found after
//!   that connection was made; one that has put none there yet has to find what it found before.
//!   Otherwise another client uses the export, or the server has forgotten the session, and the
//!   data with it: the disk is fenced until it is opened again.
//!
//! Nothing ends the connection of a client that goes on while another one opens the export, and
//! between the look and the replay there is a moment. It is no lock: see `docs/failover.md`.
//!
//! The dirty marker of a cache (`cairn_block::dirty_marker`) is the second record. Only who finds
//! its own session there changes it.

use std::io;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use cairn_block::dirty_marker::DirtyMarker;
use cairn_block::sync::Mutex;
use cairn_block::{
    ConfigError, ConfigKind, Env, FailureCount, LocalFuture, MarkerStore, escape_word,
};
use cairn_nbd::calls::Calls;
use cairn_nbd::negotiation::Wish;
use cairn_nbd::records::{RECORD_BYTES, Record, SLOT_BYTES, TEXT_BYTES_MAX};
use cairn_nbd::wire::TransmissionFlags;

use super::NbdDisk;
use super::connect::{Waiting, connect_waiting};
use super::uri::Target;
use crate::helper::on_helper;
use crate::host::host_name;
use crate::nonce::nonce;

/// The first word of a session: another one is of a later program.
const VERSION: &str = "1";

/// The bytes of the export that are used.
const BYTES: u64 = 2 * RECORD_BYTES as u64;

/// The records, by their places.
#[derive(Clone, Copy)]
enum Kind {
    Session = 0,
    Marker = 1,
}

/// The source of a refusal because another client has opened the export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nothing is sent to it any more")]
pub(super) struct FencedOff;

/// See the module's description.
#[derive(Clone, Debug)]
pub(super) struct Meta {
    target: Target,
    read_only: bool,
    session: Arc<Mutex<Session>>,
}

/// What this client knows of the session.
#[derive(Debug)]
struct Session {
    /// What it has written there, or found at first.
    text: Option<String>,
    /// It is its own.
    is_own: bool,
}

impl Meta {
    /// The one of a target. Blocks the thread.
    ///
    /// # Errors
    /// There is no such export, or it has other data, or belongs to other data.
    pub fn open(target: &Target, read_only: bool) -> Result<Option<Meta>, ConfigError> {
        if target.meta.is_none() {
            return Ok(None);
        }
        let session = Arc::new(Mutex::new(Session { text: None, is_own: false }));
        let meta = Meta { target: target.clone(), read_only, session };
        let mut calls = meta.connect()?;
        if !read_only {
            meta.refuse_read_only(&calls)?;
        }
        let text = meta.record(&mut calls, Kind::Session)?.text;
        let export = escape_word(&target.export);
        let of = text.as_deref().map(|text| text.split(' ').collect::<Vec<_>>());
        match of.as_deref() {
            None => {}
            Some([VERSION, _, of, ..]) if *of == export => {}
            Some(_) => {
                let text = text.unwrap_or_default();
                return Err(meta.wrong(format!("'{text}'"), &format!("that of '{export}'")));
            }
        }
        meta.session.lock().text = text;
        Ok(Some(meta))
    }

    /// Puts a session of this client there, unless it has, or only reads. Blocks the thread.
    fn take(&self) -> Result<(), ConfigError> {
        // Two tables that start at once put one session there.
        let mut session = self.session.lock();
        if self.read_only || session.is_own {
            return Ok(());
        }
        let mut calls = self.connect()?;
        let found = self.record(&mut calls, Kind::Session)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let (nonce, export, host) = (nonce(), escape_word(&self.target.export), host_name());
        let text = format!("{VERSION} {nonce} {export} {host} {now}");
        self.put(&mut calls, (Kind::Session, &found), Some(&text))?;
        *session = Session { text: Some(text), is_own: true };
        Ok(())
    }

    /// Compares the session with this client's (K2). Blocks the thread.
    ///
    /// # Errors
    /// It is that of another client, with [`FencedOff`] as source, or the server does not answer.
    pub fn look(&self) -> Result<(), ConfigError> {
        match self.read_only {
            false => self.look_over(&mut self.connect()?),
            // Who only reads has nothing to lose, and takes nothing from others.
            true => Ok(()),
        }
    }

    fn look_over(&self, calls: &mut Calls<Box<dyn Waiting>>) -> Result<(), ConfigError> {
        let found = self.record(calls, Kind::Session)?.text;
        let session = self.session.lock();
        if found == session.text {
            return Ok(());
        }
        let found = found.as_deref().unwrap_or("none");
        let own = session.text.as_deref().unwrap_or("none");
        let refused = self.wrong(format!("'{found}'"), &format!("'{own}', of this server"));
        Err(ConfigError { kind: ConfigKind::Busy, ..refused }.with_source(FencedOff))
    }

    fn name(&self) -> &str {
        self.target.meta.as_deref().unwrap_or_default()
    }

    fn wrong(&self, found: String, expected: &str) -> ConfigError {
        let field = format!("session in '{}'", self.name());
        ConfigError::argument(&self.target.uri, &field, found, expected)
    }

    fn failed(&self, error: &io::Error) -> ConfigError {
        let detail = format!("meta '{}': {error}", self.name());
        ConfigError::new(ConfigKind::System, &self.target.uri, detail)
    }

    fn connect(&self) -> Result<Calls<Box<dyn Waiting>>, ConfigError> {
        let Target { uri, place, tls, .. } = &self.target;
        let wish = Wish { device: uri, export: self.name(), is_simple: true };
        let calls = connect_waiting(place, wish, tls.as_ref())?;
        let agreed = calls.agreed();
        let wrong = |found: String, expected: &str| {
            Err(ConfigError::argument(uri, &format!("meta '{}'", self.name()), found, expected))
        };
        if agreed.size_bytes < BYTES {
            return wrong(format!("{} bytes", agreed.size_bytes), &format!("at least {BYTES}"));
        }
        if !SLOT_BYTES.is_multiple_of(agreed.block_bytes.max(1) as usize) {
            return wrong(format!("blocks of {} bytes", agreed.block_bytes), "at most 4096");
        }
        Ok(calls)
    }

    fn record(
        &self,
        calls: &mut Calls<Box<dyn Waiting>>,
        kind: Kind,
    ) -> Result<Record, ConfigError> {
        let mut bytes = [0; RECORD_BYTES];
        let at = kind as u64 * RECORD_BYTES as u64;
        calls.read(at, &mut bytes).map_err(|error| self.failed(&error))?;
        Record::decode(&bytes).ok_or_else(|| {
            let (field, found) = (format!("meta '{}'", self.name()), "other data".to_owned());
            ConfigError::argument(&self.target.uri, &field, found, "zeros, or records of cairn")
        })
    }

    /// Replaces a record, of which `found` was read.
    fn put(
        &self,
        calls: &mut Calls<Box<dyn Waiting>>,
        (kind, found): (Kind, &Record),
        text: Option<&str>,
    ) -> Result<(), ConfigError> {
        let (at, slot) = found.next(text).ok_or_else(|| {
            let field = format!("meta '{}'", self.name());
            let found = format!("a record of {} bytes", text.map_or(0, str::len));
            let expected = format!("at most {TEXT_BYTES_MAX}, without control characters");
            ConfigError::argument(&self.target.uri, &field, found, &expected)
        })?;
        let at = (kind as usize * RECORD_BYTES + at) as u64;
        calls.write(at, &slot).map_err(|error| self.failed(&error))
    }

    fn refuse_read_only(&self, calls: &Calls<Box<dyn Waiting>>) -> Result<(), ConfigError> {
        if !calls.agreed().flags.contains(TransmissionFlags::READ_ONLY) {
            return Ok(());
        }
        let (field, found) = (format!("meta '{}'", self.name()), "a read-only export".to_owned());
        Err(ConfigError::argument(&self.target.uri, &field, found, "a writable one"))
    }

    /// The text of the dirty marker. Blocks the thread.
    fn marker(&self) -> Result<Option<String>, ConfigError> {
        Ok(self.record(&mut self.connect()?, Kind::Marker)?.text)
    }

    fn set_marker(&self, text: Option<&str>) -> Result<(), ConfigError> {
        let mut calls = self.connect()?;
        self.look_over(&mut calls)?;
        let found = self.record(&mut calls, Kind::Marker)?;
        self.put(&mut calls, (Kind::Marker, &found), text)
    }

    /// Runs a call on a helper thread.
    async fn call<T: Send + 'static>(
        &self,
        env: &Env,
        call: impl FnOnce(&Meta) -> Result<T, ConfigError> + Send + 'static,
    ) -> Result<T, ConfigError> {
        let meta = self.clone();
        on_helper(env, (&self.target.uri, "meta"), move || call(&meta)).await
    }
}

/// True if a refusal is that of an export that another client has opened.
pub(super) fn is_fence(error: &ConfigError) -> bool {
    error.source.as_ref().is_some_and(|source| source.is::<FencedOff>())
}

impl MarkerStore for NbdDisk {
    fn disk(&self) -> String {
        self.remote.target.name_of_export()
    }

    /// A client that goes on finds nothing in its way when another one uses the export.
    fn fences(&self) -> bool {
        false
    }

    fn take<'a>(&'a self, env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(async move {
            match &self.remote.meta {
                Some(meta) => meta.call(env, Meta::take).await,
                None => Ok(()),
            }
        })
    }

    fn read<'a>(&'a self, env: &'a Env) -> LocalFuture<'a, Result<Option<String>, ConfigError>> {
        Box::pin(async move {
            match &self.remote.meta {
                Some(meta) => meta.call(env, Meta::marker).await,
                None => Ok(None),
            }
        })
    }

    fn write<'a>(
        &'a self,
        env: &'a Env,
        text: Option<String>,
    ) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(async move {
            match &self.remote.meta {
                Some(meta) => meta.call(env, move |meta| meta.set_marker(text.as_deref())).await,
                None => Ok(()),
            }
        })
    }
}

/// Removes the dirty marker of this generation from beside an export. Answers what it was. Blocks
/// the thread.
///
/// # Errors
/// Another marker stands, or none, or there is no place for one.
pub(crate) fn unmark(device: &str, generation: &str) -> Result<DirtyMarker, ConfigError> {
    let disk = NbdDisk::open(device, false, Arc::<FailureCount>::default())?;
    let Some(meta) = &disk.remote.meta else {
        return Err(ConfigError::argument(device, "meta", "none", "the export with the marker"));
    };
    let text = meta.marker()?;
    let marker = DirtyMarker::named(device, text.as_deref(), generation)?;
    meta.take()?;
    meta.set_marker(None)?;
    Ok(marker)
}
