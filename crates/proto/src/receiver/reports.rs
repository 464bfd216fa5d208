//! What a node knows of its children in a tree (P1.5, P4.3). It reports to its own collector what
//! all of them have. It repairs nothing; the sender does.

use crate::id::NodeId;
use crate::seq::Seq;
use crate::wire::Feedback;

struct ChildReport {
    node: NodeId,
    cum_subtree: Seq,
    limit: Option<Seq>,
    missing: Vec<(Seq, u32)>,
}

/// The reports of a node's children.
pub struct ChildReports {
    all: Vec<ChildReport>,
    /// Children that the node is still to ask.
    questions: Vec<NodeId>,
    /// Ranges that any node of the sub-tree lacks, put together for one report.
    merged: Vec<(Seq, u32)>,
}

impl ChildReports {
    /// The state before any of the children `nodes` has reported.
    pub fn new(nodes: impl Iterator<Item = NodeId>, start: Seq) -> ChildReports {
        let all = nodes.map(|node| ChildReport {
            node,
            cum_subtree: start,
            limit: None,
            missing: Vec::new(),
        });
        ChildReports {
            all: all.collect(),
            questions: Vec::new(),
            merged: Vec::new(),
        }
    }

    /// Takes a child's feedback. Says whether it is news of the child's cumulative number; `None`:
    /// `from` is no child.
    pub fn on_feedback(&mut self, from: NodeId, f: &Feedback<'_>) -> Option<bool> {
        let r = self.all.iter_mut().find(|r| r.node == from)?;
        if f.cum_subtree.before(r.cum_subtree) {
            return Some(false); // sent before a report that is known
        }
        let news = r.cum_subtree != f.cum_subtree;
        r.cum_subtree = f.cum_subtree;
        r.limit = (f.limit != f.cum_subtree).then_some(f.limit);
        r.missing.clear();
        r.missing.extend(f.missing);
        Some(news)
    }

    /// Removes a child that is gone: this node does not wait for it, and its children report to the
    /// sender.
    pub fn remove(&mut self, node: NodeId) {
        self.all.retain(|r| r.node != node);
        self.questions.retain(|&q| q != node);
    }

    /// Takes a probe about the packets before `upto`: this node asks the children that have not
    /// reported them.
    pub fn on_probe(&mut self, upto: Seq) {
        let lag = self.all.iter().filter(|r| r.cum_subtree.before(upto));
        self.questions.clear();
        self.questions.extend(lag.map(|r| r.node));
    }

    /// Takes the next child to be asked.
    pub fn question(&mut self) -> Option<NodeId> {
        self.questions.pop()
    }

    /// Whether a child is to be asked.
    pub fn has_questions(&self) -> bool {
        !self.questions.is_empty()
    }

    /// The number before which all children's sub-trees and this node have everything. `own` is
    /// this node's own number.
    pub fn cum_subtree(&self, own: Seq) -> Seq {
        self.all
            .iter()
            .fold(own, |least, r| least.min(r.cum_subtree))
    }

    /// The least right edge of all children that are ready and, if it is ready, of this node
    /// (`own`). `None`: none is ready.
    pub fn advertised(&self, own: Option<Seq>) -> Option<Seq> {
        let limits = self.all.iter().filter_map(|r| r.limit);
        limits.chain(own).reduce(Seq::min)
    }

    /// The ranges from `cum_subtree` on that a child's sub-tree lacks, or that this node lacks
    /// (`own`).
    pub fn missing(
        &mut self,
        cum_subtree: Seq,
        own: impl Iterator<Item = (Seq, u32)>,
    ) -> &[(Seq, u32)] {
        let theirs = self.all.iter().flat_map(|r| r.missing.iter().copied());
        self.merged.clear();
        self.merged.extend(own.chain(theirs));
        self.merged.retain(|r| !r.0.before(cum_subtree));
        self.merged.sort_unstable_by_key(|r| r.0.from(cum_subtree));
        let mut kept = 0;
        for i in 1..self.merged.len() {
            let (first, len) = self.merged[i];
            let (at, n) = self.merged[kept];
            if (at + n).before(first) {
                kept += 1;
                self.merged[kept] = (first, len);
            } else {
                let end = (at + n).max(first + len);
                self.merged[kept].1 = end.from(at) as u32;
            }
        }
        self.merged.truncate(kept + 1);
        &self.merged
    }
}
