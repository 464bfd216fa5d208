//! What a node knows of those who report to it in a tree (P1.5, P4.3): it tells its own collector
//! what all of them have. It repairs nothing; the sender does.

use crate::id::NodeId;
use crate::seq::Seq;
use crate::wire::Feedback;

struct ChildReport {
    node: NodeId,
    cum_subtree: Seq,
    limit: Option<Seq>,
    missing: Vec<(Seq, u32)>,
}

/// Those who report to one node.
pub struct ChildReports {
    all: Vec<ChildReport>,
    /// Children that are to be asked.
    questions: Vec<NodeId>,
    /// What is missing somewhere, put together for one report.
    merged: Vec<(Seq, u32)>,
}

impl ChildReports {
    /// These children, which have not reported yet.
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

    /// What one of them tells; says whether it is one of them, and whether it has got on.
    pub fn on_feedback(&mut self, from: NodeId, f: &Feedback<'_>) -> Option<bool> {
        let r = self.all.iter_mut().find(|r| r.node == from)?;
        if f.cum_subtree.before(r.cum_subtree) {
            return Some(false); // said before what is known
        }
        let news = r.cum_subtree != f.cum_subtree;
        r.cum_subtree = f.cum_subtree;
        r.limit = (f.limit != f.cum_subtree).then_some(f.limit);
        r.missing.clear();
        r.missing.extend(f.missing);
        Some(news)
    }

    /// One is gone: nobody waits for it, and who reported to it tells the sender.
    pub fn remove(&mut self, node: NodeId) {
        self.all.retain(|r| r.node != node);
        self.questions.retain(|&q| q != node);
    }

    /// Takes a question to this node about what was sent before `upto`. The node asks the children
    /// whose answer it does not know.
    pub fn on_probe(&mut self, upto: Seq) {
        let lag = self.all.iter().filter(|r| r.cum_subtree.before(upto));
        self.questions.clear();
        self.questions.extend(lag.map(|r| r.node));
    }

    /// The next one to be asked.
    pub fn question(&mut self) -> Option<NodeId> {
        self.questions.pop()
    }

    /// Whether somebody is to be asked.
    pub fn has_questions(&self) -> bool {
        !self.questions.is_empty()
    }

    /// What all of them have, and this node with `own`.
    pub fn cum_subtree(&self, own: Seq) -> Seq {
        self.all
            .iter()
            .fold(own, |least, r| least.min(r.cum_subtree))
    }

    /// What all who are ready can take, this node (up to `own`) among them.
    pub fn advertised(&self, own: Option<Seq>) -> Option<Seq> {
        let limits = self.all.iter().filter_map(|r| r.limit);
        limits.chain(own).reduce(Seq::min)
    }

    /// What one of them lacks, or this node, which lacks `own`, from `cum_subtree` on.
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
