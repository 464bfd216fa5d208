//! What a transport counts.

/// Counters of a transport, since it was opened. What a network does not have stays zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Datagrams that the network accepted. Each counts once, however many nodes receive it.
    pub datagrams_sent: u64,
    /// Bytes of the datagrams sent, without the headers that the network adds.
    pub bytes_sent: u64,
    /// Messages in which datagrams went to the kernel: fewer than datagrams where it segments
    /// (GSO).
    pub messages_sent: u64,
    /// Datagrams counted as sent although the kernel refused them (too large, blocked, no route).
    /// News says why.
    pub lost_at_send: u64,
    /// Datagrams for an unknown node or group, counted as sent and dropped.
    pub unknown: u64,
    /// Datagrams handed up.
    pub datagrams_received: u64,
    /// Bytes of the datagrams handed up.
    pub bytes_received: u64,
    /// Messages in which datagrams came from the kernel: fewer than datagrams where it joins (GRO).
    pub messages_received: u64,
    /// This node's own datagrams that came back and were dropped.
    pub own: u64,
    /// Messages dropped because they were longer than a buffer.
    pub truncated: u64,
    /// Packets that the kernel dropped at this transport's sockets, mostly because the receive
    /// buffer was full. Joined datagrams count as one.
    pub dropped_by_kernel: u64,
    /// Bytes that wait in the receive buffers now, with the kernel's overhead.
    pub queued: u64,
    /// System calls that send.
    pub send_calls: u64,
    /// System calls that receive.
    pub receive_calls: u64,
    /// Calls of `wait`.
    pub wait_calls: u64,
    /// Errors that an earlier datagram had brought back (a closed port), and that were ignored.
    pub errors_ignored: u64,
    /// How often the interfaces were listed to check that the one in use is well.
    pub interface_checks: u64,
    /// Whether the kernel segments datagrams, except to single destinations for which it refused.
    pub gso: bool,
    /// Whether the kernel joins datagrams.
    pub gro: bool,
    /// Number of times that another process had to be woken.
    pub wakes: u64,
    /// How often this process fell a whole buffer behind another one, and lost datagrams.
    pub overruns: u64,
}
