//! Whether a retransmission takes fewer packets by unicast or by multicast (spec 2.5).
//!
//! Multicast may be lost where unicast is not: by a switch's storm control, or by Wi-Fi, which does
//! not repeat it. So the sender counts the losses of both apart, and compares how many packets each
//! way takes until all members that lack the packet have it.

use super::Sender;
use super::member::GROUP_PATH;
use crate::time::Time;

/// Most members that lack a packet for which both ways are compared. If more lack it, multicast is
/// cheaper for most of them.
const COMPARED: usize = 32;

/// A member that lacks a packet, and how often the packet is sent until it arrives there.
#[derive(Clone, Copy, Default)]
struct Lacking {
    member: u32,
    multicast: f64,
    unicast: f64,
}

impl Sender {
    /// The member that gets the next repair of the group's path by unicast because that takes fewer
    /// packets, whatever the others get. `None`: multicast takes no more, or the path loses little,
    /// or more than [`COMPARED`] members lack the packet, or the sender does not tell members
    /// apart.
    pub(super) fn cheaper_by_unicast(&self, now: Time) -> Option<u32> {
        let group = self.paths[GROUP_PATH].as_ref().filter(|l| l.lossy > 0)?;
        let mut all = [Lacking::default(); COMPARED];
        let mut n = 0;
        for member in group.window.lacking()? {
            let m = &self.members[member as usize];
            let loss = match m.is_believed() {
                true => group.pacer.usual_loss(member as usize),
                false => 0.0,
            };
            *all.get_mut(n)? = Lacking {
                member,
                multicast: 1.0 / (1.0 - loss),
                unicast: m.transmissions_alone(now),
            };
            n += 1;
        }
        apart(&mut all[..n])
    }
}

/// The member that loses the most of multicast, of those to which unicast takes fewer packets than
/// multicast. `None`: to send it the packet by unicast takes no fewer packets in all, whichever of
/// these members get it so, too, while all others get it by multicast.
fn apart(lacking: &mut [Lacking]) -> Option<u32> {
    // Those that lose at least as much of unicast come first: they get it by multicast anyway.
    let gains = |l: &Lacking| l.unicast < l.multicast;
    let order = |a: &Lacking, b: &Lacking| {
        let by_multicast = a.multicast.total_cmp(&b.multicast);
        gains(a).cmp(&gains(b)).then(by_multicast)
    };
    lacking.sort_unstable_by(order);
    let lossiest = lacking.last().copied().filter(gains)?;
    let slowest = |l: &[Lacking]| l.iter().map(|l| l.multicast).fold(0.0, f64::max);
    let mut shares: f64 = (1..=lacking.len()).map(|k| 1.0 / k as f64).sum();
    let together = until_all(slowest(lacking), shares);
    let (mut unicast, mut least) = (0.0, f64::INFINITY);
    for k in (0..lacking.len()).rev().take_while(|k| gains(&lacking[*k])) {
        unicast += lacking[k].unicast;
        shares -= 1.0 / (k + 1) as f64;
        let multicast = match k {
            0 => 0.0,
            _ => until_all(slowest(&lacking[..k]), shares),
        };
        least = least.min(unicast + multicast);
    }
    (least < together).then_some(lossiest.member)
}

/// How often a packet is sent until n receivers have it which each need `each` transmissions on
/// average. `shares`: 1 + 1/2 + … + 1/n. (The greatest of n geometric numbers is at most about
/// `shares` times the average; the halves are what whole numbers add.)
fn until_all(each: f64, shares: f64) -> f64 {
    (each - 0.5) * shares + 0.5
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(groups: &[(usize, f64, f64)]) -> Option<u32> {
        let each = groups
            .iter()
            .flat_map(|&(n, multicast, unicast)| std::iter::repeat_n((multicast, unicast), n));
        let mut all: Vec<Lacking> = (0..)
            .zip(each)
            .map(|(member, (multicast, unicast))| Lacking {
                member,
                multicast,
                unicast,
            })
            .collect();
        apart(&mut all)
    }

    #[test]
    fn the_lossiest_is_served_apart_where_that_costs_less() {
        const NEVER: f64 = f64::INFINITY;
        assert_eq!(found(&[]), None);
        assert_eq!(found(&[(1, 1.0, 1.0)]), None, "one of each costs the same");
        assert!(found(&[(5, 10.0, 1.0)]).is_some());
        assert_eq!(found(&[(5, 10.0, 10.0)]), None, "both ways lose as much");
        assert_eq!(found(&[(30, 1.02, 1.0)]), None);
        // One that loses nearly everything, or says so, does not take the others with it.
        assert_eq!(found(&[(1, 20.0, 1.0), (29, 1.02, 1.0)]), Some(0));
        assert_eq!(found(&[(1, NEVER, 1.0), (1, 1.0, NEVER)]), Some(0));
        assert_eq!(found(&[(3, 2.0, NEVER)]), None);
        assert_eq!(found(&[(2, NEVER, NEVER)]), None);
        // One that loses as much either way, or says so, does not keep the others from unicast.
        assert!(found(&[(1, 20.0, NEVER), (4, 10.0, 1.0)]).is_some_and(|m| m > 0));
        assert!(found(&[(1, 10.0, 10.0), (4, 10.0, 1.0)]).is_some_and(|m| m > 0));
    }

    #[test]
    fn until_all_is_near_the_greatest_of_geometric_numbers() {
        for (loss, n) in [
            (0.5f64, 1),
            (0.5, 5),
            (0.5, 16),
            (0.9, 1),
            (0.9, 5),
            (0.9, 16),
        ] {
            // The chance that all n have it after k transmissions is (1 - loss^k)^n.
            let exact: f64 = (0..2000).map(|k| 1.0 - (1.0 - loss.powi(k)).powi(n)).sum();
            let shares = (1..=n).map(|k| 1.0 / f64::from(k)).sum();
            let found = until_all(1.0 / (1.0 - loss), shares);
            assert!(
                (found / exact - 1.0).abs() < 0.1,
                "{loss} {n}: {found}, {exact}"
            );
        }
    }
}
