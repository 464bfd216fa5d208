/* What the parts of the shim share. Only the entry points are seen from outside.
 *
 *   calls          the entry points of C
 *   fortran        the entry points of Fortran
 *   init           MPI_Init and MPI_Finalize
 *   library        the MPI library that the program uses
 *   errors         what is said, and the error codes that are returned
 *   comm_state     what is known of a communicator
 *   packing        datatypes as bytes
 *   process_set    contexts: processes that know each other
 *   watchdog       processes that are lost
 *   statistics     what is counted, and told at the end
 *   tune           what is faster, ours or the library (tuning_table: how that is kept)
 *   sockets        the MPI library's connections, which wake a rank that waits in a call of ours
 *   windows        of one-sided communication
 */
#ifndef FABRICAST_SHIM_H
#define FABRICAST_SHIM_H

#include <mpi.h>
#include <pthread.h>
#include <stdint.h>

#include "fabricast.h"
#include "tuning_table.h"

#define ENTRY __attribute__((visibility("default")))

/* Processes that have made themselves known to each other. */
struct process_set {
    struct process_set *next;
    uint64_t name; /* the same at all its members, and different from other sets' */
    fabricast_context *context;
    MPI_Group group;
    uint64_t *hosts; /* on which host each of them is */
    int states;      /* that use it; MPI_COMM_WORLD's set stays without any */
};

/* Why a call is the library's. */
enum reason { SERVED, INVALID, INTER, ONE_HOST, NO_GROUP, FASTER, REASONS };

/* What is known of a communicator; an attribute of it. */
struct comm_state {
    struct comm_state *next_state, **before;
    MPI_Comm comm;          /* MPI_COMM_NULL: a duplicate that was not used yet */
    fabricast_group *group; /* none: the library serves it */
    struct process_set *set;
    uint32_t *members;  /* of the group */
    uint64_t next, end; /* numbers of groups that duplicates may have; the same on all ranks */
    uint64_t parts, parts_end; /* numbers that are left for parts; all ranks propose the same */
    enum reason why;           /* there is none */
    int rank, size, hosts;
    struct choice choice; /* what is served all the same by the library */
    char name[32];        /* as it was at the program's first call, for people; empty before */
    unsigned said;        /* reasons that were told, a bit each */
    uint64_t bcasts, bytes, barriers, handed;
};

struct shim {
    pthread_mutex_t lock; /* of the lists and of `next` */
    int on;               /* whether anything is served; never in a child after fork */
    int verbose;
    int rank;                      /* in MPI_COMM_WORLD */
    int keyval;                    /* of states */
    int part;                      /* of the numbers that are proposed for parts */
    MPI_Comm world, self;          /* ours alone; `self` returns errors */
    int stats;                     /* whether they are told at the end */
    struct process_set *world_set; /* the first of the sets, unless MPI_COMM_WORLD is one process */
    struct process_set *sets;
    struct process_set *retired; /* that no communicator uses and that end soon */
    struct comm_state *states;
    uint64_t next; /* number of the next group that is agreed on */
    uint64_t
        handed[REASONS]; /* calls left to the library, counted by rank 0 of each communicator */
    fabricast_statistics ended; /* of contexts that are no more */
};
extern struct shim shim;

/* Set while the MPI library works for us: what it calls is its own business. */
extern __thread int inside;

/* calls.c */
/* Whether the call was served; then `status` is what it answers. */
int serve_bcast(void *buffer, MPI_Count count, MPI_Datatype type, int root, MPI_Comm comm,
                int *status);
int serve_barrier(MPI_Comm comm, int *status);

/* init.c */
/* MPI has been initialised in this process. */
void shim_begin(void);
/* Whether shim_begin was called. */
int has_begun(void);
/* Waits for an operation of the library's between all processes. Whether it came about: not if one
 * was lost. */
int await(MPI_Request *request);

/* library.c */
/* Whether the program is of another MPI library than this was built for; says so once. */
int is_other_library(void);
/* The MPI library's own function of this name, or whatever else stands between it and us. */
void *library_function(const char *name);

/* errors.c */
/* A line on standard error. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Tells this thread's last error of the library, unless the last one told was the same. */
void say_why(void);
/* An operation has failed for good: MPI's error handler of the communicator decides what comes of
 * it. Returns the error code. */
int fail(MPI_Comm comm, int status);
/* A duplicate could not have its group when it was made: a process of it was lost. */
int fail_without_group(MPI_Comm comm);

/* comm_state.c */
/* What is known of the communicator, found out at its first use by all its ranks. NULL: nothing is
 * served. */
struct comm_state *comm_state_of(MPI_Comm comm);
int comm_state_delete(MPI_Comm comm, int keyval, void *value, void *extra);

/* All ranks of COMM have made MADE, or another, of a part of them: proposes its group's number. */
void comm_state_of_part(MPI_Comm comm, MPI_Comm made);
int comm_state_forget_part(MPI_Comm comm, int keyval, void *proposal, void *extra);
/* Set while this thread makes a communicator of some of another's processes, and only they do: Open
 * MPI copies attributes there as well. */
extern __thread int creates_group;
/* A communicator is duplicated: what is known of the new one follows from the old one. */
int comm_state_copy(MPI_Comm comm, int keyval, void *extra, void *value, void *copy, int *copied);
/* This process is done with all groups. */
void comm_states_leave(void);

/* process_set.c */
/* Lets the MPI library go on with what is under way. */
void progress(void *unused);
/* FABRICAST_INJECT_LOSS, a share. */
double loss_on_purpose(void);
/* Makes the processes of `comm` known to each other: on all of them, or NULL on all, with a reason
 * told. */
struct process_set *process_set_create(MPI_Comm comm);
/* One in which all of `group` are, held for a state; `members` becomes which they are there. */
struct process_set *process_set_find(MPI_Group group, int size, int *members);
void process_set_add(struct process_set *set);
/* One more state uses it. */
void process_set_hold(struct process_set *set);
void process_set_release(struct process_set *set);
/* Whether one more may be made. */
int process_set_room(void);
/* On how many hosts these of its processes are (NULL: the first ones), and how many on the
 * fullest. */
int process_set_hosts(const struct process_set *set, const int *members, int size, int *fullest);
int process_set_members(const struct process_set *set, MPI_Group group, int size, int *members);
/* Ends those retired ones that others need no more. */
void process_sets_sweep(void);
/* Waits until all sets can end. Whether they can: not if a process was lost. */
int process_sets_flush(void);
/* The first process that was lost, or -1; fabricast_last_error says how. */
int64_t process_sets_lost(void);
void process_sets_destroy(void);
/* In a child after a fork: with the lock. */
void process_sets_forked(void);

/* sockets.c */
/* A descriptor that can be read when the MPI library may have something to do; NULL: there is
 * none. */
const int *sockets_work(void);
/* What it told is being heeded: the caller drives the library next. */
void sockets_heed(void);
/* Whether it has something to do at any time, from now on. */
void sockets_busy(int busy);

/* windows.c */
/* Whether this rank shares its host with others; else windows need no care. */
void windows_begin(int local_ranks);
void windows_end(void);
/* A call that makes windows has returned. */
void window_comes(int status, MPI_Win win);

/* tune.c */
/* Gets what there is to go by to all ranks, or measures it if somebody asks for that. */
void tune_begin(void);
/* Measures for later jobs, if there was nothing to go by. */
void tune_end(void);
/* What follows for a communicator that has a group. */
void tune_choose(struct comm_state *state);
/* By what it was judged. */
void tune_tell(void);

/* watchdog.c */
/* How often the watchdog looks for lost ranks. */
enum { WATCHDOG_INTERVAL_MS = 250 };
void watchdog_begin(void);
/* MPI_Finalize has begun: should it not come through because a process is lost, this rank ends. */
void watchdog_finalize(void);
/* Once or more often. */
void watchdog_end(void);

/* statistics.c */
/* The library serves a call, and why. The state is none if nothing needed to be known of the
 * communicator. */
void statistics_handed(struct comm_state *state, MPI_Comm comm, enum reason why);
/* The same, because the library is faster, as was measured. */
void statistics_faster(struct comm_state *state, const struct measured *by);
/* A communicator goes. */
void statistics_place(const struct comm_state *state);
/* A context goes. */
void statistics_context(const fabricast_context *context);
/* What MPI_COMM_WORLD's context counts from when measuring begins until it does not counts for
 * nothing. */
void statistics_measuring(int begins);
/* Tells what was counted on all ranks together; all call it, while MPI works. */
void statistics_tell(void);

/* packing.c */
/* Whether the library would take it; what it says of one that it does not, it is to say itself. */
int datatype_is_usable(MPI_Datatype type);
/* Whether elements lie one after the other in memory in the order in which they are sent. */
int datatype_is_contiguous(MPI_Datatype type, MPI_Count size);
/* Packs `count` elements of `size` bytes each into `bytes`, or unpacks them. */
int datatype_pack(int pack, void *elements, MPI_Count count, MPI_Datatype type, MPI_Count size,
                  char *bytes, MPI_Comm self);

#endif
