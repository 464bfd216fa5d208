//! The state of one multicast address at one host, and its transitions.
//!
//! ```text
//! free → wanted → requested → joined → proven → in use → draining → leaving → free
//!            ↑        ↓ │        └────────┴────────┴────────┴→ lost → requested
//!      requested again  └→ refused
//! ```
//! The manager's answers move an address to `Joined` and to `Free`. Only the coordinator, which has
//! a proof, moves it to `Proven`, the first state in which this host sends to the address.

use core::fmt;

/// The state of one address at one host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum State {
    /// The host is no member and does not want to be one.
    Free,
    /// The host wants to join and has not requested it yet.
    Wanted,
    /// The manager has been asked to join the host and has not answered.
    Requested,
    /// The manager has not answered in time. The host requests the join again after a backoff.
    RequestedAgain,
    /// The manager has said that the host is a member. Nothing shows yet that the network forwards.
    Joined,
    /// A proof has shown that the network forwards to all members. No group sends here.
    Proven,
    /// Groups of this host send to the address.
    InUse,
    /// No group of this host sends to the address any more; the host still receives from others.
    Draining,
    /// The host is no longer to be a member, and the manager has not confirmed that.
    Leaving,
    /// The manager has refused the join.
    Refused(Refusal),
    /// The network has forgotten the membership. The host requests the join again.
    Lost,
}

/// Why a host or a group has no address. It is a fact for statistics, never an error. In messages
/// and statistics a reason is its place in this order; of several, the first is told.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Refusal {
    /// The manager, the switches or the configured range have no more addresses.
    NoAddresses,
    /// The manager does not let this host use this address.
    Denied,
    /// The manager has not answered, however often it was asked.
    NoAnswer,
    /// The manager has confirmed all joins, and yet probes do not reach all members.
    Unproven,
    /// A host of the group, or the coordinator, is gone.
    Gone,
}

impl Refusal {
    /// All reasons.
    pub const ALL: [Refusal; 5] = [
        Refusal::NoAddresses,
        Refusal::Denied,
        Refusal::NoAnswer,
        Refusal::Unproven,
        Refusal::Gone,
    ];

    /// The place in [`Refusal::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::NoAddresses => "no more addresses",
            Refusal::Denied => "the manager denies the address",
            Refusal::NoAnswer => "the manager does not answer",
            Refusal::Unproven => "probes do not reach all hosts",
            Refusal::Gone => "a host is gone",
        })
    }
}

/// What happens to an address at a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Input {
    /// The coordinator wants this host to be a member.
    Join,
    /// Probes do not reach this host, although the manager has said that it is a member.
    Rejoin,
    /// The next request may go to the manager.
    Turn,
    /// The manager has not answered the last request in time.
    Timeout,
    /// The manager has not answered in time, and was asked often enough.
    GiveUp,
    /// The manager says that this host is a member.
    Joined,
    /// The manager refuses the join, or does not know the membership that this host leaves.
    Refused(Refusal),
    /// The network has forgotten the membership.
    Lost,
    /// The coordinator has a proof for all members.
    Proven,
    /// The coordinator's proof no longer holds.
    Unproven,
    /// The first group of this host sends to the address from now on.
    Used,
    /// The last group of this host that sent to the address does so no more.
    Unused,
    /// The coordinator wants no host to send to the address.
    Withdraw,
    /// The coordinator, which knows that no host sends to the address, wants this host to leave.
    Leave,
    /// The manager says that this host is no member.
    Left,
}

/// What a transition has the host do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Request the join from the manager.
    RequestJoin,
    /// Request from the manager once more what it has granted.
    RequestJoinAnew,
    /// Request from the manager to leave.
    RequestLeave,
    /// Tell the coordinator that this host is a member.
    TellJoined,
    /// Tell the coordinator that this host is refused.
    TellRefused(Refusal),
    /// Tell the coordinator that the membership was lost.
    TellLost,
    /// Tell the coordinator that no group of this host sends to the address.
    TellWithdrawn,
    /// Tell the coordinator that this host is no member any more.
    TellLeft,
}

impl State {
    /// Whether groups of this host may send to the address.
    pub fn may_send(self) -> bool {
        matches!(self, State::Proven | State::InUse)
    }

    /// Whether the address waits for its turn to send a request to the manager.
    pub fn waits_for_turn(self) -> bool {
        use State::*;
        matches!(self, Wanted | RequestedAgain | Lost)
    }

    /// The next state, and what the host does. An input that means nothing in a state leaves it as
    /// it is.
    ///
    /// The caller first moves groups elsewhere (`Unused`) when the next state is none in which they
    /// may send.
    pub fn next(self, input: Input) -> (State, Option<Action>) {
        use Action::*;
        use State::*;
        let (next, action) = match (self, input) {
            // A manager that did not answer may have executed the request all the same.
            (Refused(Refusal::NoAnswer), Input::Join | Input::Rejoin) => (RequestedAgain, None),
            (Free | Refused(_), Input::Join) => (Wanted, None),
            (Draining, Input::Join) => (Joined, Some(TellJoined)),
            (Joined | Proven | InUse, Input::Join) => (self, Some(TellJoined)),

            (Joined | Proven | InUse, Input::Rejoin) => (Lost, None),
            (Refused(_), Input::Rejoin) => (Wanted, None),

            (Wanted | RequestedAgain, Input::Turn) => (Requested, Some(RequestJoin)),
            (Lost, Input::Turn) => (Requested, Some(RequestJoinAnew)),
            (Leaving, Input::Turn) => (Leaving, Some(RequestLeave)),

            (Requested, Input::Timeout) => (RequestedAgain, None),
            (Requested, Input::GiveUp) => (
                Refused(Refusal::NoAnswer),
                Some(TellRefused(Refusal::NoAnswer)),
            ),

            // Below, a membership that was lost may be requested again without this host.
            (Requested | RequestedAgain | Lost, Input::Joined) => (Joined, Some(TellJoined)),
            (Requested, Input::Refused(why)) => (Refused(why), Some(TellRefused(why))),
            (Leaving, Input::Refused(_) | Input::Left) => (Free, Some(TellLeft)),

            (Joined | Proven | InUse | Draining, Input::Lost) => (Lost, Some(TellLost)),

            (Joined, Input::Proven) => (Proven, None),
            (Proven | InUse, Input::Unproven) => (Joined, None),
            (Proven, Input::Used) => (InUse, None),
            (InUse, Input::Unused) => (Proven, None),

            (Joined | Proven | InUse, Input::Withdraw) => (Draining, Some(TellWithdrawn)),
            (_, Input::Withdraw) => (self, Some(TellWithdrawn)),

            // The manager has executed nothing in these states.
            (Free | Wanted, Input::Leave) => (Free, Some(TellLeft)),
            (Refused(why), Input::Leave) if why != Refusal::NoAnswer => (Free, Some(TellLeft)),
            (_, Input::Leave) => (Leaving, None),

            _ => (self, None),
        };
        (next, action)
    }
}
