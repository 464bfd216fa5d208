//! What steps the engine: callers while they block, and a thread while no caller is inside.
//!
//! Owns the lock, the threads that sleep and what wakes them, and the hand-over from callers to the
//! progress thread. A blocked caller steps the engine itself (`callers`). Between steps it lets the
//! runtime above make progress. A thread that ends another's operation wakes that thread. No thread
//! sleeps while it holds the lock. Imports from operations, and the failure detector from wire-up.

pub(crate) mod callers;
pub(crate) mod hand_over;
pub(crate) mod shared;
pub(crate) mod thread;
pub(crate) mod waiter;

use std::sync::atomic;

use crate::communicator::operations::left::Left;
