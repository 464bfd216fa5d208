//! Nonces: numbers that a peer repeats in its answer, which proves that it has seen the question
//! and answers this one.

use crate::rng::Rng;

/// The source of a node's nonces.
#[derive(Clone, Debug)]
pub struct Nonces {
    rng: Rng,
    /// The last multicast nonce; before the first one, the random start.
    next: u32,
}

impl Nonces {
    /// Creates a source from a secret seed.
    pub fn new(seed: u64) -> Nonces {
        let mut rng = Rng::new(seed);
        let next = (rng.bits() >> 32) as u32;
        Nonces { rng, next }
    }

    /// A nonce for a question that goes to members alone. A host that receives no datagrams of the
    /// members does not know it. It is no secret among members: each member that is asked can
    /// compute the next nonce from it.
    pub fn secret(&mut self) -> u64 {
        self.rng.bits()
    }

    /// A nonce for a question that is multicast. Every host that joins the group sees it. It is
    /// therefore counted from a random start: two numbers of the generator would reveal its secret
    /// nonces.
    pub fn multicast(&mut self) -> u32 {
        self.next = self.next.wrapping_add(1);
        self.next
    }
}
