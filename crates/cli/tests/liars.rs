//! Admitted receivers that lie in their feedback: they keep nobody else from the file.

mod common;

use common::attacks::{Lie, lied_to, who_lacks_everything};
use common::place::Loopback;
use common::{Scratch, same};

/// The window of the one that lies is 16 MiB: then everybody waits for it.
#[test]
fn who_only_says_that_it_gets_on_is_dropped() {
    let dir = Scratch::new();
    let args = ["--patience", "500ms", "--slow", "drop"];
    let (send, liar, good) = lied_to(&Loopback, &dir, 40_000_000, Lie::Counts, &args);
    liar.end();
    good.end().expect(0);
    let sent = send.end().expect(4);
    assert_eq!(sent.result("liar")["state"], "dropped");
    assert_eq!(sent.result("good")["state"], "verified");
    same(&dir.path("source"), &dir.path("copy"));
}

/// Without `--slow`, and where nobody watches a terminal: the transfer never began, or never ended.
#[test]
fn who_only_speaks_keeps_nobody_waiting_for_ever() {
    for (lie, why) in [(Lie::Unready, "3 times"), (Lie::Counts, "6 times")] {
        let dir = Scratch::new();
        let (send, liar, good) = lied_to(&Loopback, &dir, 1_000_000, lie, &["--patience", "500ms"]);
        good.end().expect(0);
        let sent = send.end().expect(4);
        liar.end();
        assert_eq!(sent.result("liar")["state"], "dropped");
        let reason = sent.result("liar")["reason"].to_string();
        assert!(reason.contains(why), "{reason}");
        assert_eq!(sent.result("good")["state"], "verified");
        same(&dir.path("source"), &dir.path("copy"));
    }
}

#[test]
fn who_lacks_everything_does_not_starve_the_others() {
    who_lacks_everything(&Loopback);
}
