//! The targets: policy only.
