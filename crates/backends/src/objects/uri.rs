//! [`Address`]: what a URI of an object means.
//!
//! `http://` and `https://` as a browser or curl has them: the query belongs to the server.
//! `s3://`, `gs://` and `az://` with a bucket (a container) and a key. A fragment is never sent
//! to a server, so the parameters of the disk are there: `#unchecked&reconnect=5`.

use std::time::Duration;

use cairn_block::ConfigError;
use fluent_uri::Uri;

use crate::shown::shown;

/// How long a read tries to get an answer, unless said otherwise.
const RECONNECT: Duration = Duration::from_secs(30);

/// The longest of these times.
const RECONNECT_MAX: Duration = Duration::from_secs(24 * 3600);

/// What keeps an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// A server of HTTP with ranges.
    Http,
    /// Amazon S3, or a server that speaks its protocol.
    S3,
    /// Google Cloud Storage.
    Gcs,
    /// Azure Blob Storage.
    Azure,
}

const SCHEMES: [(&str, Service); 5] = [
    ("http://", Service::Http),
    ("https://", Service::Http),
    ("s3://", Service::S3),
    ("gs://", Service::Gcs),
    ("az://", Service::Azure),
];

/// An object, and how to treat it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// As given by the user.
    pub argument: String,
    /// The same without its fragment.
    pub url: String,
    /// What keeps the object.
    pub service: Service,
    /// The key in its bucket, with `%XX`; all of the path for HTTP.
    pub key: String,
    /// It is read without an ETag that proves that it is the same object.
    pub unchecked: bool,
    /// The ETag that it must have, without quotation marks.
    pub etag: Option<String>,
    /// How long a read tries to get an answer.
    pub reconnect: Duration,
}

/// True if an argument names an object.
pub fn is_uri(argument: &str) -> bool {
    SCHEMES.iter().any(|(scheme, _)| argument.starts_with(scheme))
}

/// True for a key that the client would shorten: it would read the object of another key.
fn has_empty_part(key: &str) -> bool {
    key.to_ascii_lowercase().replace("%2f", "/").split('/').any(str::is_empty)
}

impl Address {
    /// Parses a URI.
    ///
    /// # Errors
    /// It is none, or has a parameter that is not known.
    pub fn parse(argument: &str) -> Result<Address, ConfigError> {
        let wrong = |field: &str, found: String, expected: &str| {
            ConfigError::argument(&shown(argument), field, found, expected)
        };
        let shape = "https://HOST/PATH or s3://BUCKET/KEY";
        let service = SCHEMES.iter().find(|(scheme, _)| argument.starts_with(scheme));
        let (_, service) = service.ok_or_else(|| wrong("URI", "another form".to_owned(), shape))?;
        let uri = Uri::parse(argument).map_err(|error| wrong("URI", error.to_string(), shape))?;
        let authority = uri.authority().filter(|it| !it.host().is_empty());
        let authority =
            authority.ok_or_else(|| wrong("URI", "no host or bucket".to_owned(), shape))?;
        if authority.has_userinfo() {
            let expected = "credentials in the environment: a table shows its URIs";
            return Err(wrong("URI", "a user".to_owned(), expected));
        }
        authority
            .port_to_u16()
            .map_err(|_| wrong("port", format!("'{}'", authority.as_str()), "one of TCP"))?;
        let path = uri.path().as_str();
        let key = path.strip_prefix('/').unwrap_or(path);
        if *service != Service::Http && (key.is_empty() || uri.query().is_some()) {
            let found = if key.is_empty() { "no key" } else { "a query" };
            return Err(wrong("URI", found.to_owned(), shape));
        }
        if *service != Service::Http && has_empty_part(key) {
            let expected = "no slash at its ends, and no two together";
            return Err(wrong("key", format!("'{key}'"), expected));
        }
        let (url, fragment) = argument.split_once('#').unwrap_or((argument, ""));
        let mut address = Address {
            argument: argument.to_owned(),
            url: url.to_owned(),
            service: *service,
            key: key.to_owned(),
            unchecked: false,
            etag: None,
            reconnect: RECONNECT,
        };
        let mut seen = Vec::new();
        for parameter in fragment.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            if seen.contains(&name) {
                return Err(wrong("parameter", format!("'{name}' twice"), "each of them once"));
            }
            seen.push(name);
            address.set(name, value)?;
        }
        if address.unchecked && address.etag.is_some() {
            return Err(wrong("unchecked", "etag beside it".to_owned(), "one of the two"));
        }
        Ok(address)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), ConfigError> {
        let wrong = |field: &str, found: &str, expected: &str| {
            let found = format!("'{found}'");
            Err(ConfigError::argument(&self.argument, field, found, expected))
        };
        match (name, value) {
            ("unchecked", "") => self.unchecked = true,
            ("unchecked", _) => return wrong(name, value, "no value: its presence"),
            ("etag", "") => return wrong(name, value, "the ETag without quotation marks"),
            ("etag", _) => self.etag = Some(value.to_owned()),
            ("reconnect", _) => match value.parse().map(Duration::from_secs) {
                Ok(time) if time <= RECONNECT_MAX => self.reconnect = time,
                _ => return wrong(name, value, "seconds, at most those of a day"),
            },
            _ => return wrong("parameter", name, "unchecked, etag or reconnect"),
        }
        Ok(())
    }

    /// The URI without its query, which may have a signature or a token.
    #[cfg(any(test, feature = "objects"))]
    pub fn shown(&self) -> String {
        let (plain, fragment) =
            self.argument.split_once('#').map_or((&*self.argument, None), |(a, b)| (a, Some(b)));
        let mut shown = match plain.split_once('?') {
            Some((place, _)) => format!("{place}?..."),
            None => plain.to_owned(),
        };
        if let Some(fragment) = fragment {
            shown.extend(["#", fragment]);
        }
        shown
    }

    /// The same for two equal URIs. An object that is named in two ways is two disks, which is no
    /// harm: no request writes to it.
    pub fn identity(&self) -> String {
        format!("object {}", self.argument)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_names_an_object_and_how_to_treat_it() {
        let plain = Address::parse("https://h:8443/a%20b/c.img?token=x&y#").unwrap();
        assert_eq!(plain.url, "https://h:8443/a%20b/c.img?token=x&y");
        assert_eq!((plain.service, plain.unchecked), (Service::Http, false));
        assert_eq!(plain.shown(), "https://h:8443/a%20b/c.img?...#");
        assert_eq!((plain.reconnect, plain.etag), (RECONNECT, None));
        let s3 = Address::parse("s3://bucket/a/b%20c#etag=12-3&reconnect=5").unwrap();
        assert_eq!((s3.service, s3.key.as_str()), (Service::S3, "a/b%20c"));
        assert_eq!((s3.etag.as_deref(), s3.reconnect.as_secs()), (Some("12-3"), 5));
        assert_eq!(s3.shown(), s3.argument);
        assert!(Address::parse("http://[::1]/x#unchecked").unwrap().unchecked);
    }

    #[test]
    fn a_wrong_uri_is_one_line_with_what_was_found() {
        for (uri, found) in [
            ("http:///x", "no host"),
            ("https://me:secret@h/x", "a user"),
            ("https://h:99999/x", "99999"),
            ("https://h/x#nosuch=1", "'nosuch'"),
            ("https://h/x#unchecked=no", "'no'"),
            ("https://h/x#unchecked&unchecked", "'unchecked' twice"),
            ("https://h/x#unchecked&etag=a", "etag beside it"),
            ("https://h/x#etag=", "''"),
            ("https://h/x#reconnect=soon", "'soon'"),
            ("https://h/x#reconnect=86401", "'86401'"),
            ("https://h/x#reconnect=18446744073709551615", "'18446744073709551615'"),
            ("https://h/%f", "URI"),
            ("s3://bucket", "no key"),
            ("s3://bucket/", "no key"),
            ("gs://bucket/key?x", "a query"),
            ("s3://bucket//key", "'/key'"),
            ("gs://bucket/a//key", "'a//key'"),
            ("az://bucket/key/", "'key/'"),
            ("s3://bucket/key%2F", "'key%2F'"),
            ("s3://bucket/%2fkey", "'%2fkey'"),
            ("ftp://h/x", "another form"),
        ] {
            let error = Address::parse(uri).expect_err(uri).to_string();
            assert!(error.starts_with(&*shown(uri)) && error.contains(found), "{error}");
        }
    }
}
