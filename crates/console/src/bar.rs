//! A progress bar on the terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Returns an empty progress bar on standard error that counts to `len`.
pub fn bar(len: u64) -> ProgressBar {
    styled(Some(len.max(1)), "{bar:24} {percent:>3}%  {msg}")
}

/// Returns a line on standard error that shows the time and a message, for what has no known end.
pub fn endless_bar() -> ProgressBar {
    styled(None, "{elapsed:>4}  {msg}")
}

fn styled(len: Option<u64>, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(len, ProgressDrawTarget::stderr_with_hz(10));
    let style = ProgressStyle::with_template(template)
        .expect("the template is sound")
        .progress_chars("=> ");
    bar.set_style(style);
    bar
}
