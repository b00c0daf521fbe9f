//! Who serves a shared core, and when another one is opened.

use std::sync::Arc;

use futures_util::FutureExt;

use super::{Former, Served, SharedCore, User};

/// Has a user serve what there is, or a new core of this value. Answers the core's value, which
/// user served it before and what the new one replaced; an error if others serve it.
fn serve(user: &User<u32>, new: u32, takes: bool) -> Result<(u32, Option<Served>, String), Served> {
    let (mut seen, mut former) = (None, String::new());
    let served = user.serve_or(
        |_, served| {
            seen = Some(served);
            if served == Served::Live && !takes { Err(served) } else { Ok(takes) }
        },
        async |old| {
            former = match old {
                Former::Refused(core) => format!("refused {core}"),
                Former::Ended(core) => format!("ended {core}"),
                Former::None => "none".to_owned(),
            };
            Ok(Arc::new(new))
        },
        async |_| Ok(()),
    );
    let value = *served.now_or_never().expect("nothing waits")?.0;
    Ok((value, seen, former))
}

fn users() -> (Arc<SharedCore<u32>>, User<u32>, User<u32>) {
    let shared = Arc::<SharedCore<u32>>::default();
    let (first, second) = (shared.join(), shared.join());
    (shared, first, second)
}

#[test]
fn a_user_takes_the_core_over_once_its_server_is_paused() {
    let (_shared, first, second) = users();
    assert_eq!(serve(&first, 7, true), Ok((7, None, "none".to_owned())));
    assert_eq!(serve(&second, 8, false), Err(Served::Live), "H1");
    first.pause();
    assert_eq!(serve(&first, 8, true), Ok((7, Some(Served::Own), String::new())));
    first.pause();
    assert_eq!(serve(&second, 8, true), Ok((7, Some(Served::Paused), String::new())));
    assert!(second.is_live() && !first.is_live() && !second.is_alone());
}

#[test]
fn several_users_serve_one_core() {
    let (shared, first, second) = users();
    let third = shared.join();
    assert_eq!(serve(&first, 7, true), Ok((7, None, "none".to_owned())));
    assert_eq!(serve(&second, 8, true), Ok((7, Some(Served::Live), String::new())));
    assert!(first.is_live() && second.is_live());
    first.pause();
    assert_eq!(serve(&third, 8, true), Ok((7, Some(Served::Live), String::new())));
    assert!(second.leave().is_none() && third.is_live() && !first.is_live());
}

#[test]
fn a_core_that_is_not_taken_is_replaced_and_handed_to_the_opener() {
    let (_shared, first, second) = users();
    serve(&first, 7, true).unwrap();
    let kept = first.core().unwrap();
    first.pause();
    assert_eq!(serve(&second, 8, false), Ok((8, Some(Served::Paused), "refused 7".to_owned())));
    second.pause();
    second.clear();
    drop(kept);
    assert_eq!(serve(&first, 9, true), Ok((9, None, "none".to_owned())), "8 is gone by now");
    let kept = first.core().unwrap();
    first.pause();
    first.clear();
    assert_eq!(serve(&second, 10, true), Ok((10, None, "ended 9".to_owned())));
    drop(kept);
}

#[test]
#[should_panic = "H1"]
fn a_core_that_others_serve_is_never_replaced() {
    let (_shared, first, second) = users();
    serve(&first, 7, true).unwrap();
    let replaced =
        second.serve_or(|_, _| Ok::<bool, ()>(false), async |_| Ok(Arc::new(8)), async |_| Ok(()));
    drop(replaced.now_or_never());
}

#[test]
fn a_core_whose_setup_is_refused_serves_no_user() {
    let (_shared, first, _second) = users();
    let refused = first.serve_or(|_, _| Ok(true), async |_| Ok(Arc::new(7)), async |_| Err("no"));
    assert!(refused.now_or_never().expect("nothing waits").is_err());
    assert!(!first.is_live() && first.core().is_none());
}

#[test]
#[should_panic = "H3"]
fn a_user_that_serves_no_core_is_noticed() {
    let (shared, first, _second) = users();
    serve(&first, 7, true).unwrap();
    shared.state.lock().core = None;
    shared.state.lock().check_state();
}

#[test]
#[should_panic = "H4"]
fn a_core_that_outlives_its_users_is_noticed() {
    let (shared, first, _second) = users();
    serve(&first, 7, true).unwrap();
    first.pause();
    shared.state.lock().users = 0;
    shared.state.lock().check_state();
}

#[test]
fn the_last_user_takes_the_core_along() {
    let (_shared, first, second) = users();
    serve(&first, 7, true).unwrap();
    assert!(first.leave().is_none());
    assert_eq!(serve(&second, 8, true), Ok((7, Some(Served::Paused), String::new())));
    assert_eq!(second.leave().as_deref(), Some(&7));
}
