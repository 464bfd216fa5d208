//! What a transport has told its driver, beside datagrams.

use std::collections::VecDeque;
use std::io;

use fabricast_proto::AddressId;

use crate::transport::{News, Transport};

/// Largest number of news that are kept for the owner.
const NEWS_MAX: usize = 256;

/// How far a node has come that began to join a multicast address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Join {
    /// The node has joined.
    Done,
    /// [`News::Joined`] or [`News::JoinFailed`] will tell.
    UnderWay,
}

/// News that the owner has not read, and why the transport can no longer be used.
#[derive(Default)]
pub(super) struct Told {
    news: VecDeque<News>,
    failure: Option<(io::ErrorKind, String)>,
}

impl Told {
    /// Takes what the transport tells.
    pub fn hear(&mut self, transport: &mut impl Transport) {
        while let Some(news) = transport.news() {
            self.keep(news);
        }
    }

    #[cold]
    fn keep(&mut self, news: News) {
        if let Some(failure) = news.failure() {
            let failure = (failure.kind(), failure.to_string());
            self.failure.get_or_insert(failure);
            return;
        }
        if self.news.len() == NEWS_MAX {
            let is_answer = |n: &News| matches!(n, News::Joined(_) | News::JoinFailed(..));
            let first = self.news.iter().position(|n| !is_answer(n));
            self.news.remove(first.unwrap_or(0));
        }
        self.news.push_back(news);
    }

    /// The error of every step from now on, if the transport can no longer be used.
    pub fn failure(&self) -> io::Result<()> {
        match &self.failure {
            None => Ok(()),
            Some((kind, text)) => Err(io::Error::new(*kind, text.clone())),
        }
    }

    /// How the join of `id` has ended, if the transport has told it.
    pub fn joined(&mut self, id: AddressId) -> io::Result<Join> {
        let is_answer = |n: &News| match n {
            News::Joined(of) | News::JoinFailed(of, _) => *of == id,
            _ => false,
        };
        let answer = self.news.iter().position(is_answer);
        match answer.and_then(|at| self.news.remove(at)) {
            Some(News::JoinFailed(_, error)) => Err(error),
            Some(_) => Ok(Join::Done),
            None => Ok(Join::UnderWay),
        }
    }

    /// The next news that the owner has not read.
    pub fn next(&mut self) -> Option<News> {
        self.news.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: AddressId = AddressId(7);

    /// A join asks for news, too. A failure that it finds stays the error of every later step.
    #[test]
    fn a_failure_is_not_forgotten() {
        let mut told = Told::default();
        let port = "eth9".to_owned();
        told.keep(News::PortDown { port });
        assert_eq!(told.joined(ID).unwrap(), Join::UnderWay);
        for _ in 0..2 {
            let error = told.failure().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::NetworkDown);
            assert!(error.to_string().contains("eth9"), "{error}");
        }
    }

    /// An address's owner waits for the answer to its join, so notices go first.
    #[test]
    fn answers_outlast_notices() {
        let mut told = Told::default();
        told.keep(News::Joined(AddressId(1)));
        told.keep(News::JoinFailed(ID, io::Error::other("full")));
        for i in 0..2 * NEWS_MAX {
            told.keep(News::Notice(i.to_string()));
        }
        assert_eq!(told.news.len(), NEWS_MAX);
        assert_eq!(told.joined(ID).unwrap_err().to_string(), "full");
        assert_eq!(told.joined(ID).unwrap(), Join::UnderWay);
        assert!(matches!(told.next(), Some(News::Joined(AddressId(1)))));
    }
}
