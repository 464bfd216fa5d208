//! Subnet management packets with a directed route: they need no LIDs and no working tables.
//!
//! A route is a list of ports: by which port each node sends the packet on, this host's first. The
//! numbers are those of the InfiniBand Architecture Specification, volume 1, section 14.2.

use std::io;
use std::time::Duration;

use fabricast::subnet::opensm::mad::{MAD_LEN, Mad, read, transaction};
use fabricast::subnet::opensm::umad::{Agent, Destination, Umad};

/// Management class of packets with a directed route.
const CLASS: u8 = 0x81;
/// Longest route, in hops.
const ROUTE_MAX: usize = 63;
/// Offset of the attribute's bytes.
const DATA_AT: usize = 64;
/// Offset of the route.
const ROUTE_AT: usize = 128;
/// LID that stands for the route.
const PERMISSIVE: u16 = 0xffff;
/// How long a packet waits for its answer. On a busy machine a simulated fabric may stand still for
/// more than a second.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often a packet is sent at most.
const TRIES: u32 = 5;

/// An attribute of a node, by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Attribute {
    /// The node's name.
    NodeDescription = 0x10,
    /// What the node is.
    NodeInfo = 0x11,
    /// The state of one of its ports; the modifier is the port.
    PortInfo = 0x15,
    /// 32 entries of its multicast table, each of 16 ports; the modifier names both.
    MulticastForwardingTable = 0x1b,
}

/// The bytes of an attribute.
pub type Data = [u8; 64];

/// This host's port, by which nodes are asked.
pub struct Smi {
    umad: Umad,
    agent: Agent,
    last: u32,
}

impl Smi {
    /// Opens the first active port.
    pub fn open() -> io::Result<Smi> {
        let mut umad = Umad::open(None, 0)?;
        let agent = umad.register(CLASS, 1)?;
        Ok(Smi {
            umad,
            agent,
            last: 0,
        })
    }

    /// Asks nodes at the ends of routes for the same attribute, all at once. Returns the answers
    /// in the order of the questions; `None`: a node does not answer.
    pub fn ask_all(
        &mut self,
        questions: &[(&[u8], u32)],
        what: Attribute,
    ) -> io::Result<Vec<Option<Data>>> {
        let first = self.last.wrapping_add(1);
        for (route, modifier) in questions {
            self.send(route, what, *modifier)?;
        }
        let mut answers = vec![None; questions.len()];
        let mut open = questions.len();
        while open > 0 && self.umad.wait(PATIENCE)? {
            let Some(received) = self.umad.receive()? else {
                break;
            };
            let number = transaction(&received.mad).wrapping_sub(first) as usize;
            if let Some(answer) = answers.get_mut(number) {
                open -= 1;
                *answer = decode(&received.mad).filter(|_| received.is_answered);
            }
        }
        // The few that a lost packet has left are asked again, one by one.
        for (answer, (route, modifier)) in answers.iter_mut().zip(questions) {
            if answer.is_none() {
                *answer = self.ask(route, what, *modifier)?;
            }
        }
        Ok(answers)
    }

    /// Asks the node at the end of a route. `None`: it does not answer.
    pub fn ask(
        &mut self,
        route: &[u8],
        what: Attribute,
        modifier: u32,
    ) -> io::Result<Option<Data>> {
        for _ in 0..TRIES {
            self.send(route, what, modifier)?;
            while self.umad.wait(PATIENCE)? {
                let Some(received) = self.umad.receive()? else {
                    break;
                };
                if transaction(&received.mad) != self.last {
                    continue;
                }
                match decode(&received.mad) {
                    Some(data) if received.is_answered => return Ok(Some(data)),
                    _ => break,
                }
            }
        }
        Ok(None)
    }

    fn send(&mut self, route: &[u8], what: Attribute, modifier: u32) -> io::Result<()> {
        let to = Destination {
            lid: PERMISSIVE,
            queue_pair: 0,
            queue_key: 0,
            sl: 0,
        };
        self.last = self.last.wrapping_add(1);
        let mad = encode(self.last, route, what, modifier);
        self.umad.send(self.agent, to, &mad, PATIENCE)
    }
}

fn encode(transaction: u32, route: &[u8], what: Attribute, modifier: u32) -> Mad {
    assert!(route.len() <= ROUTE_MAX, "a route has at most 63 hops");
    let mut mad = [0; MAD_LEN];
    mad[0] = 1;
    mad[1] = CLASS;
    mad[2] = 1;
    // Get.
    mad[3] = 1;
    mad[7] = route.len() as u8;
    mad[12..16].copy_from_slice(&transaction.to_be_bytes());
    mad[16..18].copy_from_slice(&(what as u16).to_be_bytes());
    mad[20..24].copy_from_slice(&modifier.to_be_bytes());
    mad[32..34].copy_from_slice(&PERMISSIVE.to_be_bytes());
    mad[34..36].copy_from_slice(&PERMISSIVE.to_be_bytes());
    mad[ROUTE_AT + 1..][..route.len()].copy_from_slice(route);
    mad
}

/// The attribute in an answer. `None`: the packet is no answer, or one that tells of an error.
fn decode(mad: &Mad) -> Option<Data> {
    // The highest bit only says that the packet is on its way back.
    let status = read(mad, 4, u16::from_be_bytes) & 0x7fff;
    (mad[3] == 0x81 && status == 0).then(|| read(mad, DATA_AT, |data| data))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_names_its_route() {
        let table = Attribute::MulticastForwardingTable;
        let mad = encode(7, &[1, 12], table, 0x1000_0002);
        let head = [
            1, 0x81, 1, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0x1b, 0, 0, 0x10, 0, 0, 2,
        ];
        assert_eq!(mad[..24], head);
        assert_eq!(mad[32..36], [0xff; 4]);
        assert_eq!(mad[128..132], [0, 1, 12, 0]);
    }

    #[test]
    fn an_answer_has_an_attribute_or_an_error() {
        let mut mad = encode(7, &[], Attribute::NodeInfo, 0);
        assert_eq!(decode(&mad), None);
        mad[3] = 0x81;
        mad[4] = 0x80;
        mad[64] = 5;
        assert_eq!(decode(&mad).unwrap()[0], 5);
        mad[5] = 0x1c;
        assert_eq!(decode(&mad), None);
    }
}
