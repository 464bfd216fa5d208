//! Presets: the papers' schemes by name, and a syntax that combines them.
//!
//! A name is one base and any number of modifiers, joined by `+`: `coroot(2)+aggregate(10)`.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use super::{Checksum, Copied, FeedbackTopology, How, Scheme};

/// A base or modifier that the name of a scheme may contain.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// The name as users write it; `N` stands for a number.
    pub name: &'static str,
    /// One line on what the preset does and where it comes from.
    pub about: &'static str,
}

/// Every base and every modifier.
pub const PRESETS: [Preset; 17] = [
    Preset {
        name: "auto",
        about: "ours: receivers report gaps, several losses are mended at once (P1.15)",
    },
    Preset {
        name: "basic",
        about: "one broadcast at a time, acknowledged by everybody (P1.2)",
    },
    Preset {
        name: "window",
        about: "a window of packets, each acknowledged by everybody; the sender notices losses \
             (P1.3)",
    },
    Preset {
        name: "coroot(N)",
        about: "window in N delivery groups: co-roots collect and repair for theirs (P1.4)",
    },
    Preset {
        name: "tree(N)",
        about: "window, with acknowledgements combined in a tree of fan-out N (P1.5)",
    },
    Preset {
        name: "channels(N)",
        about: "N broadcasts, then a synchronisation up and down a tree (P4.1 to P4.5)",
    },
    Preset {
        name: "nack",
        about: "receivers ask for holes, and tell when they have everything (as in P3.3)",
    },
    Preset {
        name: "aggregate(N)",
        about: "modifier: one acknowledgement for N packets (P1.6)",
    },
    Preset {
        name: "skewed(N)",
        about: "modifier: likewise, and receivers take turns (P1.6)",
    },
    Preset {
        name: "multicast",
        about: "modifier: repairs go to the group",
    },
    Preset {
        name: "sums",
        about: "modifier: one XOR repair packet mends different losses",
    },
    Preset {
        name: "blocks",
        about: "modifier: losses are mended by parity packets of blocks",
    },
    Preset {
        name: "piggyback",
        about: "modifier: acknowledgements wait 2 ms to be piggybacked on what goes the same way \
             (P1.6)",
    },
    Preset {
        name: "credits",
        about: "modifier: receivers divide their buffers among all senders (P1.10)",
    },
    Preset {
        name: "copied(N)",
        about: "modifier: objects of at most N bytes are copied, and their sender is done (P1.7, \
             P4.8); 0: none",
    },
    Preset {
        name: "additive",
        about: "modifier: datagrams carry the sum of their words, and what is damaged is lost \
             (P4.4)",
    },
    Preset {
        name: "crc32c",
        about: "modifier: likewise, with CRC-32C (P4.4)",
    },
];

const fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// How long an ACK waits to be piggybacked: less than a sender waits before it probes.
const PIGGYBACK: Duration = ms(2);
/// Fan-out of the tree that combines the ACKs of a synchronisation.
const SYNC_FANOUT: u32 = 2;
/// Length in bytes up to which P4.8 copies an object.
const CHANNEL_COPY_MAX: u32 = 16 << 10;

impl Scheme {
    /// The base of the papers' schemes: the same timeouts for every network and group.
    fn patient() -> Scheme {
        let mut s = Scheme::auto();
        s.feedback.turn = us(20);
        s.feedback.suppress_above = u32::MAX;
        s.detect.reorder_min = ms(2);
        s.detect.rto_min = ms(10);
        s.detect.tail_min = s.detect.rto_min;
        s
    }

    /// The scheme of P1.3: the sender keeps a window of packets, and every receiver sends an ACK
    /// for each packet. After a timeout the sender retransmits the packet to the receivers that
    /// have not acknowledged it.
    pub fn acknowledged() -> Scheme {
        let mut s = Scheme::patient();
        s.feedback.every = 1;
        s.feedback.skewed = false;
        s.feedback.spacing_min = us(1);
        s.feedback.delay_max = ms(1);
        s.feedback.turn = Duration::ZERO;
        s.detect.by_sender = true;
        s.repair.how = How::Unicast;
        s.repair.nack_delay = Duration::ZERO;
        s.window = 64;
        s.copied = Copied::IntoWindow;
        s
    }

    /// The scheme of P1.2: [`Scheme::acknowledged`] with one broadcast at a time.
    pub fn basic() -> Scheme {
        let mut s = Scheme::acknowledged();
        s.broadcasts = 1;
        s.copied = Copied::Never;
        s
    }

    /// The scheme of P1.4: [`Scheme::acknowledged`] with `groups` delivery groups, the sender's own
    /// included.
    pub fn coroot(groups: u32) -> Scheme {
        let mut s = Scheme::acknowledged();
        s.topology = FeedbackTopology::Coroots(groups);
        s
    }

    /// The scheme of P1.5: ACKs go up a tree in which a node has `fanout` children, and repairs go
    /// to whole sub-trees.
    pub fn tree(fanout: u32) -> Scheme {
        let mut s = Scheme::acknowledged();
        s.topology = FeedbackTopology::Tree(fanout);
        s
    }

    /// The scheme of P4.1 to P4.5: `channels` broadcasts, then one synchronisation for all of them.
    /// Unlike the paper's, a repair contains what is missing, not everything since the last
    /// synchronisation.
    pub fn channels(channels: u32) -> Scheme {
        let mut s = Scheme::acknowledged();
        s.topology = FeedbackTopology::Tree(SYNC_FANOUT);
        s.feedback.on_request_only = true;
        s.detect.by_sender = false;
        s.repair.how = How::Multicast;
        s.broadcasts = channels;
        s.window = 256;
        s.copied = Copied::UpTo(CHANNEL_COPY_MAX);
        s
    }

    /// P3's choices (P3.3) for the packets of streams: receivers send NACKs for gaps, and the
    /// sender retransmits to each of them by unicast. Receivers also send feedback when the window
    /// runs out and at the end. The pacer, which the paper lacks, gets feedback ever more rarely.
    /// P3's protocol itself is [`crate::ibrmp`].
    pub fn nack() -> Scheme {
        let mut s = Scheme::patient();
        s.feedback.every = u32::MAX;
        s.feedback.delay_max = ms(1000);
        s.repair.how = How::Unicast;
        s.repair.nack_delay = Duration::ZERO;
        s
    }

    /// Modifier of P1.6: a receiver sends one ACK for `every` packets, and for the last packets
    /// after [`crate::scheme::FeedbackRule::delay_max`].
    pub fn aggregate(mut self, every: u32) -> Scheme {
        self.feedback.every = every;
        self
    }

    /// Modifier of P1.6: like [`Scheme::aggregate`], and receiver *i* sends its ACK after packets
    /// whose number is *i* modulo `every`.
    pub fn skewed(mut self, every: u32) -> Scheme {
        self.feedback.skewed = true;
        self.aggregate(every)
    }

    /// Modifier of P1.6: an ACK is piggybacked on a datagram to the same node, or is sent by itself
    /// after 2 ms.
    pub fn piggyback(mut self) -> Scheme {
        self.feedback.piggyback = PIGGYBACK;
        self.feedback.delay_max = self.feedback.delay_max.max(PIGGYBACK);
        self
    }

    /// Modifier of P1.10: no sender sends more than a receiver has buffers for.
    pub fn credits(mut self) -> Scheme {
        self.credits = true;
        self
    }

    /// Modifier of P1.7 and P4.8: objects of at most `bytes` bytes are copied; 0: none.
    pub fn copied(mut self, bytes: u32) -> Scheme {
        self.copied = match bytes {
            0 => Copied::Never,
            _ => Copied::UpTo(bytes),
        };
        self
    }

    /// Modifier of P4.4: each datagram carries this checksum.
    pub fn checked(mut self, checksum: Checksum) -> Scheme {
        self.checksum = checksum;
        self
    }
}

/// The error of a name that stands for no scheme. Its message lists the valid names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownScheme {
    part: String,
}

impl fmt::Display for UnknownScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = PRESETS.iter().map(|p| p.name).collect();
        write!(
            f,
            "no scheme '{}': one base and modifiers joined by '+', such as \
             coroot(2)+aggregate(10), with N of 1 or more (copied: 0 or more), of {}",
            self.part,
            names.join(", ")
        )
    }
}

impl std::error::Error for UnknownScheme {}

impl FromStr for Scheme {
    type Err = UnknownScheme;

    fn from_str(name: &str) -> Result<Scheme, UnknownScheme> {
        let mut scheme = None;
        for part in name.split('+') {
            let unknown = || UnknownScheme {
                part: part.to_string(),
            };
            let (word, number) = match part.split_once('(') {
                Some((word, rest)) => {
                    let number = rest.strip_suffix(')').and_then(|n| n.parse::<u32>().ok());
                    let least = u32::from(word != "copied");
                    (
                        word,
                        Some(number.filter(|&n| n >= least).ok_or_else(unknown)?),
                    )
                }
                None => (part, None),
            };
            scheme = Some(match (scheme, word, number) {
                (None, "auto", None) => Scheme::auto(),
                (None, "basic", None) => Scheme::basic(),
                (None, "window", None) => Scheme::acknowledged(),
                (None, "coroot", Some(n)) => Scheme::coroot(n),
                (None, "tree", Some(n)) => Scheme::tree(n),
                (None, "channels", Some(n)) => Scheme::channels(n),
                (None, "nack", None) => Scheme::nack(),
                // A modifier without a base modifies the P1.3 scheme (`acknowledged`).
                (s, "piggyback", None) => s.unwrap_or_else(Scheme::acknowledged).piggyback(),
                (s, "credits", None) => s.unwrap_or_else(Scheme::acknowledged).credits(),
                (s, "copied", Some(n)) => s.unwrap_or_else(Scheme::acknowledged).copied(n),
                (s, "aggregate", Some(n)) => s.unwrap_or_else(Scheme::acknowledged).aggregate(n),
                (s, "skewed", Some(n)) => s.unwrap_or_else(Scheme::acknowledged).skewed(n),
                (s, "multicast" | "sums" | "blocks", None) => {
                    let mut s = s.unwrap_or_else(Scheme::acknowledged);
                    s.repair.how = match word {
                        "multicast" => How::Multicast,
                        "sums" => How::Xor,
                        _ => How::Parity,
                    };
                    s
                }
                (s, "additive" | "crc32c", None) => {
                    let checksum = match word {
                        "additive" => Checksum::Additive,
                        _ => Checksum::Crc32c,
                    };
                    s.unwrap_or_else(Scheme::acknowledged).checked(checksum)
                }
                _ => return Err(unknown()),
            });
        }
        scheme.map(Scheme::bounded).ok_or(UnknownScheme {
            part: name.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_has_a_name_that_is_read() {
        for preset in PRESETS {
            let name = preset.name.replace('N', "4");
            assert!(name.parse::<Scheme>().is_ok(), "{name}");
        }
        let both: Scheme = "coroot(2)+aggregate(10)".parse().unwrap();
        assert_eq!(both, Scheme::coroot(2).aggregate(10).bounded());
        assert_eq!(
            "skewed(10)".parse(),
            Ok(Scheme::acknowledged().skewed(10).bounded())
        );
    }

    #[test]
    fn copied_0_copies_nothing() {
        let scheme: Scheme = "channels(4)+copied(0)".parse().unwrap();
        assert_eq!(scheme.copied, Copied::Never);
        assert!(!scheme.copies(0, 1000) && !scheme.copies(1, 1000) && scheme.is_awaited(1));
    }

    #[test]
    fn a_name_that_means_nothing_is_refused() {
        for bad in [
            "",
            "basics",
            "coroot",
            "coroot()",
            "coroot(0)",
            "coroot(-1)",
            "tree(2",
            "tree 2",
            "basic(2)",
            "basic+window",
            "aggregate(10)+basic",
            "window+",
            "window+x",
        ] {
            let error = bad.parse::<Scheme>().unwrap_err().to_string();
            assert!(error.contains("channels(N)"), "{bad}: {error}");
        }
    }
}
