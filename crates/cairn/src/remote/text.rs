//! What reading verbs answered, as a person reads it: where dmsetup has such a verb, in its words.

use std::fmt::Write;

use cairn_control::exports::ExportInfo;
use cairn_control::report::{Info, ReportLine, TargetInfo, VolumeLines};
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
            let ReportLine { start, length, target, params, .. } = line;
            if named {
                write!(text, "{}: ", volume.name).expect(STRING);
            }
            writeln!(text, "{start} {length} {target} {params}").expect(STRING);
        }
    }
    text
}

const STRING: &str = "writing to a string cannot fail";

/// The states of volumes as dmsetup prints them.
pub fn infos(infos: &[Info]) -> String {
    let blocks = infos.iter().map(|info| {
        let access = if info.read_only { " (READ-ONLY)" } else { "" };
        let state = if info.suspended { "SUSPENDED" } else { "ACTIVE" };
        let tables = match (info.live, info.inactive) {
            (true, true) => "LIVE & INACTIVE",
            (true, false) => "LIVE",
            (false, true) => "INACTIVE",
            (false, false) => "None",
        };
        format!(
            "Name:              {}\nState:             {state}{access}\n\
             Tables present:    {tables}\nOpen count:        {}\n\
             Event number:      {}\nNumber of targets: {}\n",
            info.name, info.open_count, info.event_nr, info.targets
        )
    });
    blocks.collect::<Vec<_>>().join("\n")
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

/// The exports, one per line.
pub fn exports(exports: &[ExportInfo]) -> String {
    let line = |export: &ExportInfo| {
        let access = if export.read_only { " read-only" } else { "" };
        let uri = export.uri.as_deref().unwrap_or("-");
        format!("{} {} {} bytes{access} {uri}\n", export.name, export.volume, export.bytes)
    };
    exports.iter().map(line).collect()
}

/// Snapshots as a person reads it.
pub fn snaps(infos: &[SnapInfo]) -> String {
    let mut text = String::from("NAME STATE USED SIZE CHUNK STORE\n");
    if infos.is_empty() {
        return "No snapshots found\n".to_owned();
    }
    for info in infos {
        let bytes = |bytes: Option<u64>| bytes.map_or("-".to_owned(), |bytes| bytes.to_string());
        let (used, size) = (bytes(info.used_bytes), bytes(info.size_bytes));
        let state = info.state.replace(' ', "-");
        let SnapInfo { name, chunk_sectors, store, .. } = info;
        text.push_str(&format!("{name} {state} {used} {size} {chunk_sectors} {store}\n"));
    }
    text
}

/// The pools as a person reads them.
pub fn pools(pools: &[PoolInfo]) -> String {
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
             When full:         {}\nDiscards:          {}\nDetect zeroes:     {}\n\
             Transaction:       {}\nSnapshots made:    {}\nMetadata snapshot: {held}\n\
             Volumes:           {}\n",
            pool.name,
            pool.mode,
            pool.data_used_bytes,
            pool.data_total_bytes,
            pool.block_bytes,
            pool.metadata_used_bytes,
            pool.metadata_total_bytes,
            pool.metadata_reserve_bytes,
            pool.data_mark_percent,
            pool.metadata_mark_percent,
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

/// The volumes of pools as a person reads it.
pub fn thins(infos: &[ThinInfo]) -> String {
    if infos.is_empty() {
        return "No thin volumes found\n".to_owned();
    }
    let mut text = String::from("NAME POOL ID SIZE MAPPED EXCLUSIVE SHARED\n");
    for info in infos {
        let bytes = |bytes: Option<u64>| bytes.map_or("-".to_owned(), |bytes| bytes.to_string());
        let ThinInfo { name, pool, id, mapped_bytes, .. } = info;
        let (size, own) = (bytes(info.size_bytes), bytes(info.exclusive_bytes));
        let shared = bytes(info.shared_bytes);
        text.push_str(&format!("{name} {pool} {id} {size} {mapped_bytes} {own} {shared}\n"));
    }
    text
}

/// Ranges that may differ, one per line.
pub fn differences(extents: &[Extent]) -> String {
    let lines = extents.iter().map(|extent| format!("{} {}\n", extent.offset, extent.length));
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::{ReportLine, VolumeLines, lines};

    #[test]
    fn lines_read_as_dmsetup_prints_them() {
        let (target, params, fields) = ("linear".into(), "a.img 0".into(), Default::default());
        let line = ReportLine { start: 0, length: 8, target, params, fields };
        let volumes = [VolumeLines { name: "vm".into(), lines: vec![line] }];
        assert_eq!(lines(&volumes, false), "0 8 linear a.img 0\n");
        assert_eq!(lines(&volumes, true), "vm: 0 8 linear a.img 0\n");
    }
}
