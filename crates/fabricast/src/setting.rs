//! Names of settings, as messages say them.
//!
//! A message that says what to set names the field of the options ([`crate::config`]), because the
//! library does not know how its caller's user sets it. A caller whose user sets it by other means
//! replaces these names before it shows a message, as the `fabricast` command does with the names
//! of its options. It gives the transfer a [`Wording`] that does the same with what is told to the
//! other end.

/// Replaces names of settings in a message.
pub type Wording = fn(&str) -> String;

/// Name in messages of [`RecvOptions::accept`](crate::config::RecvOptions::accept).
pub const ACCEPT: &str = "`RecvOptions::accept`";
/// Name in messages of [`SendOptions::compares`](crate::config::SendOptions::compares).
pub const COMPARES: &str = "`SendOptions::compares`";
/// Name in messages of [`NetOptions::datagram`](crate::config::NetOptions::datagram).
pub const DATAGRAM: &str = "`NetOptions::datagram`";
/// Name in messages of [`SendOptions::datagram_min`](crate::config::SendOptions::datagram_min).
pub const ADMITTED_DATAGRAM: &str = "`SendOptions::datagram_min`";
/// Name in messages of [`RecvOptions::delete`](crate::config::RecvOptions::delete).
pub const DELETE: &str = "`RecvOptions::delete`";
/// Name in messages of [`Selection::exclude`](crate::object::Selection::exclude).
pub const EXCLUDE: &str = "`Selection::exclude`";
/// Name in messages of [`SendOptions::files_at_once`](crate::config::SendOptions::files_at_once).
pub const FILES_AT_ONCE: &str = "`SendOptions::files_at_once`";
/// Name in messages of [`Follower`](crate::feed::Follower), which receives from a feed.
pub const FOLLOW: &str = "`feed::Follower`";
/// Name in messages of [`RecvOptions::from`](crate::config::RecvOptions::from).
pub const FROM: &str = "`RecvOptions::from`";
/// Name in messages of
/// [`NetOptions::inject_corruption`](crate::config::NetOptions::inject_corruption).
pub const INJECT_CORRUPTION: &str = "`NetOptions::inject_corruption`";
/// Name in messages of [`NetOptions::inject_delay`](crate::config::NetOptions::inject_delay).
pub const INJECT_DELAY: &str = "`NetOptions::inject_delay`";
/// Name in messages of [`NetOptions::inject_loss`](crate::config::NetOptions::inject_loss).
pub const INJECT_LOSS: &str = "`NetOptions::inject_loss`";
/// Name in messages of [`RecvOptions::name`](crate::config::RecvOptions::name).
pub const NAME: &str = "`RecvOptions::name`";
/// Name in messages of [`NetOptions::interface`](crate::config::NetOptions::interface).
pub const INTERFACE: &str = "`NetOptions::interface`";
/// Name in messages of [`StartRule::max_receivers`](crate::config::StartRule::max_receivers).
pub const MAX_RECEIVERS: &str = "`StartRule::max_receivers`";
/// Name in messages of [`RecvOptions::max_size`](crate::config::RecvOptions::max_size).
pub const MAX_SIZE: &str = "`RecvOptions::max_size`";
/// Name in messages of [`StartRule::max_wait`](crate::config::StartRule::max_wait).
pub const MAX_WAIT: &str = "`StartRule::max_wait`";
/// Name in messages of [`StartRule::min_receivers`](crate::config::StartRule::min_receivers).
pub const MIN_RECEIVERS: &str = "`StartRule::min_receivers`";
/// Name in messages of [`StartRule::min_wait`](crate::config::StartRule::min_wait).
pub const MIN_WAIT: &str = "`StartRule::min_wait`";
/// Name in messages of [`RecvOptions::overwrite`](crate::config::RecvOptions::overwrite).
pub const OVERWRITE: &str = "`RecvOptions::overwrite`";
/// Name in messages of [`SendOptions::patience`](crate::config::SendOptions::patience).
pub const PATIENCE: &str = "`SendOptions::patience`";
/// Name in messages of [`SendOptions::per_host`](crate::config::SendOptions::per_host).
pub const PER_HOST: &str = "`SendOptions::per_host`";
/// Name in messages of [`SendOptions::port`](crate::config::SendOptions::port).
pub const PORT: &str = "`SendOptions::port`";
/// Name in messages of
/// [`WorkerPlan::receivers_per_worker`](crate::bootstrap::WorkerPlan::receivers_per_worker).
pub const RECEIVERS_PER_WORKER: &str = "`WorkerPlan::receivers_per_worker`";
/// Name in messages of
/// [`RecvOptions::receive_timeout`](crate::config::RecvOptions::receive_timeout).
pub const RECEIVE_TIMEOUT: &str = "`RecvOptions::receive_timeout`";
/// Name in messages of [`SendOptions::reach`](crate::config::SendOptions::reach).
pub const REACH: &str = "`SendOptions::reach`";
/// Name in messages of [`RecvOptions::reserve`](crate::config::RecvOptions::reserve).
pub const RESERVE: &str = "`RecvOptions::reserve`";
/// Name in messages of [`SendOptions::required`](crate::config::SendOptions::required).
pub const REQUIRED: &str = "`SendOptions::required`";
/// Name in messages of [`RecvOptions::scheme`](crate::config::RecvOptions::scheme).
pub const SCHEME: &str = "`RecvOptions::scheme`";
/// Name in messages of [`RecvOptions::serve`](crate::config::RecvOptions::serve).
pub const SERVE: &str = "`RecvOptions::serve`";
/// Name in messages of [`SendOptions::slow`](crate::config::SendOptions::slow).
pub const SLOW: &str = "`SendOptions::slow`";
/// Name in messages of [`RecvOptions::start_timeout`](crate::config::RecvOptions::start_timeout).
pub const START_TIMEOUT: &str = "`RecvOptions::start_timeout`";
/// Name in messages of [`WorkerPlan::cpus`](crate::bootstrap::WorkerPlan::cpus).
pub const WORKER_CPUS: &str = "`WorkerPlan::cpus`";
/// Name in messages of [`WorkerPlan::workers_max`](crate::bootstrap::WorkerPlan::workers_max).
pub const WORKERS: &str = "`WorkerPlan::workers_max`";
/// Name in messages of [`SendOptions::verified_only`](crate::config::SendOptions::verified_only).
pub const VERIFIED_ONLY: &str = "`SendOptions::verified_only`";

/// Name in messages of [`Options::scheme`](crate::communicator::Options::scheme).
pub const JOB_SCHEME: &str = "`communicator::Options::scheme`";

/// Name in messages of [`Options::broadcast`](crate::communicator::Options::broadcast).
pub const JOB_BROADCAST: &str = "`communicator::Options::broadcast`";

/// Name in messages of [`Options::subnet`](crate::communicator::Options::subnet).
pub const JOB_SUBNET: &str = "`communicator::Options::subnet`";

/// Name in messages of [`Options::groups`](crate::communicator::Options::groups).
pub const JOB_GROUPS: &str = "`communicator::Options::groups`";

/// All names of a transfer's settings.
pub const ALL: [&str; 35] = [
    ACCEPT,
    COMPARES,
    DATAGRAM,
    DELETE,
    ADMITTED_DATAGRAM,
    EXCLUDE,
    FILES_AT_ONCE,
    FOLLOW,
    FROM,
    INJECT_CORRUPTION,
    INJECT_DELAY,
    INJECT_LOSS,
    INTERFACE,
    MAX_RECEIVERS,
    MAX_SIZE,
    MAX_WAIT,
    MIN_RECEIVERS,
    MIN_WAIT,
    NAME,
    OVERWRITE,
    PATIENCE,
    PER_HOST,
    PORT,
    REACH,
    RECEIVERS_PER_WORKER,
    RECEIVE_TIMEOUT,
    REQUIRED,
    RESERVE,
    SCHEME,
    SERVE,
    SLOW,
    START_TIMEOUT,
    VERIFIED_ONLY,
    WORKERS,
    WORKER_CPUS,
];
