//! JSON-RPC 2.0: the documents, the error codes and the parameters of every method.
//!
//! A refusal of a verb has the code `-errno` and carries its kind and device in `data`, so that a
//! client prints the same line and exits with the same code as if it had done the work itself.
//! Nothing here trusts the other side: unknown parameters are errors.

use cairn_block::{ConfigError, ConfigKind};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Longest line either side reads.
pub const LINE_BYTES_MAX: u64 = 1 << 20;

/// Every method with its parameters, for `rpc_get_methods` and the manual.
pub const METHODS: [(&str, &str); 39] = [
    ("rpc_get_methods", ""),
    ("server_info", ""),
    ("target_list", ""),
    ("export_list", ""),
    ("export_add", "volume, name?, description?, read_only?"),
    ("export_remove", "name, force?"),
    ("state_show", "name?"),
    ("state_forget", "name, yes?"),
    ("volume_list", ""),
    ("volume_info", "name?"),
    ("volume_status", "name?"),
    ("volume_table", "name?, inactive?, kernel?"),
    ("volume_message", "name, sector, words"),
    ("volume_suspend", "name, noflush?"),
    ("volume_resume", "name, flush?, discard_dirty?, shrink?, same_content?"),
    ("volume_replace", "name, table, flush?, discard_dirty?, shrink?, same_content?"),
    ("volume_load", "name, table, same_content?"),
    ("volume_clear", "name"),
    ("volume_create", "name, table, discard_dirty?"),
    ("volume_remove", "name, force?"),
    ("volume_wait", "name, event_nr?"),
    ("snap_create", "name, store?, chunk_sectors?, size_bytes?, fill_percent?, grow_bytes?"),
    ("snap_list", "name?"),
    ("snap_diff", "name, other?, from?"),
    ("snap_rollback", "name, store?"),
    ("snap_merge", "name, force?"),
    ("snap_remove", "name, force?"),
    ("snap_grow", "name, size_bytes"),
    (
        "pool_create",
        "name, data, metadata, data_bytes?, metadata_bytes?, block_sectors?, low_water_blocks?, \
         features?",
    ),
    ("pool_status", "name?"),
    ("pool_grow", "name, data_bytes?, metadata_bytes?"),
    ("pool_trim", "name"),
    ("thin_create", "name, size_bytes, id?, origin?"),
    ("thin_snapshot", "name, of?, id?"),
    ("thin_list", "name?"),
    ("thin_diff", "name, other?, from?"),
    ("thin_rollback", "name, keep?"),
    ("thin_remove", "name, force?"),
    ("thin_rename", "name, to, size_bytes?, origin?"),
];

/// A decoded call: a method with its parameters.
#[derive(Debug)]
pub enum Call {
    /// `rpc_get_methods`
    Methods,
    /// `server_info`
    Server,
    /// `target_list`
    Targets,
    /// `export_list`
    Exports,
    /// `export_add`
    ExportAdd(ExportAddParams),
    /// `export_remove`
    ExportRemove(ExportRemoveParams),
    /// `state_show`
    StateShow(AnyName),
    /// `state_forget`
    StateForget(StateForgetParams),
    /// `volume_list`
    Volumes,
    /// `volume_info`
    Info(AnyName),
    /// `volume_status`
    Status(AnyName),
    /// `volume_table`
    Table(TableParams),
    /// `volume_message`
    Message(MessageParams),
    /// `volume_suspend`
    Suspend(SuspendParams),
    /// `volume_resume`
    Resume(ResumeParams),
    /// `volume_replace`
    Replace(ReplaceParams),
    /// `volume_load`
    Load(LoadParams),
    /// `volume_clear`
    Clear(OneName),
    /// `volume_create`
    Create(CreateParams),
    /// `volume_remove`
    Remove(RemoveParams),
    /// `volume_wait`
    Wait(WaitParams),
    /// `snap_create`
    SnapCreate(SnapCreateParams),
    /// `snap_list`
    SnapList(AnyName),
    /// `snap_diff`
    SnapDiff(SnapDiffParams),
    /// `snap_rollback`
    SnapRollback(SnapRollbackParams),
    /// `snap_merge`
    SnapMerge(RemoveParams),
    /// `snap_remove`
    SnapRemove(RemoveParams),
    /// `snap_grow`
    SnapGrow(SnapGrowParams),
    /// `pool_create`
    PoolCreate(PoolCreateParams),
    /// `pool_status`
    PoolStatus(AnyName),
    /// `pool_grow`
    PoolGrow(PoolGrowParams),
    /// `pool_trim`
    PoolTrim(OneName),
    /// `thin_create`
    ThinCreate(ThinCreateParams),
    /// `thin_snapshot`
    ThinSnapshot(ThinSnapshotParams),
    /// `thin_list`
    ThinList(AnyName),
    /// `thin_diff`
    ThinDiff(ThinDiffParams),
    /// `thin_rollback`
    ThinRollback(ThinRollbackParams),
    /// `thin_remove`
    ThinRemove(RemoveParams),
    /// `thin_rename`
    ThinRename(ThinRenameParams),
}

impl Call {
    /// Decodes a call. Methods without parameters take whatever is there.
    ///
    /// # Errors
    /// There is no such method, or these are not its parameters.
    pub fn of(method: &str, params: Value) -> Result<Call, RpcError> {
        fn typed<T: DeserializeOwned>(method: &str, params: Value) -> Result<T, RpcError> {
            // None at all means an empty object.
            let params = if params.is_null() { json!({}) } else { params };
            serde_json::from_value(params).map_err(|error| RpcError::params(method, &error))
        }
        Ok(match method {
            "rpc_get_methods" => Call::Methods,
            "server_info" => Call::Server,
            "target_list" => Call::Targets,
            "export_list" => Call::Exports,
            "export_add" => Call::ExportAdd(typed(method, params)?),
            "export_remove" => Call::ExportRemove(typed(method, params)?),
            "state_show" => Call::StateShow(typed(method, params)?),
            "state_forget" => Call::StateForget(typed(method, params)?),
            "volume_list" => Call::Volumes,
            "volume_info" => Call::Info(typed(method, params)?),
            "volume_status" => Call::Status(typed(method, params)?),
            "volume_table" => Call::Table(typed(method, params)?),
            "volume_message" => Call::Message(typed(method, params)?),
            "volume_suspend" => Call::Suspend(typed(method, params)?),
            "volume_resume" => Call::Resume(typed(method, params)?),
            "volume_replace" => Call::Replace(typed(method, params)?),
            "volume_load" => Call::Load(typed(method, params)?),
            "volume_clear" => Call::Clear(typed(method, params)?),
            "volume_create" => Call::Create(typed(method, params)?),
            "volume_remove" => Call::Remove(typed(method, params)?),
            "volume_wait" => Call::Wait(typed(method, params)?),
            "snap_create" => Call::SnapCreate(typed(method, params)?),
            "snap_list" => Call::SnapList(typed(method, params)?),
            "snap_diff" => Call::SnapDiff(typed(method, params)?),
            "snap_rollback" => Call::SnapRollback(typed(method, params)?),
            "snap_merge" => Call::SnapMerge(typed(method, params)?),
            "snap_remove" => Call::SnapRemove(typed(method, params)?),
            "snap_grow" => Call::SnapGrow(typed(method, params)?),
            "pool_create" => Call::PoolCreate(typed(method, params)?),
            "pool_status" => Call::PoolStatus(typed(method, params)?),
            "pool_grow" => Call::PoolGrow(typed(method, params)?),
            "pool_trim" => Call::PoolTrim(typed(method, params)?),
            "thin_create" => Call::ThinCreate(typed(method, params)?),
            "thin_snapshot" => Call::ThinSnapshot(typed(method, params)?),
            "thin_list" => Call::ThinList(typed(method, params)?),
            "thin_diff" => Call::ThinDiff(typed(method, params)?),
            "thin_rollback" => Call::ThinRollback(typed(method, params)?),
            "thin_remove" => Call::ThinRemove(typed(method, params)?),
            "thin_rename" => Call::ThinRename(typed(method, params)?),
            _ => return Err(RpcError::no_method(method)),
        })
    }
}

/// A request line.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    /// Always "2.0".
    pub jsonrpc: String,
    /// Comes back in the response.
    #[serde(default)]
    pub id: Value,
    /// Which method.
    pub method: String,
    /// Its parameters, by name.
    #[serde(default)]
    pub params: Value,
}

/// A response line.
#[derive(Debug, Serialize, Deserialize)]
pub struct Response {
    /// Always "2.0".
    pub jsonrpc: String,
    /// The request's.
    pub id: Value,
    /// The answer, if it went well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// The refusal, if not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RpcError>,
}

impl Response {
    /// The response to request `id`.
    pub fn new(id: Value, answer: Result<Value, RpcError>) -> Response {
        let (result, error) = match answer {
            Ok(result) => (Some(result), None),
            Err(error) => (None, Some(error)),
        };
        Response { jsonrpc: "2.0".to_owned(), id, result, error }
    }
}

/// A refusal on the wire.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RpcError {
    /// -32700 to -32600: the protocol; else a negative errno.
    pub code: i32,
    /// One line.
    pub message: String,
    /// What a refused verb adds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<ErrorData>,
}

/// What a refused verb adds.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorData {
    /// argument, damaged, busy, unsupported or system.
    pub kind: String,
}

const EIO: i32 = 5;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
const EBADMSG: i32 = 74;
const EOPNOTSUPP: i32 = 95;

const KINDS: [(ConfigKind, &str, i32); 6] = [
    (ConfigKind::Argument, "argument", EINVAL),
    (ConfigKind::Damaged, "damaged", EBADMSG),
    (ConfigKind::Busy, "busy", EBUSY),
    (ConfigKind::Unsupported, "unsupported", EOPNOTSUPP),
    (ConfigKind::System, "system", EIO),
    (ConfigKind::Lost, "lost", EIO),
];

impl RpcError {
    /// The line is no JSON.
    pub fn parse(error: &serde_json::Error) -> RpcError {
        RpcError::protocol(-32700, format!("request: {error}"))
    }

    /// There is no such method.
    pub fn no_method(name: &str) -> RpcError {
        RpcError::protocol(-32601, format!("method: found '{name}', expected a known one"))
    }

    /// The parameters are not the method's.
    pub fn params(method: &str, error: &serde_json::Error) -> RpcError {
        RpcError::protocol(-32602, format!("{method}: parameters: {error}"))
    }

    /// It is JSON, but no request.
    pub fn request(error: &serde_json::Error) -> RpcError {
        RpcError::protocol(-32600, format!("request: {error}"))
    }

    fn protocol(code: i32, message: String) -> RpcError {
        RpcError { code, message, data: None }
    }

    /// A refused verb.
    pub fn of_verb(error: &ConfigError) -> RpcError {
        let row = KINDS.iter().find(|(kind, ..)| *kind == error.kind);
        let (_, kind, errno) = row.copied().unwrap_or(KINDS[4]);
        let data = Some(ErrorData { kind: kind.to_owned() });
        RpcError { code: -errno, message: cairn_outcome::failure::one_line(error), data }
    }

    /// The refusal as the client reports it.
    pub fn into_error(self) -> ConfigError {
        let kind = self.data.map(|data| data.kind);
        let row = KINDS.iter().find(|(_, name, _)| kind.as_deref() == Some(*name));
        ConfigError::new(row.map_or(ConfigKind::System, |row| row.0), "", self.message)
    }
}

impl From<ConfigError> for RpcError {
    fn from(error: ConfigError) -> RpcError {
        RpcError::of_verb(&error)
    }
}

/// Parameters of methods on every volume or on one.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnyName {
    /// The volume; all if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Parameters of `volume_table`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableParams {
    /// The volume; all if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The table that waits for a resume.
    #[serde(default)]
    pub inactive: bool,
    /// As the kernel would take it.
    #[serde(default)]
    pub kernel: bool,
}

/// Parameters of methods on one volume.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OneName {
    /// The volume.
    pub name: String,
}

/// Parameters of `volume_remove`, `snap_remove` and `thin_remove`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveParams {
    /// The volume.
    pub name: String,
    /// Disconnect the clients that use it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// Parameters of `export_add`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportAddParams {
    /// The volume.
    pub volume: String,
    /// The name that clients ask for; none: the volume's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// A line for a person.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Refuse writes.
    #[serde(default)]
    pub read_only: bool,
}

/// Parameters of `export_remove`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportRemoveParams {
    /// The export.
    pub name: String,
    /// Disconnect its clients.
    #[serde(default)]
    pub force: bool,
}

/// Parameters of `state_forget`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateForgetParams {
    /// The volume.
    pub name: String,
    /// Snapshots and merges go with it.
    #[serde(default)]
    pub yes: bool,
}

/// Parameters of `volume_message`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MessageParams {
    /// The volume.
    pub name: String,
    /// A sector of the target's line.
    pub sector: u64,
    /// The message.
    pub words: Vec<String>,
}

/// Parameters of `volume_suspend`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SuspendParams {
    /// The volume.
    pub name: String,
    /// Hold unfinished requests back.
    #[serde(default)]
    pub noflush: bool,
}

/// Parameters of `volume_resume`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResumeParams {
    /// The volume.
    pub name: String,
    /// Write dirty data back first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub flush: bool,
    /// Leave dirty data behind.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub discard_dirty: bool,
    /// Make a volume shorter that is in use.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shrink: bool,
    /// The bytes beneath snapshots are the same although the device is another.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub same_content: bool,
}

/// What a user allows a swap to do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allowed {
    /// Write dirty data back first.
    pub flush: bool,
    /// Leave dirty data behind.
    pub discard_dirty: bool,
    /// Make a volume shorter that is in use.
    pub shrink: bool,
    /// Take the bytes beneath snapshots for the same although the device is another.
    pub same_content: bool,
}

impl ResumeParams {
    /// What the caller allows.
    pub fn allowed(&self) -> Allowed {
        let ResumeParams { flush, discard_dirty, shrink, same_content, .. } = *self;
        Allowed { flush, discard_dirty, shrink, same_content }
    }
}

/// Parameters of `volume_replace`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplaceParams {
    /// The volume.
    pub name: String,
    /// The table, as text.
    pub table: String,
    /// Write dirty data back first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub flush: bool,
    /// Leave dirty data behind.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub discard_dirty: bool,
    /// Make a volume shorter that is in use.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shrink: bool,
    /// The bytes beneath snapshots are the same although the device is another.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub same_content: bool,
}

impl ReplaceParams {
    /// What the caller allows.
    pub fn allowed(&self) -> Allowed {
        let ReplaceParams { flush, discard_dirty, shrink, same_content, .. } = *self;
        Allowed { flush, discard_dirty, shrink, same_content }
    }
}

/// Parameters of `volume_load`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadParams {
    /// The volume.
    pub name: String,
    /// The table, as text.
    pub table: String,
    /// The bytes beneath snapshots are the same although the device is another.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub same_content: bool,
}

/// Parameters of `volume_create`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateParams {
    /// The volume.
    pub name: String,
    /// The table, as text.
    pub table: String,
    /// Leave dirty data behind.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub discard_dirty: bool,
}

/// Parameters of `volume_wait`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WaitParams {
    /// The volume.
    pub name: String,
    /// Return once there were more events than this; none means the number now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_nr: Option<u64>,
}

/// Parameters of `snap_create`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapCreateParams {
    /// `VOLUME@NAME`.
    pub name: String,
    /// The store, a file or block device; none: a file beside the state file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// Chunk size in sectors; none or 0: 32, or one block if that is larger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk_sectors: Option<u32>,
    /// Size of a file to make; none: room for every chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// How full the store is when an event of the snapshot is raised; none: 80.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fill_percent: Option<u64>,
    /// How much longer the file gets each time it is so full; none: not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grow_bytes: Option<u64>,
}

/// Parameters of `snap_diff`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapDiffParams {
    /// `VOLUME@NAME`.
    pub name: String,
    /// Another snapshot of the same volume; none: the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other: Option<String>,
    /// The byte to begin at; none: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<u64>,
}

/// Parameters of `snap_rollback`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapRollbackParams {
    /// `VOLUME@NAME`.
    pub name: String,
    /// The store that the snapshot goes on with; none: a file beside the state file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
}

/// Parameters of `snap_grow`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapGrowParams {
    /// `VOLUME@NAME`.
    pub name: String,
    /// The new size of the store's file.
    pub size_bytes: u64,
}

/// Parameters of `pool_create`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolCreateParams {
    /// The pool.
    pub name: String,
    /// The data device.
    pub data: String,
    /// The metadata device.
    pub metadata: String,
    /// Size of a data file to make.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_bytes: Option<u64>,
    /// Size of a metadata file to make; none: enough for the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata_bytes: Option<u64>,
    /// Size of a data block; none: 128.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_sectors: Option<u64>,
    /// The low water mark; none: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low_water_blocks: Option<u64>,
    /// The features of the table line, word by word. Without `detect_zeroes` it is `unmap`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub features: Option<Vec<String>>,
}

/// Parameters of `pool_grow`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolGrowParams {
    /// The pool.
    pub name: String,
    /// The new size of the data file; none: as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_bytes: Option<u64>,
    /// The new size of the metadata file; none: as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata_bytes: Option<u64>,
}

/// Parameters of `thin_create`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThinCreateParams {
    /// `POOL/VOLUME`.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// Its number in the pool; none: the lowest that is free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// An external origin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
}

/// Parameters of `thin_snapshot`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThinSnapshotParams {
    /// The snapshot.
    pub name: String,
    /// The volume it is made of; none: what stands before its `@`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// Its number in the pool; none: the lowest that is free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
}

/// Parameters of `thin_diff`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThinDiffParams {
    /// A snapshot.
    pub name: String,
    /// Another volume of the pool; none: the snapshot's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other: Option<String>,
    /// The byte to begin at; none: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<u64>,
}

/// Parameters of `thin_rollback`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThinRollbackParams {
    /// `VOLUME@NAME`.
    pub name: String,
    /// The name under which what the volume was is kept; none: it is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<String>,
}

/// Parameters of `thin_rename`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThinRenameParams {
    /// The volume.
    pub name: String,
    /// Its new name.
    pub to: String,
    /// The size of a volume that had no name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// The external origin of a volume that had no name: a path, or `@VOLUME`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::{Call, KINDS, METHODS, RpcError};
    use cairn_block::ConfigError;
    use serde_json::json;

    #[test]
    fn a_refusal_keeps_its_line_and_kind_across_the_wire() {
        for (kind, ..) in KINDS {
            let error = ConfigError::new(kind, "vm", "size: found 1, expected 2");
            let wire = serde_json::to_string(&RpcError::of_verb(&error)).unwrap();
            let back: RpcError = serde_json::from_str(&wire).unwrap();
            let back = back.into_error();
            assert_eq!(back.kind, kind);
            assert_eq!(back.to_string(), error.to_string());
        }
    }

    #[test]
    fn every_method_of_the_list_is_known() {
        for (method, _) in METHODS {
            let refused = Call::of(method, json!([])).err().map(|error| error.code);
            assert_ne!(refused, Some(-32601), "{method}");
        }
        assert_eq!(Call::of("frob", json!({})).unwrap_err().code, -32601);
    }

    #[test]
    fn the_manual_lists_exactly_these_methods() {
        let manual = include_str!("../../../../docs/cli.md");
        for (method, params) in METHODS {
            let row = format!("| `{method}` | {params} |");
            assert!(manual.contains(&row), "docs/cli.md lacks the row: {row}");
        }
        let begin = manual.find("## Control socket").expect("the section exists");
        let rows = manual[begin..].lines().skip(1).take_while(|line| !line.starts_with("## "));
        assert_eq!(rows.filter(|line| line.starts_with("| `")).count(), METHODS.len());
    }
}
