//! [`on_helper`]: work that may wait, and has a result, for a task on a reactor.

use std::sync::Arc;

use cairn_block::sync::Mutex;
use cairn_block::{ConfigError, ConfigKind, Env};
use cairn_reactor::Driver;

/// Runs `work` on a helper thread of the reactor: a slow file system, device or server keeps no
/// reactor waiting. `device` and `what` name it in an error.
///
/// # Errors
/// Those of `work`, or there is no thread for it.
pub(crate) async fn on_helper<T: Send + 'static>(
    env: &Env,
    (device, what): (&str, &str),
    work: impl FnOnce() -> Result<T, ConfigError> + Send + 'static,
) -> Result<T, ConfigError> {
    let place = Arc::new(Mutex::new(None));
    let result = place.clone();
    let run = move || {
        *result.lock() = Some(work());
        0
    };
    Driver::of(env).run(run).await;
    let found = place.lock().take();
    found.unwrap_or_else(|| {
        let detail = format!("{what}: no helper thread could be started for it");
        Err(ConfigError::new(ConfigKind::System, device, detail))
    })
}
