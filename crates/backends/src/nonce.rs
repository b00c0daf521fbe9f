//! [`nonce`]: a random name of a session, so that no two are the same.

/// 128 random bits in hexadecimal.
pub(crate) fn nonce() -> String {
    let mut bytes = [0; 16];
    let flags = rustix::rand::GetRandomFlags::empty();
    rustix::rand::getrandom(&mut bytes, flags).expect("so few bytes are always there");
    format!("{:032x}", u128::from_le_bytes(bytes))
}
