//! Every bound of the core, in one place, with the relations that must hold between them.

/// Largest window: packets of a stream that may be sent and not yet placed everywhere.
/// Gap lists carry distances in 16 bits, and sequence arithmetic wants far less than 2^31.
pub const WINDOW_MAX: u32 = 32_768;
/// Smallest window; a smaller one that is asked for becomes this.
pub const WINDOW_MIN: u32 = 64;
/// Smallest payload of a data packet, in bytes.
pub const PAYLOAD_MIN: u32 = 64;
/// Largest payload of a data packet: what a 16-bit frame length can carry, less every header.
pub const PAYLOAD_MAX: u32 = 65_000;
/// Ranges in one feedback frame; what is left out is said in the next one.
pub const RANGES_MAX: usize = 96;
/// Broadcasts of one stream under way at once.
pub const OPS_MAX: usize = 4096;
/// Members of a group.
pub const MEMBERS_MAX: usize = 65_536;
/// Sets of the members that lack a packet and of those that have been sent it again, of all packets
/// of a window, in bytes. It is enough for 1024 members with the largest window, and for as many as
/// there can be with one of 512 packets; with more it is not known of each member what it lacks.
pub const SETS_BYTES: usize = 8 << 20;
/// Groups of one node.
pub const GROUPS_MAX: usize = 65_536;
/// Barriers of one group that a node may have entered, or asked to enter, and not left.
pub const BARRIERS_MAX: usize = 64;
/// Rounds of a barrier.
pub const ROUNDS_MAX: usize = 64;
/// Bursts whose time of sending is remembered, to tell how long a packet took.
pub const BURSTS: usize = 8192;
/// Data packets in one burst.
pub const BURST_PACKETS: u32 = 16;
/// Packets that one XOR repair packet combines.
pub const SOURCES_MAX: usize = 8;
/// Receivers up to which XOR repair packets are cheaper than parity packets.
pub const XOR_RECEIVERS_MAX: usize = 16;
/// Packets of an operation that are coded together.
pub const BLOCK_PACKETS: u32 = 128;
/// Bytes of parity packets that a receiver keeps of a stream.
pub const PARITY_CACHE_BYTES: u64 = 16 << 20;
/// Parity packets that a block has.
pub const PARITIES_MAX: u8 = 64;
/// Frames in one datagram; a datagram with more is refused.
pub const FRAMES_MAX: usize = 64;
/// Longest head (everything but payload) of a datagram that the core writes, in bytes.
pub const HEAD_MAX: usize = 16 + 8 + 44 + 4 * RANGES_MAX;

const _: () = assert!(WINDOW_MAX.is_power_of_two());
const _: () = assert!(WINDOW_MAX < u16::MAX as u32);
const _: () = assert!(2 * WINDOW_MAX as usize * 1024 / 8 <= SETS_BYTES);
const _: () = assert!(2 * 512 * MEMBERS_MAX / 8 <= SETS_BYTES);
// The longest way is up a tree of fan-out 2 and down again.
const _: () = assert!(2 * (MEMBERS_MAX.ilog2() as usize + 1) <= ROUNDS_MAX);
const _: () = assert!(BURSTS.is_power_of_two() && BURSTS <= 1 << 15);
// A feedback frame fits the smallest path that IPv6 allows (1280 bytes less IP and UDP headers).
const _: () = assert!(HEAD_MAX <= 1232);
