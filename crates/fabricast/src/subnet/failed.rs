//! A subnet that has failed: it refuses every address, and everything that is left is left at once.

use std::collections::VecDeque;

use fabricast_proto::Time;

use super::{News, Refusal, Subnet};
use crate::transport::GroupAddress;

/// Stands in for a subnet whose port has failed for good.
#[derive(Default)]
pub struct Failed {
    news: VecDeque<News>,
}

impl Subnet for Failed {
    fn name(&self) -> &'static str {
        "failed"
    }

    fn create(&mut self, now: Time, address: &GroupAddress) {
        self.join(now, address);
    }

    fn join(&mut self, _: Time, address: &GroupAddress) {
        let refused = News::Refused(address.clone(), Refusal::TimedOut);
        self.news.push_back(refused);
    }

    fn leave(&mut self, _: Time, address: &GroupAddress) {
        self.news.push_back(News::Left(address.clone()));
    }

    fn news(&mut self) -> Option<News> {
        self.news.pop_front()
    }
}
