//! Real disks: files, block devices, memory, null.
