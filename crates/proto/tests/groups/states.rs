//! The states of one address at one host, exhaustively.

use std::collections::{BTreeSet, VecDeque};

use fabricast_proto::group::{Action, Input, Refusal, State};

fn states() -> Vec<State> {
    use State::*;
    let mut all = vec![
        Free,
        Wanted,
        Requested,
        RequestedAgain,
        Joined,
        Proven,
        InUse,
        Draining,
        Leaving,
        Lost,
    ];
    all.extend(Refusal::ALL.map(Refused));
    all
}

fn inputs() -> Vec<Input> {
    use Input::*;
    let mut all = vec![
        Join, Rejoin, Turn, Timeout, GiveUp, Joined, Lost, Proven, Unproven, Used, Unused,
        Withdraw, Leave, Left,
    ];
    all.extend(Refusal::ALL.map(Refused));
    all
}

/// Every cell of the table, not only those that can be reached.
#[test]
fn no_input_leads_to_a_wrong_state_from_any_state() {
    for state in states() {
        for input in inputs() {
            let (next, action) = state.next(input);
            let at = format!("{state:?} {input:?} {next:?} {action:?}");
            // Only a proof lets groups send, and only where the host is a member.
            if next.may_send() && !state.may_send() {
                assert_eq!((state, input), (State::Joined, Input::Proven), "{at}");
            }
            // Only the manager makes a host a member.
            let member = |state| matches!(state, State::Joined | State::Draining);
            if member(next) && !member(state) && !state.may_send() {
                assert_eq!(input, Input::Joined, "{at}");
            }
            // Only an order, or news of a loss, ends sending.
            if state.may_send() && !next.may_send() {
                use Input::*;
                assert!(
                    matches!(input, Rejoin | Lost | Unproven | Withdraw | Leave),
                    "{at}"
                );
            }
            // Requests go out in turn only.
            let request = matches!(
                action,
                Some(Action::RequestJoin | Action::RequestJoinAnew | Action::RequestLeave)
            );
            assert_eq!(request, input == Input::Turn && action.is_some(), "{at}");
            // Only a membership that the manager has granted is requested anew.
            let anew = action == Some(Action::RequestJoinAnew);
            assert_eq!(anew, state == State::Lost && input == Input::Turn, "{at}");
            // What the coordinator is told is what the state is.
            match action {
                Some(Action::TellJoined) => assert!(member(next) || next.may_send(), "{at}"),
                Some(Action::TellRefused(why)) => assert_eq!(next, State::Refused(why), "{at}"),
                Some(Action::TellLost) => assert_eq!(next, State::Lost, "{at}"),
                Some(Action::TellLeft) => assert_eq!(next, State::Free, "{at}"),
                Some(Action::TellWithdrawn) => assert!(!next.may_send(), "{at}"),
                _ => {}
            }
            // A host that is free of an address has said so.
            if next == State::Free && state != State::Free {
                assert_eq!(action, Some(Action::TellLeft), "{at}");
            }
        }
    }
}

/// An address at a host together with what the manager may hold, and the coordinator's open order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Whole {
    state: State,
    /// The manager may have executed a join that no executed leave has followed.
    member: bool,
    order: Option<Order>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Order {
    Join,
    Withdraw,
    Leave,
}

/// All sequences of orders and answers, in which the coordinator awaits the answer to each order.
#[test]
fn every_order_is_answered_once_and_no_membership_is_forgotten() {
    let start = Whole {
        state: State::Free,
        member: false,
        order: None,
    };
    let mut seen = BTreeSet::from([start]);
    let mut next = VecDeque::from([start]);
    while let Some(whole) = next.pop_front() {
        for input in inputs() {
            let Some(after) = step(whole, input) else {
                continue;
            };
            if seen.insert(after) {
                next.push_back(after);
            }
        }
        // Whatever has happened, an answer can still come.
        if whole.order.is_some() {
            assert!(can_answer(whole), "{whole:?}");
        }
        // A host that is no member to the coordinator is none to the manager.
        assert!(whole.state != State::Free || !whole.member, "{whole:?}");
    }
    assert!(seen.len() > 20, "{}", seen.len());
    let reached: BTreeSet<State> = seen.iter().map(|whole| whole.state).collect();
    let reachable = states().into_iter().filter(|state| {
        // These are reasons of groups, not answers to a host.
        !matches!(state, State::Refused(Refusal::Unproven | Refusal::Gone))
    });
    assert_eq!(reached, reachable.collect());
}

/// The next whole state, or `None` if this input cannot come here.
fn step(mut whole: Whole, input: Input) -> Option<Whole> {
    use State::*;
    let state = whole.state;
    let possible = match input {
        Input::Join => whole.order.is_none() && state != Leaving,
        Input::Withdraw => whole.order != Some(Order::Leave) && state != Free,
        Input::Leave => whole.order != Some(Order::Withdraw) && state != Free,
        Input::Rejoin => whole.order.is_none() && matches!(state, Joined | Proven | InUse),
        Input::Turn => state.waits_for_turn() || state == Leaving,
        Input::Timeout | Input::GiveUp => state == Requested,
        Input::Joined => matches!(state, Requested | RequestedAgain) && whole.member,
        Input::Lost => whole.member,
        Input::Left => state == Leaving,
        Input::Refused(why) => {
            state == Requested && matches!(why, Refusal::NoAddresses | Refusal::Denied)
        }
        Input::Proven | Input::Unproven => whole.order.is_none(),
        Input::Used | Input::Unused => true,
    };
    if !possible {
        return None;
    }
    match input {
        Input::Join => whole.order = Some(Order::Join),
        Input::Withdraw => whole.order = Some(Order::Withdraw),
        Input::Leave => whole.order = Some(Order::Leave),
        // The manager may or may not have executed it when nothing is heard of it.
        Input::Lost | Input::Left | Input::Refused(_) => whole.member = false,
        _ => {}
    }
    let (next, action) = state.next(input);
    whole.state = next;
    match action {
        Some(Action::RequestJoin | Action::RequestJoinAnew) => whole.member = true,
        Some(Action::TellJoined | Action::TellRefused(_)) if whole.order == Some(Order::Join) => {
            whole.order = None;
        }
        Some(Action::TellWithdrawn) => {
            assert_eq!(whole.order, Some(Order::Withdraw));
            whole.order = None;
        }
        Some(Action::TellLeft) => {
            assert_eq!(whole.order, Some(Order::Leave), "{state:?} {input:?}");
            whole.order = None;
        }
        _ => {}
    }
    Some(whole)
}

/// Whether the open order is answered if the manager answers from here on.
fn can_answer(mut whole: Whole) -> bool {
    for _ in 0..6 {
        if whole.order.is_none() {
            return true;
        }
        let input = match whole.state {
            state if state.waits_for_turn() => Input::Turn,
            State::Requested if whole.member => Input::Joined,
            State::Requested => Input::Timeout,
            State::Leaving => Input::Left,
            _ => return false,
        };
        match step(whole, input) {
            Some(after) => whole = after,
            None => return false,
        }
    }
    whole.order.is_none()
}
