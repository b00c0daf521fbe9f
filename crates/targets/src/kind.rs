//! [`TargetKind`]: a kind of target is its declaration and its constructor.
//!
//! The devices that a line names are opened before the constructor runs, by the task that builds
//! the table: that may wait, for a network or a slow drive. The constructor's parser finds them
//! open.

use std::future::ready;
use std::sync::Arc;

use cairn_block::{ConfigError, Ctor, Disk, Env, LocalFuture, Target, TargetType};
use cairn_format::bcache::Uuid;

use crate::spec::{Arg, Kind, Spec, Use};

/// A target under construction.
pub type Constructed<'a> = LocalFuture<'a, Result<Arc<dyn Target>, ConfigError>>;

/// A kind of target.
#[derive(Clone, Copy)]
pub struct TargetKind {
    /// What it says about itself.
    pub spec: &'static Spec,
    /// Builds one from its table line, see [`TargetType::construct`].
    pub construct: for<'a> fn(&'a Env, Ctor<'a>) -> Constructed<'a>,
}

/// The answer of a constructor that does no I/O.
pub fn built<T: Target + 'static>(target: Result<T, ConfigError>) -> Constructed<'static> {
    Box::pin(ready(target.map(|target| Arc::new(target) as Arc<dyn Target>)))
}

impl TargetType for TargetKind {
    fn name(&self) -> &'static str {
        self.spec.name
    }

    fn version(&self) -> [u32; 3] {
        self.spec.version
    }

    fn construct<'a>(&'a self, env: &'a Env, ctor: Ctor<'a>) -> Constructed<'a> {
        Box::pin(async move {
            let opened = open_devices(self.spec, env, &ctor).await?;
            let target = (self.construct)(env, ctor).await;
            drop(opened);
            target
        })
    }
}

/// Opens the devices of a line, up to the first word that its parser will refuse. (A `mem:` disk
/// without a name is another one for the parser.)
async fn open_devices(
    spec: &Spec,
    env: &Env,
    ctor: &Ctor<'_>,
) -> Result<Vec<Arc<dyn Disk>>, ConfigError> {
    let mut opened = Vec::new();
    let (words, Ok(())) = spec.split(ctor.args.iter().copied()) else { return Ok(opened) };
    for (arg, word) in words.fixed {
        let is_known = match arg.kind {
            Kind::Device if !arg.names_device(word) => true,
            Kind::Device => {
                let read_only = opens_read_only(arg, word, ctor);
                opened.push(ctor.registry.open_on(env, word, read_only).await?);
                true
            }
            Kind::Offset | Kind::Number(..) => arg.kind.number(word).is_some(),
            Kind::Word(_) | Kind::Spelled(..) => arg.kind.word(word).is_some(),
            Kind::Uuid => word.parse::<Uuid>().is_ok(),
        };
        if !is_known {
            break;
        }
    }
    Ok(opened)
}

/// How a line opens one of its devices. What it only reads it shares with other readers, so that a
/// golden image may be read-only and belong to many.
pub(crate) fn opens_read_only(arg: &Arg, word: &str, ctor: &Ctor<'_>) -> bool {
    let is_source = arg.used == Use::Reads;
    ctor.read_only || (is_source && ctor.registry.opens_source_read_only(word))
}
