//! Translates the library's names of settings into options of the command line.

use fabricast::setting;

/// The library's name of each setting, and the option that sets it.
const OPTIONS: [(&str, &str); 35] = [
    (setting::ACCEPT, "--name"),
    (setting::COMPARES, "--no-compare"),
    (setting::DATAGRAM, "--datagram"),
    (setting::DELETE, "--delete"),
    (setting::ADMITTED_DATAGRAM, "--datagram-min"),
    (setting::EXCLUDE, "--exclude"),
    (setting::FILES_AT_ONCE, "--files-at-once"),
    (setting::FOLLOW, "--follow"),
    (setting::FROM, "--from"),
    (setting::INJECT_CORRUPTION, "--inject-corruption"),
    (setting::INJECT_DELAY, "--inject-delay"),
    (setting::INJECT_LOSS, "--inject-loss"),
    (setting::INTERFACE, "--interface"),
    (setting::MAX_RECEIVERS, "--max-receivers"),
    (setting::MAX_SIZE, "--max-size"),
    (setting::MAX_WAIT, "--max-wait"),
    (setting::MIN_RECEIVERS, "--min-receivers"),
    (setting::MIN_WAIT, "--min-wait"),
    (setting::NAME, "--as"),
    (setting::OVERWRITE, "--force"),
    (setting::PATIENCE, "--patience"),
    (setting::PER_HOST, "--per-host"),
    (setting::PORT, "--port"),
    (setting::REACH, "--reach"),
    (setting::RECEIVERS_PER_WORKER, "--receivers-per-worker"),
    (setting::RECEIVE_TIMEOUT, "--receive-timeout"),
    (setting::REQUIRED, "--require"),
    (setting::RESERVE, "--reserve"),
    (setting::SCHEME, "--scheme"),
    (setting::SERVE, "--serve"),
    (setting::SLOW, "--slow"),
    (setting::START_TIMEOUT, "--start-timeout"),
    (setting::VERIFIED_ONLY, "--accept"),
    (setting::WORKERS, "--workers"),
    (setting::WORKER_CPUS, "--worker-cpus"),
];

/// Returns a message of the library with each name of a setting replaced by its option.
pub fn with_options(message: &str) -> String {
    let mut message = message.to_string();
    for (name, option) in OPTIONS {
        if message.contains(name) {
            message = message.replace(name, option);
        }
    }
    message
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_setting_has_an_option_that_exists() {
        let named: BTreeSet<&str> = OPTIONS.iter().map(|(name, _)| *name).collect();
        assert_eq!(named, setting::ALL.into());
        let command = crate::args::Args::command();
        let options: BTreeSet<String> = command
            .get_subcommands()
            .flat_map(|command| command.get_arguments())
            .filter_map(|argument| argument.get_long())
            .map(|long| format!("--{long}"))
            .collect();
        for (name, option) in OPTIONS {
            assert!(options.contains(option), "{name}: {option}");
        }
    }

    #[test]
    fn a_message_names_options() {
        let message = format!(
            "name the sender with {} HOST ({})",
            setting::FROM,
            setting::SLOW
        );
        assert_eq!(
            with_options(&message),
            "name the sender with --from HOST (--slow)"
        );
    }
}
