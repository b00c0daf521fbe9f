//! Bytes to structs and back: the on-disk formats.
