//! The answers of reading verbs as text for a person. A verb that dmsetup has prints in its form.

use std::fmt::Write;

use super::columns::{Sizes, table};
use super::top::latency;

use cairn_control::exports::ExportInfo;
use cairn_control::report::{Fields, Info, RemoteInfo, RemoteOp, TargetInfo, VolumeLines};
use cairn_control::verbs::cache::list::CacheInfo;
use cairn_control::verbs::pool::status::PoolInfo;
use cairn_control::verbs::snap::diff::Extent;
use cairn_control::verbs::snap::list::SnapInfo;
use cairn_control::verbs::thin::list::ThinInfo;

/// Lines as dmsetup prints them: of one volume bare, of all with the name in front.
pub fn lines(volumes: &[VolumeLines], named: bool) -> String {
    let mut text = String::new();
    for volume in volumes {
        if volume.lines.is_empty() && named {
            writeln!(text, "{}: ", volume.name).expect(STRING);
        }
        for line in &volume.lines {
            if named {
                write!(text, "{}: ", volume.name).expect(STRING);
            }
            writeln!(text, "{line}").expect(STRING);
        }
    }
    text
}

const STRING: &str = "writing to a string cannot fail";

/// The states of volumes as dmsetup prints them, with the remote disks that they stand on.
pub fn infos(infos: &[Info]) -> String {
    let blocks = infos.iter().map(|info| {
        let marker = |generation| format!("Dirty marker:      {generation}\n");
        let markers: String = info.dirty_markers.iter().map(marker).collect();
        let (state, tables) = (state(info, info.read_only), tables_present(info));
        format!(
            "Name:              {}\nState:             {state}\n\
             Tables present:    {tables}\nOpen count:        {}\n\
             Event number:      {}\nNumber of targets: {}\n{markers}{}",
            info.name,
            info.open_count,
            info.event_nr,
            info.targets,
            info.remotes.iter().map(remote).collect::<String>()
        )
    });
    blocks.collect::<Vec<_>>().join("\n")
}

/// A remote disk, in lines like those of its volume.
fn remote(info: &RemoteInfo) -> String {
    let counts = [
        (info.connections, "connections"),
        (info.reconnects, "reconnects"),
        (info.retries, "retries"),
        (info.fetched_bytes, "bytes fetched"),
        (info.replayed_bytes, "bytes replayed"),
        (info.held_bytes, "bytes held"),
        (Some(info.losses).filter(|losses| *losses > 0), "losses"),
    ];
    let told = counts.into_iter().filter_map(|(count, what)| Some(format!(", {} {what}", count?)));
    let mut text = format!("Remote disk:       {}\n", info.device);
    let told: String = told.collect();
    writeln!(text, "Remote state:      {}{told}", info.state).expect(STRING);
    for (op, RemoteOp { requests, bytes, errors, p50_ns, p99_ns }) in &info.ops {
        let (half, most) = (latency(*p50_ns), latency(*p99_ns));
        let name = format!("Remote {op}:");
        writeln!(
            text,
            "{name:<18} {requests} requests, {bytes} bytes, {errors} errors, \
             p50 {half}, p99 {most}"
        )
        .expect(STRING);
    }
    text
}

/// The state of a volume that takes writes or not.
pub fn state(info: &Info, read_only: bool) -> String {
    let state = if info.suspended { "SUSPENDED" } else { "ACTIVE" };
    let read_only = if read_only { " (READ-ONLY)" } else { "" };
    let deferred = if info.deferred_remove { " (DEFERRED REMOVE)" } else { "" };
    format!("{state}{read_only}{deferred}")
}

/// Which tables a volume has.
pub fn tables_present(info: &Info) -> &'static str {
    match (info.live, info.inactive) {
        (true, true) => "LIVE & INACTIVE",
        (true, false) => "LIVE",
        (false, true) => "INACTIVE",
        (false, false) => "None",
    }
}

/// The names of volumes, one per line.
pub fn names(infos: &[Info]) -> String {
    if infos.is_empty() {
        return "No devices found\n".to_owned();
    }
    infos.iter().map(|info| format!("{}\n", info.name)).collect()
}

/// The kinds of target as dmsetup prints them.
pub fn targets(targets: &[TargetInfo]) -> String {
    let line = |target: &TargetInfo| {
        let [major, minor, patch] = target.version;
        format!("{:<16} v{major}.{minor}.{patch}\n", target.name)
    };
    targets.iter().map(line).collect()
}

/// The volumes with their sizes and states.
pub fn volumes(infos: &[Info], sizes: Sizes) -> String {
    let rows: Vec<_> = infos
        .iter()
        .map(|info| {
            let (size, dirty) = (sizes.text(info.sectors * 512), sizes.text(info.dirty_bytes));
            let open = info.open_count.to_string();
            [info.name.clone(), size, info.state().to_owned(), open, dirty]
        })
        .collect();
    match rows.is_empty() {
        true => names(infos),
        false => table(["NAME", "SIZE", "STATE", "OPEN", "DIRTY"], &rows),
    }
}

/// The exports and where they are served; with their limits if one has some.
pub fn exports(exports: &[ExportInfo], sizes: Sizes) -> String {
    let row = |export: &ExportInfo| {
        let access = if export.read_only { "read-only" } else { "writable" }.to_owned();
        let uri = export.uri.clone().unwrap_or("-".to_owned());
        let (name, volume) = (export.name.clone(), export.volume.clone());
        [name, volume, sizes.text(export.bytes), access, export.throttle.to_string(), uri]
    };
    let rows: Vec<_> = exports.iter().map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    if exports.iter().any(|export| !export.throttle.is_empty()) {
        return table(["NAME", "VOLUME", "SIZE", "ACCESS", "LIMITS", "URI"], &rows);
    }
    let unlimited =
        |[name, volume, size, access, _, uri]: [String; 6]| [name, volume, size, access, uri];
    let rows: Vec<_> = rows.into_iter().map(unlimited).collect();
    table(["NAME", "VOLUME", "SIZE", "ACCESS", "URI"], &rows)
}

/// The caches of volumes.
pub fn caches(infos: &[CacheInfo], sizes: Sizes) -> String {
    if infos.is_empty() {
        return "No caches found\n".to_owned();
    }
    let row = |info: &CacheInfo| {
        let CacheInfo { name, target, cache, origin, mode, state, .. } = info;
        let used = info.used_percent.map_or("-".to_owned(), |used| format!("{used}%"));
        let words = [name, target, cache, origin, mode, state].map(String::clone);
        let [name, target, cache, origin, mode, state] = words;
        [name, target, cache, origin, mode, state, sizes.text(info.dirty_bytes), used]
    };
    let rows: Vec<_> = infos.iter().map(row).collect();
    table(["NAME", "TARGET", "CACHE", "ORIGIN", "MODE", "STATE", "DIRTY", "USED"], &rows)
}

/// Attributes as `cache set` takes them; what has no value now is `-`.
pub fn attributes(fields: &Fields) -> String {
    fields.iter().map(|(name, value)| format!("{name}={}\n", attribute(value))).collect()
}

/// The value of one attribute.
pub fn attribute(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::Null => "-".to_owned(),
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Array(parts) => {
            parts.iter().map(attribute).collect::<Vec<_>>().join(" ")
        }
        other => other.to_string(),
    }
}

/// The snapshots with their stores.
pub fn snaps(infos: &[SnapInfo], sizes: Sizes) -> String {
    if infos.is_empty() {
        return "No snapshots found\n".to_owned();
    }
    let row = |info: &SnapInfo| {
        let (used, size) = (sizes.maybe(info.used_bytes), sizes.maybe(info.size_bytes));
        let chunk = sizes.text(u64::from(info.chunk_sectors) * 512);
        [info.name.clone(), info.state.to_string(), used, size, chunk, info.store.clone()]
    };
    let rows: Vec<_> = infos.iter().map(row).collect();
    table(["NAME", "STATE", "USED", "SIZE", "CHUNK", "STORE"], &rows)
}

/// The pools as a person reads them.
pub fn pools(pools: &[PoolInfo], sizes: Sizes) -> String {
    if pools.is_empty() {
        return "No pools found\n".to_owned();
    }
    let pool = |pool: &PoolInfo| {
        let needs_check = if pool.needs_check { " (needs check)" } else { "" };
        let (data, metadata) = (
            percent(pool.data_used_bytes, pool.data_total_bytes),
            percent(pool.metadata_used_bytes, pool.metadata_total_bytes),
        );
        let held = pool.held_metadata_root.map_or("none".to_owned(), |at| format!("block {at}"));
        format!(
            "Name:              {}\nMode:              {}{needs_check}\n\
             Data used:         {} of {} ({data}), blocks of {}\n\
             Metadata used:     {} of {} ({metadata}), reserve {}\n\
             Marks:             data {}%, metadata {}%\n\
             Critical marks:    data {}%, metadata {}%\n\
             When full:         {}\nDiscards:          {}\nDetect zeroes:     {}\n\
             Transaction:       {}\nSnapshots made:    {}\nMetadata snapshot: {held}\n\
             Volumes:           {}\n",
            pool.name,
            pool.mode,
            sizes.text(pool.data_used_bytes),
            sizes.text(pool.data_total_bytes),
            sizes.text(pool.block_bytes),
            sizes.text(pool.metadata_used_bytes),
            sizes.text(pool.metadata_total_bytes),
            sizes.text(pool.metadata_reserve_bytes),
            pool.data_mark_percent,
            pool.metadata_mark_percent,
            pool.data_critical_percent,
            pool.metadata_critical_percent,
            pool.no_space,
            pool.discards,
            pool.detect_zeroes,
            pool.transaction_id,
            pool.time,
            pool.volumes,
        )
    };
    pools.iter().map(pool).collect::<Vec<_>>().join("\n")
}

fn percent(used: u64, total: u64) -> String {
    let percent = used.saturating_mul(100).checked_div(total).unwrap_or(0);
    format!("{percent}%")
}

/// The volumes of pools.
pub fn thins(infos: &[ThinInfo], sizes: Sizes) -> String {
    if infos.is_empty() {
        return "No thin volumes found\n".to_owned();
    }
    let row = |info: &ThinInfo| {
        let (name, pool, id) = (info.name.clone(), info.pool.clone(), info.id.to_string());
        let (size, mapped) = (sizes.maybe(info.size_bytes), sizes.text(info.mapped_bytes));
        let (own, shared) = (sizes.maybe(info.exclusive_bytes), sizes.maybe(info.shared_bytes));
        [name, pool, id, size, mapped, own, shared]
    };
    let rows: Vec<_> = infos.iter().map(row).collect();
    table(["NAME", "POOL", "ID", "SIZE", "MAPPED", "EXCLUSIVE", "SHARED"], &rows)
}

/// Ranges that may differ, one per line.
pub fn differences(extents: &[Extent]) -> String {
    let lines = extents.iter().map(|extent| format!("{} {}\n", extent.offset, extent.length));
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::{VolumeLines, lines, remote};
    use cairn_control::report::{RemoteInfo, RemoteOp, ReportLine};

    #[test]
    fn lines_read_as_dmsetup_prints_them() {
        let (target, params, fields) = ("linear".into(), "a.img 0".into(), Default::default());
        let line = ReportLine { start: 0, length: 8, target, params, fields };
        let volumes = [VolumeLines { name: "vm".into(), lines: vec![line] }];
        assert_eq!(lines(&volumes, false), "0 8 linear a.img 0\n");
        assert_eq!(lines(&volumes, true), "vm: 0 8 linear a.img 0\n");
    }

    #[test]
    fn a_remote_disk_is_shown_with_what_its_kind_has() {
        let (p50_ns, p99_ns) = (Some(131_072), None);
        let reads = RemoteOp { requests: 3, bytes: 12288, errors: 1, p50_ns, p99_ns };
        let nbd = RemoteInfo {
            device: "nbd://h/x".to_owned(),
            state: "reconnecting".to_owned(),
            connections: Some(0),
            reconnects: Some(2),
            losses: 1,
            ops: [("read".to_owned(), reads)].into(),
            ..RemoteInfo::default()
        };
        let expected = "Remote disk:       nbd://h/x\n\
            Remote state:      reconnecting, 0 connections, 2 reconnects, 1 losses\n\
            Remote read:       3 requests, 12288 bytes, 1 errors, p50 131us, p99 -\n";
        assert_eq!(remote(&nbd), expected);
    }
}
