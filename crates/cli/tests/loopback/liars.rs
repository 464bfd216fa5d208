//! Admitted receivers that lie in their feedback: the others still get the file.

use crate::common::attacks;
use crate::common::place::Loopback;

#[test]
fn who_only_says_that_it_gets_on_is_dropped() {
    attacks::liars::who_only_counts(&Loopback);
}

#[test]
fn who_only_speaks_keeps_nobody_waiting_for_ever() {
    attacks::liars::who_only_speaks(&Loopback);
}

#[test]
fn who_lacks_everything_does_not_starve_the_others() {
    attacks::liars::who_lacks_everything(&Loopback);
}

#[test]
fn who_never_says_what_it_found_does_not_stop_the_others() {
    attacks::liars::who_never_looks(&Loopback);
}

#[test]
fn the_window_is_that_of_the_scheme() {
    attacks::liars::window_of_the_scheme(&Loopback);
}
