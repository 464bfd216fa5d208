//! A simulated cluster that runs the same protocol code under virtual time and judges it.
#![forbid(unsafe_code)]
