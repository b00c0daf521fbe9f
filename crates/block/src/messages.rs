//! Messages and drains: what verbs ask of the targets of a live table, as calls ([`crate::Call`]).

use crate::device::MappedDevice;
use crate::env::Env;
use crate::target::MessageError;
use crate::units::Sector;

impl MappedDevice {
    /// Sends a message to the target at `sector` of the live table.
    ///
    /// # Errors
    /// There is no target there, or it refuses.
    pub async fn message(
        &self,
        env: &Env,
        sector: Sector,
        words: &[&str],
    ) -> Result<String, MessageError> {
        let _call = self.calls.begin().await;
        let Some(table) = self.live_table() else {
            return Err(MessageError::Invalid("no table is live; resume the volume".to_owned()));
        };
        let Some((_, line)) = table.line_at(sector) else {
            let end = table.sectors();
            let text = format!("sector: found {sector}, expected one below {end}");
            return Err(MessageError::Invalid(text));
        };
        line.target.message(env, words).await
    }

    /// Has the targets of the live table drain what is dirty, one after the other.
    ///
    /// # Errors
    /// The device is suspended; or the first that cannot.
    pub async fn drain_caches(&self, env: &Env) -> Result<(), MessageError> {
        let _call = self.calls.begin().await;
        if self.is_suspended() {
            return Err(MessageError::Busy("flush: the device is suspended".to_owned()));
        }
        for line in self.live_table().iter().flat_map(|table| table.lines()) {
            line.target.drain(env).await?;
        }
        Ok(())
    }

    /// Has the targets of the live table detach their origins, one after the other, after a drain.
    /// `given_up` names a set whose data is given up where an origin lacks it. Answers what became
    /// of each origin.
    ///
    /// # Errors
    /// The first that cannot.
    pub async fn detach_caches(
        &self,
        env: &Env,
        given_up: Option<&str>,
    ) -> Result<Vec<String>, MessageError> {
        let _call = self.calls.begin().await;
        let mut said = Vec::new();
        for line in self.live_table().iter().flat_map(|table| table.lines()) {
            said.extend(line.target.detach(env, given_up).await?);
        }
        Ok(said)
    }
}
