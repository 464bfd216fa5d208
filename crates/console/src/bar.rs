//! A progress bar on the terminal.

use std::fmt::Write;

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

/// Returns an empty progress bar on standard error that counts to `len`. It shows about how long
/// the rest takes.
pub fn bar(len: u64) -> ProgressBar {
    styled(Some(len.max(1)), "{bar:24} {percent:>3}%  {msg}{left}")
}

/// Returns a line on standard error that shows the time and a message, for what has no known end.
pub fn endless_bar() -> ProgressBar {
    styled(None, "{elapsed:>4}  {msg}")
}

/// Writes about how long the rest takes, once something is done.
fn left(state: &ProgressState, text: &mut dyn Write) {
    let is_between = state.pos() > 0 && state.len().is_some_and(|len| state.pos() < len);
    if is_between {
        let left = HumanDuration(state.eta());
        // A text that cannot be written is no reason to stop.
        let _ = write!(text, "  {left:#} left");
    }
}

fn styled(len: Option<u64>, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(len, ProgressDrawTarget::stderr_with_hz(10));
    let style = ProgressStyle::with_template(template)
        .expect("the template is sound")
        .progress_chars("=> ")
        .with_key("left", left);
    bar.set_style(style);
    bar
}
