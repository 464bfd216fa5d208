//! Silent connections to the port where rank 0 of a job accepts the other ranks.

use std::net::{SocketAddr, TcpStream};
use std::sync::{Barrier, Mutex};
use std::thread;

use fabricast::communicator::{Bootstrap, BootstrapError, Context, Options};
use fabricast::config::NetOptions;
use fabricast::interface::Interface;
use fabricast::object::Memory;
use serde_json::Value;

use crate::common::place::Place;

const RANKS: u32 = 2;
/// Rank 0 waits two seconds for each if it takes them one after the other. All ranks together have
/// 20 s.
const SILENT: usize = 40;

/// Rank `rank`, on host `rank + 1`.
struct Rank<'a, P> {
    rank: u32,
    place: &'a P,
    cards: &'a Mutex<Vec<Vec<u8>>>,
    all: &'a Barrier,
    silent: &'a Mutex<Vec<TcpStream>>,
}

impl<P: Place> Bootstrap for Rank<'_, P> {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        RANKS
    }

    /// Before rank 1 learns where rank 0 listens, host 3 opens silent connections to that port.
    fn allgather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        self.cards.lock().unwrap()[self.rank as usize] = mine.to_vec();
        self.all.wait();
        let cards = self.cards.lock().unwrap().clone();
        let mut silent = self.silent.lock().unwrap();
        if self.rank == 1 && silent.is_empty() {
            let card: Value = serde_json::from_slice(&cards[0]).unwrap();
            let listens: SocketAddr = card["Ok"]["watch"].as_str().unwrap().parse().unwrap();
            let connect = || TcpStream::connect(listens).unwrap();
            let all = || (0..SILENT).map(|_| connect()).collect();
            *silent = self.place.on(3, all);
        }
        drop(silent);
        self.all.wait();
        Ok(cards)
    }
}

/// A host connects to rank 0 before the ranks do, and stays silent.
pub fn silent_connections(place: &impl Place) {
    let cards = Mutex::new(vec![Vec::new(); RANKS as usize]);
    let (all, silent) = (Barrier::new(RANKS as usize), Mutex::new(Vec::new()));
    let run = |rank| {
        let host = rank as usize + 1;
        let options = Options {
            net: NetOptions {
                interface: Interface::Address(place.ip(host).into()),
                ..NetOptions::default()
            },
            ..Options::default()
        };
        let mut ranks = Rank {
            rank,
            place,
            cards: &cards,
            all: &all,
            silent: &silent,
        };
        place.on(host, || {
            let context = Context::<Memory>::new(&options, &mut ranks).unwrap();
            let group = context.group(1, &[0, 1]).unwrap();
            context.barrier(&group, None, &mut || ()).unwrap();
            ranks.allgather(&[]).unwrap();
        });
    };
    thread::scope(|scope| {
        for rank in 0..RANKS {
            scope.spawn(move || run(rank));
        }
    });
    assert_eq!(silent.lock().unwrap().len(), SILENT);
}
