//! The metadata of an image: texts under keys, which the OSDs keep beside the image's header.
//!
//! `rbd_metadata_set` notifies all watchers of the image and waits for each: 30 s, if one is a host
//! that was killed or cut off. No librbd keeps these keys in its memory. So a change is a call of
//! the method of the OSD's class `rbd` that librbd calls, without the notification. The cluster
//! refuses it from a client that is fenced, like any other.

use std::ffi::CStr;

use super::image::{Image, first_of, value};

/// A string, or a buffer, as Ceph encodes it: its length, little-endian, and its bytes.
fn encode(bytes: &[u8], to: &mut Vec<u8>) {
    let len = u32::try_from(bytes.len()).expect("texts of metadata are short");
    to.extend_from_slice(&len.to_le_bytes());
    to.extend_from_slice(bytes);
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

    /// Replaces the value of a key of the image's metadata, or removes it. The OSDs have it on
    /// return.
    pub fn set_metadata(&self, key: &CStr, text: Option<&str>) -> Result<(), i32> {
        let mut input = Vec::new();
        let Some(text) = text else {
            encode(key.to_bytes(), &mut input);
            let removed = self.execute(c"metadata_remove", &input);
            return match removed {
                Err(error) if -error == libc::ENOENT => Ok(()),
                result => result,
            };
        };
        // A map with one entry.
        input.extend_from_slice(&1_u32.to_le_bytes());
        encode(key.to_bytes(), &mut input);
        encode(text.as_bytes(), &mut input);
        self.execute(c"metadata_set", &input)
    }

    /// Runs a method of the class `rbd` on the image's header.
    fn execute(&self, method: &CStr, input: &[u8]) -> Result<(), i32> {
        let (header, library) = (self.header()?, self.library());
        // SAFETY: the context is live, the names live until the call returns, and the buffer has
        // the length that is said. There is no output.
        let result = unsafe {
            let (class, none) = (c"rbd".as_ptr(), std::ptr::null_mut());
            let (context, input, len) = (self.context(), input.as_ptr().cast(), input.len());
            let (header, method) = (header.as_ptr(), method.as_ptr());
            (library.execute)(context, header, class, method, input, len, none, 0)
        };
        value(result).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::encode;

    #[test]
    fn a_string_is_its_length_and_its_bytes() {
        let mut found = vec![7];
        encode(b"key", &mut found);
        assert_eq!(found, [7, 3, 0, 0, 0, b'k', b'e', b'y']);
    }
}
