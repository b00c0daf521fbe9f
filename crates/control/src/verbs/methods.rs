//! Every method of the control socket, and how the server answers one. The manual (`docs/cli.md`)
//! lists them; a test holds it to [`METHODS`].

use serde_json::Value;

use super::Verbs;
use super::cache::{
    CacheAttach, CacheDetach, CacheFlush, CacheGet, CacheList, CacheSet, CacheVolume,
};
use super::export::{ExportAdd, ExportList, ExportRemove, ExportThrottle};
use super::pool::{PoolCreate, PoolGrow, PoolStatus, PoolTrim};
use super::server::{RpcGetMethods, ServerInfo, ServerMetrics, ServerUpgrade, TargetList};
use super::snap::{SnapCreate, SnapDiff, SnapGrow, SnapList, SnapMerge, SnapRemove, SnapRollback};
use super::state::{StateForget, StateShow};
use super::thin::{
    ThinCreate, ThinDiff, ThinList, ThinRemove, ThinRename, ThinRollback, ThinSnapshot,
};
use super::verb::{Entry, Verb};
use super::volume::{
    VolumeClear, VolumeCreate, VolumeInfo, VolumeList, VolumeLoad, VolumeMessage, VolumeRemove,
    VolumeRename, VolumeReplace, VolumeResize, VolumeResume, VolumeStatus, VolumeSuspend,
    VolumeTable, VolumeWait,
};
use super::watch::{ServerEvents, ServerFigures};
use crate::control::rpc::RpcError;
use crate::control::server::{Answer, Caller};

/// Every method.
pub const METHODS: [Entry; 53] = [
    Entry::of::<RpcGetMethods>(),
    Entry::of::<ServerInfo>(),
    Entry::of::<ServerUpgrade>(),
    Entry::of::<ServerMetrics>(),
    Entry::of::<ServerFigures>(),
    Entry::of::<ServerEvents>(),
    Entry::of::<TargetList>(),
    Entry::of::<ExportList>(),
    Entry::of::<ExportAdd>(),
    Entry::of::<ExportRemove>(),
    Entry::of::<ExportThrottle>(),
    Entry::of::<StateShow>(),
    Entry::of::<StateForget>(),
    Entry::of::<VolumeList>(),
    Entry::of::<VolumeInfo>(),
    Entry::of::<VolumeStatus>(),
    Entry::of::<VolumeTable>(),
    Entry::of::<VolumeMessage>(),
    Entry::of::<VolumeSuspend>(),
    Entry::of::<VolumeResume>(),
    Entry::of::<VolumeReplace>(),
    Entry::of::<VolumeResize>(),
    Entry::of::<VolumeLoad>(),
    Entry::of::<VolumeClear>(),
    Entry::of::<VolumeCreate>(),
    Entry::of::<VolumeRemove>(),
    Entry::of::<VolumeRename>(),
    Entry::of::<VolumeWait>(),
    Entry::of::<CacheList>(),
    Entry::of::<CacheGet>(),
    Entry::of::<CacheSet>(),
    Entry::of::<CacheFlush>(),
    Entry::of::<CacheAttach>(),
    Entry::of::<CacheDetach>(),
    Entry::of::<CacheVolume>(),
    Entry::of::<SnapCreate>(),
    Entry::of::<SnapList>(),
    Entry::of::<SnapDiff>(),
    Entry::of::<SnapRollback>(),
    Entry::of::<SnapMerge>(),
    Entry::of::<SnapRemove>(),
    Entry::of::<SnapGrow>(),
    Entry::of::<PoolCreate>(),
    Entry::of::<PoolStatus>(),
    Entry::of::<PoolGrow>(),
    Entry::of::<PoolTrim>(),
    Entry::of::<ThinCreate>(),
    Entry::of::<ThinSnapshot>(),
    Entry::of::<ThinList>(),
    Entry::of::<ThinDiff>(),
    Entry::of::<ThinRollback>(),
    Entry::of::<ThinRemove>(),
    Entry::of::<ThinRename>(),
];

/// The method of this name.
///
/// # Errors
/// There is none.
pub fn method(name: &str) -> Result<&'static Entry, RpcError> {
    const ALL: &[Entry] = &METHODS;
    ALL.iter().find(|entry| entry.method == name).ok_or_else(|| RpcError::no_method(name))
}

impl Answer for Verbs {
    fn answer(&self, name: &str, params: Value, caller: &dyn Caller) -> Result<Value, RpcError> {
        let entry = method(name)?;
        let is_counted = !entry.waits && name != ServerUpgrade::METHOD;
        let _call = is_counted.then(|| self.calls.begin()).transpose()?;
        (entry.run)(self, params, caller)
    }

    fn waits(&self, name: &str) -> bool {
        method(name).is_ok_and(|entry| entry.waits)
    }

    fn warn(&self, key: &str, line: String) {
        self.world.reactors().warn(key, || line);
    }
}

#[cfg(test)]
mod tests {
    use super::{METHODS, method};
    use serde_json::json;

    #[test]
    fn every_method_of_the_list_is_known() {
        for entry in METHODS {
            // Parameters are refused, or there are none.
            let refused = (entry.decode)(json!([])).err().map(|error| error.code);
            assert_eq!(refused.is_none(), (entry.params)().is_empty(), "{}", entry.method);
            assert!(method(entry.method).is_ok());
        }
        assert_eq!(method("frob").err().unwrap().code, -32601);
    }

    #[test]
    fn a_parameter_is_required_unless_it_is_marked() {
        for (name, params, is_whole) in [
            ("snap_grow", json!({"name": "v@m", "size_bytes": 1}), true),
            ("snap_grow", json!({"name": "v@m"}), false),
            ("volume_suspend", json!({"name": "v"}), true),
            ("volume_suspend", json!({"name": "v", "noflush": true}), true),
            ("volume_suspend", json!({"name": "v", "nofliush": true}), false),
            ("volume_info", json!(null), true),
        ] {
            let decoded = (method(name).unwrap().decode)(params.clone());
            assert_eq!(decoded.is_ok(), is_whole, "{name} {params}: {decoded:?}");
        }
        assert_eq!((method("volume_suspend").unwrap().params)(), "name, noflush?");
    }

    #[test]
    fn the_manual_lists_exactly_these_methods() {
        let manual = include_str!("../../../../docs/cli.md");
        for entry in METHODS {
            let row = format!("| `{}` | {} |", entry.method, (entry.params)());
            assert!(manual.contains(&row), "docs/cli.md lacks the row: {row}");
        }
        let begin = manual.find("## Control socket").expect("the section exists");
        let rows = manual[begin..].lines().skip(1).take_while(|line| !line.starts_with("## "));
        assert_eq!(rows.filter(|line| line.starts_with("| `")).count(), METHODS.len());
    }
}
