//! [`Settings`]: how a benchmark measures.

/// How to measure.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Small and short.
    pub quick: bool,
    /// Rounds that count; one more is run before them.
    pub runs: usize,
    /// The script that boots user-mode Linux, if the kernel is to be measured.
    pub uml: Option<std::path::PathBuf>,
    /// The script that serves files by HTTP.
    pub web: std::path::PathBuf,
    /// The image of Ceph that may be overwritten, `POOL/IMAGE`.
    pub rbd: Option<String>,
}

impl Settings {
    /// One of two values: for real, or for `--quick`.
    pub fn pick<T>(&self, real: T, quick: T) -> T {
        if self.quick { quick } else { real }
    }
}
