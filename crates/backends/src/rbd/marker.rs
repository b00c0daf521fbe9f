//! The dirty marker of an image (`cairn_block::dirty_marker`), in the image's metadata: a key of
//! the cluster's, which each client finds that opens the image.
//!
//! The OSD changes the marker for the owner of the lock alone ([`Editor`]), and for no client that
//! is fenced. So a server that has lost the image leaves the marker of the next one. (For an image
//! with a journal the OSD asserts the lock just before the change.)
//!
//! `rbd cp` copies the metadata, and so the marker: such a copy lacks what the cache had. A
//! snapshot has the metadata that the image has now.

use std::ffi::CStr;
use std::sync::Arc;

use cairn_block::dirty_marker::DirtyMarker;
use cairn_block::{
    ConfigError, ConfigKind, Env, FailureCount, LocalFuture, MarkerStore, Op, Sector,
};

use super::image::{Image, text_of};
use super::metadata::Editor;
use super::uri::{Target, is_uri};
use super::within::{Care, beside, within};
use super::{RbdDisk, Shared, clock, snapshots};

/// The key. Those that begin with `conf_` are settings of librbd.
const KEY: &CStr = c"cairn.dirty_marker";

fn failed(target: &Target, errno: i32) -> ConfigError {
    target.refused(ConfigKind::System, format!("dirty marker: {}", text_of(errno)))
}

impl Shared {
    /// Runs a call of librbd on a thread of its own, once requests may be sent.
    async fn call<T: Send + 'static>(
        self: &Arc<Self>,
        env: &Env,
        call: impl FnOnce(&Shared) -> Result<T, i32> + Send + 'static,
    ) -> Result<T, ConfigError> {
        let refused = |error| {
            let refused = self.target.refused(ConfigKind::System, "dirty marker");
            refused.with_source(error)
        };
        self.ready(env).await.map_err(refused)?;
        let (started, shared) = (clock::now(), self.clone());
        // Nothing limits this: a change that is given up may still be done later.
        self.flight.begin(started);
        let found = beside(move || call(&shared)).wait().await;
        self.flight.end(1);
        // Without a thread there is no answer.
        let found = found.unwrap_or(Err(-libc::EAGAIN));
        let is_fence = |errno: &i32| matches!(-errno, libc::ESHUTDOWN | libc::EROFS);
        let result = match found.as_ref().err() {
            None => Ok(()),
            Some(errno) if is_fence(errno) => Err(-errno),
            // The error of the marker says it; it is none of a read.
            Some(errno) => return Err(failed(&self.target, *errno)),
        };
        let judged = self.judge(env, (Op::Read, Sector(0)), started, result);
        judged.map_err(refused)?;
        found.map_err(|errno| failed(&self.target, errno))
    }
}

impl Shared {
    /// Replaces the marker, or removes it. Blocks the thread.
    fn set_marker(&self, text: Option<&str>) -> Result<(), i32> {
        const TRIES: u32 = 3;
        let Some(session) = &self.session else { return Err(-libc::EROFS) };
        let editor = Editor { image: self.image(), session, may: &|| Ok(()) };
        for _ in 0..TRIES {
            match set(&editor, text) {
                // librbd gives the lock another cookie, or it was lost just now.
                Err(error) if -error == libc::EBUSY => {}
                result => return result,
            }
        }
        Err(-libc::EBUSY)
    }
}

impl MarkerStore for RbdDisk {
    fn disk(&self) -> String {
        self.0.target.name_of_image()
    }

    fn fences(&self) -> bool {
        true
    }

    fn read<'a>(&'a self, env: &'a Env) -> LocalFuture<'a, Result<Option<String>, ConfigError>> {
        Box::pin(self.0.call(env, |shared| shared.image().metadata(KEY)))
    }

    fn write<'a>(
        &'a self,
        env: &'a Env,
        text: Option<String>,
    ) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(self.0.call(env, move |shared| shared.set_marker(text.as_deref())))
    }
}

/// Replaces the marker of an image, or removes it, with what its snapshots need (S1 and S2 of
/// [`snapshots`]).
fn set(editor: &Editor<'_>, text: Option<&str>) -> Result<(), i32> {
    match (editor.image.metadata(KEY)?, text) {
        (None, Some(_)) => snapshots::begin_life(editor)?,
        (Some(_), None) => snapshots::end_life(editor)?,
        _ => {}
    }
    editor.set(KEY, text)
}

/// Says so if a cache may have had data that a snapshot lacks. Blocks the thread.
pub(super) fn warn_of_snapshot(target: &Target, image: &Image) {
    let Some(name) = &target.snapshot else { return };
    let uri = &target.uri;
    let found = image.metadata(KEY).and_then(|text| Ok((text, snapshots::judge(image, name)?)));
    let whose = match found {
        Ok((Some(text), (true, _))) => DirtyMarker::decode(&text).map_or(text, |marker| {
            let DirtyMarker { kind, cache, host, since, .. } = marker;
            format!("{kind} {cache} on host {host} since {} s after 1970", since.as_secs())
        }),
        Ok((_, (_, true))) => "one that has been drained or given up since then".to_owned(),
        Ok(_) => return,
        Err(errno) => return tracing::warn!("{}", failed(target, errno)),
    };
    tracing::warn!(
        "{uri}: not consistent: when it was taken, the image lacked data that a cache had: {whose}"
    );
}

/// What the notes of dirty markers call the device of an argument.
///
/// # Errors
/// It is no URI of RBD, although it begins as one.
pub fn name_in_notes(device: &str) -> Result<String, ConfigError> {
    match is_uri(device) {
        true => Ok(Target::parse(device)?.name_of_image()),
        false => Ok(device.to_owned()),
    }
}

/// Removes the dirty marker of this generation from an image that no other client has open. Answers
/// what it was. Blocks the thread.
///
/// # Errors
/// Another marker stands, or none, or the image is in use.
pub fn unmark(device: &str, generation: &str) -> Result<DirtyMarker, ConfigError> {
    let disk = RbdDisk::open(device, false, &[], Arc::<FailureCount>::default())?;
    let (target, generation) = (disk.0.target.clone(), generation.to_owned());
    within(&target, move |care| remove_marker(&disk, &generation, care))
}

fn remove_marker(
    disk: &RbdDisk,
    generation: &str,
    care: &Care,
) -> Result<DirtyMarker, ConfigError> {
    let (target, image) = (&disk.0.target, disk.0.image());
    let text = image.metadata(KEY).map_err(|errno| failed(target, errno))?;
    let marker = DirtyMarker::named(&target.uri, text.as_deref(), generation)?;
    // Nothing waits for this error: the caller has left.
    let may = || care.check(target).map_err(|_| -libc::ETIMEDOUT);
    let session = disk.0.session.as_ref().ok_or_else(|| failed(target, -libc::EROFS))?;
    let editor = Editor { image, session, may: &may };
    set(&editor, None).map_err(|errno| failed(target, errno))?;
    Ok(marker)
}
