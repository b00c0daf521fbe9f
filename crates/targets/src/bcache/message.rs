//! Messages: `set NAME VALUE` changes an attribute of the volume, `get NAME` answers it. Those of
//! the set are in `flash`.

use cairn_block::sync::atomic::Ordering;
use cairn_block::{Env, MessageError, Target, Value, mutants, yield_once};
use cairn_format::bcache::CacheMode;

use super::buckets::Census;
use super::coverage;
use super::human::human;
use super::tunables::Tunable;
use super::volume::Bcache;
use super::writeback::Policy;

/// The first words of all messages.
pub(super) const MESSAGES: &[&str] = &["set", "get", "flash_vol_create", "flash_vol_remove"];

/// The attributes that are set to a word.
const WORDS: &[&str] =
    &["cache_mode", "writeback_policy", "readahead_cache_policy", "stop_when_cache_set_failed"];

impl Bcache {
    /// Acts on a message.
    ///
    /// # Errors
    /// It is not known, or has a wrong value, or the backing device failed.
    pub(super) async fn act_on_message(
        &self,
        env: &Env,
        words: &[&str],
    ) -> Result<String, MessageError> {
        let wrong = |found: String, expected: &str| {
            Err(MessageError::Invalid(format!("message: found '{found}', expected {expected}")))
        };
        match words {
            ["set", "cache_mode", word] => self.set_mode(env, word).await,
            ["set", "writeback_policy", word] => self.set_policy(word),
            ["set", "stop_when_cache_set_failed", word] => self.set_stop_word(word),
            ["set", "readahead_cache_policy", word] => self.set_readahead(word),
            ["set", name, word] => match Tunable::of_name(name) {
                Some(tunable) => {
                    tunable.set(self, word)?;
                    self.core.iter().for_each(|core| core.trim_soon(env));
                    Ok(String::new())
                }
                None if self
                    .all_attributes()
                    .iter()
                    .any(|it| it.name.eq_ignore_ascii_case(name)) =>
                {
                    let text = format!("{name}: found 'set', expected 'get': it is only read");
                    Err(MessageError::Invalid(text))
                }
                None => {
                    let names: Vec<_> = WORDS.iter().copied().chain(Tunable::names()).collect();
                    wrong(format!("set {name}"), &format!("set and one of {}", names.join(", ")))
                }
            },
            ["flash_vol_create", bytes] => self.create_flash(env, bytes).await,
            ["flash_vol_remove", uuid] => self.remove_flash(env, uuid).await,
            ["get", name] => match self.text_of(env, name).await {
                Some(text) => Ok(text),
                None => wrong(format!("get {name}"), "get and the name of an attribute"),
            },
            _ => {
                let expected = "set <name> <value>, get <name>, flash_vol_create <bytes> or \
                                flash_vol_remove <uuid>";
                wrong(words.join(" "), expected)
            }
        }
    }

    /// An attribute as sysfs shows it, or the nearest to that.
    async fn text_of(&self, env: &Env, name: &str) -> Option<String> {
        let name = name.to_ascii_lowercase();
        match name.as_str() {
            "writeback_rate_debug" => return Some(self.rate_debug(env)),
            "priority_stats" => return Some(self.priority_stats().await),
            _ => {}
        }
        let found = self.all_attributes().into_iter().find(|it| it.name == name)?;
        Some(match found.value {
            Value::Gauge(sectors) if name.ends_with("/bypassed") => {
                human(i64::try_from(sectors).unwrap_or(i64::MAX).saturating_mul(512))
            }
            value => value.to_string(),
        })
    }

    /// The lines of sysfs's `priority_stats`; none without a set.
    async fn priority_stats(&self) -> String {
        let mut census = Census::new();
        loop {
            let counted = self.look(|set| {
                let geometry = set.superblock.geometry();
                let size = (geometry.buckets(), geometry.bucket_sectors());
                set.buckets.count_into(&mut census).then_some(size)
            });
            match counted {
                None => return Value::Absent.to_string(),
                Some(Some((buckets, sectors))) => return census.text(buckets, sectors),
                Some(None) => yield_once().await,
            }
        }
    }

    fn set_policy(&self, word: &str) -> Result<String, MessageError> {
        let Some(policy) = Policy::of_word(word) else {
            let expected = "completion, strict, sorted or sweep";
            let text = format!("writeback_policy: found '{word}', expected {expected}");
            return Err(MessageError::Invalid(text));
        };
        if !self.drains() {
            let text = "writeback_policy: found a volume without it, expected a backing device \
                        with its cache";
            return Err(MessageError::Failed(text.to_owned()));
        }
        self.throttle.settings.set_policy(policy);
        Ok(String::new())
    }

    fn set_readahead(&self, word: &str) -> Result<String, MessageError> {
        let name = "readahead_cache_policy";
        match &self.bypass {
            None => Err(MessageError::Failed(format!(
                "{name}: found a volume without it, expected a backing device with its cache"
            ))),
            Some(bypass) if bypass.set_readahead(word) => Ok(String::new()),
            Some(_) => Err(MessageError::Invalid(format!(
                "{name}: found '{word}', expected all or meta-only"
            ))),
        }
    }

    /// The superblock of the backing device gets another mode, durably; writes that are mapped from
    /// then on follow it. What is dirty stays so; writes over it go into the cache in each mode.
    async fn set_mode(&self, env: &Env, word: &str) -> Result<String, MessageError> {
        let Some(mode) = CacheMode::of_word(word) else {
            let expected = "writethrough, writeback, writearound or none";
            let text = format!("cache_mode: found '{word}', expected {expected}");
            return Err(MessageError::Invalid(text));
        };
        let failed = |text: String| Err(MessageError::Failed(format!("cache_mode: {text}")));
        if self.read_only {
            return failed("the volume is open read-only".to_owned());
        }
        let _turn = self.states.lock().await;
        if !self.is_serving.load(Ordering::Relaxed) {
            return Err(MessageError::Busy("cache_mode: the volume is suspended".to_owned()));
        }
        let superblock = self.backing.lock().clone();
        let (Some(backing), Some(mut superblock)) = (self.config.devices.backing(), superblock)
        else {
            return failed("found a volume without a backing device, expected one".to_owned());
        };
        let set = superblock.set_uuid().to_string();
        if mode == CacheMode::Writeback {
            // Another host may have put its own there since the start (M4).
            if let Err(error) = self.look_before_writeback(env, &set).await {
                return failed(error.to_string());
            }
            if let Err(error) = self.stand_marker(env, &set, mode).await {
                return failed(error.to_string());
            }
        }
        coverage::take_switch(superblock.mode(), mode);
        superblock.set_mode(mode);
        let fua = mutants::fua("bcache: FUA of the mode");
        match self.write_own_backing(env, backing, &superblock, fua).await {
            Ok(()) => {
                self.set_backing(Some(superblock));
                Ok(String::new())
            }
            Err(error) => failed(format!("{}: superblock: {error}", backing.argument)),
        }
    }
}
