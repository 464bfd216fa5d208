//! What the engine records of each operation for which a caller or another process still waits.

use super::Engine;
use crate::collective::Ended;
use crate::communicator::operations::operation::{Op, Operation, Stage};
use crate::object::Divisible;

impl<O: Divisible> Engine<O> {
    /// Records an operation that has been started.
    pub(super) fn begins(&mut self, op: Op, operation: Operation<O>) {
        if let Some(state) = self.groups.get_mut(&operation.group) {
            state.operations += 1;
        }
        self.copies_change(None, operation.copied());
        self.operations.insert(op, operation);
    }

    /// Takes note of an operation's copies.
    fn copies_change(&mut self, before: Option<u64>, after: Option<u64>) {
        if before == after {
            return;
        }
        self.copies += usize::from(after.is_some());
        self.copies -= usize::from(before.is_some());
        self.copied += after.unwrap_or(0);
        self.copied -= before.unwrap_or(0);
    }

    /// Changes how far an operation is. `None`: nobody waits for it any more.
    pub(super) fn changes(&mut self, op: Op, stage: Option<Stage<O>>) {
        let Some(stage) = stage else {
            return self.is_over(op);
        };
        if let Some(operation) = self.operations.get_mut(&op) {
            let before = operation.copied();
            operation.stage = stage;
            let after = operation.copied();
            self.copies_change(before, after);
        }
    }

    /// Forgets an operation for which nobody waits any more.
    fn is_over(&mut self, op: Op) {
        let Some(operation) = self.operations.remove(&op) else {
            return;
        };
        if let Some(state) = self.groups.get_mut(&operation.group) {
            state.operations -= 1;
        }
        self.copies_change(operation.copied(), None);
    }

    /// Takes note that others lack an operation's copies no more. Returns false if it has none.
    pub(super) fn passed(&mut self, op: Op) -> bool {
        let Some(operation) = self.operations.get_mut(&op) else {
            return false;
        };
        let stage = match &mut operation.stage {
            Stage::Copied { .. } => None,
            Stage::Ended {
                how,
                object,
                copied: Some(_),
            } => Some(Stage::Ended {
                how: *how,
                object: object.take(),
                copied: None,
            }),
            Stage::Ended { copied: None, .. } | Stage::UnderWay => return false,
        };
        self.changes(op, stage);
        true
    }

    /// Takes note of how an operation has ended for its caller. A complete operation stays
    /// complete, even if its group has ended meanwhile, and an end of another kind changes nothing
    /// in what has ended.
    pub(super) fn ends(&mut self, op: Op, how: Ended, object: Option<O>, copied: Option<u64>) {
        let Some(operation) = self.operations.get_mut(&op) else {
            return;
        };
        let may = match operation.stage {
            Stage::UnderWay => true,
            Stage::Ended { .. } => how == Ended::Complete,
            Stage::Copied { .. } => false,
        };
        if may {
            let stage = Stage::Ended {
                how,
                object,
                copied,
            };
            let before = operation.copied();
            operation.stage = stage;
            self.copies_change(before, copied);
        }
    }
}
