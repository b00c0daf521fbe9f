//! The verbs of a running server, as a script uses them.

use std::io::Write;
use std::os::unix::net::UnixStream;

use serde_json::Value;

use super::place::Place;

const ZERO: [&str; 2] = ["--table", "vm=0 8 zero"];

#[test]
fn lines_are_bare_for_one_volume_and_named_for_all() {
    let place = Place::new();
    let args = ["--table", "a=0 8 linear mem:4K 0\n8 8 zero", "--table", "b=0 8 zero"];
    let script = "cairn table a; echo; cairn table; echo; cairn status b; echo; cairn ls";
    let expected = "0 8 linear mem:4K 0\n8 8 zero \n\n\
                    a: 0 8 linear mem:4K 0\na: 8 8 zero \nb: 0 8 zero \n\n\
                    0 8 zero \n\na\nb\n";
    assert_eq!(place.serve_run(&args, script).ok(), expected);
}

#[test]
fn the_kernel_is_told_of_a_pool_without_what_it_does_not_know() {
    let place = Place::new();
    place.sparse("p.data", 4 << 20);
    place.sparse("p.meta", 2 << 20);
    let options = "5 detect_zeroes unmap error_if_no_space data_mark 60";
    let pool = format!("p=0 8192 thin-pool p.meta p.data 128 7 {options}");
    let message = ["--message", "p 0 create_thin 0"];
    let args = [&["--table", &pool][..], &message, &["--table", "vm=0 2048 thin @p 0"]].concat();
    let script = "cairn table p --kernel; cairn table vm --kernel; cairn table p --kernel --json";
    let out = place.serve_run(&args, script).ok();
    let (lines, value) = out.split_at(out.find("\n[").unwrap() + 1);
    // The pool, and the pool again with the volume on it.
    let pool = "dmsetup create 'p' <<TABLE\n\
                0 8192 thin-pool $d0 $d1 128 7 1 error_if_no_space\nTABLE\n";
    assert_eq!(lines.matches(pool).count(), 2, "{lines}");
    for device in
        ["d0=$(device '", "p.meta')\nd1=$(device '", "p.data')\n# p: 0 8192 thin-pool p.meta"]
    {
        assert_eq!(lines.matches(device).count(), 2, "{lines}");
    }
    let volume = "dmsetup create 'vm' <<TABLE\n0 2048 thin /dev/mapper/p 0\nTABLE\n";
    assert!(lines.ends_with(volume), "{lines}");
    let value: Value = serde_json::from_str(value).unwrap();
    let params = "p.meta p.data 128 7 1 error_if_no_space";
    assert_eq!(value[0]["lines"][0]["params"], params, "{value}");
}

#[test]
fn json_has_stable_names() {
    let place = Place::new();
    place.sparse("cache", 256 << 10);
    let args = ["--table", "vm=0 2048 writecache s mem:1M cache 4096 0"];
    let script = "cairn status --json; cairn info vm --json; cairn targets --json; \
                  cairn exports --json; cairn table --json";
    let out = place.serve_run(&args, script).ok();
    let stream = serde_json::Deserializer::from_str(&out).into_iter::<Value>();
    let all: Vec<Value> = stream.map(Result::unwrap).collect();
    let [status, info, targets, exports, table] = &all[..] else { panic!("{out}") };
    let line = &status[0]["lines"][0];
    assert_eq!((&status[0]["name"], &line["target"]), (&"vm".into(), &"writecache".into()));
    assert_eq!((&line["fields"]["blocks"], &line["length"]), (&63.into(), &2048.into()));
    assert_eq!((&info[0]["suspended"], &info[0]["live"]), (&false.into(), &true.into()));
    assert!(targets.as_array().unwrap().iter().any(|kind| kind["name"] == "writecache"));
    assert_eq!((&exports[0]["volume"], &exports[0]["bytes"]), (&"vm".into(), &1_048_576.into()));
    assert_eq!(table[0]["lines"][0]["params"], "s mem:1M cache 4096 0");
}

#[test]
fn messages_reach_the_target_and_their_refusal_the_caller() {
    let place = Place::new();
    place.sparse("cache", 256 << 10);
    let args = ["--table", "vm=0 2048 writecache s mem:1M cache 4096 0"];
    let script = "cairn message vm 0 flush && echo done; cairn message vm 0 frob; echo $?; \
                  cairn message vm 2048 flush; echo $?; cairn message nope 0 flush; echo $?; \
                  cairn suspend vm; cairn message vm 0 flush; echo $?; cairn resume vm";
    let ran = place.serve_run(&args, script);
    assert_eq!(ran.out, "done\n1\n1\n1\n4\n", "{ran:?}");
    let lines: Vec<_> = ran.err.lines().collect();
    assert!(lines[0].starts_with("cairn: vm: message: found 'frob', expected one of "), "{ran:?}");
    assert_eq!(lines[1], "cairn: vm: sector: found 2048, expected one below 2048");
    assert!(lines[2].starts_with("cairn: nope: there is no volume of this name"), "{ran:?}");
}

#[test]
fn suspend_shows_in_info_and_resume_ends_it() {
    let script = "cairn suspend vm; cairn info vm | grep State; cairn suspend --noflush vm; \
                  cairn resume vm; cairn info | grep -e State -e Tables; cairn resume vm";
    let out = Place::new().serve_run(&ZERO, script).ok();
    let expected = "State:             SUSPENDED\nState:             ACTIVE\n\
                    Tables present:    LIVE\n";
    assert_eq!(out, expected);
}

#[test]
fn verbs_that_change_tables_refuse_without_a_state_file() {
    let script = "cairn load vm --table '0 16 zero'; echo $?; cairn remove vm; echo $?; \
                  cairn create w --table '0 8 zero'; echo $?; cairn ls";
    let ran = Place::new().serve_run(&ZERO, script);
    assert_eq!(ran.out, "1\n1\n1\nvm\n", "{ran:?}");
    assert_eq!(ran.err.matches("state file: found none").count(), 3, "{ran:?}");
}

#[test]
fn a_loaded_table_shows_and_becomes_live_and_survives_the_server() {
    let place = Place::new();
    let args = [&ZERO[..], &["--state", "vm.state"]].concat();
    let script = "cairn load vm --table '0 16 zero' && cairn info | grep Tables; \
                  cairn table; cairn table --inactive; cairn clear vm; cairn table --inactive; \
                  echo '0 16 zero' | cairn reload vm; cairn resume vm; cairn table; \
                  nbdinfo --size \"$uri\"";
    let expected = "Tables present:    LIVE & INACTIVE\nvm: 0 8 zero \nvm: 0 16 zero \nvm: \n\
                    vm: 0 16 zero \n8192\n";
    assert_eq!(place.serve_run(&args, script).ok(), expected);
    let script = "cairn table; cairn load vm --table '0 24 zero'";
    assert_eq!(place.serve_run(&args, script).ok(), "vm: 0 16 zero \n");
    let script = "cairn table; cairn table --inactive; cairn load vm --table '0 8 frob'; \
                  cairn table --inactive; cairn load vm --table '0 8 zero'; cairn resume vm";
    let ran = place.serve_run(&args, script);
    assert_eq!(ran.out, "vm: 0 16 zero \nvm: 0 24 zero \nvm: 0 24 zero \n", "{ran:?}");
    let state: Value = serde_json::from_slice(&place.read("vm.state")).unwrap();
    assert_eq!(state["volumes"], serde_json::json!([]), "as configured again");
}

#[test]
fn a_changed_configuration_does_not_lose_to_a_record_in_silence() {
    let place = Place::new();
    let args = [&ZERO[..], &["--state", "vm.state"]].concat();
    place.serve_run(&args, "cairn load vm --table '0 16 zero'; cairn resume vm").ok();
    let args = ["--table", "vm=0 32 zero", "--state", "vm.state"];
    let line = place.serve_run(&args, "true").refused(1);
    assert!(line.contains("vm: state: found another table configured"), "{line}");
}

#[test]
fn volumes_come_and_go_with_their_exports() {
    let place = Place::new();
    let args = [&ZERO[..], &["--state", "vm.state"]].concat();
    let script = "cairn create w --table '0 24 linear @vm 0'; echo $?; cairn create w --table x; \
                  echo $?; cairn create w --table '0 8 linear @vm 0'; cairn remove vm; echo $?; \
                  cairn exports --bytes | awk 'NR > 1 { print $1, $2, $3 }'; \
                  nbdinfo --list \"$uri\" | grep -c 'export='";
    let ran = place.serve_run(&args, script);
    assert_eq!(ran.out, "1\n1\n4\nvm vm 4096\nw w 4096\n2\n", "{ran:?}");
    assert!(ran.err.contains("vm: users: found volume 'w' on it"), "{ran:?}");
    let script = "cairn ls; cairn remove w && cairn remove vm; cairn ls; cairn exports";
    assert_eq!(place.serve_run(&args, script).ok(), "vm\nw\nNo devices found\n");
    assert_eq!(place.serve_run(&args, "cairn ls").ok(), "No devices found\n");
}

#[test]
fn resize_changes_the_last_line_while_clients_are_served_and_is_recorded() {
    let place = Place::new();
    place.sparse("disk", 1 << 20);
    let args = ["--table", "vm=0 8 zero\n8 1016 linear disk 8", "--state", "s"];
    let script = "cairn resize vm 1M && cairn ls -l; cairn resize vm 2M; echo $?; \
                  cairn resize vm 4K; echo $?";
    let ran = place.serve_run(&args, script);
    let list = "NAME  SIZE  STATE   OPEN  DIRTY\nvm      1M  active     1     0B\n1\n1\n";
    assert_eq!(ran.out, list, "{ran:?}");
    assert!(ran.err.contains("vm: size: found 4096 bytes, expected whole sectors"), "{ran:?}");
    let expected = "vm: 0 8 zero \nvm: 8 2040 linear disk 8\n";
    assert_eq!(place.serve_run(&args, "cairn table").ok(), expected);
    // Not shorter while it is used, unless that is asked for.
    let script = "cairn create top --table '0 2048 linear @vm 0'; cairn resize vm 8K; echo $?; \
                  cairn remove top; cairn resize vm 8K; cairn ls --bytes | tail -1";
    let ran = place.serve_run(&args, script);
    assert_eq!(ran.out, "4\nvm    8192  active     1      0\n", "{ran:?}");
}

#[test]
fn resize_makes_a_thin_volume_longer_and_the_next_start_has_it_so() {
    let place = Place::new();
    place.sparse("disk", 8 << 9);
    let args = ["--table", "vm=0 8 linear disk 0", "--state", "s"];
    let script = "cairn pool create p --data d --data-size 4M --metadata m && \
                  cairn thin create p/t 1M && cairn resize t 2M && cairn table t";
    assert_eq!(place.serve_run(&args, script).ok(), "0 4096 thin @p 0\n");
    // Longer than its pool, which it may be; and shorter again, as no client uses it.
    let script = "cairn table t; cairn resize t 8M && cairn resize t 512K --shrink; echo $?; \
                  cairn table t";
    let expected = "0 4096 thin @p 0\n0\n0 1024 thin @p 0\n";
    assert_eq!(place.serve_run(&args, script).ok(), expected);
}

#[test]
fn kernel_script_of_a_volume_sets_up_its_snapshots_before_it() {
    let place = Place::new();
    place.sparse("disk", 1 << 20);
    let args = ["--table", "v=0 2048 linear disk 0", "--state", "s"];
    let script = "cairn snap create v@a && cairn snap create v@b && cairn table v --kernel | \
                  grep dmsetup | cut -d\\' -f2 | sort | tr '\\n' ' '; cairn table v --kernel | \
                  grep dmsetup | tail -1 | cut -d\\' -f2";
    assert_eq!(place.serve_run(&args, script).ok(), "v v@a v@b v@real v\n");
}

#[test]
fn read_only_server_changes_neither_tables_nor_the_state_file_of_another_one() {
    let place = Place::new();
    place.sparse("disk", 1 << 20);
    let writes = ["--table", "v=0 8 linear disk 0", "--state", "s"];
    place.serve_run(&writes, "cairn create w --table '0 8 zero'").ok();
    let before = std::fs::read(place.path("s")).unwrap();
    let reads = ["--read-only", "--table", "v=0 8 linear disk 0", "--state", "s"];
    let script = "cairn create x --table '0 8 zero'; cairn export add v --as other; cairn clear v";
    let ran = place.serve_run(&reads, script);
    assert_eq!(ran.err.matches("found a read-only server").count(), 3, "{ran:?}");
    assert_eq!(std::fs::read(place.path("s")).unwrap(), before);
}

#[test]
fn tree_shows_volumes_over_their_lower_devices() {
    let place = Place::new();
    place.sparse("disk", 1 << 20);
    let args = ["--table", "low=0 2048 linear disk 0", "--table", "top=0 8 linear @low 0"];
    let out = place.serve_run(&args, "cairn ls --tree; cairn table top --kernel | grep -c dmsetup");
    assert_eq!(out.ok(), "top\n└─ low\n   └─ disk\n2\n");
    let refused = place.serve_run(&["--table", "m=0 8 linear mem:4K 0"], "cairn table --kernel");
    assert!(refused.err.contains("m: device: found mem:4K, expected a file"), "{refused:?}");
}

#[test]
fn paths_are_relative_to_the_caller_and_in_a_toml_file_to_the_file() {
    let place = Place::new();
    std::fs::create_dir_all(place.path("sub/a disk")).unwrap();
    place.sparse("sub/a disk/toml", 8 << 9);
    place.sparse("sub/a disk/near", 8 << 9);
    place.sparse("caller", 16 << 9);
    let line = "[[volume.line]]\nsize = '8s'\ntarget = 'linear'\nargs = ['a disk/toml', 0]\n";
    place.write("sub/vm.toml", format!("[[volume]]\nname = 'vm'\n{line}"));
    let args = ["sub/vm.toml", "--table", "arg=0 16 linear caller 0"];
    let script = "cairn create verb --table '0 8 linear caller 8' && \
                  cd sub && cairn create near --table '0 8 linear a\\040disk/near 0' && \
                  cairn snap create vm@mon --store 'a disk/mon' && \
                  cairn ls -l | awk '{ print $1, $2 }'";
    let out = place.serve_run(&args, script).ok();
    let expected = "NAME SIZE\narg 8K\nnear 4K\nverb 4K\nvm 4K\nvm@mon 4K\nvm@real 4K\n";
    assert_eq!(out, expected);
    assert!(place.exists("sub/a disk/mon"));
    // As recorded, from another folder.
    let script = "cairn table verb; cairn table near; cairn table vm@mon | cut -d' ' -f5";
    let out = place.serve_run(&args, script).ok();
    let caller = place.path("caller").display().to_string();
    let expected = format!("0 8 linear {caller} 8\n0 8 linear a\\040disk/near 0\n");
    assert!(out.starts_with(&expected) && out.ends_with("a\\040disk/mon\n"), "{out}");
}

#[test]
fn pool_grows_by_itself_at_its_low_water_mark_up_to_its_limit() {
    let place = Place::new();
    place.write("6M", vec![7; 6 << 20]);
    place.write("11M", vec![8; 11 << 20]);
    let total = "cairn pool status --json | grep '\"data_total'";
    let script = format!(
        "cairn pool create p --data d --data-size 4M --metadata m --grow 4M --grow-max 11M && \
         cairn thin create p/v 40M && nbdcopy --flush 6M \"$uri\" && {total} && \
         nbdcopy --flush 11M \"$uri\" && {total}"
    );
    let ran = place.serve_run(&["--state", "s", "-v"], &script);
    let expected = "    \"data_total_bytes\": 8388608,\n    \"data_total_bytes\": 11534336,\n";
    assert_eq!(ran.out, expected, "{ran:?}");
    assert!(ran.err.contains("p: the data file grows to 8388608 bytes"), "{ran:?}");
}

#[test]
fn wait_returns_at_the_next_event() {
    // A pool whose metadata is full says so, and that it has room again.
    let script = "cairn pool create p --data p.data --data-size 4M --metadata p.meta \
                  --metadata-size 64K && cairn wait p 0 && \
                  now=$(cairn info p | sed -n 's/^Event number: *//p'); cairn wait p $now & \
                  cairn pool grow p --metadata-size 4M; wait; \
                  cairn info p | grep -c \"^Event number: *$((now + 1))$\"";
    assert_eq!(Place::new().serve_run(&["--state", "s"], script).ok(), "1\n");
}

#[test]
fn clients_that_hang_up_while_waiting_free_their_connections() {
    let place = Place::new();
    let _server = place.serve(&[&ZERO[..], &["--control", "control"]].concat());
    let wait = r#"{"jsonrpc":"2.0","id":1,"method":"volume_wait","params":{"name":"vm"}}"#;
    let call = || {
        let mut stream = UnixStream::connect(place.path("control")).unwrap();
        // Refused while there is no room.
        drop(writeln!(stream, "{wait}"));
        stream
    };
    for _ in 0..3 {
        drop((0..60).map(|_| call()).collect::<Vec<_>>());
        while place.cairn(&["ls", "--control", "control"]).code != 0 {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}

#[test]
fn a_grown_file_shows_after_load_and_resume() {
    let place = Place::new();
    place.sparse("file", 4096);
    let args = ["--table", "vm=0 8 linear file 0", "--state", "vm.state"];
    let script = "cairn load vm --table '0 16 linear file 0'; echo $?; truncate -s 8192 file; \
                  cairn load vm --table '0 16 linear file 0' && cairn resume vm; \
                  nbdinfo --size \"$uri\"";
    let ran = place.serve_run(&args, script);
    assert_eq!(ran.out, "1\n8192\n", "{ran:?}");
}

#[test]
fn targets_are_listed_as_dmsetup_does() {
    let out = Place::new().serve_run(&ZERO, "cairn targets").ok();
    assert!(out.contains("writecache       v1.6.0\n"), "{out}");
    assert!(out.contains("linear           v1.4.0\n"), "{out}");
}

#[test]
fn without_a_server_the_verbs_say_where_they_looked() {
    let place = Place::new();
    let line = place.cairn(&["ls"]).refused(1);
    assert!(line.contains("control.sock: no server listens on this control socket"), "{line}");
}

#[test]
fn help_tells_every_verb_and_every_exit_code() {
    let help = Place::new().cairn(&["--help"]).ok();
    let verbs = "serve status table ls info targets exports message suspend load resume clear \
                 create remove wait probe check dump format flush";
    for verb in verbs.split_whitespace() {
        assert!(help.contains(&format!("\n  {verb} ")), "{verb}: {help}");
    }
    for code in ["0  ok", "2  damaged", "4  busy", "5  sound after", "63  unsupported", "124  "] {
        assert!(help.contains(code), "{code}: {help}");
    }
}

#[test]
fn a_snapshot_in_a_pool_is_made_larger_by_its_table() {
    let place = Place::new();
    let script = "cairn pool create p --data p.data --data-size 4M --metadata p.meta && \
                  cairn thin create p/vm 1M && cairn thin snapshot vm@mon && \
                  cairn load vm@mon --table '0 4096 thin @p 1' && cairn resume vm@mon && \
                  cairn table vm@mon && cairn table vm";
    let out = place.serve_run(&["--state", "s"], script).ok();
    assert_eq!(out, "0 4096 thin @p 1\n0 2048 thin @p 0\n");
    let script = "cairn table vm@mon; cairn load vm@mon --table '0 4096 thin @p 0'";
    let ran = place.serve_run(&["--state", "s"], script);
    assert_eq!((ran.code, ran.out.as_str()), (1, "0 4096 thin @p 1\n"), "{ran:?}");
    assert!(ran.err.contains("expected one line of thin @p 1"), "{ran:?}");
}

#[test]
fn a_suspended_pool_makes_volumes_and_lets_them_go() {
    let place = Place::new();
    let script = "cairn pool create p --data p.data --data-size 4M --metadata p.meta && \
                  cairn message p 0 create_thin 0 && cairn create t --table '0 128 thin @p 0' && \
                  cairn suspend p && cairn message p 0 create_snap 1 0 && cairn remove t && \
                  cairn resume p && cairn create s --table '0 128 thin @p 1' && cairn ls";
    assert_eq!(place.serve_run(&["--state", "s"], script).ok(), "p\ns\n");
}

#[test]
fn a_new_table_is_no_event() {
    let place = Place::new();
    let script = "cairn load vm --table '0 16 zero' && cairn resume vm && \
                  cairn info vm | grep Event; timeout 1 cairn wait vm 0; echo $?";
    let args = [&ZERO[..], &["--state", "s"]].concat();
    assert_eq!(place.serve_run(&args, script).ok(), "Event number:      0\n124\n");
}
