//! [`shown`]: a device argument as errors and logs show it. A URI may have a secret by mistake: a
//! password or key of its user.

use std::borrow::Cow;

use fluent_uri::Uri;

use crate::argument::image_in;

/// The argument, without the password that the user of its URI has.
pub(crate) fn shown(argument: &str) -> Cow<'_, str> {
    let without = without_password(argument).or_else(|| broken_without_password(argument));
    without.map_or(Cow::Borrowed(argument), Cow::Owned)
}

/// A URI whose user has a password, without that.
pub(crate) fn without_password(argument: &str) -> Option<String> {
    let (scheme, rest) = argument.split_once("://")?;
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    let (user, place) = authority.rsplit_once('@')?;
    let end = [":", "%3A", "%3a"].iter().filter_map(|colon| user.find(colon)).min()?;
    Some(format!("{scheme}://{}:...@{place}{}", &user[..end], &rest[authority.len()..]))
}

/// What is no URI, without what may be a password in it: a key in base64 has signs that end the
/// authority of a URI.
fn broken_without_password(argument: &str) -> Option<String> {
    let (scheme, rest) = argument.split_once("://")?;
    let (user, place) = rest.rsplit_once('@')?;
    let (name, _) = user.split_once(':')?;
    let is_broken = Uri::parse(image_in(argument).unwrap_or(argument)).is_err();
    is_broken.then(|| format!("{scheme}://{name}:...@{place}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        for (argument, expected) in [
            ("nbds://me:secret@h:5/x?a=b", "nbds://me:...@h:5/x?a=b"),
            ("nbds://me%3Asecret@h", "nbds://me:...@h"),
            ("qcow2:https://me%3asecret@h/x@y", "qcow2:https://me:...@h/x@y"),
            ("nbds://me@h/a:b@c", "nbds://me@h/a:b@c"),
            ("/a:b@c", "/a:b@c"),
            ("nbds://me:se/cr+et@h/x", "nbds://me:...@h/x"),
            ("qcow2:https://me:se/cr+et@h/x", "qcow2:https://me:...@h/x"),
            ("nbds://h:99999/x", "nbds://h:99999/x"),
            ("nbd://h:10809/a:b@c", "nbd://h:10809/a:b@c"),
        ] {
            assert_eq!(shown(argument), expected);
        }
    }
}
