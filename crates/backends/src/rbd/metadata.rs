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
use std::ptr::null_mut;

use super::image::{Image, c_string, first_of, value};
use super::lock::Owner;

/// `ClsLockType::EXCLUSIVE`.
const EXCLUSIVE: u8 = 1;
/// The name and the tag of the lock that librbd takes.
pub(super) const LOCK: &CStr = c"rbd_lock";
const TAG: &[u8] = b"internal";

/// A string, or a buffer, as Ceph encodes it: its length, little-endian, and its bytes.
fn encode(bytes: &[u8], to: &mut Vec<u8>) {
    let len = u32::try_from(bytes.len()).expect("texts of metadata are short");
    to.extend_from_slice(&len.to_le_bytes());
    to.extend_from_slice(bytes);
}

/// The input of `assert_locked`: version 1, which every later one reads, and its length; name,
/// type, cookie and tag of the lock.
fn encode_assertion(cookie: &str) -> Vec<u8> {
    let mut fields = Vec::new();
    encode(LOCK.to_bytes(), &mut fields);
    fields.push(EXCLUSIVE);
    encode(cookie.as_bytes(), &mut fields);
    encode(TAG, &mut fields);
    let mut input = vec![1, 1];
    encode(&fields, &mut input);
    input
}

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
    /// This client, as the owner of the lock.
    pub owner: &'a Owner,
    /// Refuses the next change (W1 of `within`).
    pub may: &'a dyn Fn() -> Result<(), i32>,
}

/// A class of the OSD, a method of it, and its input.
type Call<'a> = (&'a CStr, &'a CStr, &'a [u8]);

impl Editor<'_> {
    /// Replaces the value of a key, or removes it. The OSDs have it on return. `-EBUSY` says that
    /// the lock is not this owner's.
    pub fn set(&self, key: &CStr, text: Option<&str>) -> Result<(), i32> {
        (self.may)()?;
        let assertion = encode_assertion(&self.owner.cookie);
        let assertion = (c"lock", c"assert_locked", assertion.as_slice());
        let result = if self.image.has_journal()? {
            self.execute(&[assertion])?;
            self.set_by_librbd(key, text)
        } else {
            let (method, input) = encode_change(key, text);
            self.execute(&[assertion, (c"rbd", method, &input)])
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
            // It has lost the lock since the assertion, and may take it again.
            libc::EROFS => Err(-libc::EBUSY),
            _ => value(result).map(drop),
        }
    }

    /// Runs these calls as one operation on the image's header: all of them, or none.
    fn execute(&self, calls: &[Call<'_>]) -> Result<(), i32> {
        let (library, header) = (self.image.library(), self.image.header()?);
        // SAFETY: the operation is ended here. Names and inputs live longer, and no result of a
        // single call is asked for.
        let result = unsafe {
            let op = (library.write_op)();
            for (class, method, input) in calls {
                let (class, method, len) = (class.as_ptr(), method.as_ptr(), input.len());
                (library.write_op_exec)(op, class, method, input.as_ptr().cast(), len, null_mut());
            }
            let context = self.image.context();
            let result = (library.write_op_operate)(op, context, header.as_ptr(), null_mut(), 0);
            (library.end_write_op)(op);
            result
        };
        value(result).map(drop)
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
        let fields = b"\x08\0\0\0rbd_lock\x01\x06\0\0\0auto 7\x08\0\0\0internal";
        let expected = [b"\x01\x01\x23\0\0\0".as_slice(), fields].concat();
        assert_eq!(encode_assertion("auto 7"), expected);
    }
}
