//! A progress bar on the terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Returns an empty progress bar on standard error that counts to `len`.
pub fn bar(len: u64) -> ProgressBar {
    let bar =
        ProgressBar::with_draw_target(Some(len.max(1)), ProgressDrawTarget::stderr_with_hz(10));
    let style = ProgressStyle::with_template("{bar:24} {percent:>3}%  {msg}")
        .expect("the template is sound")
        .progress_chars("=> ");
    bar.set_style(style);
    bar
}
