/*
 * Fabricast: fast, dependable one-to-many communication on the multicast that the network already has.
 *
 * A job's processes make a context each, divide into groups, and broadcast:
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
 * Every call answers with a status. A context may be used by several threads; operations of one group
 * are started by one thread at a time, in the same order at all its members.
 */

#ifndef FABRICAST_H
#define FABRICAST_H

/* Generated from crates/capi/src; see crates/capi/tests/header.rs. */

#include <stddef.h>
#include <stdint.h>

// It went well.
#define FABRICAST_OK 0

// An argument makes no sense: a null pointer, a rank that there is not, another length than the
// root's.
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

// One process's end: its sockets and the thread that answers others while the process computes.
typedef struct fabricast_context fabricast_context;

// An ordered set of processes that broadcast to each other.
typedef struct fabricast_group fabricast_group;

// An operation that was started and not yet found to be over.
typedef struct fabricast_request fabricast_request;

// What a context is made from. Zero everything, set `struct_size`, `rank`, `size` and `allgather`;
// the rest has defaults.
typedef struct fabricast_options {
  // `sizeof(fabricast_options)`.
  size_t struct_size;
  // Which process of the job this is, from 0.
  uint32_t rank;
  // How many there are.
  uint32_t size;
  // Gives `bytes` bytes at `mine` to all processes, and writes what each gave to `all`, in the
  // order of ranks (`size * bytes` bytes). Answers 0 if that went well. Called by all at once,
  // only while the context is made.
  int (*allgather)(void *user, const void *mine, void *all, size_t bytes);
  // Called again and again while a call blocks, so that the caller's own communication goes on;
  // may be null.
  void (*progress)(void *user);
  // Given to the two functions.
  void *user;
  // The network interface: a name or an address; null: the one by which the system sends
  // multicasts.
  const char *interface;
  // How multicast is made reliable, the same at all; null: `auto`.
  const char *scheme;
  // Share of datagrams to drop on purpose, each way, from 0 to 0.9: for tests.
  double inject_loss;
  // On which host this process is: those that say the same share its memory, if they can. Null:
  // the system's name of it, when it started, and its network.
  const char *host;
  // A descriptor that can be read while the caller's own communication has something to do, an
  // epoll descriptor for instance; null: there is none. A call that blocks then calls `progress`
  // at once, and goes on calling it without sleeping until there is no more to do. Only
  // `progress` makes it unreadable again. The context keeps a duplicate.
  const int *work;
} fabricast_options;

// Counters of a context since it was made.
typedef struct fabricast_statistics {
  // `sizeof(fabricast_statistics)`, set by the caller.
  size_t struct_size;
  // Broadcasts started here as root, and their bytes.
  uint64_t sent;
  // Bytes of them.
  uint64_t sent_bytes;
  // Broadcasts received, those under way among them.
  uint64_t received;
  // Bytes of them.
  uint64_t received_bytes;
  // Barriers entered.
  uint64_t barriers;
  // Data packets sent for the first time, to groups.
  uint64_t packets_multicast;
  // Data packets sent for the first time, to one process each.
  uint64_t packets_unicast;
  // Packets sent again, to groups.
  uint64_t repairs_multicast;
  // Packets sent again, to one process each.
  uint64_t repairs_unicast;
  // Losses that this process has noticed and that were mended.
  uint64_t losses;
  // Datagrams that came and that the kernel dropped because nobody read them in time.
  uint64_t dropped_by_kernel;
  // Datagrams dropped on purpose (`inject_loss`).
  uint64_t dropped_on_purpose;
  // How often a receiver was found that multicast does not reach, or no more: it is served by
  // unicast.
  uint64_t unreached;
  // Groups of this process that are not over yet: those that it has destroyed count until nobody
  // can ask for anything any more that was sent in them.
  uint64_t groups;
  // Data packets sent through the memory of this host, each once for all who share it.
  uint64_t packets_shared;
  // Bytes written there, everything counted.
  uint64_t bytes_shared;
  // How often this process had fallen so far behind that it lost what was written there; it was
  // sent again.
  uint64_t overruns_shared;
  // Processes that were to share memory with others of their host and cannot: each counts as a
  // host of its own. Each process says it for itself.
  uint64_t unshared;
} fabricast_statistics;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of this library, as `major.minor.patch`.
const char *fabricast_version(void);

// A status in a few words. Never null, never to be freed.
const char *fabricast_strerror(int status);

// Why the last call of this thread that failed did so, with what to do about it. Valid until this
// thread's next call; never null.
const char *fabricast_last_error(void);

// Makes the processes of a job known to each other. All call it at once, and all succeed or all
// are told the same reason. `context` is written only on success.
//
// The environment variable FABRICAST_LOG says which events go to standard error: a level (`info`,
// `debug`), or modules with levels (`info,fabricast::driver=debug`).
//
// # Safety
// `options` and `context` are valid pointers; the strings in `options` end with a zero byte.
int fabricast_context_create(const struct fabricast_options *options,
                             struct fabricast_context **context);

// Ends this process's part: what it has sent must have reached everybody ([`fabricast_flush`]),
// and all others must know that nobody will ask any more (a barrier of the caller's own, or that
// `groups` of the statistics has become 0). It is really over when its groups and requests are
// destroyed or over too, before or after this. Null is allowed.
//
// # Safety
// `context` came from [`fabricast_context_create`] and is used no more.
int fabricast_context_destroy(struct fabricast_context *context);

// Waits until everybody has what this process has sent.
//
// # Safety
// `context` is valid.
int fabricast_flush(const struct fabricast_context *context);

// The rank of the first process that was lost, or -1. How that was noticed is then what
// [`fabricast_last_error`] says.
//
// # Safety
// `context` is valid.
int64_t fabricast_lost(const struct fabricast_context *context);

// Why this process shares no memory with others of its host although there are any, or null. Valid
// as long as the context.
//
// # Safety
// `context` is valid.
const char *fabricast_unshared(const struct fabricast_context *context);

// The only call for the child after a fork, for each context that it has inherited: lets go of
// what tells the others that the parent has ended, or they would wait for the child to end, too.
// Safe in a handler of `pthread_atfork`.
//
// # Safety
// `context` is valid, and this is a child in which nothing else of this library is used.
int fabricast_context_forked(const struct fabricast_context *context);

// Counters of the context since it was made. The caller sets `struct_size`; what it has no room
// for is left out.
//
// # Safety
// Both pointers are valid, `statistics` for as many bytes as it says.
int fabricast_context_statistics(const struct fabricast_context *context,
                                 struct fabricast_statistics *statistics);

// The name of the network interface in use, into `room` bytes at `name`, its end included.
//
// # Safety
// `context` is valid, and `name` for `room` bytes.
int fabricast_context_interface(const struct fabricast_context *context, char *name, size_t room);

// The processes `members` (ranks of the context, `count` of them, in an order that all use) as a
// group. All of them name it by the same `id`, which none of them uses for another group, now or
// later.
//
// # Safety
// The pointers are valid, `members` for `count` numbers.
int fabricast_group_create(const struct fabricast_context *context,
                           uint32_t id,
                           const uint32_t *members,
                           size_t count,
                           struct fabricast_group **group);

// This process is done with the group: it waits for nothing in it any more. What it has sent is
// still brought to the others. All members do this in the end. Null is allowed.
//
// # Safety
// `group` came from [`fabricast_group_create`] and is used no more.
int fabricast_group_destroy(struct fabricast_group *group);

// Removes a group that nobody has used, and that not all members could create. Null is allowed.
//
// # Safety
// `group` came from [`fabricast_group_create`] and is used no more.
int fabricast_group_abandon(struct fabricast_group *group);

// How the group's barriers are made from the next one on, the same at all members:
// `dissemination(N)`, `release(N)`, `combining(N)`, `central`, `mcs`, `tournament`, `bst` or
// `butterfly`; null: as suits the group's size.
//
// # Safety
// `group` is valid, no operation is being started in it, and `name` is null or ends with a zero
// byte.
int fabricast_group_set_barrier(struct fabricast_group *group, const char *name);

// Broadcasts `bytes` bytes at `buffer` from member `root` (an index into the group's members) to
// all others, who call it with the same root and length, in the same order. At the root a short
// buffer is copied and the call returns at once; else it returns when everybody has everything.
//
// # Safety
// `group` is valid, and `buffer` for `bytes` bytes (written to, but at the root).
int fabricast_bcast(const struct fabricast_group *group,
                    void *buffer,
                    uint64_t bytes,
                    uint32_t root);

// Starts the same; `buffer` is not to be touched until [`fabricast_test`] or [`fabricast_wait`]
// says that it is over.
//
// # Safety
// As for [`fabricast_bcast`], until it is over.
int fabricast_ibcast(const struct fabricast_group *group,
                     void *buffer,
                     uint64_t bytes,
                     uint32_t root,
                     struct fabricast_request **request);

// Returns when all members of the group have called it.
//
// # Safety
// `group` is valid.
int fabricast_barrier(const struct fabricast_group *group);

// Starts the same.
//
// # Safety
// The pointers are valid.
int fabricast_ibarrier(const struct fabricast_group *group, struct fabricast_request **request);

// Whether the operation is over: then `*done` becomes 1, and the request is freed and becomes
// null. It is over too if this answers with an error.
//
// # Safety
// The pointers are valid; `*request` is null or came from a call that starts an operation.
int fabricast_test(struct fabricast_request **request, int *done);

// Waits until the operation is over. The request is freed and becomes null.
//
// # Safety
// As for [`fabricast_test`].
int fabricast_wait(struct fabricast_request **request);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FABRICAST_H */
