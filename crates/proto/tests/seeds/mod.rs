//! What random worlds share: variables of a run by hand, and panics as results.

/// What the caller of a test asks for.
#[expect(
    clippy::disallowed_methods,
    reason = "only a test run by hand reads it"
)]
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Runs a world. A panic is an error, too.
pub fn caught<T>(run: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let run = std::panic::AssertUnwindSafe(run);
    std::panic::catch_unwind(run).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
        Err(format!("panic: {}", text.unwrap_or_default()))
    })
}
