//! `libfabricast.so`: groups of processes that broadcast, for C and every language that can call C.
//!
//! Handles are opaque and structs begin with their size. Every call returns a status and leaves the
//! reason of a failure for [`fabricast_last_error`]. No panic crosses the interface. `fabricast.h`
//! is generated from this crate; a test keeps it up to date.

#![allow(non_camel_case_types)] // they are names of C

mod call;
mod lent;
mod log;
mod options;
mod signals;
mod status;

use std::ffi::{CString, c_char, c_int, c_void};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;
use std::slice;
use std::sync::Arc;

use fabricast_lib::communicator::{COVER_SETS_MAX, Context, Error, Group, Request};
use fabricast_lib::proto::group::Grant;
use fabricast_lib::proto::{Barrier, UnknownBarrier};

use self::call::{Failure, call, given, shared, wrong};
use self::lent::Lent;
use self::options::{Job, Meanwhile, text, write_text};

pub use self::options::{fabricast_options, fabricast_statistics};
pub use self::status::{
    FABRICAST_ERR_ARGUMENT, FABRICAST_ERR_INTERNAL, FABRICAST_ERR_PEER_LOST, FABRICAST_ERR_REFUSED,
    FABRICAST_ERR_SYSTEM, FABRICAST_ERR_TIMEOUT, FABRICAST_OK,
};

/// One process's end of a job: its sockets, and the thread that answers other processes while this
/// process computes.
pub struct fabricast_context {
    inner: Arc<Inner>,
}

struct Inner {
    context: Context<Lent>,
    meanwhile: Meanwhile,
    unshared: Option<CString>,
}

/// An ordered set of processes that broadcast to each other.
pub struct fabricast_group {
    inner: Arc<Inner>,
    group: Group,
    /// How the group's barriers are made; `None`: the default for its size.
    barrier: Option<Barrier>,
}

/// An operation that was started and not yet found to be complete.
pub struct fabricast_request {
    inner: Arc<Inner>,
    request: Request<Lent>,
}

/// Threads of C share these handles, so each call gets a shared reference to them, no more.
const _: () = {
    const fn shared_by_threads<T: Sync>() {}
    shared_by_threads::<fabricast_context>();
    shared_by_threads::<fabricast_group>();
};

/// The version of this library, as `major.minor.patch`.
#[unsafe(no_mangle)]
pub extern "C" fn fabricast_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// A status in a few words. Never null; the caller must not free it.
#[unsafe(no_mangle)]
pub extern "C" fn fabricast_strerror(status: c_int) -> *const c_char {
    let words = match status {
        FABRICAST_OK => c"it went well",
        FABRICAST_ERR_ARGUMENT => c"an argument makes no sense",
        FABRICAST_ERR_SYSTEM => c"the operating system refused something",
        FABRICAST_ERR_PEER_LOST => c"a process of the group is gone",
        FABRICAST_ERR_REFUSED => c"a process could not take part",
        FABRICAST_ERR_TIMEOUT => c"something did not happen in time",
        FABRICAST_ERR_INTERNAL => c"a defect of this library",
        _ => c"no status of this library",
    };
    words.as_ptr()
}

/// Why this thread's last failed call failed, and what to do about it. Valid until this thread's
/// next call; never null.
#[unsafe(no_mangle)]
pub extern "C" fn fabricast_last_error() -> *const c_char {
    call::last_error()
}

/// Makes the processes of a job known to each other. All processes call this at once. It succeeds
/// in all of them, or tells all of them the same reason. `context` is written only on success.
///
/// The environment variable FABRICAST_LOG says which events go to standard error: a level (`info`,
/// `debug`), or modules with levels (`info,fabricast::driver=debug`).
///
/// # Safety
/// `options` and `context` are valid pointers; the strings in `options` end with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabricast_context_create(
    options: *const fabricast_options,
    context: *mut *mut fabricast_context,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let (options, context) = unsafe { (fabricast_options::read(options)?, given(context)?) };
        let job = Job::new(&options)?;
        log::begin();
        let meanwhile = job.meanwhile();
        let _kept = signals::Kept::new();
        let mut job = job;
        let chosen = options
            .chosen()
            .map_err(|failure| Context::<Lent>::takes_no_part(&failure.to_string(), &mut job))?;
        let made = Context::new(&chosen, &mut job)?;
        let unshared = made.unshared().and_then(|why| CString::new(why).ok());
        let inner = Inner {
            context: made,
            meanwhile,
            unshared,
        };
        *context = Box::into_raw(Box::new(fabricast_context {
            inner: Arc::new(inner),
        }));
        Ok(())
    })
}

/// Destroys a context. Before this, everything that this process has sent must have reached the
/// others ([`fabricast_flush`]), and all others must know that no process will ask for anything any
/// more (by a barrier of the caller's own, or because `groups` of the statistics has become 0).
/// Resources are freed once all groups and requests of the context are destroyed or complete, too;
/// the order does not matter. Null is allowed.
///
/// # Safety
/// `context` came from [`fabricast_context_create`] and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabricast_context_destroy(context: *mut fabricast_context) -> c_int {
    call(|| {
        if !context.is_null() {
            // SAFETY: the caller's promise.
            drop(unsafe { Box::from_raw(context) });
        }
        Ok(())
    })
}

/// Waits until all other processes have what this process has sent.
///
/// # Safety
/// `context` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabricast_flush(context: *const fabricast_context) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let inner = unsafe { &shared(context)?.inner };
        inner.context.flush(&mut || inner.meanwhile.call())?;
        Ok(())
    })
}

/// The rank of the first process that was lost, or -1. If a process was lost,
/// [`fabricast_last_error`] then says how that was noticed.
///
/// # Safety
/// `context` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabricast_lost(context: *const fabricast_context) -> i64 {
    let mut rank = -1;
    call(|| {
        // SAFETY: the caller's promise.
        let inner = unsafe { &shared(context)?.inner };
        match inner.context.lost() {
            None => Ok(()),
            Some((lost, how)) => {
                rank = lost.into();
                Err(Error::RankLost { rank: lost, how }.into())
            }
        }
    });
    rank
}

/// Why this process shares no memory with other processes of its host, or null if it does or there
/// are none. Valid as long as the context.
///
/// # Safety
/// `context` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabricast_unshared(context: *const fabricast_context) -> *const c_char {
    let mut why = ptr::null();
    call(|| {
        // SAFETY: the caller's promise.
        let inner = unsafe { &shared(context)?.inner };
        why = inner
            .unshared
            .as_ref()
            .map_or(ptr::null(), |why| why.as_ptr());
        Ok(())
    });
    why
}

/// The only call for a child after a fork, once for each context that the child has inherited. It
/// gives up the connections that tell the others when the parent ends. Otherwise the others would
/// wait for the child to end, too. Safe in a handler of `pthread_atfork`.
///
/// # Safety
/// `context` is valid, and the child uses nothing else of this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabricast_context_forked(context: *const fabricast_context) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let inner = unsafe { &shared(context)?.inner };
        let failed = |e| Failure::System("letting go of the parent's connections", e);
        let nothing = File::open("/dev/null").map_err(failed)?;
        for connection in inner.context.connections() {
            // SAFETY: both are open. The descriptor number stays in use, because its owner will
            // close it.
            let done =
                unsafe { libc::dup3(nothing.as_raw_fd(), connection.as_raw_fd(), libc::O_CLOEXEC) };
            if done < 0 {
                return Err(failed(io::Error::last_os_error()));
            }
        }
        Ok(())
    })
}

/// Counters of the context since it was created. The caller sets `struct_size`; counters that do
/// not fit are left out.
///
/// # Safety
/// Both pointers are valid, `statistics` for `struct_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabricast_context_statistics(
    context: *const fabricast_context,
    statistics: *mut fabricast_statistics,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let inner = unsafe { &shared(context)?.inner };
        let counted = fabricast_statistics::new(&inner.context.statistics());
        // SAFETY: the caller's promise.
        unsafe { counted.write(statistics) }
    })
}

/// Writes the name of the network interface in use to `name`, at most `room` bytes with the zero
/// byte at the end. Fails if the name does not fit.
///
/// # Safety
/// `context` is valid, and `name` is valid for `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabricast_context_interface(
    context: *const fabricast_context,
    name: *mut c_char,
    room: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { write_about(context, name, room, |context| context.interface()) }
}

/// Writes when groups get multicast addresses of their own, and by which subnet, to `name`, at most
/// `room` bytes with the zero byte at the end: for example "pool(8) by igmp", or "shared: " and the
/// reason if this process gives groups none. Fails if the text does not fit.
///
/// # Safety
/// `context` is valid, and `name` is valid for `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabricast_context_strategy(
    context: *const fabricast_context,
    name: *mut c_char,
    room: usize,
) -> c_int {
    let strategy = |context: &Context<Lent>| match context.strategy() {
        Ok((strategy, subnet)) => format!("{strategy} by {subnet}"),
        Err(why) => format!("shared: {why}"),
    };
    // SAFETY: the caller's promise.
    unsafe { write_about(context, name, room, strategy) }
}

/// Writes a text about a context to `to`.
///
/// # Safety
/// `context` is valid, and `to` is null or valid for `room` bytes.
unsafe fn write_about(
    context: *const fabricast_context,
    to: *mut c_char,
    room: usize,
    text: impl FnOnce(&Context<Lent>) -> String,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let inner = unsafe { &shared(context)?.inner };
        // SAFETY: likewise.
        unsafe { write_text(&text(&inner.context), to, room) }
    })
}

/// Writes the largest `id` that a group of the context may have to `max`: nearly all numbers, or
/// fewer if broadcasts go by messages (`broadcast` in the options).
///
/// # Safety
/// `context` and `max` are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabricast_context_group_max(
    context: *const fabricast_context,
    max: *mut u32,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let inner = unsafe { &shared(context)?.inner };
        if max.is_null() {
            return Err(wrong("a pointer is null"));
        }
        // SAFETY: the pointer is not null, and valid by the caller's promise.
        unsafe { max.write(inner.context.group_max()) };
        Ok(())
    })
}

/// Creates a group of the processes `members`: `count` ranks of the context, in the same order at
/// all members. All members use the same `id`, and none of them uses it for another group, now or
/// later.
///
/// # Safety
/// The pointers are valid, `members` for `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabricast_group_create(
    context: *const fabricast_context,
    id: u32,
    members: *const u32,
    count: usize,
    group: *mut *mut fabricast_group,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let (context, out) = unsafe { (shared(context)?, given(group)?) };
        if members.is_null() || count == 0 {
            return Err(wrong("a group needs members"));
        }
        // SAFETY: `members` is not null, and the caller's promise.
        let members = unsafe { slice::from_raw_parts(members, count) };
        let inner = context.inner.clone();
        let group = inner.context.group(id, members)?;
        let barrier = None;
        let created = fabricast_group {
            inner,
            group,
            barrier,
        };
        *out = Box::into_raw(Box::new(created));
        Ok(())
    })
}

/// Takes a multicast address in advance for a group of the processes `members`, so that its first
/// broadcast goes by it (`groups` in the options). Sets `address` to 0 at all but one of them, and
/// if none is at hand. The members exchange the largest value, and once all have created the group
/// each passes it to [`fabricast_group_grant`]. If they do not, who got it returns it by
/// [`fabricast_address_put_back`].
///
/// # Safety
/// The pointers are valid, `members` for `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabricast_address_take(
    context: *const fabricast_context,
    members: *const u32,
    count: usize,
    address: *mut u64,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let (context, out) = unsafe { (shared(context)?, given(address)?) };
        if members.is_null() || count == 0 {
            return Err(wrong("a group needs members"));
        }
        // SAFETY: `members` is not null, and the caller's promise.
        let members = unsafe { slice::from_raw_parts(members, count) };
        *out = context
            .inner
            .context
            .take_address(members)
            .map_or(0, Grant::number);
        Ok(())
    })
}

/// Gives an address to a group in which nobody has started anything. All members name the same one.
/// 0: none.
///
/// # Safety
/// `group` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabricast_group_grant(
    group: *const fabricast_group,
    address: u64,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let group = unsafe { shared(group)? };
        if let Some(grant) = Grant::from_number(address) {
            group.inner.context.grant(&group.group, grant);
        }
        Ok(())
    })
}

/// Returns an address that this process took and that no group was granted. 0: none.
///
/// # Safety
/// `context` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabricast_address_put_back(
    context: *const fabricast_context,
    address: u64,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let context = unsafe { shared(context)? };
        if let Some(grant) = Grant::from_number(address) {
            context.inner.context.put_back(grant);
        }
        Ok(())
    })
}

/// Ends this process's part in the group: it waits for nothing in the group any more. What it has
/// sent is still brought to the others. All members must call this in the end. A group in which
/// this process has started nothing ends at once, also if not all members could create it. Null is
/// allowed.
///
/// # Safety
/// `group` came from [`fabricast_group_create`] and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabricast_group_destroy(group: *mut fabricast_group) -> c_int {
    call(|| {
        if !group.is_null() {
            // SAFETY: the caller's promise.
            let fabricast_group { inner, group, .. } = *unsafe { Box::from_raw(group) };
            inner.context.leave(group);
        }
        Ok(())
    })
}

/// Chooses how the group's barriers are made from the next one on, the same at all members:
/// `dissemination(N)`, `release(N)`, `combining(N)`, `central`, `mcs`, `tournament`, `bst` or
/// `butterfly`. Null chooses the default for the group's size.
///
/// # Safety
/// `group` is valid, no operation is being started in it, and `name` is null or ends with a zero
/// byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabricast_group_set_barrier(
    group: *mut fabricast_group,
    name: *const c_char,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let group = unsafe { given(group)? };
        let named = text(name)?.map(str::parse);
        group.barrier = named
            .transpose()
            .map_err(|e: UnknownBarrier| wrong(&e.to_string()))?;
        Ok(())
    })
}

/// Names the sets of members that broadcasts of the group go to by multicast with the algorithm
/// `cover`: `count` sets, at most 64. Set i has the next `sizes[i]` of `ranks`, which are ranks of
/// the context. All members name the same sets, before they start anything in the group. Other
/// members get messages. With another algorithm, the sets change nothing.
///
/// # Safety
/// `group` is valid, and the pointers are valid: `sizes` for `count` numbers, `ranks` for as many
/// as they add up to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabricast_group_set_cover(
    group: *mut fabricast_group,
    ranks: *const u32,
    sizes: *const usize,
    count: usize,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let group = unsafe { given(group)? };
        if count > 0 && (ranks.is_null() || sizes.is_null()) {
            return Err(wrong("a pointer is null"));
        }
        if count > COVER_SETS_MAX {
            return Err(wrong(&format!("a cover has at most {COVER_SETS_MAX} sets")));
        }
        let mut sets = Vec::new();
        let mut at = 0;
        for i in 0..count {
            // SAFETY: `sizes` is not null, and the caller's promise.
            let size = unsafe { *sizes.add(i) };
            if size > group.group.size() as usize {
                return Err(wrong("a set has more members than its group"));
            }
            // SAFETY: `ranks` is not null, and the caller's promise; `size` is small.
            let set = unsafe { slice::from_raw_parts(ranks.add(at), size) };
            at += size;
            sets.push(set.to_vec());
        }
        group.inner.context.cover(&group.group, &sets)?;
        Ok(())
    })
}

/// Broadcasts `bytes` bytes at `buffer` from member `root` (an index into the group's members) to
/// all other members. They call this with the same root and length, in the same order. At the root,
/// a short buffer (by default at most 256 KiB) is copied and the call returns at once. Otherwise
/// the root's call returns when all members have everything.
///
/// # Safety
/// `group` is valid, and `buffer` is valid for `bytes` bytes (for writing, except at the root).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabricast_bcast(
    group: *const fabricast_group,
    buffer: *mut c_void,
    bytes: u64,
    root: u32,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let group = unsafe { shared(group)? };
        // SAFETY: likewise; the operation ends before this call returns.
        let lent = unsafe { Lent::new(buffer.cast(), bytes)? };
        let inner = &group.inner;
        let meanwhile = &mut || inner.meanwhile.call();
        inner.context.bcast(&group.group, root, lent, meanwhile)?;
        Ok(())
    })
}

/// Starts a broadcast as [`fabricast_bcast`] does, without waiting. The caller must not touch
/// `buffer` until [`fabricast_test`] or [`fabricast_wait`] says that the operation is complete.
///
/// # Safety
/// As for [`fabricast_bcast`], until the operation is complete.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabricast_ibcast(
    group: *const fabricast_group,
    buffer: *mut c_void,
    bytes: u64,
    root: u32,
    request: *mut *mut fabricast_request,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let (group, out) = unsafe { (shared(group)?, given(request)?) };
        // SAFETY: likewise, until the request is complete.
        let lent = unsafe { Lent::new(buffer.cast(), bytes)? };
        let inner = group.inner.clone();
        let meanwhile = &mut || inner.meanwhile.call();
        let request = inner.context.ibcast(&group.group, root, lent, meanwhile)?;
        *out = Box::into_raw(Box::new(fabricast_request { inner, request }));
        Ok(())
    })
}

/// Waits until all members of the group have called it.
///
/// # Safety
/// `group` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabricast_barrier(group: *const fabricast_group) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let group = unsafe { shared(group)? };
        let inner = &group.inner;
        let meanwhile = &mut || inner.meanwhile.call();
        inner
            .context
            .barrier(&group.group, group.barrier, meanwhile)?;
        Ok(())
    })
}

/// Starts a barrier as [`fabricast_barrier`] does, without waiting.
///
/// # Safety
/// The pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabricast_ibarrier(
    group: *const fabricast_group,
    request: *mut *mut fabricast_request,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let (group, out) = unsafe { (shared(group)?, given(request)?) };
        let inner = group.inner.clone();
        let meanwhile = &mut || inner.meanwhile.call();
        let request = inner
            .context
            .ibarrier(&group.group, group.barrier, meanwhile)?;
        *out = Box::into_raw(Box::new(fabricast_request { inner, request }));
        Ok(())
    })
}

/// Tests whether the operation is complete. If it is, `*done` becomes 1, and the request is freed
/// and becomes null. The operation is complete, too, if this call returns an error.
///
/// # Safety
/// The pointers are valid; `*request` is null or came from a call that starts an operation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabricast_test(
    request: *mut *mut fabricast_request,
    done: *mut c_int,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let (slot, done) = unsafe { (given(request)?, given(done)?) };
        *done = 1;
        if slot.is_null() {
            return Ok(());
        }
        // SAFETY: `*slot` is not null, and the caller's promise.
        let open = unsafe { &mut **slot };
        let tested = open.inner.context.test(&mut open.request);
        if let Ok(None) = tested {
            *done = 0;
            return Ok(());
        }
        // SAFETY: the request came from `Box::into_raw`, and nothing else holds it any more.
        drop(unsafe { Box::from_raw(*slot) });
        *slot = ptr::null_mut();
        tested?;
        Ok(())
    })
}

/// Waits until the operation is complete. The request is freed and becomes null.
///
/// # Safety
/// As for [`fabricast_test`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabricast_wait(request: *mut *mut fabricast_request) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let slot = unsafe { given(request)? };
        if slot.is_null() {
            return Ok(());
        }
        // SAFETY: the request came from `Box::into_raw`, and nothing else holds it any more.
        let fabricast_request { inner, request } = *unsafe { Box::from_raw(*slot) };
        *slot = ptr::null_mut();
        inner
            .context
            .wait(request, &mut || inner.meanwhile.call())?;
        Ok(())
    })
}
