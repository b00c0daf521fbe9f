//! [`Stack`]: the tables that are served, and the files under them.

/// Bytes of a volume.
pub const VOLUME_BYTES: usize = 1 << 20;

/// Volumes over files in the folder `drives`.
pub struct Stack {
    pub name: &'static str,
    /// The files and their bytes.
    pub files: &'static [(&'static str, usize)],
    /// What `serve` is given.
    pub args: &'static [&'static str],
    /// What every server but the first is given instead; the first one's files do not fail.
    pub later: Option<&'static [&'static str]>,
    /// Verbs that complete the stack at its first start.
    pub setup: &'static [&'static [&'static str]],
    /// The volumes that have clients.
    pub volumes: &'static [&'static str],
    /// These volumes may be lost as a whole, which their reads tell.
    pub may_fail: &'static [&'static str],
}

/// One file, whose flush each of two volumes asks for.
pub const PLAIN: Stack = Stack {
    name: "plain",
    files: &[("disk", 2 * VOLUME_BYTES)],
    args: &[
        "--table",
        "a=0 2048 linear drives/disk 0",
        "--table",
        "b=0 2048 linear drives/disk 2048",
    ],
    later: None,
    setup: &[],
    volumes: &["a", "b"],
    may_fail: &[],
};

/// A cache whose device is also flushed by a stranger.
pub const WRITECACHE: Stack = Stack {
    name: "writecache",
    files: &[("slow", VOLUME_BYTES), ("fast", 2 * VOLUME_BYTES)],
    args: &[
        "--table",
        "fast=0 1024 linear drives/fast 0",
        "--table",
        "a=0 2048 writecache s drives/slow @fast 4096 4 autocommit_blocks 16 autocommit_time 50",
        "--table",
        "b=0 2048 linear drives/fast 2048",
    ],
    later: None,
    setup: &[],
    volumes: &["a", "b"],
    may_fail: &[],
};

/// An origin and a persistent snapshot of it.
pub const SNAPSHOT: Stack = Stack {
    name: "snapshot",
    files: &[("disk", VOLUME_BYTES), ("cow", 3 * VOLUME_BYTES)],
    args: &[
        "--table",
        "a=0 2048 snapshot-origin drives/disk",
        "--table",
        "b=0 2048 snapshot drives/disk drives/cow P 16",
    ],
    later: None,
    setup: &[],
    volumes: &["a", "b"],
    may_fail: &["b"],
};

/// A snapshot that is merged into its origin while it is written, and a stranger beside its store.
pub const MERGE: Stack = Stack {
    name: "merge",
    files: &[("disk", VOLUME_BYTES), ("cow", 4 * VOLUME_BYTES)],
    args: &[
        "--table",
        "cow=0 6144 linear drives/cow 0",
        "--table",
        "a=0 2048 snapshot drives/disk @cow P 16",
        "--table",
        "b=0 2048 linear drives/cow 6144",
    ],
    later: Some(&[
        "--table",
        "cow=0 6144 linear drives/cow 0",
        "--table",
        "a=0 2048 snapshot-merge drives/disk @cow P 16",
        "--table",
        "b=0 2048 linear drives/cow 6144",
    ]),
    setup: &[],
    volumes: &["a", "b"],
    may_fail: &[],
};

/// Two volumes of one pool.
pub const THIN: Stack = Stack {
    name: "thin",
    files: &[("meta", 2 * VOLUME_BYTES), ("data", 4 * VOLUME_BYTES)],
    args: &["--table", "p=0 8192 thin-pool drives/meta drives/data 128 0", "--strict"],
    later: None,
    setup: &[
        &["message", "p", "0", "create_thin", "0"],
        &["create", "a", "--table", "0 2048 thin @p 0"],
        &["message", "p", "0", "create_thin", "1"],
        &["create", "b", "--table", "0 2048 thin @p 1"],
    ],
    volumes: &["a", "b"],
    may_fail: &[],
};
