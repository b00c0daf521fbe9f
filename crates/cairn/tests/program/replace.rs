//! `cairn replace` and `resume` over a whole server: exit codes, what is told, and clients.

use super::place::{Place, Ran};

const CACHED: &str = "disk=0 2048 writecache s slow fast 4096 2 autocommit_time 3600000";
const BARE: &str = "0 2048 linear slow 0";

fn place() -> Place {
    let place = Place::new();
    place.sparse("slow", 1 << 20);
    place.sparse("fast", 256 << 10);
    place
}

fn run(place: &Place, script: &str) -> Ran {
    let write = "qemu-io -f raw -c 'write -P 7 0 64k' -c flush \"$uri\" >/dev/null";
    let script = format!("BARE='{BARE}'; {write}; {script}");
    place.serve_run(&["--state", "state", "--table", CACHED], &script)
}

#[test]
fn dirty_data_is_neither_lost_nor_flushed_without_a_word() {
    let place = place();
    let script = "cairn replace disk --table \"$BARE\"; echo $?; cairn table disk; \
                  cairn info disk --json | grep -c 'dirty_bytes\": 65536'; \
                  cairn load disk --table \"$BARE\"; cairn resume disk; echo $?; \
                  cairn resume disk --flush; echo $?; cairn table disk; \
                  qemu-io -r -f raw -c 'read -P 7 0 64k' \"$uri\" | grep -c failed";
    let ran = run(&place, script);
    let cached = CACHED.trim_start_matches("disk=");
    assert_eq!(ran.out, format!("1\n{cached}\n1\n1\n0\n{BARE}\n0\n"), "{ran:?}");
    let refused = "cairn: disk: dirty data: found 64 KiB on fast that slow lacks, expected none \
                   (--flush writes it back first, --discard-dirty loses it)";
    assert_eq!(ran.err.lines().filter(|line| *line == refused).count(), 2, "{ran:?}");
    assert!(ran.err.contains("cairn: 128 sectors (64.00 KiB) to write back\n"), "{ran:?}");
    assert!(ran.err.contains("cairn: 0 sectors (0 B) left"), "{ran:?}");
    assert!(place.read("slow")[..64 << 10].iter().all(|byte| *byte == 7));
}

#[test]
fn dirty_data_that_is_given_up_or_left_is_told() {
    let place = place();
    let script = "cairn replace disk --table '0 2048 error' && \
                  cairn replace disk --table \"$CACHED\" && \
                  cairn remove disk";
    let ran = run(&place, &format!("CACHED='{}'; {script}", &CACHED["disk=".len()..]));
    assert_eq!(ran.code, 0, "{ran:?}");
    let keeps = "cairn: disk: fast keeps 64 KiB that slow lacks";
    assert_eq!(ran.err.lines().filter(|line| *line == keeps).count(), 2, "{ran:?}");

    let place = self::place();
    let ran = run(&place, "cairn replace disk --discard-dirty --table \"$BARE\"; echo $?");
    assert_eq!(ran.out, "0\n", "{ran:?}");
    assert!(
        ran.err.contains("cairn: disk: 64 KiB on fast that slow lacks are given up"),
        "{ran:?}"
    );
}

#[test]
fn a_volume_with_a_client_gets_no_shorter_table_without_a_word() {
    let place = place();
    let script = "stdbuf -oL qemu-io -f raw -c 'write 0 4k' -c 'sleep 60000' \"$uri\" \
                  >acks & client=$!; \
                  until grep -q wrote acks; do sleep 0.1; done; \
                  cairn replace disk --table '0 1024 zero'; echo $?; \
                  cairn replace disk --shrink --table '0 1024 zero'; echo $?; \
                  cairn load disk --table '0 512 zero'; cairn resume disk; echo $?; \
                  cairn resume disk --shrink; echo $?; kill $client";
    let ran = run(&place, script);
    assert_eq!(ran.out, "4\n0\n4\n0\n", "{ran:?}");
    let refused = "cairn: disk: size: found 1024 sectors with clients that are connected, expected \
                   at least 2048 (--shrink makes it shorter)\n";
    assert!(ran.err.contains(refused), "{ran:?}");
}

#[test]
fn a_flush_that_its_caller_gives_up_leaves_the_old_table() {
    let place = place();
    place.sparse("other", 1 << 20);
    // Writes to the origin take an hour, or until it is suspended.
    let late = ["--table", "late=0 2048 delay slow 0 0 other 0 3600000 other 0 0"];
    let cached = "disk=0 2048 writecache s @late fast 4096 0";
    let args =
        [&["--state", "state", "--export", "disk"], &late[..], &["--table", cached]].concat();
    let script = "qemu-io -f raw -c 'write -P 7 0 64k' \"$uri\" >/dev/null; \
                  timeout -s INT 2 cairn replace disk --flush --table '0 2048 linear @late 0'; \
                  echo $?; until cairn clear disk 2>/dev/null; do sleep 0.1; done; \
                  cairn table disk; \
                  qemu-io -r -f raw -c 'read -P 7 0 64k' \"$uri\" | grep -c failed; true";
    let ran = place.serve_run(&args, script);
    let table = &cached["disk=".len()..];
    assert_eq!(ran.out, format!("124\n{table}\n0\n"), "{ran:?}");
}
