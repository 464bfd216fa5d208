/* Declarations that the parts of the shim share. Only the functions marked ENTRY are exported.
 *
 *   calls          the entry points of C
 *   fortran        the entry points of Fortran
 *   init           MPI_Init and MPI_Finalize
 *   library        the MPI library that the program uses
 *   errors         lines on standard error, and the error codes that failed calls return
 *   comm_state     the state of each communicator: its group, or why it has none
 *   packing        converts datatypes to bytes and back
 *   process_set    contexts, and the processes that share each of them
 *   watchdog       detects lost processes
 *   statistics     counters, which rank 0 prints at the end
 *   tune           measures whether Fabricast or the MPI library is faster
 *   tuning_table   keeps what was measured, in a file
 *   sockets        the MPI library's connections, which wake a rank that waits in the shim
 *   windows        windows of one-sided communication
 */
#ifndef FABRICAST_SHIM_H
#define FABRICAST_SHIM_H

#include <mpi.h>
#include <pthread.h>
#include <stdint.h>

#include "fabricast.h"
#include "tuning_table.h"

#define ENTRY __attribute__((visibility("default")))

/* Processes that share one context. */
struct process_set {
    struct process_set *next;
    uint64_t name; /* the same at all members, and different from other sets' names */
    fabricast_context *context;
    MPI_Group group;
    uint64_t *hosts; /* the host of each process, by rank in the set */
    int states;      /* states that use the set; 0 for MPI_COMM_WORLD's */
};

/* Fabricast serves a call (SERVED), or the MPI library does, for a reason. */
enum reason { SERVED, INVALID, INTER, ONE_HOST, NO_GROUP, FASTER, REASONS };

/* The shim's state of a communicator, kept as an attribute of it. */
struct comm_state {
    struct comm_state *next_state, **before;
    MPI_Comm comm;          /* MPI_COMM_NULL: a duplicate that the program has not used yet */
    fabricast_group *group; /* null: the MPI library serves the communicator */
    struct process_set *set;
    uint32_t *members;         /* ranks of the group in the set */
    uint64_t next, end;        /* group numbers left for duplicates; equal on all ranks */
    uint64_t duplicates;       /* that have taken some */
    uint64_t parts, parts_end; /* group numbers left for parts; all ranks propose the same */
    enum reason why;           /* SERVED, or why there is no group */
    int rank, size, hosts;
    struct choice choice; /* which calls go to the MPI library nevertheless */
    char name[32];        /* at the program's first call, for reports; empty before */
    unsigned said;        /* reasons reported already, one bit each */
    uint64_t bcasts, bytes, barriers, handed;
};

struct shim {
    pthread_mutex_t lock; /* guards the lists and `next` */
    int on;               /* whether the shim serves calls; never in a child after fork */
    int verbose;
    int rank;                      /* in MPI_COMM_WORLD */
    int keyval;                    /* of the attribute that holds a comm_state */
    int part;                      /* of the attribute that holds the numbers proposed for a part */
    MPI_Comm world, self;          /* the shim's own; `self` returns errors */
    int stats;                     /* whether rank 0 prints statistics at the end */
    struct process_set *world_set; /* the first of the sets; null if the job is one process */
    struct process_set *sets;
    struct process_set *retired; /* sets that no communicator uses, until they can be destroyed */
    struct comm_state *states;
    uint64_t next; /* number of the next group that ranks agree on */
    uint64_t end;  /* one more than the largest number of a group */
    /* calls left to the MPI library, counted by rank 0 of each communicator */
    uint64_t handed[REASONS];
    fabricast_statistics ended; /* sums of contexts that are destroyed */
};
extern struct shim shim;

/* Set while the shim calls the MPI library: calls that the library makes then are not served. */
extern __thread int inside;

/* calls.c */
/* Serves the call if Fabricast can. Returns whether it did; `status` is then the call's result. */
int serve_bcast(void *buffer, MPI_Count count, MPI_Datatype type, int root, MPI_Comm comm,
                int *status);
int serve_barrier(MPI_Comm comm, int *status);

/* init.c */
/* Starts the shim, once MPI is initialised in this process. */
void shim_begin(void);
/* Whether shim_begin was called. */
int has_begun(void);
/* Waits for a non-blocking operation of the MPI library between all processes. Returns 0 if a
 * process was lost before the operation completed. */
int await(MPI_Request *request);

/* library.c */
/* Whether the program uses another MPI library than the shim was built for. Reports that once. */
int is_other_library(void);
/* The next function of this name after the shim's: the MPI library's, or that of a tool between
 * them. */
void *library_function(const char *name);

/* errors.c */
/* Prints a line on standard error. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Prints this thread's last error of libfabricast, unless the line printed before was the same. */
void say_why(void);
/* Reports an operation that failed for good: prints why and calls the communicator's error handler.
 * Returns the MPI error code. */
int fail(MPI_Comm comm, int status);
/* Like `fail`, for a duplicate that got no group when it was made because a process was lost. */
int fail_without_group(MPI_Comm comm);

/* comm_state.c */
/* The state of the communicator. At its first use all its ranks create that together. NULL: the MPI
 * library serves the call. */
struct comm_state *comm_state_of(MPI_Comm comm);
int comm_state_delete(MPI_Comm comm, int keyval, void *value, void *extra);

/* Proposes a group number for MADE, after a call in which all ranks of COMM made parts of it. */
void comm_state_of_part(MPI_Comm comm, MPI_Comm made);
int comm_state_forget_part(MPI_Comm comm, int keyval, void *proposal, void *extra);
/* Above 0 while this thread makes a communicator that only some processes of another one enter.
 * Open MPI copies attributes there as well, and the copy must not get a group. */
extern __thread int creates_group;
/* Copies the state when a communicator is duplicated: derives the new group from the old one. */
int comm_state_copy(MPI_Comm comm, int keyval, void *extra, void *value, void *copy, int *copied);
/* Leaves all groups, when MPI_Finalize begins. */
void comm_states_leave(void);

/* process_set.c */
/* Lets the MPI library advance its pending operations. */
void progress(void *unused);
/* The environment variable's value, or NULL if it is unset or empty. */
const char *set_by(const char *variable);
/* Whether datagrams are lost or delayed on purpose, so that what is measured means nothing. */
int is_disturbed(void);
/* Creates a set of the processes of `comm`, on all of them. If one process fails, all return NULL
 * and one of them prints the reason. */
struct process_set *process_set_create(MPI_Comm comm);
/* Finds a set that contains all of `group` and holds it for a state. Fills `members` with their
 * ranks there. */
struct process_set *process_set_find(MPI_Group group, int size, int *members);
void process_set_add(struct process_set *set);
/* Counts one more state that uses the set. */
void process_set_hold(struct process_set *set);
void process_set_release(struct process_set *set);
/* Whether there are few enough sets to create another. */
int process_set_room(void);
/* The number of hosts of these members of the set (NULL: of its first `size`). Sets `fullest` to
 * the largest number of members on one host. */
int process_set_hosts(const struct process_set *set, const int *members, int size, int *fullest);
int process_set_members(const struct process_set *set, MPI_Group group, int size, int *members);
/* Destroys retired sets from which other processes need nothing more. */
void process_sets_sweep(void);
/* Waits until all sets can be destroyed. Returns 0 if a process was lost. */
int process_sets_flush(void);
/* The first process that was lost, or -1; fabricast_last_error tells how. */
int64_t process_sets_lost(void);
void process_sets_destroy(void);
/* Tells the contexts, in a child after a fork. The caller holds the lock. */
void process_sets_forked(void);

/* sockets.c */
/* A descriptor that is readable when the MPI library may have work; NULL if there is none. */
const int *sockets_work(void);
/* Clears the descriptor. The caller drives the MPI library next. */
void sockets_clear(void);
/* Keeps the descriptor readable from now on (`busy`), or ends that. */
void sockets_busy(int busy);

/* windows.c */
/* Starts to count windows if this rank shares its host with others. Otherwise windows need no
 * care. */
void windows_begin(int local_ranks);
void windows_end(void);
/* Counts a window, after a call that makes windows has returned. */
void window_comes(int status, MPI_Win win);

/* tune.c */
/* Gives all ranks the tuning table that rank 0 read, or measures one if the user asks for that. */
void tune_begin(void);
/* Measures a table for later jobs, if rank 0 found none. */
void tune_end(void);
/* Applies the tuning table to a communicator that has a group. */
void tune_choose(struct comm_state *state);
/* Prints which measurement the tuning used. */
void tune_tell(void);

/* watchdog.c */
/* Interval at which the watchdog looks for lost ranks, in milliseconds. */
enum { WATCHDOG_INTERVAL_MS = 250 };
void watchdog_begin(void);
/* Ends this rank if MPI_Finalize, which begins now, hangs because a process is lost. */
void watchdog_finalize(void);
/* Stops the watchdog. May be called again. */
void watchdog_end(void);

/* statistics.c */
/* Counts a call that the MPI library serves, by reason. `state` is NULL if the reason does not
 * depend on the communicator. */
void statistics_handed(struct comm_state *state, MPI_Comm comm, enum reason why);
/* Counts a call that the MPI library serves because `by` shows that the library is faster. */
void statistics_faster(struct comm_state *state, const struct measured *by);
/* Adds the counters of a communicator that is freed. */
void statistics_state(const struct comm_state *state);
/* Adds the counters of a context that is destroyed. */
void statistics_context(const fabricast_context *context);
/* Excludes MPI_COMM_WORLD's traffic from the statistics, from the call with 1 to that
 * with 0. */
void statistics_measuring(int begins);
/* Sums the counters of all ranks and prints them; without --stats only when communicators
 * get addresses of their own, and why some had none. All ranks call this while MPI still works. */
void statistics_tell(void);

/* packing.c */
/* Whether the MPI library accepts the type. If not, the library must report that itself. */
int datatype_is_usable(MPI_Datatype type);
/* Whether elements lie in memory one after the other, in the order in which MPI sends them. */
int datatype_is_contiguous(MPI_Datatype type, MPI_Count size);
/* Packs `count` elements of `size` bytes each into `bytes`, or unpacks them. */
int datatype_pack(int pack, void *elements, MPI_Count count, MPI_Datatype type, MPI_Count size,
                  char *bytes, MPI_Comm self);

#endif
