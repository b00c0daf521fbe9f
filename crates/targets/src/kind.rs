//! [`TargetKind`]: a kind of target is its declaration and its constructor.

use std::future::ready;
use std::sync::Arc;

use cairn_block::{ConfigError, Ctor, Env, LocalFuture, Target, TargetType};

use crate::spec::Spec;

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
        (self.construct)(env, ctor)
    }
}
