//! Joins one [`Node`] to one [`Transport`] and moves bytes where the node says.
//!
//! A driver never blocks and never reads a clock: whoever owns it calls [`Driver::step`] with the
//! time and then waits (in [`Transport::wait`], or in the simulator's event queue) until
//! [`Step::wake`]. It owns the objects of the operations under way and gives them back when the
//! node releases them.

use std::io;

use fabricast_proto::{Command, Event, GroupId, Node, NodeId, OpId, Refused, Time};

use crate::object::Object;
use crate::transport::Transport;

/// What a step has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Step again then at the latest; `None`: only when something arrives or is rung.
    pub wake: Option<Time>,
    /// The transport did not take everything, or an object's bytes are not there yet.
    pub blocked: bool,
}

/// A node, its transport and its objects.
pub struct Driver<T: Transport, O: Object> {
    _node: Node,
    _transport: T,
    _objects: Vec<O>,
}

impl<T: Transport, O: Object> Driver<T, O> {
    /// Drives `node` over `transport`.
    pub fn new(node: Node, transport: T) -> Driver<T, O> {
        Driver {
            _node: node,
            _transport: transport,
            _objects: Vec::new(),
        }
    }

    /// The transport, to tell it of peers and groups and to wait in it.
    pub fn transport(&mut self) -> &mut T {
        unimplemented!()
    }

    /// The node, to be asked for its counters and members.
    pub fn node(&self) -> &Node {
        unimplemented!()
    }

    /// Gives the node a command that has no object.
    pub fn command(&mut self, _now: Time, _command: Command) -> Result<(), Refused> {
        unimplemented!()
    }

    /// Sends `object` to all other members of `group`.
    pub fn bcast(&mut self, _now: Time, _group: GroupId, _object: O) -> Result<OpId, (Refused, O)> {
        unimplemented!()
    }

    /// Takes the next object of `root` into `object`, which has its length.
    pub fn post(
        &mut self,
        _now: Time,
        _group: GroupId,
        _root: NodeId,
        _object: O,
    ) -> Result<OpId, (Refused, O)> {
        unimplemented!()
    }

    /// Receives, lets the node work, sends. Never blocks.
    pub fn step(&mut self, _now: Time) -> io::Result<Step> {
        unimplemented!()
    }

    /// The next event that the last steps brought.
    pub fn event(&mut self) -> Option<Event> {
        unimplemented!()
    }

    /// The object of an operation that is over and that the node has released: given back once.
    pub fn take(&mut self, _op: OpId) -> Option<O> {
        unimplemented!()
    }

    /// The object of an operation under way.
    pub fn object(&mut self, _op: OpId) -> Option<&mut O> {
        unimplemented!()
    }
}
