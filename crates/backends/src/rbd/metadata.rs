//! The metadata of an image: texts under keys, which the OSDs keep with the image's header.
//!
//! `rbd_metadata_set` notifies all watchers of the image and waits for each: 30 s, if one is a host
//! that was killed or cut off. No librbd keeps these keys in its memory. So a change is one
//! operation of librados on the header, of two calls: the OSD asserts that this client has the
//! lock, and then runs the method of its class `rbd` that librbd would call. It refuses a client
//! that is fenced, like any other.
//!
//! librbd changes an image with a journal, because a mirror of it learns the change from the
//! journal; this waits for silent watchers. The OSD asserts the lock in an operation before it.

use std::ffi::CStr;

use super::class::{Call, encode};
use super::image::{Image, c_string, first_of, value};
use super::session::Session;

/// The method and its input for a change of one key.
fn encode_change(key: &CStr, text: Option<&str>) -> (&'static CStr, Vec<u8>) {
    let mut input = Vec::new();
    let Some(text) = text else {
        encode(key.to_bytes(), &mut input);
        return (c"metadata_remove", input);
    };
    // A map with one entry.
    input.extend_from_slice(&1_u32.to_le_bytes());
    encode(key.to_bytes(), &mut input);
    encode(text.as_bytes(), &mut input);
    (c"metadata_set", input)
}

/// Changes the metadata of an image for the owner of its lock.
pub(super) struct Editor<'a> {
    pub image: &'a Image,
    pub session: &'a Session,
    /// Refuses the next change (W1 of `within`).
    pub may: &'a dyn Fn() -> Result<(), i32>,
}

impl Editor<'_> {
    /// Replaces the value of a key, or removes it. The OSDs have it on return. `-EROFS` says that
    /// the lock has been lost; `-EBUSY`, that it got another cookie meanwhile, or was lost.
    pub fn set(&self, key: &CStr, text: Option<&str>) -> Result<(), i32> {
        (self.may)()?;
        let cookie = self.session.cookie(self.image)?.ok_or(-libc::EROFS)?;
        let assertion = Call::assert_locked(&cookie);
        let result = if self.image.has_journal()? {
            self.image.execute(&[assertion])?;
            self.set_by_librbd(key, text)
        } else {
            let (method, input) = encode_change(key, text);
            self.image.execute(&[assertion, Call::of_rbd(method, input)])
        };
        match result {
            Err(error) if text.is_none() && -error == libc::ENOENT => Ok(()),
            result => result,
        }
    }

    fn set_by_librbd(&self, key: &CStr, text: Option<&str>) -> Result<(), i32> {
        let (image, library) = (self.image.handle(), self.image.library());
        let text = text.map(c_string);
        // SAFETY: the image is live, and the strings live until the call returns.
        let result = unsafe {
            match &text {
                Some(text) => (library.set_metadata)(image, key.as_ptr(), text.as_ptr()),
                None => (library.remove_metadata)(image, key.as_ptr()),
            }
        };
        match -result {
            // Its lock is gone, or gets another cookie.
            libc::EROFS => Err(-libc::EBUSY),
            _ => value(result).map(drop),
        }
    }
}

impl Image {
    /// The value of a key of the image's metadata, if it is there. The OSDs say it.
    pub fn metadata(&self, key: &CStr) -> Result<Option<String>, i32> {
        let mut room = 4096;
        loop {
            let (mut value, mut len) = (vec![0_u8; room], room);
            // SAFETY: the image is live, the key is a string, and the buffer has the length that is
            // said.
            let result = unsafe {
                let (to, len) = (value.as_mut_ptr().cast(), &raw mut len);
                (self.library().get_metadata)(self.handle(), key.as_ptr(), to, len)
            };
            return match -result {
                libc::ENOENT => Ok(None),
                libc::ERANGE if room < 1 << 20 => {
                    room *= 4;
                    continue;
                }
                _ if result < 0 => Err(result),
                _ => Ok(Some(first_of(&value))),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_encoded_as_ceph_reads_it() {
        let key = c"key";
        let (method, input) = encode_change(key, Some("va"));
        assert_eq!(method, c"metadata_set");
        assert_eq!(input, *b"\x01\0\0\0\x03\0\0\0key\x02\0\0\0va");
        assert_eq!(encode_change(key, None), (c"metadata_remove", b"\x03\0\0\0key".to_vec()));
    }
}
