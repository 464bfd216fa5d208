//! Numbers that a peer repeats in its answer, so that it answers this question and has seen it.

use crate::rng::Rng;

/// Where a node's nonces come from.
#[derive(Clone, Debug)]
pub struct Nonces {
    rng: Rng,
    /// The next one that is multicast.
    next: u32,
}

impl Nonces {
    /// Starts from a secret seed.
    pub fn new(seed: u64) -> Nonces {
        let mut rng = Rng::new(seed);
        let next = (rng.bits() >> 32) as u32;
        Nonces { rng, next }
    }

    /// A nonce for a question that goes to members alone. A host that receives none of their
    /// datagrams does not know it. It is no secret among members: each member that is asked can
    /// compute the next one.
    pub fn secret(&mut self) -> u64 {
        self.rng.bits()
    }

    /// A nonce for a question that is multicast. Every host that joins the group sees it, so it
    /// counts from a random start: two numbers of the generator would reveal its secret ones.
    pub fn multicast(&mut self) -> u32 {
        self.next = self.next.wrapping_add(1);
        self.next
    }
}
