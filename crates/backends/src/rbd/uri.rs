//! [`Target`]: what `rbd:POOL/[NAMESPACE/]IMAGE[@SNAPSHOT][?PARAMETER=VALUE&...]` means. The
//! part before the question mark is the image specification of Ceph's own programs.

use std::time::Duration;

use cairn_block::{ConfigError, ConfigKind};

const SCHEME: &str = "rbd:";

/// How long a client that does not answer keeps its watch of an image, by default
/// (`osd_client_watch_timeout`): other clients then take its lock as abandoned.
const WATCH_TIMEOUT: Duration = Duration::from_secs(30);

/// For how long a client is fenced: 50 years. Ceph counts the end in 32 bits of seconds since 1970.
const EXPIRY: Duration = Duration::from_secs(50 * 365 * 24 * 3600);

/// The shortest of these times. An entry in the blocklist is made by the server that takes over,
/// with its own time; the one that is taken over must have asked for its lock before it ends, and
/// waits for half of this until it asks ([`Target::patience`]).
const EXPIRY_MIN: Duration = Duration::from_secs(60);

/// Has another shortest time, in seconds: for tests that wait until an entry ends. All servers of
/// an image must have it.
const EXPIRY_MIN_VARIABLE: &str = "CAIRN_RBD_EXPIRY_MIN";

/// How long an open may take, and the cluster be silent at a stop, unless the URI says otherwise.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The longest of these times.
const TIMEOUT_MAX_SECONDS: u64 = 3600;

/// An image, and how to reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// As given by the user.
    pub uri: String,
    pub pool: String,
    /// Empty for the default one.
    pub namespace: String,
    pub image: String,
    pub snapshot: Option<String>,
    /// The configuration file; else the one that Ceph's programs would take.
    pub conf: Option<String>,
    /// The user without `client.`.
    pub user: String,
    /// For how long this server fences an owner.
    pub expiry: Duration,
    /// After so long without a sign that this client has the lock, it looks before it sends. At
    /// most half of the expiry of any server, since a request may be on its way for a while.
    pub patience: Duration,
    /// How long an open may take, and the cluster be silent at a stop.
    pub timeout: Duration,
}

/// True if an argument names an image.
pub(crate) fn is_uri(argument: &str) -> bool {
    argument.starts_with(SCHEME)
}

impl Target {
    /// Parses the name of an image.
    ///
    /// # Errors
    /// It is none, or has a parameter that is not known.
    pub fn parse(argument: &str) -> Result<Target, ConfigError> {
        let wrong = |field: &str, found: &str, expected: &str| {
            ConfigError::argument(argument, field, format!("'{found}'"), expected)
        };
        let shape = "rbd:POOL/[NAMESPACE/]IMAGE[@SNAPSHOT]";
        let rest = argument.strip_prefix(SCHEME).unwrap_or(argument);
        let (spec, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        let (spec, snapshot) = match spec.split_once('@') {
            Some((spec, snapshot)) => (spec, Some(snapshot)),
            None => (spec, None),
        };
        let parts: Vec<&str> = spec.split('/').collect();
        let (pool, namespace, image) = match parts[..] {
            [pool, image] => (pool, "", image),
            [pool, namespace, image] if !namespace.is_empty() => (pool, namespace, image),
            _ => return Err(wrong("image", rest, shape)),
        };
        let is_empty = |word: &str| word.is_empty() || word.contains('\0');
        if is_empty(pool) || is_empty(image) || snapshot.is_some_and(is_empty) {
            return Err(wrong("image", rest, shape));
        }
        let mut target = Target {
            uri: argument.to_owned(),
            pool: pool.to_owned(),
            namespace: namespace.to_owned(),
            image: image.to_owned(),
            snapshot: snapshot.map(str::to_owned),
            conf: None,
            user: "admin".to_owned(),
            expiry: EXPIRY,
            patience: WATCH_TIMEOUT.min(expiry_min() / 2),
            timeout: TIMEOUT,
        };
        let mut seen = Vec::new();
        for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            if seen.contains(&name) {
                return Err(wrong("parameter", name, "each of them once"));
            }
            seen.push(name);
            match name {
                "conf" if value.starts_with('/') => target.conf = Some(value.to_owned()),
                "conf" => return Err(wrong("conf", value, "an absolute path")),
                "user" if !value.is_empty() => target.user = value.to_owned(),
                "user" => return Err(wrong("user", value, "a name without 'client.'")),
                "expiry" => {
                    let min = expiry_min();
                    target.expiry = expiry(value, min).ok_or_else(|| {
                        let min = min.as_secs();
                        wrong("expiry", value, &format!("{min} seconds to 50 years"))
                    })?
                }
                "timeout" => {
                    target.timeout = timeout(value).ok_or_else(|| {
                        wrong("timeout", value, &format!("1 to {TIMEOUT_MAX_SECONDS} seconds"))
                    })?
                }
                _ => return Err(wrong("parameter", name, "conf, user, expiry or timeout")),
            }
        }
        Ok(target)
    }

    /// The same for two names of one image at one cluster. Names with other parameters differ: the
    /// lock of the image keeps them apart.
    pub fn identity(&self) -> String {
        let (conf, snapshot) = (&self.conf, &self.snapshot);
        format!(
            "rbd {:?} {:?} {:?} {snapshot:?} {conf:?} {:?} {}",
            self.pool,
            self.namespace,
            self.image,
            self.user,
            self.expiry.as_secs()
        )
    }

    /// The image, as the programs of Ceph name it.
    pub fn spec(&self) -> String {
        let place = [&self.pool, &self.namespace, &self.image].map(String::as_str);
        let parts: Vec<&str> = place.into_iter().filter(|part| !part.is_empty()).collect();
        parts.join("/")
    }

    /// The same for two names of one image that use one configuration.
    pub fn place(&self) -> String {
        let (pool, namespace, image) = (&self.pool, &self.namespace, &self.image);
        format!("{pool:?} {namespace:?} {image:?} {:?}", self.conf)
    }

    /// The image without its parameters, as an argument.
    pub fn name_of_image(&self) -> String {
        format!("{SCHEME}{}", self.spec())
    }

    /// True if both name the same image of a pool, also if their other parameters differ.
    pub fn is_image_of(&self, other: &Target) -> bool {
        self.place() == other.place()
    }

    /// An error about this image.
    pub fn refused(&self, kind: ConfigKind, detail: impl Into<String>) -> ConfigError {
        ConfigError::new(kind, &self.uri, detail)
    }
}

fn expiry(value: &str, min: Duration) -> Option<Duration> {
    let expiry = Duration::from_secs(value.parse().ok()?);
    (min..=EXPIRY).contains(&expiry).then_some(expiry)
}

fn timeout(value: &str) -> Option<Duration> {
    let seconds = value.parse().ok()?;
    (1..=TIMEOUT_MAX_SECONDS).contains(&seconds).then_some(Duration::from_secs(seconds))
}

fn expiry_min() -> Duration {
    let asked = std::env::var(EXPIRY_MIN_VARIABLE).ok().and_then(|text| text.parse().ok());
    asked.map_or(EXPIRY_MIN, |seconds: u64| Duration::from_secs(seconds.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_names_an_image_and_how_to_reach_it() {
        let plain = Target::parse("rbd:vms/a").expect("a URI");
        assert_eq!((plain.pool.as_str(), plain.image.as_str()), ("vms", "a"));
        assert_eq!((plain.namespace.as_str(), plain.snapshot.as_deref()), ("", None));
        assert_eq!((plain.user.as_str(), plain.expiry), ("admin", EXPIRY));
        let full = "rbd:vms/n/a@s?conf=/etc/c.conf&user=cairn&expiry=60&timeout=5";
        let full = Target::parse(full).expect("a URI");
        assert_eq!((full.namespace.as_str(), full.snapshot.as_deref()), ("n", Some("s")));
        assert_eq!((full.conf.as_deref(), full.user.as_str()), (Some("/etc/c.conf"), "cairn"));
        assert_eq!((full.expiry.as_secs(), full.patience), (60, WATCH_TIMEOUT));
        assert_eq!(plain.patience, WATCH_TIMEOUT);
        assert_eq!((plain.timeout.as_secs(), full.timeout.as_secs()), (30, 5));
    }

    #[test]
    fn a_wrong_uri_is_one_line_with_what_was_found() {
        for (uri, found) in [
            ("rbd:vms", "'vms'"),
            ("rbd:/a", "'/a'"),
            ("rbd:vms/", "'vms/'"),
            ("rbd:vms//a", "'vms//a'"),
            ("rbd:a/b/c/d", "'a/b/c/d'"),
            ("rbd:vms/a@", "'vms/a@'"),
            ("rbd:vms/a?nosuch=1", "'nosuch'"),
            ("rbd:vms/a?conf=c", "'c'"),
            ("rbd:vms/a?user=", "''"),
            ("rbd:vms/a?expiry=0", "'0'"),
            ("rbd:vms/a?expiry=59", "'59'"),
            ("rbd:vms/a?expiry=99999999999", "'99999999999'"),
            ("rbd:vms/a?user=a&user=b", "'user'"),
            ("rbd:vms/a?timeout=0", "'0'"),
            ("rbd:vms/a?timeout=3601", "'3601'"),
        ] {
            let error = Target::parse(uri).expect_err(uri).to_string();
            assert!(error.starts_with(uri) && error.contains(found), "{error}");
        }
    }

    #[test]
    fn no_server_fences_for_less_than_another_may_go_without_a_look() {
        assert_eq!(expiry("59", EXPIRY_MIN), None);
        let least = expiry("60", EXPIRY_MIN).expect("the least");
        assert!(Target::parse("rbd:vms/a").expect("a URI").patience <= least / 2);
        assert_eq!(expiry("5", Duration::from_secs(5)), Some(Duration::from_secs(5)));
    }

    #[test]
    fn different_images_have_different_identities() {
        let identity = |uri| Target::parse(uri).expect("a URI").identity();
        for (one, other) in [
            ("rbd:a/b", "rbd:a/c"),
            ("rbd:a/b", "rbd:a/b@s"),
            ("rbd:a/b/c", "rbd:a/c"),
            ("rbd:a/b", "rbd:a/b?conf=/x"),
        ] {
            assert_ne!(identity(one), identity(other));
        }
        assert_eq!(identity("rbd:a/b"), identity("rbd:a/b?user=admin"));
    }
}
