//! Volumes that a fuzzer's body loads.

use std::sync::Arc;

use cairn_block::{
    ConfigError, Env, MappedDevice, Registry, Resumed, Table, TableContext, TableLine, TargetTypes,
};

/// A live volume of one line, or one printable line that says why there is none. The removal of a
/// volume that did not start fails only if it `may_lose` what its damaged metadata leads to.
pub async fn load(
    env: &Env,
    registry: &Registry,
    (name, may_lose): (&str, bool),
    line: &str,
) -> Result<Arc<MappedDevice>, ConfigError> {
    let types = TargetTypes::new(cairn_targets::types());
    let device = registry.create_volume(name)?;
    let lines = TableLine::parse_all(line)?;
    let context = TableContext { types: &types, registry, read_only: false };
    let built = Table::build(env, &device, &lines, context).await;
    let loaded = match built {
        Ok(table) => {
            device.load(table).await;
            device.resume(env).await.and_then(Resumed::whole)
        }
        Err(error) => Err(error),
    };
    if let Err(error) = loaded {
        let text = error.to_string();
        assert!(!text.is_empty() && !text.chars().any(char::is_control), "{text:?}");
        registry.remove_volume(name).expect("it was created");
        let removed = device.remove(env).await;
        assert!(may_lose || removed.is_ok(), "no device fails: {removed:?}");
        return Err(error);
    }
    Ok(device)
}
