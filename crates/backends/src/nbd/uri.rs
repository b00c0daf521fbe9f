//! [`Target`]: what a URI of an NBD export means. Source: `uri.md` of NetworkBlockDevice/nbd.
//!
//! `nbd://HOST[:PORT]/EXPORT` and `nbd+unix:///EXPORT?socket=PATH`; with `nbds` in place of `nbd`
//! under TLS, then with `tls-certificates=FOLDER` and perhaps `tls-hostname=NAME`, or with
//! `USER@` and `tls-psk-file=FILE`, as libnbd has them. Further parameters are ours: `exclusive`,
//! `meta=EXPORT`, `replay=SIZE`, `reconnect=SECONDS`, `connections=N`.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cairn_block::{ConfigError, escape_word};
use cairn_tls::{ClientFiles, ClientKey, Engine};
use fluent_uri::Uri;
use fluent_uri::pct_enc::{EStr, Encoder};

use crate::shown::{shown, without_password};
use crate::size::parse_size;
use cairn_nbd::negotiation::Wish;

/// The usual port.
const PORT: u16 = 10809;

/// How long requests wait for a lost connection, unless said otherwise.
const RECONNECT: Duration = Duration::from_secs(30);
const RECONNECT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The most connections, and how many there are unless said otherwise.
const CONNECTIONS_MAX: usize = 16;
const CONNECTIONS: usize = 1;

/// How much is kept for a replay, unless said otherwise, and the least.
const REPLAY_BYTES: u64 = 64 << 20;
const REPLAY_BYTES_MIN: u64 = 1 << 20;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// At this path.
    Unix(PathBuf),
    /// At this host and port.
    Tcp(String, u16),
}

impl Place {
    /// The place in a URI. With TLS (`nbds`) it is the same one.
    pub fn of_uri(uri: &str) -> Option<Place> {
        Target::parse(uri).ok().map(|target| target.place)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Unix(path) => write!(f, "{}", path.display()),
            Place::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Place::Tcp(host, port) => write!(f, "{host}:{port}"),
        }
    }
}

/// How a client under TLS tells the server from another one, and shows who it is itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// By certificates: see [`ClientFiles`].
    Certificates {
        /// The folder with them.
        folder: PathBuf,
        /// The name or address in the server's certificate; none for that of the URI.
        server: Option<String>,
    },
    /// By a key that both sides know: see [`ClientKey`].
    Key {
        /// The file with it.
        file: PathBuf,
        /// The client's name.
        user: String,
    },
}

impl Proof {
    /// The engine of a session with the server at this place.
    ///
    /// # Errors
    /// Those of [`ClientFiles::engine`] and [`ClientKey::engine`].
    pub(super) fn engine(&self, place: &Place) -> Result<Box<dyn Engine>, ConfigError> {
        match self {
            Proof::Certificates { folder, server } => {
                let server = match (server, place) {
                    (Some(name), _) => name,
                    (None, Place::Tcp(host, _)) => host,
                    (None, Place::Unix(_)) => "localhost",
                };
                ClientFiles { folder, server }.engine()
            }
            Proof::Key { file, user } => ClientKey { file, user }.engine(),
        }
    }

    /// The parameter of the URI that names its files, and where they are.
    fn files(&self) -> (&'static str, &Path) {
        match self {
            Proof::Certificates { folder, .. } => ("tls-certificates", folder),
            Proof::Key { file, .. } => ("tls-psk-file", file),
        }
    }
}

/// An export of a server, and how to treat it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// As given by the user.
    pub uri: String,
    /// Where its server listens.
    pub place: Place,
    /// Its name.
    pub export: String,
    /// How both sides of TLS are known.
    pub tls: Option<Proof>,
    /// The URI asks for TLS.
    is_secured: bool,
    /// The export in which this client shows that it has this one.
    pub meta: Option<String>,
    /// Bytes of writes that are kept for the next connection; none if another client may write.
    pub replay: Option<u64>,
    /// How long requests wait for a lost connection.
    pub reconnect: Duration,
    /// The most connections at a time.
    pub connections: usize,
}

/// True if an argument names an NBD export.
pub fn is_uri(argument: &str) -> bool {
    ["nbd://", "nbds://", "nbd+unix://", "nbds+unix://"]
        .iter()
        .any(|scheme| argument.starts_with(scheme))
}

impl Target {
    /// Parses a URI.
    ///
    /// # Errors
    /// It is none, or has a parameter that is not known.
    pub fn parse(argument: &str) -> Result<Target, ConfigError> {
        if let Some(shown) = without_password(argument) {
            let (found, expected) = ("a password or key", "a name; the key is in tls-psk-file");
            return Err(ConfigError::argument(&shown, "user", found, expected));
        }
        let wrong = |field: &str, found: String, expected: &str| {
            ConfigError::argument(argument, field, found, expected)
        };
        let shape = "nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH";
        let uri = Uri::parse(argument).map_err(|error| {
            ConfigError::argument(&shown(argument), "URI", error.to_string(), shape)
        })?;
        let scheme = uri.scheme().as_str();
        if uri.fragment().is_some() {
            return Err(wrong("URI", "a fragment".to_owned(), shape));
        }
        let told = Parameters::parse(&uri, argument)?;
        let is_secured = scheme.starts_with("nbds");
        let tls = told.proof(&uri, argument)?;
        let Parameters { socket, exclusive, meta, replay, reconnect, connections, .. } = told;
        let may_replay = exclusive || meta.is_some();
        if replay.is_some() && !may_replay {
            let expected = "beside it exclusive, the word that no other client writes, or meta";
            return Err(wrong("replay", "no exclusive".to_owned(), expected));
        }
        let authority = uri.authority().filter(|it| !it.host().is_empty());
        let place = match (scheme, authority, socket) {
            ("nbd+unix" | "nbds+unix", None, Some(path)) => Place::Unix(path),
            ("nbd" | "nbds", Some(authority), None) => {
                let host = authority.host().trim_start_matches('[').trim_end_matches(']');
                let port = authority.port_to_u16().map_err(|_| {
                    wrong("port", format!("'{}'", authority.as_str()), "one of TCP")
                })?;
                Place::Tcp(host.to_ascii_lowercase(), port.unwrap_or(PORT))
            }
            _ => return Err(wrong("URI", "another form".to_owned(), shape)),
        };
        let path = uri.path();
        let export = text(path)
            .ok_or_else(|| wrong("export", format!("'{path}'"), "a name in UTF-8, with %XX"))?;
        let export = export.strip_prefix('/').unwrap_or_default().to_owned();
        if meta.as_ref() == Some(&export) {
            let expected = "another export than that of the data";
            return Err(wrong("meta", format!("'{export}'"), expected));
        }
        let replay = may_replay.then_some(replay.unwrap_or(REPLAY_BYTES));
        let uri = argument.to_owned();
        Ok(Target { uri, place, export, tls, is_secured, meta, replay, reconnect, connections })
    }

    /// Parses the URI of a device. Its meaning depends on no folder.
    ///
    /// # Errors
    /// Those of [`Target::parse`], a relative path, and TLS without certificates or a key.
    pub fn of_device(argument: &str) -> Result<Target, ConfigError> {
        let target = Target::parse(argument)?;
        let relative = |field: &str, path: &Path| {
            let (found, expected) = (format!("'{}'", path.display()), "an absolute path");
            ConfigError::argument(argument, field, found, expected)
        };
        match (&target.place, &target.tls) {
            (Place::Unix(path), _) if path.is_relative() => Err(relative("socket", path)),
            (_, Some(proof)) if proof.files().1.is_relative() => {
                let (field, path) = proof.files();
                Err(relative(field, path))
            }
            (_, None) if target.is_secured => {
                let expected = "the folder with ca-cert.pem, or a user and tls-psk-file";
                Err(ConfigError::argument(argument, "tls-certificates", "none", expected))
            }
            _ => Ok(target),
        }
    }

    /// What to ask its server for.
    pub fn wish(&self) -> Wish<'_> {
        Wish { device: &self.uri, export: &self.export, is_simple: false }
    }

    /// The same for two URIs of one export, however its socket is named. Names of one host differ.
    pub fn identity(&self) -> String {
        format!("nbd {:?} {:?}", self.plain_place(), self.export)
    }

    fn plain_place(&self) -> Place {
        match &self.place {
            Place::Unix(path) => Place::Unix(path.canonicalize().unwrap_or_else(|_| path.clone())),
            tcp @ Place::Tcp(..) => tcp.clone(),
        }
    }

    /// The same as a word: what notes call the export.
    pub fn name_of_export(&self) -> String {
        escape_word(&format!("nbd {} {}", self.plain_place(), self.export))
    }

    /// True if both treat the export the same way.
    pub fn agrees_with(&self, other: &Target) -> bool {
        let treatment = |it: &Target| {
            (it.meta.clone(), it.replay, it.reconnect, it.tls.clone(), it.connections)
        };
        treatment(self) == treatment(other)
    }
}

/// What follows the question mark.
#[derive(Default)]
struct Parameters {
    socket: Option<PathBuf>,
    exclusive: bool,
    meta: Option<String>,
    replay: Option<u64>,
    reconnect: Duration,
    connections: usize,
    certificates: Option<PathBuf>,
    hostname: Option<String>,
    keys: Option<PathBuf>,
}

impl Parameters {
    /// How both sides of TLS are known; none if no parameter says it.
    ///
    /// # Errors
    /// They contradict each other or the scheme, or the user is none.
    fn proof(&self, uri: &Uri<&str>, argument: &str) -> Result<Option<Proof>, ConfigError> {
        let wrong = |field: &str, found: &str, expected: &str| {
            Err(ConfigError::argument(argument, field, found, expected))
        };
        let given = [
            ("tls-certificates", self.certificates.is_some()),
            ("tls-hostname", self.hostname.is_some()),
            ("tls-psk-file", self.keys.is_some()),
        ];
        let mut given = given.iter().filter(|(_, is_given)| *is_given).map(|(name, _)| *name);
        if let (false, Some(name)) = (uri.scheme().as_str().starts_with("nbds"), given.next()) {
            return wrong(name, "no TLS", "nbds in place of nbd");
        }
        let user = uri.authority().and_then(|authority| authority.userinfo());
        match (&self.certificates, &self.keys, user) {
            (None, None, None) => Ok(None),
            (Some(folder), None, None) => {
                let (folder, server) = (folder.clone(), self.hostname.clone());
                Ok(Some(Proof::Certificates { folder, server }))
            }
            (Some(_), Some(_), _) => wrong("tls-psk-file", "tls-certificates, too", "one of them"),
            (None, Some(_), _) if self.hostname.is_some() => {
                let expected = "tls-certificates beside it: a key needs no name of the server";
                wrong("tls-hostname", "tls-psk-file", expected)
            }
            (_, None, Some(_)) => wrong("user", "one", "none without tls-psk-file"),
            (None, Some(file), user) => {
                let text = user.and_then(text).filter(|user| !user.is_empty());
                let is_plain =
                    |name: &String| !name.contains(|it: char| it == ':' || it.is_control());
                match (text, user) {
                    (Some(user), _) if is_plain(&user) => {
                        Ok(Some(Proof::Key { file: file.clone(), user }))
                    }
                    (_, Some(user)) if !user.is_empty() => {
                        wrong("user", "another form", "a name of tls-psk-file, with %XX")
                    }
                    _ => wrong("user", "none", "nbds://USER@..., a name of tls-psk-file"),
                }
            }
        }
    }

    fn parse(uri: &Uri<&str>, argument: &str) -> Result<Parameters, ConfigError> {
        let wrong = |field: &str, found: String, expected: &str| {
            ConfigError::argument(argument, field, found, expected)
        };
        let mut seen = Vec::new();
        let (reconnect, connections) = (RECONNECT, CONNECTIONS);
        let mut told = Parameters { reconnect, connections, ..Parameters::default() };
        let parameters = uri.query().map(|query| query.split('&')).into_iter().flatten();
        for parameter in parameters.filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, EStr::EMPTY));
            let value = text(value)
                .ok_or_else(|| wrong(name.as_str(), format!("'{value}'"), "UTF-8, with %XX"))?;
            if seen.contains(&name.as_str()) {
                return Err(wrong("parameter", format!("'{name}' twice"), "each of them once"));
            }
            seen.push(name.as_str());
            match name.as_str() {
                "socket" => told.socket = Some(PathBuf::from(value)),
                "tls-certificates" => told.certificates = Some(PathBuf::from(value)),
                "tls-hostname" => told.hostname = Some(value),
                "tls-psk-file" => told.keys = Some(PathBuf::from(value)),
                "exclusive" if value.is_empty() => told.exclusive = true,
                "exclusive" => {
                    return Err(wrong("exclusive", format!("'{value}'"), "no value: its presence"));
                }
                "meta" => told.meta = Some(value),
                "replay" => {
                    let size = parse_size(&value).ok().filter(|size| *size >= REPLAY_BYTES_MIN);
                    let expected = "a size of at least 1M";
                    told.replay =
                        Some(size.ok_or_else(|| wrong("replay", format!("'{value}'"), expected))?);
                }
                "reconnect" => {
                    let seconds = value
                        .parse()
                        .map_err(|_| wrong("reconnect", format!("'{value}'"), "seconds"))?;
                    if seconds > RECONNECT_MAX.as_secs() {
                        let expected = "at most a day, in seconds";
                        return Err(wrong("reconnect", format!("'{value}'"), expected));
                    }
                    told.reconnect = Duration::from_secs(seconds);
                }
                "connections" => {
                    let found = value.parse().ok().filter(|it| (1..=CONNECTIONS_MAX).contains(it));
                    let expected = "1 to 16";
                    told.connections = found
                        .ok_or_else(|| wrong("connections", format!("'{value}'"), expected))?;
                }
                _ => {
                    let expected = "socket, tls-certificates, tls-hostname, tls-psk-file, \
                                    exclusive, meta, replay, reconnect or connections";
                    return Err(wrong("parameter", format!("'{name}'"), expected));
                }
            }
        }
        Ok(told)
    }
}

/// A word without its percent signs; none if it is not UTF-8.
fn text<E: Encoder>(word: &EStr<E>) -> Option<String> {
    word.decode().to_string().ok().map(Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Place {
        Place::Tcp(host.to_owned(), port)
    }

    fn unix(path: &str) -> Place {
        Place::Unix(path.into())
    }

    #[test]
    fn a_uri_names_a_server_and_an_export() {
        let far = Target::parse("nbd+unix:///vm%201?socket=/run/a%20b").unwrap();
        assert_eq!((far.place, far.export), (unix("/run/a b"), "vm 1".to_owned()));
        for (uri, place, export) in [
            ("nbd://h", tcp("h", 10809), ""),
            ("nbd://127.0.0.1:5/a/b", tcp("127.0.0.1", 5), "a/b"),
            ("nbd://[::1]:5/", tcp("::1", 5), ""),
        ] {
            let target = Target::parse(uri).unwrap();
            assert_eq!((target.place, target.export.as_str()), (place, export), "{uri}");
            assert_eq!((target.replay, target.reconnect), (None, RECONNECT));
        }
    }

    #[test]
    fn place_of_a_uri_is_where_its_server_listens() {
        let place = Some(unix("/run/a b?"));
        assert_eq!(Place::of_uri("nbd+unix:///vm?socket=/run/a%20b%3F"), place);
        assert_eq!(Place::of_uri("nbd://[::1]:5/vm").unwrap().to_string(), "[::1]:5");
        assert!(Place::of_uri("nbd+unix:///vm?socket=here").is_some());
        let place = Some(tcp("127.0.0.1", 10809));
        assert_eq!(Place::of_uri("nbd://127.0.0.1:10809/vm"), place);
        assert_eq!(Place::of_uri("nbds://127.0.0.1:10809/vm"), place);
        for uri in ["", "nbd+unix:///vm", "nbd:x", "nbd+unix:///?socket=%4"] {
            assert_eq!(Place::of_uri(uri), None, "{uri}");
        }
    }

    #[test]
    fn different_exports_have_different_identities() {
        let identity = |uri| Target::parse(uri).unwrap().identity();
        let pairs = [
            ("nbd+unix:///c?socket=/a%20b", "nbd+unix:///b%20c?socket=/a"),
            ("nbd://h/x", "nbd://h:10810/x"),
        ];
        for (one, other) in pairs {
            assert_ne!(identity(one), identity(other));
        }
        assert_eq!(identity("nbd://H/x"), identity("nbd://h:10809/x?exclusive"));
    }

    #[test]
    fn certificates_make_a_connection_one_of_tls() {
        let uri = "nbds://h/x?tls-certificates=/pki&tls-hostname=vault";
        let target = Target::of_device(uri).unwrap();
        let server = Some("vault".to_owned());
        assert_eq!(target.tls, Some(Proof::Certificates { folder: "/pki".into(), server }));
        let plain = Target::of_device("nbd://h/x").unwrap();
        assert_eq!(plain.identity(), target.identity());
        assert!(!plain.agrees_with(&target));
    }

    #[test]
    fn a_user_and_a_file_of_keys_make_a_connection_one_of_tls() {
        let key = |file: &str, user: &str| {
            Some(Proof::Key { file: PathBuf::from(file), user: user.to_owned() })
        };
        let target = Target::of_device("nbds://vm%40a@h/x?tls-psk-file=/k/keys.psk").unwrap();
        assert_eq!((&target.tls, &target.place), (&key("/k/keys.psk", "vm@a"), &tcp("h", 10809)));
        assert!(target.is_secured);
        // Who the client is makes no other export of it.
        let other = Target::of_device("nbds://bob@h/x?tls-psk-file=/k/keys.psk").unwrap();
        assert_eq!(other.identity(), target.identity());
        assert!(!other.agrees_with(&target));
        let uri = "nbds+unix://alice@/x?socket=/run/s&tls-psk-file=/k/keys.psk";
        let target = Target::of_device(uri).unwrap();
        assert_eq!((&target.tls, &target.place), (&key("/k/keys.psk", "alice"), &unix("/run/s")));
        assert_eq!(Place::of_uri(uri), Some(unix("/run/s")));
    }

    #[test]
    fn exclusive_has_writes_kept() {
        let target = Target::parse("nbd://h/x?exclusive&replay=8M&reconnect=5").unwrap();
        assert_eq!((target.replay, target.reconnect), (Some(8 << 20), Duration::from_secs(5)));
        assert_eq!(Target::parse("nbd://h/x?exclusive").unwrap().replay, Some(REPLAY_BYTES));
        let target = Target::parse("nbd://h/x?meta=x%2Dmeta").unwrap();
        assert_eq!((target.meta.as_deref(), target.replay), (Some("x-meta"), Some(REPLAY_BYTES)));
    }

    #[test]
    fn a_password_in_a_uri_is_refused_and_not_shown() {
        for uri in [
            "nbds://me:secret@h/x?tls-psk-file=/k",
            "nbds+unix://me:secret@/x?socket=/s&nosuch=1",
            "nbd://me:secret@h:99999/%f",
            "nbd://me:secret@",
        ] {
            let error = Target::of_device(uri).expect_err(uri).to_string();
            assert!(error.contains("://me:...@") && error.contains("a password"), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_wrong_uri_is_one_line_with_what_was_found() {
        for (uri, found) in [
            ("nbd+unix:///x", "another form"),
            ("nbd://h/x?socket=/a", "another form"),
            ("nbd://h/x?nosuch=1", "'nosuch'"),
            ("nbd://h/x?replay=8M", "no exclusive"),
            ("nbd://h/x?exclusive=no", "'no'"),
            ("nbd://h/x?exclusive&exclusive", "'exclusive' twice"),
            ("nbd://h/x?meta=x", "'x', expected another export"),
            ("nbd://me@h/x", "user: found one, expected none"),
            ("nbds://me@h/x?tls-certificates=/pki", "user: found one, expected none"),
            ("nbd+unix:///x?socket=a", "'a'"),
            ("nbd://h/x?exclusive&replay=1k", "'1k'"),
            ("nbd://h/x?connections=0", "'0', expected 1 to 16"),
            ("nbd://h/x?connections=17", "'17'"),
            ("nbd://h/x?reconnect=soon", "'soon'"),
            ("nbd://h/x?reconnect=86401", "at most a day"),
            ("nbd://h/%f", "URI"),
            ("nbd://h/%ff", "'/%ff'"),
            ("nbd://h:99999/", "99999"),
            ("nbds://h/x", "tls-certificates: found none"),
            ("nbds://h/x?tls-certificates=pki", "'pki'"),
            ("nbd://h/x?tls-certificates=/pki", "no TLS"),
            ("nbd://h/x?tls-hostname=h", "no TLS"),
            ("nbd://me@h/x?tls-psk-file=/k", "tls-psk-file: found no TLS, expected nbds"),
            ("nbds://h/x?tls-psk-file=/k", "user: found none, expected nbds://USER@"),
            ("nbds://@h/x?tls-psk-file=/k", "user: found none"),
            ("nbds://me%00@h/x?tls-psk-file=/k", "user: found another form"),
            ("nbds://%ff@h/x?tls-psk-file=/k", "user: found another form"),
            ("nbds://me@h/x?tls-psk-file=k", "tls-psk-file: found 'k', expected an absolute"),
            ("nbds://me@h/x?tls-psk-file=/k&tls-certificates=/p", "found tls-certificates, too"),
            ("nbds://me@h/x?tls-psk-file=/k&tls-hostname=n", "tls-hostname: found tls-psk-file"),
        ] {
            let error = Target::of_device(uri).expect_err(uri).to_string();
            assert!(error.starts_with(uri) && error.contains(found), "{error}");
        }
    }
}
