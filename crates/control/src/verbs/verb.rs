//! What a verb is: one struct that declares the method, its parameters and its answer.
//!
//! The same struct is what clap reads from the command line, what the client sends, and what the
//! server decodes: there is no second list of parameters. Fields that the command line does not
//! give, or gives in another form, are skipped by clap and set by the client.
//!
//! A parameter may be left out if its default is `null` or `false`: the client leaves such ones
//! out, and [`Entry::params`] shows them with a question mark.

use cairn_block::{ConfigError, ConfigKind};
use cairn_outcome::failure::Outcome;
use clap::Args;
use serde::de::value::Error as Refused;
use serde::de::{DeserializeOwned, Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize, forward_to_deserialize_any};
use serde_json::{Value, json};

use super::Verbs;
use crate::control::rpc::RpcError;
use crate::control::server::Caller;

/// A verb of a running server.
pub trait Verb: Args + Default + Serialize + DeserializeOwned {
    /// The method's name.
    const METHOD: &'static str;
    /// It waits for something to happen, however long that takes.
    const WAITS: bool = false;
    /// What it answers.
    type Answer: Serialize + DeserializeOwned;

    /// Carries it out.
    ///
    /// # Errors
    /// Each verb documents its own.
    fn run(self, verbs: &Verbs, caller: &dyn Caller) -> Outcome<Self::Answer>;

    /// Its parameters for the control socket, without those that have their default.
    fn params(&self) -> Value {
        let mut params = serde_json::to_value(self).unwrap_or_default();
        if let Some(params) = params.as_object_mut() {
            params.retain(|_, value| !says_nothing(value));
        }
        params
    }
}

fn says_nothing(value: &Value) -> bool {
    value.is_null() || *value == false
}

/// Declares a verb: its name, method, answer, parameters and flags, and the expression that runs
/// it. The result of that expression is converted to the answer.
macro_rules! declare {
    (
        $(#[$doc:meta])*
        $name:ident = $method:literal -> $answer:ty {
            $($(#[$attribute:meta])* $field:ident: $value:ty,)*
        } $(flags { $($(#[$about:meta])* $flag:ident,)* })?
        |$verb:pat_param, $verbs:pat_param, $caller:pat_param| $run:expr
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[derive(clap::Args, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($(#[$attribute])* pub $field: $value,)*
            $($($(#[$about])* #[arg(long)] #[serde(default)] pub $flag: bool,)*)?
        }

        impl $crate::verbs::verb::Verb for $name {
            const METHOD: &'static str = $method;
            type Answer = $answer;

            fn run(
                self,
                $verbs: &$crate::verbs::Verbs,
                $caller: &dyn $crate::control::server::Caller,
            ) -> cairn_outcome::failure::Outcome<$answer> {
                let $verb = self;
                let answer: cairn_outcome::failure::Outcome<_> = $run;
                answer.map(Into::into)
            }
        }
    };
}

pub(super) use declare;

/// The answer of a verb that changes something.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// Notes for a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notes: Option<Vec<String>>,
}

impl From<()> for Done {
    fn from((): ()) -> Done {
        Done::default()
    }
}

impl From<Vec<String>> for Done {
    fn from(notes: Vec<String>) -> Done {
        Done { notes: Some(notes) }
    }
}

/// A verb as the control socket finds it.
pub struct Entry {
    /// The method's name.
    pub method: &'static str,
    /// It waits for something to happen, however long that takes.
    pub waits: bool,
    /// Its parameters, as the manual lists them.
    pub params: fn() -> String,
    /// Decodes parameters and discards them: a check.
    pub decode: fn(Value) -> Result<(), RpcError>,
    /// Decodes parameters, carries the verb out and encodes its answer.
    pub run: fn(&Verbs, Value, &dyn Caller) -> Result<Value, RpcError>,
}

impl Entry {
    /// The entry of a verb.
    pub const fn of<V: Verb>() -> Entry {
        Entry {
            method: V::METHOD,
            waits: V::WAITS,
            params: listed::<V>,
            decode: |params| decode::<V>(params).map(drop),
            run: run::<V>,
        }
    }
}

/// No parameters mean an empty object. A method without parameters ignores those that it gets.
fn decode<V: Verb>(params: Value) -> Result<V, RpcError> {
    let is_empty = params.is_null() || fields::<V>().is_empty();
    let params = if is_empty { json!({}) } else { params };
    serde_json::from_value(params).map_err(|error| RpcError::params(V::METHOD, &error))
}

fn run<V: Verb>(verbs: &Verbs, params: Value, caller: &dyn Caller) -> Result<Value, RpcError> {
    let answer = decode::<V>(params)?.run(verbs, caller)?;
    let encoded = serde_json::to_value(answer).map_err(|error| {
        ConfigError::new(ConfigKind::System, "", "reply: cannot be written").with_source(error)
    });
    Ok(encoded?)
}

fn listed<V: Verb>() -> String {
    let given = V::default().params();
    let mark = |name: &&str| if given.get(*name).is_some() { "" } else { "?" };
    let names = fields::<V>().iter().map(|name| format!("{name}{}", mark(name)));
    names.collect::<Vec<_>>().join(", ")
}

/// The names of a struct's fields, in order, as serde decodes them.
fn fields<V: Verb>() -> &'static [&'static str] {
    struct Names<'a>(&'a mut &'static [&'static str]);

    impl<'de> Deserializer<'de> for Names<'_> {
        type Error = Refused;

        fn deserialize_struct<T: Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            visitor: T,
        ) -> Result<T::Value, Refused> {
            *self.0 = fields;
            self.deserialize_any(visitor)
        }

        fn deserialize_any<T: Visitor<'de>>(self, _: T) -> Result<T::Value, Refused> {
            Err(Refused::custom("only the names were asked for"))
        }

        forward_to_deserialize_any! {
            bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit
            unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }

    let mut names: &'static [&'static str] = &[];
    drop(V::deserialize(Names(&mut names)));
    names
}
