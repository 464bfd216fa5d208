//! What a receiver's session asks of its sender: damaged parts of packs, and questions to other
//! receivers.

use std::time::Instant;

use super::block_repair::BlockRepair;
use super::errors::strange;
use super::session::ReceiverSession;
use crate::bootstrap::message::ToSender;
use crate::error::Error;
use crate::transport::Transport;

impl ReceiverSession<'_> {
    /// Requests what is damaged, or stores the pack if everything is proven. The answer to a list,
    /// or to the request for a header, comes first.
    pub(super) fn ask(&mut self) -> Result<(), Error> {
        while !self.catching_up.lists()
            && self.asked_header.is_none()
            && let Some(repair) = &mut self.repair
        {
            if repair.is_done() {
                self.statistics.mended += repair.mended;
                self.statistics.mended_bytes += repair.bytes;
                let done = self.repair.take().and_then(BlockRepair::into_pack);
                if let Some((pack, header)) = done {
                    self.storing.mended(pack, header);
                }
                return Ok(());
            }
            // Only the sender has what is missing.
            if let Some(why) = self.lost.take() {
                return Err(why);
            }
            match repair.ask() {
                Some(need) => self.say(&need)?,
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Takes bytes that this receiver has requested.
    pub(super) fn mend(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.moved = Instant::now();
        let Some(repair) = &mut self.repair else {
            return Err(strange());
        };
        repair.take(bytes).unwrap_or_else(|| Err(strange()))?;
        self.ask()
    }

    /// Reports receivers that do not answer at the address that the sender told. For each `Ask` of
    /// the sender, such a receiver may be asked once more.
    pub(super) fn ask_for_questions(&mut self, now: Instant) -> Result<(), Error> {
        let silent = self.driver.net().unanswered();
        let due = self.unanswered.due(silent, now);
        let mut reports = due.map(|node| ToSender::Unanswered { node: node.0 });
        reports.try_for_each(|report| self.say(&report))
    }
}
