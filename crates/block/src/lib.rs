//! The heart: sectors, requests, disks, targets, tables and mapped devices.
