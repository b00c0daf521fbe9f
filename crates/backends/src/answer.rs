//! [`Answer`]: what a task waits for that another thread or task has the result of.

use cairn_block::sync::Mutex;
use cairn_block::{IoError, until_some};
use event_listener::Event;

/// The result of one operation, once it is there.
pub(crate) struct Answer<T> {
    told: Mutex<Option<Result<T, IoError>>>,
    event: Event,
}

impl<T> Default for Answer<T> {
    fn default() -> Answer<T> {
        Answer { told: Mutex::new(None), event: Event::new() }
    }
}

impl<T> Answer<T> {
    /// The operation has ended.
    pub fn tell(&self, result: Result<T, IoError>) {
        *self.told.lock() = Some(result);
        self.event.notify(usize::MAX);
    }

    /// Waits for its end.
    pub async fn wait(&self) -> Result<T, IoError> {
        until_some(&self.event, || self.told.lock().take()).await
    }
}
