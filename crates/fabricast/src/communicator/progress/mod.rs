//! What steps the engine: callers while they block, a thread while none is inside.
//!
//! Owns the lock, the threads that sleep and what wakes them, and the hand-over from callers to the
//! progress thread. A blocked caller steps the engine itself (`callers`), and between steps lets
//! the runtime above make progress of its own. A thread that ends another's operation wakes it.
//! No thread sleeps with the lock. Imports from operations, and the failure detector from wire-up.

pub(crate) mod callers;
pub(crate) mod shared;
pub(crate) mod state;
pub(crate) mod thread;
pub(crate) mod waiter;
