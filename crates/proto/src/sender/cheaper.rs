//! Whether a retransmission takes fewer packets by unicast or by multicast (spec 2.5).
//!
//! Multicast may be lost where unicast is not: by a switch's storm control, or by Wi-Fi, which does
//! not repeat it. So the sender counts the losses of both apart, and compares how many packets each
//! way takes until all members that lack the packet have it.

use super::Sender;
use super::member::GROUP_PATH;

impl Sender {
    /// The member that gets the next repair of the group's path by unicast because that takes fewer
    /// packets. `None`: multicast takes no more, or the path loses little, or the sender does not
    /// tell members apart.
    pub(super) fn cheaper_by_unicast(&self) -> Option<u32> {
        let group = self.paths[GROUP_PATH].as_ref().filter(|l| l.lossy > 0)?;
        let mut lacking = group.window.lacking()?.peekable();
        let first = *lacking.peek()?;
        let (mut unicast, mut most, mut shares) = (0.0, 1.0f64, 0.0);
        for (k, i) in (1..).zip(lacking) {
            let m = &self.members[i as usize];
            unicast += m.repair_losses.transmissions();
            most = most.max(1.0 / (1.0 - group.pacer.loss_without_queue(i as usize)));
            shares += 1.0 / f64::from(k);
        }
        (unicast < until_all(most, shares)).then_some(first)
    }
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
