//! The options of a context, and its counters.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::{offset_of, size_of};
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use fabricast_lib::communicator::{
    Bootstrap, BootstrapError, Options, Statistics, UnknownBroadcast,
};
use fabricast_lib::proto::group::{Refusal, UnknownStrategy};
use fabricast_lib::setting;
use fabricast_lib::subnet::kind::UnknownSubnet;

use crate::call::{Failure, wrong};

/// Options of a context. Set all bytes to zero, then set `struct_size`, `rank`, `size` and
/// `allgather`; the rest has defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fabricast_options {
    /// `sizeof(fabricast_options)`.
    pub struct_size: usize,
    /// Rank of this process in the job, from 0.
    pub rank: u32,
    /// Number of processes in the job.
    pub size: u32,
    /// Gives `bytes` bytes at `mine` to all processes, and writes what each process gave to `all`,
    /// in the order of ranks (`size * bytes` bytes). Returns 0 on success. All processes call it at
    /// once, and only while the context is created.
    pub allgather: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            mine: *const c_void,
            all: *mut c_void,
            bytes: usize,
        ) -> c_int,
    >,
    /// Called again and again while a call blocks, so that the caller's own communication makes
    /// progress; may be null.
    pub progress: Option<unsafe extern "C" fn(user: *mut c_void)>,
    /// Passed to `allgather` and `progress`.
    pub user: *mut c_void,
    /// Name or address of the network interface; null: the one that the system sends multicasts by.
    pub interface: *const c_char,
    /// Scheme that makes multicast reliable, the same in all processes; null: `auto`.
    pub scheme: *const c_char,
    /// Share of datagrams to drop on purpose, in each direction, from 0 to 0.9: for tests.
    pub inject_loss: f64,
    /// Name of this process's host: processes with the same name share memory, if they can. Null:
    /// the host's name in the system, the time of its start, and its network.
    pub host: *const c_char,
    /// A descriptor that is readable while the caller's own communication has something to do, for
    /// example an epoll descriptor; null: none. When it is readable, a call that blocks calls
    /// `progress` at once, and keeps calling it without sleeping until nothing is left to do. Only
    /// `progress` makes it unreadable again. The context keeps a duplicate.
    pub work: *const c_int,
    /// How broadcasts go to a group of three processes or more, the same in all processes:
    /// `multicast`, or by messages between two processes `tree`, `chain`, `scatter-allgather`, or
    /// `cover` (by multicasts to the sets that [`fabricast_group_set_cover`] names); null:
    /// `multicast`. With all others the processes of one host share no memory, and numbers of
    /// groups are below 2^31 / (64 + `size`).
    pub broadcast: *const c_char,
    /// Longest time, in seconds, after which a datagram is read once it is given to the network,
    /// and as long again until its memory is free: for tests. 0: at once.
    pub inject_delay: f64,
    /// When groups get multicast addresses of their own, so that hosts outside receive nothing of
    /// them, the same in all processes: `pool`, `pool(N)` (N addresses in advance) or
    /// `pool(N),max=M`, `lazy` (other ways until the address is proven), `basic` (a broadcast waits
    /// until then), or `shared` (never: all groups share a few addresses); null: `pool`.
    pub groups: *const c_char,
    /// Which subnet grants these addresses: `igmp` (the kernel joins), `opensm` (an InfiniBand
    /// subnet manager), or `auto`, which takes `opensm` for an interface that is IP over
    /// InfiniBand; null: `auto`.
    pub subnet: *const c_char,
    /// Most multicast addresses that groups get of their own at the same time; further groups share
    /// addresses. Null: as many as the library has.
    pub addresses: *const u32,
}

impl fabricast_options {
    /// Reads the options of a caller, which may know fewer or more fields.
    ///
    /// # Safety
    /// `given` is null or valid for as many bytes as its `struct_size` says.
    pub(crate) unsafe fn read(
        given: *const fabricast_options,
    ) -> Result<fabricast_options, Failure> {
        if given.is_null() {
            return Err(wrong("there are no options"));
        }
        // SAFETY: the size is the first field of every version of the struct.
        let said = unsafe { ptr::read(given.cast::<usize>()) };
        if said < offset_of!(fabricast_options, progress) {
            return Err(wrong("struct_size of the options is not set"));
        }
        // SAFETY: zero is a value of every field: none, null or 0.
        let mut options: fabricast_options = unsafe { std::mem::zeroed() };
        let known = said.min(size_of::<fabricast_options>());
        // SAFETY: both are valid for `known` bytes and do not overlap.
        unsafe { ptr::copy_nonoverlapping(given.cast::<u8>(), (&raw mut options).cast(), known) };
        Ok(options)
    }

    /// The choices among the options, for the library.
    pub(crate) fn chosen(&self) -> Result<Options, Failure> {
        let mut chosen = Options::default();
        chosen.net.inject_loss = self.inject_loss;
        if self.inject_delay != 0.0 {
            let delay = Duration::try_from_secs_f64(self.inject_delay);
            let no_time = |_| wrong(&format!("{} is no time in seconds", setting::INJECT_DELAY));
            let delay = delay.map_err(no_time)?;
            chosen.net.inject_delay = Some(delay);
        }
        if let Some(interface) = text(self.interface)? {
            chosen.net.interface = match interface.parse() {
                Ok(interface) => interface,
                Err(never) => match never {},
            };
        }
        if let Some(scheme) = text(self.scheme)? {
            chosen.scheme = scheme.into();
        }
        if let Some(broadcast) = text(self.broadcast)? {
            let algorithm = broadcast.parse();
            let unknown = |e: UnknownBroadcast| wrong(&format!("{}: {e}", setting::JOB_BROADCAST));
            chosen.broadcast = algorithm.map_err(unknown)?;
        }
        match text(self.groups)? {
            None => {}
            Some("shared") => chosen.groups = None,
            Some(groups) => {
                let strategy = groups.parse();
                let unknown =
                    |e: UnknownStrategy| wrong(&format!("{}: {e}, or shared", setting::JOB_GROUPS));
                chosen.groups = Some(strategy.map_err(unknown)?);
            }
        }
        if let Some(subnet) = text(self.subnet)? {
            let manager = subnet.parse();
            let unknown = |e: UnknownSubnet| wrong(&format!("{}: {e}", setting::JOB_SUBNET));
            chosen.subnet = manager.map_err(unknown)?;
        }
        // SAFETY: `addresses` is null, or valid by the caller's promise.
        chosen.addresses = unsafe { self.addresses.as_ref() }.copied();
        chosen.host = text(self.host)?.map(String::from);
        // SAFETY: `work` is null, or the caller's promise.
        if let Some(&work) = unsafe { self.work.as_ref() } {
            if work < 0 {
                return Err(wrong("`work` is no descriptor"));
            }
            // SAFETY: the descriptor is only duplicated, which fails if it is not open.
            let own = unsafe { BorrowedFd::borrow_raw(work) }.try_clone_to_owned();
            let own = own.map_err(|e| Failure::System("duplicating the descriptor `work`", e))?;
            chosen.runtime = Some(Arc::new(own));
        }
        Ok(chosen)
    }
}

/// A string of the caller, if there is one.
pub(crate) fn text<'a>(at: *const c_char) -> Result<Option<&'a str>, Failure> {
    if at.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller that passes a string promises that it ends with a zero byte.
    let text = unsafe { CStr::from_ptr(at) };
    text.to_str()
        .map(Some)
        .map_err(|_| wrong("a string is not UTF-8"))
}

/// Writes a string and the zero byte at its end.
///
/// # Safety
/// `to` is null or valid for `room` bytes.
pub(crate) unsafe fn write_text(text: &str, to: *mut c_char, room: usize) -> Result<(), Failure> {
    if to.is_null() || text.len() >= room {
        return Err(wrong("there is no room for a string"));
    }
    // SAFETY: the caller's promise; the zero byte is one byte more.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr().cast(), to, text.len());
        *to.add(text.len()) = 0;
    }
    Ok(())
}

/// The caller's job, which connects its processes already.
pub struct Job {
    options: fabricast_options,
}

/// The function to call while a call blocks.
#[derive(Clone, Copy)]
pub struct Meanwhile {
    progress: Option<unsafe extern "C" fn(user: *mut c_void)>,
    user: *mut c_void,
}

// SAFETY: the pointer is only passed back to the caller's function, by threads that call this
// library.
unsafe impl Send for Meanwhile {}
// SAFETY: likewise.
unsafe impl Sync for Meanwhile {}

impl Meanwhile {
    pub fn call(&self) {
        if let Some(progress) = self.progress {
            // SAFETY: the caller gave the function for this.
            unsafe { progress(self.user) };
        }
    }
}

impl Job {
    pub fn new(options: &fabricast_options) -> Result<Job, Failure> {
        if options.rank >= options.size {
            return Err(wrong("rank is not less than size"));
        }
        if options.allgather.is_none() && options.size > 1 {
            return Err(wrong("there is no allgather"));
        }
        Ok(Job { options: *options })
    }

    pub fn meanwhile(&self) -> Meanwhile {
        Meanwhile {
            progress: self.options.progress,
            user: self.options.user,
        }
    }
}

impl Bootstrap for Job {
    fn rank(&self) -> u32 {
        self.options.rank
    }

    fn size(&self) -> u32 {
        self.options.size
    }

    fn allgather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        let Some(allgather) = self.options.allgather else {
            return Ok(vec![mine.to_vec()]);
        };
        let mut all = vec![0; mine.len() * self.options.size as usize];
        let (user, bytes) = (self.options.user, mine.len());
        // SAFETY: the caller gave the function for this; both buffers have the length that it is
        // told.
        let status =
            unsafe { allgather(user, mine.as_ptr().cast(), all.as_mut_ptr().cast(), bytes) };
        match status {
            0 => Ok(all.chunks(bytes).map(<[u8]>::to_vec).collect()),
            other => Err(format!("the caller's allgather failed ({other})").into()),
        }
    }
}

/// Counters of a context since it was created.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fabricast_statistics {
    /// `sizeof(fabricast_statistics)`, set by the caller.
    pub struct_size: usize,
    /// Broadcasts started in this process as root.
    pub sent: u64,
    /// Bytes of the broadcasts that this process started as root.
    pub sent_bytes: u64,
    /// Broadcasts received, including those under way.
    pub received: u64,
    /// Bytes of the broadcasts received, including those under way.
    pub received_bytes: u64,
    /// Barriers that this process has entered.
    pub barriers: u64,
    /// Data packets sent for the first time, to groups.
    pub packets_multicast: u64,
    /// Data packets sent for the first time, to one process each.
    pub packets_unicast: u64,
    /// Packets sent again, to groups.
    pub repairs_multicast: u64,
    /// Packets sent again, to one process each.
    pub repairs_unicast: u64,
    /// Losses that this process has noticed and that were repaired.
    pub losses: u64,
    /// Datagrams that the kernel dropped because this process did not read them in time.
    pub dropped_by_kernel: u64,
    /// Datagrams dropped on purpose (`inject_loss`).
    pub dropped_on_purpose: u64,
    /// How often the library found a receiver that multicast does not reach, or no longer reaches.
    /// It uses unicast for that receiver.
    pub unreached: u64,
    /// Groups of this process that are not over yet. A destroyed group counts until no member can
    /// ask for anything any more that was sent in it.
    pub groups: u64,
    /// Data packets sent through shared memory, each counted once for all processes that share it.
    pub packets_shared: u64,
    /// Bytes of all datagrams written to shared memory.
    pub bytes_shared: u64,
    /// How often this process fell so far behind that it lost what was written to shared memory,
    /// which was then sent again.
    pub overruns_shared: u64,
    /// Processes that were to share memory with others of their host and cannot. Each of them
    /// counts as a host of its own, and each reports it for itself.
    pub unshared: u64,
    /// Broadcasts that this process sent by a multicast address of exactly the group's hosts
    /// (`groups` in the options).
    pub sent_own: u64,
    /// Multicast addresses that could not be joined.
    pub addresses_refused: u64,
    /// Groups that had to do without a multicast address of their own, at least for a while. One
    /// process counts a group for all of its members.
    pub groups_unaddressed: u64,
    /// Groups in `groups_unaddressed` for which there were no more addresses.
    pub groups_exhausted: u64,
    /// Frames that reached this process and are of groups that it is not in, or of nobody's.
    pub frames_foreign: u64,
    /// Multicast addresses that this host has joined.
    pub address_joins: u64,
    /// Microseconds from the request to join until the subnet's answer, summed over
    /// `address_joins`.
    pub address_join_us: u64,
    /// Multicast addresses that were proven at this host.
    pub address_proofs: u64,
    /// Microseconds from the subnet's answer to the proof, summed over `address_proofs`.
    pub address_proof_us: u64,
    /// Groups that began to send by a multicast address of exactly their hosts.
    pub address_changes: u64,
    /// Microseconds from a group's first use until it sent by that address, summed over
    /// `address_changes`.
    pub address_change_us: u64,
    /// Joins in `addresses_refused` for which there were no more addresses.
    pub refused_exhausted: u64,
    /// Joins in `addresses_refused` that the subnet denied.
    pub refused_denied: u64,
    /// Joins in `addresses_refused` that the subnet did not answer.
    pub refused_unanswered: u64,
    /// Groups in `groups_unaddressed` whose address the subnet denied.
    pub groups_denied: u64,
    /// Groups in `groups_unaddressed` for which the subnet did not answer.
    pub groups_unanswered: u64,
    /// Groups in `groups_unaddressed` to whose hosts probes by the address did not come.
    pub groups_unproven: u64,
    /// Groups in `groups_unaddressed` that had lost a host.
    pub groups_gone: u64,
    /// Groups that can have no multicast address of their own, because on one of their hosts the
    /// lowest process of all is no member.
    pub groups_unled: u64,
    /// Multicast addresses that were given up because probes reached no host.
    pub addresses_unproven: u64,
    /// Hosts that could not join a multicast address that others had joined.
    pub hosts_set_aside: u64,
    /// Multicast addresses to which groups of this host send now. This and the next three are
    /// levels, as `groups` is; all others only rise.
    pub addresses_in_use: u64,
    /// The highest number of such addresses since the context was created.
    pub addresses_in_use_max: u64,
    /// Multicast addresses to which two groups of this host or more send now.
    pub addresses_shared: u64,
    /// The highest number of such addresses since the context was created.
    pub addresses_shared_max: u64,
    /// Memberships of multicast addresses that the network had forgotten, as a subnet manager that
    /// was restarted has. The host joins again.
    pub memberships_lost: u64,
}

impl fabricast_statistics {
    pub(crate) fn new(s: &Statistics) -> fabricast_statistics {
        fabricast_statistics {
            struct_size: size_of::<fabricast_statistics>(),
            sent: s.sent,
            sent_bytes: s.sent_bytes,
            received: s.received,
            received_bytes: s.received_bytes,
            barriers: s.barriers,
            packets_multicast: s.node.data,
            packets_unicast: s.node.data_unicast,
            repairs_multicast: s.node.repairs_multicast,
            repairs_unicast: s.node.repairs_unicast,
            losses: s.node.losses.count(),
            dropped_by_kernel: s.net.dropped_by_kernel,
            dropped_on_purpose: s.faults.send_lost + s.faults.receive_lost,
            unreached: s.unreached,
            groups: s.groups,
            packets_shared: s.near.data + s.near.data_unicast,
            bytes_shared: s.shm.bytes_sent,
            overruns_shared: s.shm.overruns,
            unshared: s.unshared,
            sent_own: s.addresses.sent_own,
            addresses_refused: s.addresses.refused.total(),
            groups_unaddressed: s.addresses.unaddressed.total(),
            groups_exhausted: s.addresses.unaddressed.of(Refusal::NoAddresses),
            frames_foreign: s.node.foreign,
            address_joins: s.addresses.joins.times,
            address_join_us: s.addresses.joins.total.as_micros() as u64,
            address_proofs: s.addresses.proofs.times,
            address_proof_us: s.addresses.proofs.total.as_micros() as u64,
            address_changes: s.addresses.changes.times,
            address_change_us: s.addresses.changes.total.as_micros() as u64,
            refused_exhausted: s.addresses.refused.of(Refusal::NoAddresses),
            refused_denied: s.addresses.refused.of(Refusal::Denied),
            refused_unanswered: s.addresses.refused.of(Refusal::NoAnswer),
            groups_denied: s.addresses.unaddressed.of(Refusal::Denied),
            groups_unanswered: s.addresses.unaddressed.of(Refusal::NoAnswer),
            groups_unproven: s.addresses.unaddressed.of(Refusal::Unproven),
            groups_gone: s.addresses.unaddressed.of(Refusal::Gone),
            groups_unled: s.addresses.unled,
            addresses_unproven: s.addresses.given_up.of(Refusal::Unproven),
            hosts_set_aside: s.addresses.set_aside.total(),
            addresses_in_use: s.addresses.in_use,
            addresses_in_use_max: s.addresses.in_use_max,
            addresses_shared: s.addresses.shared,
            addresses_shared_max: s.addresses.shared_max,
            memberships_lost: s.addresses.lost,
        }
    }

    /// Writes the counters, as far as the caller's struct has room for them.
    ///
    /// # Safety
    /// `to` is null or valid for as many bytes as its `struct_size` says.
    pub(crate) unsafe fn write(self, to: *mut fabricast_statistics) -> Result<(), Failure> {
        let skip = size_of::<usize>();
        if to.is_null() {
            return Err(wrong("a pointer is null"));
        }
        // SAFETY: the size is the first field of every version of the struct.
        let said = unsafe { ptr::read(to.cast::<usize>()) };
        if said < skip {
            return Err(wrong("struct_size of the statistics is not set"));
        }
        let known = said.min(size_of::<fabricast_statistics>()) - skip;
        // SAFETY: both are valid for `skip + known` bytes and do not overlap.
        unsafe {
            let from = (&raw const self).cast::<u8>().add(skip);
            ptr::copy_nonoverlapping(from, to.cast::<u8>().add(skip), known);
        }
        Ok(())
    }
}
