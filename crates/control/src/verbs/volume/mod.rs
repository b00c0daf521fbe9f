//! The device-mapper verbs: one file each, and here those that only read.

mod create;
mod load;
mod message;
mod remove;
mod rename;
mod resize;
mod suspend;
mod swap;
mod wait;

pub use create::VolumeCreate;
pub use load::{VolumeClear, VolumeLoad};
pub use message::VolumeMessage;
pub use remove::VolumeRemove;
pub use rename::VolumeRename;
pub use resize::VolumeResize;
pub use suspend::VolumeSuspend;
pub use swap::{VolumeReplace, VolumeResume};
pub use wait::VolumeWait;

use super::verb::declare;
use crate::report::{self, Info, VolumeLines};

declare! {
    /// `ls`
    VolumeList = "volume_list" -> Vec<Info> {}
    |_, verbs, _| report::infos(&verbs.world, &verbs.exports, None)
}

declare! {
    /// `info`
    VolumeInfo = "volume_info" -> Vec<Info> {
        /// The volume (default: all, each line with its name in front)
        name: Option<String>,
    }
    |verb, verbs, _| report::infos(&verbs.world, &verbs.exports, verb.name.as_deref())
}

declare! {
    /// `status`
    VolumeStatus = "volume_status" -> Vec<VolumeLines> {
        /// The volume (default: all, each line with its name in front)
        name: Option<String>,
    }
    |verb, verbs, _| report::status(&verbs.world, verb.name.as_deref())
}

declare! {
    /// `table`
    VolumeTable = "volume_table" -> Vec<VolumeLines> {
        /// The volume (default: all, each line with its name in front)
        name: Option<String>,
    } flags {
        /// Show the table that waits for a resume
        inactive,
        /// Print a script that sets the volume up in the kernel
        kernel,
    }
    |verb, verbs, _| report::tables(&verbs.world, verb.name.as_deref(), verb.inactive, verb.kernel)
}
