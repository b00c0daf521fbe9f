//! The dirty marker of a file on a file system that is none of this host: FUSE.

use std::path::Path;
use std::sync::Arc;

use cairn_block::{ConfigKind, Disk, MarkerPlace, Opener, ReactorId, refuse_marked};
use cairn_testkit::FailingFiles;

use super::worlds;
use crate::{DeviceOpener, unmark};

const TEXT: &str = "1 5f writecache /dev/nvme0n1 - a 7";

fn open(path: &Path, read_only: bool) -> Arc<dyn Disk> {
    let path = path.to_str().unwrap();
    DeviceOpener::default().open(path, read_only, Arc::default()).unwrap()
}

/// Mounts a folder with one file; none where the system does not let this process mount.
fn mounted(folder: &Path) -> Option<FailingFiles> {
    let mounted = FailingFiles::mount(folder, &[("disk", 1 << 20)], 1);
    mounted.inspect_err(|error| cairn_testkit::skip(&format!("FUSE: {error}"))).ok()
}

#[test]
fn a_file_of_a_local_file_system_needs_no_marker() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    let disk = open(file.path(), false);
    assert!(matches!(disk.marker_place(), MarkerPlace::Needless));
}

#[test]
fn a_file_of_a_network_file_system_is_refused_while_its_marker_stands() {
    let folder = tempfile::tempdir().unwrap();
    let Some(_files) = mounted(folder.path()) else { return };
    let path = folder.path().join("disk");
    let [on, _] = worlds();
    let mark = |text: Option<&str>| {
        let (disk, text) = (open(&path, false), text.map(str::to_owned));
        let marked = on.block_on(ReactorId(0), move |env| async move {
            let MarkerPlace::Store(store) = disk.marker_place() else { panic!("no place") };
            store.write(&env, text).await
        });
        marked.unwrap();
    };
    let refuse = |read_only| {
        let disk = open(&path, read_only);
        on.block_on(ReactorId(0), move |env| async move { refuse_marked(&env, &*disk).await })
    };
    refuse(false).unwrap();
    mark(Some(TEXT));
    for read_only in [false, true] {
        let error = refuse(read_only).unwrap_err();
        assert_eq!(error.kind, ConfigKind::Busy);
        let line = error.to_string();
        assert!(line.contains("dirty marker: found 5f of writecache /dev/nvme0n1"), "{line}");
        assert!(line.ends_with(&format!("cairn unmark '{}' 5f", path.display())), "{line}");
    }
    assert_eq!(unmark(path.to_str().unwrap(), "5f").unwrap().cache, "/dev/nvme0n1");
    refuse(false).unwrap();
    mark(Some(TEXT));
    mark(None);
    refuse(true).unwrap();
}
