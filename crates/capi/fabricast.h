/*
 * Fabricast: reliable multicast for clusters.
 *
 * Each process of a job makes a context. The processes form groups, and broadcast:
 *
 *     fabricast_options options = {.struct_size = sizeof options, .rank = rank, .size = size,
 *                                  .allgather = how_they_are_connected_already};
 *     fabricast_context *context;
 *     fabricast_group *group;
 *     if (fabricast_context_create(&options, &context) != FABRICAST_OK)
 *         die(fabricast_last_error());
 *     fabricast_group_create(context, 1, members, count, &group);
 *     fabricast_bcast(group, buffer, bytes, root);
 *
 * Every call returns a status. Several threads may use one context. One thread at a time starts
 * operations of a group, in the same order at all members of the group.
 */

#ifndef FABRICAST_H
#define FABRICAST_H

/* Generated from crates/capi/src; see crates/capi/tests/header.rs. */

#include <stddef.h>
#include <stdint.h>

// Success.
#define FABRICAST_OK 0

// An argument makes no sense: for example a null pointer, a rank that does not exist, or a length
// that differs from the root's.
#define FABRICAST_ERR_ARGUMENT 1

// The operating system refused something.
#define FABRICAST_ERR_SYSTEM 2

// A process of the group is gone.
#define FABRICAST_ERR_PEER_LOST 3

// Another process could not take part, or speaks another version.
#define FABRICAST_ERR_REFUSED 4

// Something did not happen in time.
#define FABRICAST_ERR_TIMEOUT 5

// A defect of this library.
#define FABRICAST_ERR_INTERNAL 6

// One process's end of a job: its sockets, and the thread that answers other processes while this
// process computes.
typedef struct fabricast_context fabricast_context;

// An ordered set of processes that broadcast to each other.
typedef struct fabricast_group fabricast_group;

// An operation that was started and not yet found to be complete.
typedef struct fabricast_request fabricast_request;

// Options of a context. Set all bytes to zero, then set `struct_size`, `rank`, `size` and
// `allgather`; the rest has defaults.
typedef struct fabricast_options {
  // `sizeof(fabricast_options)`.
  size_t struct_size;
  // Rank of this process in the job, from 0.
  uint32_t rank;
  // Number of processes in the job.
  uint32_t size;
  // Gives `bytes` bytes at `mine` to all processes, and writes what each process gave to `all`,
  // in the order of ranks (`size * bytes` bytes). Returns 0 on success. All processes call it at
  // once, and only while the context is created.
  int (*allgather)(void *user, const void *mine, void *all, size_t bytes);
  // Called again and again while a call blocks, so that the caller's own communication makes
  // progress; may be null.
  void (*progress)(void *user);
  // Passed to `allgather` and `progress`.
  void *user;
  // Name or address of the network interface; null: the one that the system sends multicasts by.
  const char *interface;
  // Scheme that makes multicast reliable, the same in all processes; null: `auto`.
  const char *scheme;
  // Share of datagrams to drop on purpose, in each direction, from 0 to 0.9: for tests.
  double inject_loss;
  // Name of this process's host: processes with the same name share memory, if they can. Null:
  // the host's name in the system, the time of its start, and its network.
  const char *host;
  // A descriptor that is readable while the caller's own communication has something to do, for
  // example an epoll descriptor; null: none. When it is readable, a call that blocks calls
  // `progress` at once, and keeps calling it without sleeping until nothing is left to do. Only
  // `progress` makes it unreadable again. The context keeps a duplicate.
  const int *work;
  // How broadcasts go to a group of three processes or more, the same in all processes:
  // `multicast`, or by messages between two processes `tree`, `chain`, `scatter-allgather`, or
  // `cover` (by multicasts to the sets that [`fabricast_group_set_cover`] names); null:
  // `multicast`. With all others the processes of one host share no memory, and numbers of
  // groups are below 2^31 / (64 + `size`).
  const char *broadcast;
  // Longest time, in seconds, after which a datagram is read once it is given to the network,
  // and as long again until its memory is free: for tests. 0: at once.
  double inject_delay;
  // When groups get multicast addresses of their own, so that hosts outside receive nothing of
  // them, the same in all processes: `pool`, `pool(N)` (N addresses in advance) or
  // `pool(N),max=M`, `lazy` (other ways until the address is proven), `basic` (a broadcast waits
  // until then), or `shared` (never: all groups share a few addresses); null: `pool`.
  const char *groups;
  // Which subnet grants these addresses: `igmp` (the kernel joins), `opensm` (an InfiniBand
  // subnet manager), or `auto`, which takes `opensm` for an interface that is IP over
  // InfiniBand; null: `auto`.
  const char *subnet;
  // Most multicast addresses that groups get of their own at the same time; further groups share
  // addresses. Null: as many as the library has.
  const uint32_t *addresses;
} fabricast_options;

// Counters of a context since it was created.
typedef struct fabricast_statistics {
  // `sizeof(fabricast_statistics)`, set by the caller.
  size_t struct_size;
  // Broadcasts started in this process as root.
  uint64_t sent;
  // Bytes of the broadcasts that this process started as root.
  uint64_t sent_bytes;
  // Broadcasts received, including those under way.
  uint64_t received;
  // Bytes of the broadcasts received, including those under way.
  uint64_t received_bytes;
  // Barriers that this process has entered.
  uint64_t barriers;
  // Data packets sent for the first time, to groups.
  uint64_t packets_multicast;
  // Data packets sent for the first time, to one process each.
  uint64_t packets_unicast;
  // Packets sent again, to groups.
  uint64_t repairs_multicast;
  // Packets sent again, to one process each.
  uint64_t repairs_unicast;
  // Losses that this process has noticed and that were repaired.
  uint64_t losses;
  // Datagrams that the kernel dropped because this process did not read them in time.
  uint64_t dropped_by_kernel;
  // Datagrams dropped on purpose (`inject_loss`).
  uint64_t dropped_on_purpose;
  // How often the library found a receiver that multicast does not reach, or no longer reaches.
  // It uses unicast for that receiver.
  uint64_t unreached;
  // Groups of this process that are not over yet. A destroyed group counts until no member can
  // ask for anything any more that was sent in it.
  uint64_t groups;
  // Data packets sent through shared memory, each counted once for all processes that share it.
  uint64_t packets_shared;
  // Bytes of all datagrams written to shared memory.
  uint64_t bytes_shared;
  // How often this process fell so far behind that it lost what was written to shared memory,
  // which was then sent again.
  uint64_t overruns_shared;
  // Processes that were to share memory with others of their host and cannot. Each of them
  // counts as a host of its own, and each reports it for itself.
  uint64_t unshared;
  // Broadcasts that this process sent by a multicast address of exactly the group's hosts
  // (`groups` in the options).
  uint64_t sent_own;
  // Multicast addresses that could not be joined.
  uint64_t addresses_refused;
  // Groups that had to do without a multicast address of their own, at least for a while. One
  // process counts a group for all of its members.
  uint64_t groups_unaddressed;
  // Groups in `groups_unaddressed` for which there were no more addresses.
  uint64_t groups_exhausted;
  // Frames that reached this process and are of groups that it is not in, or of nobody's.
  uint64_t frames_foreign;
  // Multicast addresses that this host has joined.
  uint64_t address_joins;
  // Microseconds from the request to join until the subnet's answer, summed over
  // `address_joins`.
  uint64_t address_join_us;
  // Multicast addresses that were proven at this host.
  uint64_t address_proofs;
  // Microseconds from the subnet's answer to the proof, summed over `address_proofs`.
  uint64_t address_proof_us;
  // Groups that began to send by a multicast address of exactly their hosts.
  uint64_t address_changes;
  // Microseconds from a group's first use until it sent by that address, summed over
  // `address_changes`.
  uint64_t address_change_us;
  // Joins in `addresses_refused` for which there were no more addresses.
  uint64_t refused_exhausted;
  // Joins in `addresses_refused` that the subnet denied.
  uint64_t refused_denied;
  // Joins in `addresses_refused` that the subnet did not answer.
  uint64_t refused_unanswered;
  // Groups in `groups_unaddressed` whose address the subnet denied.
  uint64_t groups_denied;
  // Groups in `groups_unaddressed` for which the subnet did not answer.
  uint64_t groups_unanswered;
  // Groups in `groups_unaddressed` to whose hosts probes by the address did not come.
  uint64_t groups_unproven;
  // Groups in `groups_unaddressed` that had lost a host.
  uint64_t groups_gone;
  // Groups that can have no multicast address of their own, because on one of their hosts the
  // lowest process of all is no member.
  uint64_t groups_unled;
  // Multicast addresses that were given up because probes reached no host.
  uint64_t addresses_unproven;
  // Hosts that could not join a multicast address that others had joined.
  uint64_t hosts_set_aside;
  // Multicast addresses to which groups of this host send now. This and the next three are
  // levels, as `groups` is; all others only rise.
  uint64_t addresses_in_use;
  // The highest number of such addresses since the context was created.
  uint64_t addresses_in_use_max;
  // Multicast addresses to which two groups of this host or more send now.
  uint64_t addresses_shared;
  // The highest number of such addresses since the context was created.
  uint64_t addresses_shared_max;
  // Memberships of multicast addresses that the network had forgotten, as a subnet manager that
  // was restarted has. The host joins again.
  uint64_t memberships_lost;
} fabricast_statistics;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of this library, as `major.minor.patch`.
const char *fabricast_version(void);

// A status in a few words. Never null; the caller must not free it.
const char *fabricast_strerror(int status);

// Why this thread's last failed call failed, and what to do about it. Valid until this thread's
// next call; never null.
const char *fabricast_last_error(void);

// Makes the processes of a job known to each other. All processes call this at once. It succeeds
// in all of them, or tells all of them the same reason. `context` is written only on success.
//
// The environment variable FABRICAST_LOG says which events go to standard error: a level (`info`,
// `debug`), or modules with levels (`info,fabricast::driver=debug`).
//
// # Safety
// `options` and `context` are valid pointers; the strings in `options` end with a zero byte.
int fabricast_context_create(const struct fabricast_options *options,
                             struct fabricast_context **context);

// Destroys a context. Before this, everything that this process has sent must have reached the
// others ([`fabricast_flush`]), and all others must know that no process will ask for anything any
// more (by a barrier of the caller's own, or because `groups` of the statistics has become 0).
// Resources are freed once all groups and requests of the context are destroyed or complete, too;
// the order does not matter. Null is allowed.
//
// # Safety
// `context` came from [`fabricast_context_create`] and is not used afterwards.
int fabricast_context_destroy(struct fabricast_context *context);

// Waits until all other processes have what this process has sent.
//
// # Safety
// `context` is valid.
int fabricast_flush(const struct fabricast_context *context);

// The rank of the first process that was lost, or -1. If a process was lost,
// [`fabricast_last_error`] then says how that was noticed.
//
// # Safety
// `context` is valid.
int64_t fabricast_lost(const struct fabricast_context *context);

// Why this process shares no memory with other processes of its host, or null if it does or there
// are none. Valid as long as the context.
//
// # Safety
// `context` is valid.
const char *fabricast_unshared(const struct fabricast_context *context);

// The only call for a child after a fork, once for each context that the child has inherited. It
// gives up the connections that tell the others when the parent ends. Otherwise the others would
// wait for the child to end, too. Safe in a handler of `pthread_atfork`.
//
// # Safety
// `context` is valid, and the child uses nothing else of this library.
int fabricast_context_forked(const struct fabricast_context *context);

// Counters of the context since it was created. The caller sets `struct_size`; counters that do
// not fit are left out.
//
// # Safety
// Both pointers are valid, `statistics` for `struct_size` bytes.
int fabricast_context_statistics(const struct fabricast_context *context,
                                 struct fabricast_statistics *statistics);

// Writes the name of the network interface in use to `name`, at most `room` bytes with the zero
// byte at the end. Fails if the name does not fit.
//
// # Safety
// `context` is valid, and `name` is valid for `room` bytes.
int fabricast_context_interface(const struct fabricast_context *context, char *name, size_t room);

// Writes when groups get multicast addresses of their own, and by which subnet, to `name`, at most
// `room` bytes with the zero byte at the end: for example "pool(8) by igmp", or "shared: " and the
// reason if this process gives groups none. Fails if the text does not fit.
//
// # Safety
// `context` is valid, and `name` is valid for `room` bytes.
int fabricast_context_strategy(const struct fabricast_context *context, char *name, size_t room);

// Writes the largest `id` that a group of the context may have to `max`: nearly all numbers, or
// fewer if broadcasts go by messages (`broadcast` in the options).
//
// # Safety
// `context` and `max` are valid.
int fabricast_context_group_max(const struct fabricast_context *context, uint32_t *max);

// Creates a group of the processes `members`: `count` ranks of the context, in the same order at
// all members. All members use the same `id`, and none of them uses it for another group, now or
// later.
//
// # Safety
// The pointers are valid, `members` for `count` numbers.
int fabricast_group_create(const struct fabricast_context *context,
                           uint32_t id,
                           const uint32_t *members,
                           size_t count,
                           struct fabricast_group **group);

// Takes a multicast address in advance for a group of the processes `members`, so that its first
// broadcast goes by it (`groups` in the options). Sets `address` to 0 at all but one of them, and
// if none is at hand. The members exchange the largest value, and once all have created the group
// each passes it to [`fabricast_group_grant`]. If they do not, who got it returns it by
// [`fabricast_address_put_back`].
//
// # Safety
// The pointers are valid, `members` for `count` numbers.
int fabricast_address_take(const struct fabricast_context *context,
                           const uint32_t *members,
                           size_t count,
                           uint64_t *address);

// Gives an address to a group in which nobody has started anything. All members name the same one.
// 0: none.
//
// # Safety
// `group` is valid.
int fabricast_group_grant(const struct fabricast_group *group, uint64_t address);

// Returns an address that this process took and that no group was granted. 0: none.
//
// # Safety
// `context` is valid.
int fabricast_address_put_back(const struct fabricast_context *context, uint64_t address);

// Ends this process's part in the group: it waits for nothing in the group any more. What it has
// sent is still brought to the others. All members must call this in the end. A group in which
// this process has started nothing ends at once, also if not all members could create it. Null is
// allowed.
//
// # Safety
// `group` came from [`fabricast_group_create`] and is not used afterwards.
int fabricast_group_destroy(struct fabricast_group *group);

// Chooses how the group's barriers are made from the next one on, the same at all members:
// `dissemination(N)`, `release(N)`, `combining(N)`, `central`, `mcs`, `tournament`, `bst` or
// `butterfly`. Null chooses the default for the group's size.
//
// # Safety
// `group` is valid, no operation is being started in it, and `name` is null or ends with a zero
// byte.
int fabricast_group_set_barrier(struct fabricast_group *group, const char *name);

// Names the sets of members that broadcasts of the group go to by multicast with the algorithm
// `cover`: `count` sets, at most 64. Set i has the next `sizes[i]` of `ranks`, which are ranks of
// the context. All members name the same sets, before they start anything in the group. Other
// members get messages. With another algorithm, the sets change nothing.
//
// # Safety
// `group` is valid, and the pointers are valid: `sizes` for `count` numbers, `ranks` for as many
// as they add up to.
int fabricast_group_set_cover(struct fabricast_group *group,
                              const uint32_t *ranks,
                              const size_t *sizes,
                              size_t count);

// Broadcasts `bytes` bytes at `buffer` from member `root` (an index into the group's members) to
// all other members. They call this with the same root and length, in the same order. At the root,
// a short buffer (by default at most 256 KiB) is copied and the call returns at once. Otherwise
// the root's call returns when all members have everything.
//
// # Safety
// `group` is valid, and `buffer` is valid for `bytes` bytes (for writing, except at the root).
int fabricast_bcast(const struct fabricast_group *group,
                    void *buffer,
                    uint64_t bytes,
                    uint32_t root);

// Starts a broadcast as [`fabricast_bcast`] does, without waiting. The caller must not touch
// `buffer` until [`fabricast_test`] or [`fabricast_wait`] says that the operation is complete.
//
// # Safety
// As for [`fabricast_bcast`], until the operation is complete.
int fabricast_ibcast(const struct fabricast_group *group,
                     void *buffer,
                     uint64_t bytes,
                     uint32_t root,
                     struct fabricast_request **request);

// Waits until all members of the group have called it.
//
// # Safety
// `group` is valid.
int fabricast_barrier(const struct fabricast_group *group);

// Starts a barrier as [`fabricast_barrier`] does, without waiting.
//
// # Safety
// The pointers are valid.
int fabricast_ibarrier(const struct fabricast_group *group, struct fabricast_request **request);

// Tests whether the operation is complete. If it is, `*done` becomes 1, and the request is freed
// and becomes null. The operation is complete, too, if this call returns an error.
//
// # Safety
// The pointers are valid; `*request` is null or came from a call that starts an operation.
int fabricast_test(struct fabricast_request **request, int *done);

// Waits until the operation is complete. The request is freed and becomes null.
//
// # Safety
// As for [`fabricast_test`].
int fabricast_wait(struct fabricast_request **request);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FABRICAST_H */
