//! Debian's thin-provisioning-tools, where they are installed.

use std::path::{Path, PathBuf};
use std::process::{Command, id};
use std::sync::atomic::{AtomicU64, Ordering};

/// Whether a tool is content with a metadata image, and what it says; none if it is not installed.
pub fn run(tool: &str, image: &Path) -> Option<(bool, String)> {
    let output = match Command::new(tool).arg(image).output() {
        Ok(output) => output,
        Err(error) => {
            cairn_testkit::skip(&format!("needs {tool}: {error}"));
            return None;
        }
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Some((output.status.success(), text + &String::from_utf8_lossy(&output.stderr)))
}

/// A file for a metadata image that no other test writes.
pub fn file(bytes: &[u8]) -> PathBuf {
    static FILES: AtomicU64 = AtomicU64::new(0);
    let name = format!("thin-{}-{}.meta", id(), FILES.fetch_add(1, Ordering::Relaxed));
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, bytes).expect("there is room");
    path
}
