//! [`Cache`]: pieces of an image that never change, by where they are. What was used last is kept.
//!
//! A piece that is being loaded is loaded once, whichever reactors wait for it. If loading fails,
//! or its task is dropped, the next of those that wait loads it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use cairn_block::sync::Mutex;
use cairn_block::{IoError, until_some};
use event_listener::Event;

pub(super) struct Cache {
    state: Mutex<State>,
    loaded: Event,
    pieces_max: usize,
}

#[derive(Default)]
struct State {
    kept: HashMap<u64, Kept>,
    loading: HashSet<u64>,
    uses: u64,
}

struct Kept {
    piece: Arc<[u8]>,
    /// When it was last used.
    used: u64,
}

enum Found<'a> {
    Kept(Arc<[u8]>),
    Absent(Turn<'a>),
}

/// The turn to load a piece, until dropped.
struct Turn<'a> {
    cache: &'a Cache,
    at: u64,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.cache.state.lock().loading.remove(&self.at);
        self.cache.loaded.notify(usize::MAX);
    }
}

impl Cache {
    /// A cache of at most so many pieces.
    pub fn new(pieces_max: usize) -> Cache {
        Cache { state: Mutex::default(), loaded: Event::new(), pieces_max }
    }

    /// The piece at `at`, which `load` loads if it is not there.
    pub async fn get(
        &self,
        at: u64,
        load: impl Future<Output = Result<Vec<u8>, IoError>>,
    ) -> Result<Arc<[u8]>, IoError> {
        match until_some(&self.loaded, || self.find(at)).await {
            Found::Kept(piece) => Ok(piece),
            Found::Absent(turn) => {
                let piece: Arc<[u8]> = load.await?.into();
                self.keep(turn.at, piece.clone());
                Ok(piece)
            }
        }
    }

    fn find(&self, at: u64) -> Option<Found<'_>> {
        let mut state = self.state.lock();
        state.uses += 1;
        let now = state.uses;
        if let Some(kept) = state.kept.get_mut(&at) {
            kept.used = now;
            return Some(Found::Kept(kept.piece.clone()));
        }
        state.loading.insert(at).then(|| Found::Absent(Turn { cache: self, at }))
    }

    fn keep(&self, at: u64, piece: Arc<[u8]>) {
        let mut state = self.state.lock();
        if state.kept.len() >= self.pieces_max {
            let oldest = state.kept.iter().min_by_key(|(_, kept)| kept.used);
            if let Some(oldest) = oldest.map(|(at, _)| *at) {
                state.kept.remove(&oldest);
            }
        }
        let used = state.uses;
        state.kept.insert(at, Kept { piece, used });
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures_util::FutureExt;

    use super::*;

    fn get(cache: &Cache, at: u64, load: impl Future<Output = Result<Vec<u8>, IoError>>) -> String {
        match cache.get(at, load).now_or_never() {
            None => "waits".to_owned(),
            Some(Ok(piece)) => String::from_utf8(piece.to_vec()).unwrap(),
            Some(Err(error)) => error.to_string(),
        }
    }

    fn piece(text: &str) -> impl Future<Output = Result<Vec<u8>, IoError>> {
        ready(Ok(text.as_bytes().to_vec()))
    }

    #[test]
    fn the_piece_that_was_not_used_for_longest_is_dropped() {
        let cache = Cache::new(2);
        assert_eq!(get(&cache, 1, piece("a")), "a");
        assert_eq!(get(&cache, 2, piece("b")), "b");
        assert_eq!(get(&cache, 1, piece("another a")), "a");
        assert_eq!(get(&cache, 3, piece("c")), "c");
        assert_eq!(get(&cache, 1, piece("another a")), "a");
        assert_eq!(get(&cache, 2, piece("another b")), "another b");
    }

    #[test]
    fn a_piece_is_loaded_once_at_a_time_and_again_after_a_failure() {
        let cache = Cache::new(2);
        let mut first = Box::pin(cache.get(1, pending()));
        assert!(first.as_mut().now_or_never().is_none());
        assert_eq!(get(&cache, 1, piece("a")), "waits");
        drop(first);
        assert_eq!(get(&cache, 1, ready(Err(IoError::IO))), IoError::IO.to_string());
        assert_eq!(get(&cache, 1, piece("a")), "a");
    }
}
