//! Reliable multicast for clusters: files, broadcasts and barriers from one to many.
//!
//! A switch copies a multicast datagram to every receiver for the price of one, but it may lose,
//! repeat and reorder datagrams, and does not tell the sender. This library adds what is missing:
//! acknowledgements, retransmission, flow control, and unicast for receivers that multicast does
//! not reach.
//!
//! # What to call first
//!
//! * [`transfer::send`] and [`transfer::recv`] carry a file from one process to many.
//! * [`communicator::Context`] connects the processes of a job, which then broadcast and enter
//!   barriers again and again.
//! * [`proto::Node`] is the protocol without sockets or threads, for simulators and for other
//!   networks; [`driver::Driver`] joins it to a [`transport`] and to [`object`]s that hold bytes.
//!
//! # A file
//!
//! A sender waits for its receivers, sends, and returns when every receiver has proven that it has
//! the file. Here both ends are in one process, on the loopback:
//!
//! ```
//! use std::net::Ipv4Addr;
//! use std::sync::mpsc;
//!
//! use fabricast::config::{NetOptions, RecvOptions, SendOptions};
//! use fabricast::transfer::{SendEvent, Source, recv, send};
//! use fabricast::interface::Interface;
//!
//! let dir = std::env::temp_dir().join(format!("fabricast-doc-{}", std::process::id()));
//! std::fs::create_dir_all(&dir)?;
//! let source = dir.join("weights");
//! std::fs::write(&source, vec![7; 100_000])?;
//! let net = NetOptions {
//!     interface: Interface::Address(Ipv4Addr::LOCALHOST.into()),
//!     ..NetOptions::default()
//! };
//! // Port 0: any free one. Receivers are told it, so nothing is announced.
//! let sending = SendOptions { net: net.clone(), port: 0, announce: false, ..Default::default() };
//!
//! let (tell, address) = mpsc::channel();
//! std::thread::scope(|scope| {
//!     let sender = scope.spawn(|| {
//!         let sources = Source::Paths(std::slice::from_ref(&source));
//!         send(sources, &sending, &mut |event| {
//!             if let SendEvent::Listening { address, .. } = event {
//!                 let _ = tell.send(address.port());
//!             }
//!         })
//!     });
//!     let port = address.recv().expect("the sender listens");
//!     let receiving = RecvOptions {
//!         net: net.clone(),
//!         from: Some(format!("127.0.0.1:{port}")),
//!         ..RecvOptions::new(dir.join("copy"))
//!     };
//!     let report = recv(&receiving, &mut |_| ()).expect("received");
//!     assert_eq!(report.len, 100_000);
//!     sender.join().expect("no panic").expect("sent");
//! });
//! assert_eq!(std::fs::read(dir.join("copy"))?, std::fs::read(&source)?);
//! # std::fs::remove_dir_all(&dir)?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # A broadcast in a group of processes
//!
//! The processes of a job already know each other by some means (MPI, a launcher, a batch system):
//! that is the [`communicator::Bootstrap`]. Here three threads stand for three processes:
//!
//! ```
//! use std::net::Ipv4Addr;
//! use std::sync::{Barrier, Mutex};
//!
//! use fabricast::communicator::{Bootstrap, BootstrapError, Context, Error, Options};
//! use fabricast::config::NetOptions;
//! use fabricast::object::Memory;
//! use fabricast::interface::Interface;
//!
//! struct Threads<'a> {
//!     rank: u32,
//!     given: &'a Mutex<Vec<Vec<u8>>>,
//!     all: &'a Barrier,
//! }
//!
//! impl Bootstrap for Threads<'_> {
//!     fn rank(&self) -> u32 {
//!         self.rank
//!     }
//!     fn size(&self) -> u32 {
//!         3
//!     }
//!     fn allgather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
//!         self.given.lock().unwrap()[self.rank as usize] = mine.to_vec();
//!         self.all.wait();
//!         let given = self.given.lock().unwrap().clone();
//!         self.all.wait();
//!         Ok(given)
//!     }
//! }
//!
//! let (given, all) = (Mutex::new(vec![Vec::new(); 3]), Barrier::new(3));
//! let (given, all) = (&given, &all);
//! let process = |rank: u32| -> Result<Vec<u8>, Error> {
//!     let options = Options {
//!         net: NetOptions {
//!             interface: Interface::Address(Ipv4Addr::LOCALHOST.into()),
//!             ..NetOptions::default()
//!         },
//!         ..Options::default()
//!     };
//!     let context = Context::new(&options, &mut Threads { rank, given, all })?;
//!     let group = context.group(1, &[0, 1, 2])?;
//!     // Rank 0 sends. Every rank knows the length.
//!     let object = match rank {
//!         0 => Memory::new(b"epoch 17".to_vec()),
//!         _ => Memory::room(8),
//!     };
//!     let object = context.bcast(&group, 0, object, &mut || ())?;
//!     context.barrier(&group, None, &mut || ())?;
//!     context.leave(group);
//!     context.flush(&mut || ())?;
//!     Ok(object.into_bytes())
//! };
//! let got: Vec<_> = std::thread::scope(|scope| {
//!     let ranks: Vec<_> = (0..3).map(|rank| scope.spawn(move || process(rank))).collect();
//!     ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
//! });
//! assert!(got.iter().all(|got| got.as_deref().is_ok_and(|bytes| bytes == b"epoch 17")));
//! ```
// Allowed again, each time with a reason, for calls to the system and to libraries in C
// (`interface::sys`, `transport::udp::sys`, `transport::shm::segment`, `subnet::opensm::umad`), and
// for the memory that a transport reads late: `Object` and its implementations promise that bytes
// stay where they are, the driver and `send_plain` lend them to the transport (`Slots::lending`),
// and `transport::delayed` reads them.
#![deny(unsafe_code)]

pub use fabricast_proto as proto;

pub mod bootstrap;
pub mod collective;
pub mod communicator;
pub mod config;
pub mod driver;
pub mod error;
pub mod feed;
pub mod ibrmp;
pub mod interface;
mod job_thread;
#[cfg(feature = "log")]
pub mod log;
mod net;
pub mod object;
pub mod pattern;
pub mod pingpong;
pub mod setting;
#[cfg(target_os = "linux")]
pub mod subnet;
pub mod text;
pub mod transfer;
pub mod transport;
pub mod waker;
