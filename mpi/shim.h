/* What the parts of the shim share. Only the entry points are seen from outside.
 *
 *   shim      the calls of C, the beginning and the end
 *   fortran   the calls of Fortran
 *   place     what is known of a communicator
 *   elements  datatypes as bytes
 *   scope     contexts: processes that know each other
 *   watch     those that are lost
 *   tally     what is counted, and told at the end
 *   tune      who is faster (verdict: how it is kept)
 *   sockets   the MPI library's connections, which wake a rank that waits in a call of ours
 *   windows   of one-sided communication
 */
#ifndef FABRICAST_SHIM_H
#define FABRICAST_SHIM_H

#include <mpi.h>
#include <pthread.h>
#include <stdint.h>

#include "fabricast.h"
#include "verdict.h"

#define ENTRY __attribute__((visibility("default")))

/* Processes that have made themselves known to each other. */
struct scope {
    struct scope *next;
    uint64_t name;             /* the same at all its members, and different from other scopes' */
    fabricast_context *context;
    MPI_Group group;
    uint64_t *hosts;           /* on which host each of them is */
    int places;                /* that use it; MPI_COMM_WORLD's scope stays without any */
};

/* Why a call is the library's. */
enum reason { SERVED, INVALID, INTER, ONE_HOST, NO_GROUP, FASTER, REASONS };

/* What is known of a communicator; an attribute of it. */
struct place {
    struct place *next_place, **before;
    MPI_Comm comm;             /* MPI_COMM_NULL: a duplicate that was not used yet */
    fabricast_group *group;    /* none: the library serves it */
    struct scope *scope;
    uint32_t *members;         /* of the group */
    uint64_t next, end;        /* numbers of groups that duplicates may have; the same on all ranks */
    uint64_t parts, parts_end; /* numbers that are left for parts; all ranks propose the same */
    enum reason why;           /* there is none */
    int rank, size, hosts;
    struct choice choice;      /* what is served all the same by the library */
    char name[32];             /* as it was at the program's first call, for people; empty before */
    unsigned said;             /* reasons that were told, a bit each */
    uint64_t bcasts, bytes, barriers, handed;
};

struct shim {
    pthread_mutex_t lock;      /* of the lists and of `next` */
    int on;                    /* whether anything is served; never in a child after fork */
    int verbose;
    int rank;                  /* in MPI_COMM_WORLD */
    int keyval;                /* of places */
    int part;                  /* of the numbers that are proposed for parts */
    MPI_Comm world, self;      /* ours alone; `self` returns errors */
    int stats;                 /* whether they are told at the end */
    struct scope *world_scope; /* the first of the scopes, unless MPI_COMM_WORLD is one process */
    struct scope *scopes;
    struct scope *retired;     /* that no communicator uses and that end soon */
    struct place *places;
    uint64_t next;             /* number of the next group that is agreed on */
    uint64_t handed[REASONS];  /* calls left to the library, counted by rank 0 of each communicator */
    fabricast_statistics ended; /* of contexts that are no more */
};
extern struct shim shim;

/* Set while the MPI library works for us: what it calls is its own business. */
extern __thread int inside;

/* A line on standard error. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* shim.c */
/* Waits for an operation of the library's between all processes. Whether it came about: not if one
 * was lost. */
int await(MPI_Request *request);
/* Whether the program is of another MPI library than this was built for; says so once. */
int is_other_library(void);
/* The MPI library's own function of this name, or whatever else stands between it and us. */
void *library_function(const char *name);
/* MPI has been initialised in this process. */
void shim_begin(void);
/* Whether the call was served; then `status` is what it answers. */
int serve_bcast(void *buffer, MPI_Count count, MPI_Datatype type, int root, MPI_Comm comm, int *status);
int serve_barrier(MPI_Comm comm, int *status);

/* place.c */
/* What is known of the communicator, found out at its first use by all its ranks. NULL: nothing is
 * served. */
struct place *place_of(MPI_Comm comm);
int place_delete(MPI_Comm comm, int keyval, void *value, void *extra);

/* All ranks of COMM have made MADE, or another, of a part of them: proposes its group's number. */
void place_part(MPI_Comm comm, MPI_Comm made);
int place_forget(MPI_Comm comm, int keyval, void *proposal, void *extra);
/* Set while this thread makes a communicator of some of another's processes, and only they do: Open
 * MPI copies attributes there as well. */
extern __thread int creates_group;
/* A communicator is duplicated: what is known of the new one follows from the old one. */
int place_copy(MPI_Comm comm, int keyval, void *extra, void *value, void *copy, int *copied);
/* This process is done with all groups. */
void places_leave(void);

/* scope.c */
/* Lets the MPI library go on with what is under way. */
void progress(void *unused);
/* FABRICAST_INJECT_LOSS, a share. */
double loss_on_purpose(void);
/* Makes the processes of `comm` known to each other: on all of them, or NULL on all, with a reason
 * told. */
struct scope *scope_create(MPI_Comm comm);
/* One in which all of `group` are, held for a place; `members` becomes which they are there. */
struct scope *scope_find(MPI_Group group, int size, int *members);
void scope_add(struct scope *scope);
/* One more place uses it. */
void scope_hold(struct scope *scope);
void scope_release(struct scope *scope);
/* Whether one more may be made. */
int scope_room(void);
/* On how many hosts these of its processes are (NULL: the first ones), and how many on the
 * fullest. */
int scope_hosts(const struct scope *scope, const int *members, int size, int *fullest);
int scope_members(const struct scope *scope, MPI_Group group, int size, int *members);
/* Ends those retired ones that others need no more. */
void scopes_sweep(void);
/* Waits until all scopes can end. Whether they can: not if a process was lost. */
int scopes_flush(void);
/* The first process that was lost, or -1; fabricast_last_error says how. */
int64_t scopes_lost(void);
void scopes_destroy(void);
/* In a child after a fork: with the lock. */
void scopes_forked(void);

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
void windows_begin(int mates);
void windows_end(void);
/* A call that makes windows has returned. */
void window_comes(int status, MPI_Win win);

/* tune.c */
/* Gets what there is to go by to all ranks, or measures it if somebody asks for that. */
void tune_begin(void);
/* Measures for later jobs, if there was nothing to go by. */
void tune_end(void);
/* What follows for a communicator that has a group. */
void tune_choose(struct place *place);
/* By what it was judged. */
void tune_tell(void);

/* watch.c */
void watch_begin(void);
/* MPI_Finalize has begun: should it not come through because a process is lost, this rank ends. */
void watch_finalize(void);
/* Once or more often. */
void watch_end(void);

/* tally.c */
/* The library serves a call, and why. The place is none if nothing needed to be known of the
 * communicator. */
void tally_handed(struct place *place, MPI_Comm comm, enum reason why);
/* The same, because the library is faster, as was measured. */
void tally_faster(struct place *place, const struct measured *by);
/* A communicator goes. */
void tally_place(const struct place *place);
/* A context goes. */
void tally_context(const fabricast_context *context);
/* What MPI_COMM_WORLD's context counts from when measuring begins until it does not counts for
 * nothing. */
void tally_measuring(int begins);
/* Tells what was counted on all ranks together; all call it, while MPI works. */
void tally_tell(void);

/* elements.c */
/* Whether the library would take it; what it says of one that it does not, it is to say itself. */
int elements_are_usable(MPI_Datatype type);
/* Whether elements lie one after the other in memory in the order in which they are sent. */
int elements_are_plain(MPI_Datatype type, MPI_Count size);
/* Packs `count` elements of `size` bytes each into `bytes`, or unpacks them. */
int elements_move(int pack, void *elements, MPI_Count count, MPI_Datatype type, MPI_Count size, char *bytes,
                  MPI_Comm self);

#endif
