//! Every bound of the core, in one place, with the relations that must hold between them.

/// Largest window, in packets of a stream that are sent and not yet placed by all members. Gap
/// lists carry distances in 16 bits, and sequence arithmetic needs far less than 2^31.
pub const WINDOW_MAX: u32 = 32_768;
/// Smallest window, in packets. A scheme with a smaller one gets this.
pub const WINDOW_MIN: u32 = 64;
/// Smallest payload of a data packet, in bytes.
pub const PAYLOAD_MIN: u32 = 64;
/// Largest payload of a data packet, in bytes: what a 16-bit frame length can carry, less all
/// headers.
pub const PAYLOAD_MAX: u32 = 65_000;
/// Most ranges in one feedback frame. The next frame reports those that are left out.
pub const RANGES_MAX: usize = 96;
/// Most runs of declined packets in one feedback frame. Later frames report those that are left
/// out.
pub const DECLINED_MAX: usize = 6;
/// Most broadcasts of one stream under way at once.
pub const OPS_MAX: usize = 4096;
/// Most members of a group.
pub const MEMBERS_MAX: usize = 65_536;
/// Memory for the sets of a window, in bytes: for each packet, the members that lack it and the
/// members that were sent it again. It is enough for 1024 members with the largest window, and for
/// the largest group with a window of 512 packets. With larger sets the sender does not record
/// which member lacks what.
pub const SETS_BYTES: usize = 8 << 20;
/// Most groups of one node.
pub const GROUPS_MAX: usize = 65_536;
/// Largest weight by which a stream shares its node's fixed rate; the least is 1.
pub const WEIGHT_MAX: u32 = 1000;
/// Most barriers of one group that a node has entered, or was asked to enter, and has not left.
pub const BARRIERS_MAX: usize = 64;
/// Most rounds of a barrier.
pub const ROUNDS_MAX: usize = 64;
/// Bursts whose time of sending the sender remembers, to compute how long a packet took.
pub const BURSTS: usize = 8192;
/// Most data packets in one burst.
pub const BURST_PACKETS: u32 = 16;
/// Most packets of a stream that its sender sends before it has heard all receivers, if nodes can
/// hold as many ([`crate::border::Config::unexpected_max`]).
pub const FIRST_PACKETS: u32 = 1;
/// Most packets that one XOR repair packet combines.
pub const SOURCES_MAX: usize = 8;
/// Largest number of receivers for which XOR repair packets are cheaper than parity packets.
pub const XOR_RECEIVERS_MAX: usize = 16;
/// Packets of a code block: consecutive packets of an operation that share parity packets.
pub const BLOCK_PACKETS: u32 = 128;
/// Most bytes of parity packets that a receiver caches for a stream.
pub const PARITY_CACHE_BYTES: u64 = 16 << 20;
/// Parity packets of a code block.
pub const PARITIES_MAX: u8 = 64;
/// Most frames in one datagram. A receiver refuses a datagram with more.
pub const FRAMES_MAX: usize = 64;
/// Length of the longest feedback with its header and checksum, in bytes. No other frame is longer
/// without its payload or padding. A head is longer only if it is a probe, or carries several
/// frames, and then it is no longer than the largest data packet of its group.
pub const HEAD_MAX: usize = 16 + 8 + 44 + 4 + 4 + 8 * DECLINED_MAX + 4 * RANGES_MAX;

const _: () = assert!(WINDOW_MAX.is_power_of_two());
const _: () = assert!(WINDOW_MAX < u16::MAX as u32);
const _: () = assert!(2 * WINDOW_MAX as usize * 1024 / 8 <= SETS_BYTES);
const _: () = assert!(2 * 512 * MEMBERS_MAX / 8 <= SETS_BYTES);
// A slot's number has 16 bits.
const _: () = assert!(MEMBERS_MAX - 1 <= u16::MAX as usize);
// The schedule with the most rounds goes up a tree of fan-out 2 and down again.
const _: () = assert!(2 * (MEMBERS_MAX.ilog2() as usize + 1) <= ROUNDS_MAX);
const _: () = assert!(BURSTS.is_power_of_two() && BURSTS <= 1 << 15);
// Feedback fits in a datagram that every IPv4 host takes.
const _: () = assert!(HEAD_MAX <= 512);
