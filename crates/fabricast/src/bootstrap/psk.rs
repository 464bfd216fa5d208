//! Authentication of sender and receiver by a pre-shared key: each shows the other that it knows
//! the key, and neither sends it (spec 5.9).
//!
//! Both draw a nonce. The receiver shows its MAC first, the sender shows its own in the welcome.
//! The MACs do not protect what is said afterwards.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::error::NetworkError;

/// Number of bytes of keys and nonces.
const BYTES: usize = 16;
/// Contexts from which the keys of both MACs are derived.
const RECEIVER: &str = "fabricast 2026-11 admission, receiver";
const SENDER: &str = "fabricast 2026-11 admission, sender";

/// A key of 128 bits that a sender and one receiver share. It is good for one admission.
#[derive(Clone, PartialEq, Eq)]
pub struct PreSharedKey([u8; BYTES]);

impl PreSharedKey {
    /// Draws a key that nobody can guess.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub fn random() -> Result<PreSharedKey, NetworkError> {
        Ok(PreSharedKey(draw()?))
    }

    /// Reads a key from its 32 hexadecimal digits. `None` if they are none.
    pub fn from_hex(text: &str) -> Option<PreSharedKey> {
        bytes(text).map(PreSharedKey)
    }

    /// The key as 32 hexadecimal digits, which are as secret as the key.
    pub fn to_hex(&self) -> String {
        digits(&self.0)
    }

    /// What the receiver says to show that it knows the key.
    pub fn receiver_mac(&self, exchange: &Exchange) -> Mac {
        self.mac(RECEIVER, exchange)
    }

    /// What the sender says to show that it knows the key.
    pub fn sender_mac(&self, exchange: &Exchange) -> Mac {
        self.mac(SENDER, exchange)
    }

    fn mac(&self, context: &str, exchange: &Exchange) -> Mac {
        let mut said = Vec::with_capacity(8 + 2 * BYTES);
        said.extend_from_slice(&exchange.session.to_be_bytes());
        said.extend_from_slice(&exchange.receiver.0);
        said.extend_from_slice(&exchange.sender.0);
        let key = blake3::derive_key(context, &self.0);
        Mac(blake3::keyed_hash(&key, &said))
    }
}

/// Shows nothing of the key.
impl fmt::Debug for PreSharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PreSharedKey")
    }
}

/// A number that its node draws for one exchange, so that no MAC of another exchange fits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nonce([u8; BYTES]);

impl Nonce {
    /// Draws a nonce.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub fn random() -> Result<Nonce, NetworkError> {
        Ok(Nonce(draw()?))
    }
}

/// What the MACs of one admission are about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exchange {
    /// The transfer's session.
    pub session: u64,
    /// The receiver's nonce, from its `hello`.
    pub receiver: Nonce,
    /// The sender's nonce, from its `authenticate`.
    pub sender: Nonce,
}

/// A message authentication code: keyed BLAKE3. Comparing two takes the same time for all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mac(blake3::Hash);

/// A number that admits a late receiver to a receiver that serves (spec 5.15). Comparing two takes
/// the same time for all.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket(Mac);

impl Ticket {
    /// Draws a number that nobody can guess.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub fn random() -> Result<Ticket, NetworkError> {
        Ok(Ticket(Mac(blake3::hash(&draw()?))))
    }
}

/// Shows nothing of the number.
impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ticket")
    }
}

fn draw() -> Result<[u8; BYTES], NetworkError> {
    let mut drawn = [0; BYTES];
    rustix::rand::getrandom(&mut drawn, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| NetworkError::io("drawing a random number", e))?;
    Ok(drawn)
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(text: &str) -> Option<[u8; BYTES]> {
    let is_hex = text.len() == 2 * BYTES && text.bytes().all(|c| c.is_ascii_hexdigit());
    let number = is_hex.then(|| u128::from_str_radix(text, 16).ok())??;
    Some(number.to_be_bytes())
}

impl Serialize for Nonce {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&digits(&self.0))
    }
}

impl<'de> Deserialize<'de> for Nonce {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Nonce, D::Error> {
        let text = String::deserialize(from)?;
        let read = bytes(&text).map(Nonce);
        read.ok_or_else(|| de::Error::custom("a nonce has 32 hexadecimal digits"))
    }
}

impl Serialize for Mac {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.0.to_hex())
    }
}

impl<'de> Deserialize<'de> for Mac {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Mac, D::Error> {
        let text = String::deserialize(from)?;
        let read = blake3::Hash::from_hex(&text).map(Mac);
        read.map_err(|_| de::Error::custom("a MAC has 64 hexadecimal digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange() -> Exchange {
        Exchange {
            session: 7,
            receiver: Nonce([1; BYTES]),
            sender: Nonce([2; BYTES]),
        }
    }

    /// The values that the specification has (spec 5.9).
    #[test]
    fn the_macs_are_those_of_the_specification() {
        let key = PreSharedKey::from_hex("000102030405060708090a0b0c0d0e0f").unwrap();
        assert_eq!(
            key.receiver_mac(&exchange()).0.to_hex().as_str(),
            "524c4d4fb4708e08408675150ed4ed4da9ff7d52ba8e964b30a5f706949f927f"
        );
        assert_eq!(
            key.sender_mac(&exchange()).0.to_hex().as_str(),
            "a0cb031646063003d2fa758b91bda02f6fff1ddf32b54d47e041a3927afa72e5"
        );
    }

    #[test]
    fn a_mac_fits_one_key_one_side_and_one_exchange() {
        let key = PreSharedKey::random().unwrap();
        let right = key.receiver_mac(&exchange());
        let other = PreSharedKey::random().unwrap();
        let changed = [
            Exchange {
                session: 8,
                ..exchange()
            },
            Exchange {
                receiver: Nonce([3; BYTES]),
                ..exchange()
            },
            Exchange {
                sender: Nonce([3; BYTES]),
                ..exchange()
            },
        ];
        assert!(changed.iter().all(|other| key.receiver_mac(other) != right));
        assert_ne!(key.sender_mac(&exchange()), right);
        assert_ne!(other.receiver_mac(&exchange()), right);
    }

    #[test]
    fn a_key_is_read_as_it_is_written_and_never_shown() {
        let key = PreSharedKey::random().unwrap();
        assert_eq!(PreSharedKey::from_hex(&key.to_hex()).as_ref(), Some(&key));
        assert!(!format!("{key:?}").contains(&key.to_hex()));
        for bad in ["", "0", "+0102030405060708090a0b0c0d0e0f0", &"g".repeat(32)] {
            assert_eq!(PreSharedKey::from_hex(bad), None, "{bad}");
        }
    }
}
