//! `remove --deferred`: a volume in use is removed once it is not.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_block::ConfigKind;
use cairn_outcome::failure::Outcome;

use super::half_way::TABLE;
use super::{FOREVER, line_of};
use crate::report;
use crate::state::StateFile;
use crate::verbs::snap::tests::{Patient, TestServer, folders};
use crate::verbs::steps::Step;
use crate::verbs::verb::Verb;
use crate::verbs::volume::{VolumeMessage, VolumeRemove};

impl TestServer {
    fn remove_deferred(&self, name: &str) -> Outcome<Vec<String>> {
        let (name, deferred) = (name.to_owned(), true);
        self.verbs.remove_volume(&VolumeRemove { name, deferred, force: false }, &Patient)
    }

    fn is_marked(&self, name: &str) -> bool {
        let infos = report::infos(&self.world, &self.verbs.exports, Some(name)).unwrap();
        infos[0].deferred_remove
    }

    fn say_to(&self, name: &str, word: &str) -> Outcome<()> {
        let words = vec![word.to_owned()];
        let message = VolumeMessage { name: name.to_owned(), sector: 0, words };
        message.run(&self.verbs, &Patient).map(drop)
    }

    fn await_end_of(&self, name: &str) {
        let begun = Instant::now();
        while self.has(name) {
            assert!(begun.elapsed() < FOREVER, "{name} is still there");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// `on` stands on `mid`, and that on `low`.
fn with_tower() -> (tempfile::TempDir, Arc<TestServer>) {
    let (all, work, _) = folders();
    let server = Arc::new(TestServer::fresh(&work, TABLE));
    fs::write(work.join("other"), vec![5; 1 << 20]).unwrap();
    server.verbs.create("low", "0 1024 linear other 0").unwrap();
    server.verbs.create("mid", "0 8 linear @low 0").unwrap();
    server.verbs.create("on", "0 8 linear @mid 0").unwrap();
    (all, server)
}

#[test]
fn volumes_in_use_go_when_the_last_volume_on_them_does() {
    let (_all, server) = with_tower();
    server.verbs.watch_over().unwrap();
    for name in ["low", "mid"] {
        let notes = server.remove_deferred(name).unwrap();
        assert_eq!(notes, ["in use: removal deferred until no client and no volume uses it"]);
        assert!(server.is_marked(name));
    }
    assert!(!server.is_marked("on"));
    // Another one may begin to use it, as in the kernel.
    server.verbs.create("late", "0 8 linear @low 8").unwrap();
    server.verbs.remove("on").unwrap();
    server.await_end_of("mid");
    assert!(server.has("low") && server.is_marked("low"), "it is in use");
    server.verbs.remove("late").unwrap();
    server.await_end_of("low");
    let records = StateFile::open(&server.folder.join("state")).unwrap().records();
    assert!(records.is_empty(), "{records:?}");
}

#[test]
fn volume_that_is_not_in_use_goes_at_once() {
    let (_all, server) = with_tower();
    assert!(server.remove_deferred("on").unwrap().is_empty());
    assert!(!server.has("on"));
}

#[test]
fn cancelled_removal_leaves_the_volume() {
    let (_all, server) = with_tower();
    server.remove_deferred("mid").unwrap();
    server.say_to("mid", "@Cancel_Deferred_Remove").unwrap();
    assert!(!server.is_marked("mid"));
    server.verbs.remove("on").unwrap();
    server.verbs.remove_deferred("mid").unwrap();
    assert!(server.has("mid"));
    // Without a mark it changes nothing, as in the kernel.
    server.say_to("mid", "@cancel_deferred_remove").unwrap();
    let refused = line_of(server.say_to("mid", "@frob"));
    assert_eq!(refused, "mid: message: found '@frob', expected @cancel_deferred_remove");
    assert!(line_of(server.say_to("none", "@cancel_deferred_remove")).contains("no volume"));
}

#[test]
fn cancel_during_the_removal_fails() {
    let (_all, server) = with_tower();
    server.remove_deferred("mid").unwrap();
    server.verbs.remove("on").unwrap();
    let (send, receive) = std::sync::mpsc::channel();
    let other = server.clone();
    *server.verbs.at_step.lock() = Box::new(move |step| {
        if step == Step::Recorded {
            let (send, other) = (send.clone(), other.clone());
            std::thread::spawn(move || {
                send.send(other.say_to("mid", "@cancel_deferred_remove")).unwrap();
            });
            // It does not wait for its turn if it takes none.
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    server.verbs.remove_deferred("mid").unwrap();
    assert!(!server.has("mid"));
    assert!(line_of(receive.recv().unwrap()).contains("no volume"));
    *server.verbs.at_step.lock() = Box::new(|_| ());
}

#[test]
fn snapshot_of_a_marked_volume_is_refused() {
    let (_all, server) = with_tower();
    server.remove_deferred("low").unwrap();
    let refused = line_of(server.create("low@mon"));
    assert!(refused.starts_with("low: state: found a deferred removal, expected"), "{refused}");
    server.say_to("low", "@cancel_deferred_remove").unwrap();
    server.create("low@mon").unwrap();
}

#[test]
fn mark_ends_with_its_volume() {
    let (_all, server) = with_tower();
    server.remove_deferred("mid").unwrap();
    server.verbs.remove("on").unwrap();
    server.verbs.remove("mid").unwrap();
    server.verbs.create("mid", "0 8 zero").unwrap();
    assert!(!server.is_marked("mid"));
    assert!(server.world.deferred_removals().is_empty());
}

#[test]
fn removal_that_fails_leaves_the_volume_without_the_mark() {
    let (_all, server) = with_tower();
    server.remove_deferred("mid").unwrap();
    server.verbs.remove("on").unwrap();
    fs::create_dir(server.folder.join("state.new")).unwrap();
    let refused = line_of(server.verbs.remove_deferred("mid"));
    assert!(refused.contains("state: write"), "{refused}");
    assert!(server.has("mid") && !server.is_marked("mid"));
    fs::remove_dir(server.folder.join("state.new")).unwrap();
    server.verbs.remove_deferred("mid").unwrap();
    assert!(server.has("mid"));
}

#[test]
fn volume_that_waits_for_a_suspended_one_stays_marked_until_it_can_go() {
    let (_all, server) = with_tower();
    server.remove_deferred("mid").unwrap();
    server.verbs.remove("on").unwrap();
    server.verbs.suspend("low", false, &Patient).unwrap();
    let error = server.verbs.remove_deferred("mid").unwrap_err();
    assert_eq!(error.kind, ConfigKind::Busy, "the keeper pauses: {error}");
    assert!(server.has("mid") && server.is_marked("mid"));
    server.resume("low").unwrap();
    server.verbs.remove_deferred("mid").unwrap();
    assert!(!server.has("mid"));
}

#[test]
fn what_another_verb_removes_is_refused_and_not_marked() {
    let (_all, server) = with_tower();
    server.create("v@mon").unwrap();
    for name in ["v", "v@mon"] {
        let refused = line_of(server.remove_deferred(name));
        assert!(refused.contains("snap remove"), "{refused}");
        assert!(!server.is_marked(name));
    }
    assert!(line_of(server.remove_deferred("none")).contains("no volume"));
    server.remove_deferred("mid").unwrap();
    server.verbs.remove("on").unwrap();
    let refused = line_of(server.verbs.rename_volume("mid", "other", &Patient));
    assert!(refused.starts_with("mid: state: found a deferred removal"), "{refused}");
}

#[test]
fn user_that_comes_before_the_removal_keeps_the_volume() {
    let (_all, server) = with_tower();
    server.remove_deferred("mid").unwrap();
    server.verbs.remove("on").unwrap();
    server.verbs.create("late", "0 8 linear @mid 0").unwrap();
    let seen = Arc::new(parking_lot::Mutex::new(Vec::<Step>::new()));
    let log = seen.clone();
    *server.verbs.at_step.lock() = Box::new(move |step| log.lock().push(step));
    server.verbs.remove_deferred("mid").unwrap();
    assert!(server.has("mid") && server.is_marked("mid") && seen.lock().is_empty());
}
