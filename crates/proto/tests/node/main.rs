//! A node by itself: what it says to what it is told, a file for each subject.

mod common;
mod feedback;
mod groups;
mod mismatch;
mod paths;
mod receivers;
mod repairs;
