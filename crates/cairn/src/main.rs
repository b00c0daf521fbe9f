//! `cairn`: the program.

fn main() {}
