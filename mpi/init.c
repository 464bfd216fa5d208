/* MPI_Init and MPI_Finalize: how serving begins and how it ends.
 *
 *   MPI_Init       creates one context for MPI_COMM_WORLD, and its group
 *   first use      of a communicator: all its ranks agree on a group, or that there is none
 *   MPI_Finalize   deletes MPI_COMM_SELF's attributes first: `finalize` flushes everything
 */
#include "shim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct shim shim = {.lock = PTHREAD_MUTEX_INITIALIZER, .keyval = MPI_KEYVAL_INVALID};
__thread int inside;

static int begun;

int has_begun(void) {
    return begun;
}

/* First pause between two tests of a request, in nanoseconds. Each further pause is longer. */
static const long first_pause_ns = 20000;

static void sleep_longer(long *pause_ns) {
    nanosleep(&(struct timespec){.tv_nsec = *pause_ns}, NULL);
    *pause_ns = *pause_ns < 1000000 ? 2 * *pause_ns : *pause_ns;
}

int await(MPI_Request *request) {
    int done = 0;
    long pause_ns = first_pause_ns;
    while (PMPI_Test(request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done) {
        if (process_sets_lost() >= 0)
            return 0;
        sleep_longer(&pause_ns);
    }
    return done;
}

static int meet(void) {
    MPI_Request request;
    PMPI_Ibarrier(shim.world, &request);
    return await(&request);
}

/* Runs first in MPI_Finalize, which deletes the attributes of MPI_COMM_SELF while MPI still works,
 * the last one set first. */
static int finalize(MPI_Comm comm, int keyval, void *value, void *extra) {
    (void)comm, (void)keyval, (void)value, (void)extra;
    if (!shim.on)
        return MPI_SUCCESS;
    watchdog_finalize();
    tune_end();
    pthread_mutex_lock(&shim.lock);
    shim.on = 0;
    pthread_mutex_unlock(&shim.lock);
    comm_states_leave();
    /* If a process is lost, the watchdog stays on: the MPI library may wait for that process from
     * here on. */
    if (!process_sets_flush() || !meet())
        return fail(MPI_COMM_WORLD,
                    process_sets_lost() >= 0 ? FABRICAST_ERR_PEER_LOST : FABRICAST_ERR_SYSTEM);
    if (shim.stats || shim.verbose)
        statistics_tell();
    watchdog_end();
    process_sets_destroy();
    windows_end();
    PMPI_Comm_free_keyval(&shim.keyval);
    PMPI_Comm_free_keyval(&shim.part);
    PMPI_Comm_free(&shim.world);
    PMPI_Comm_free(&shim.self);
    return MPI_SUCCESS;
}

/* Keeps other threads from changing the lists while the process forks. */
static void before_fork(void) {
    pthread_mutex_lock(&shim.lock);
}

static void forked(void) {
    pthread_mutex_unlock(&shim.lock);
}

/* Switches the shim off in the child, which has none of the shim's threads and may not use MPI. */
static void forked_child(void) {
    shim.on = 0;
    process_sets_forked();
    pthread_mutex_unlock(&shim.lock);
}

/* Whether other ranks of MPI_COMM_WORLD are on this host. */
static int has_local_ranks(int size) {
    int local_ranks = 0;
    for (int i = 0; i < size && shim.world_set; i++)
        local_ranks += shim.world_set->hosts[i] == shim.world_set->hosts[shim.rank];
    return local_ranks > 1;
}

static int is_set(const char *variable) {
    const char *value = getenv(variable);
    return value && *value && strcmp(value, "0") != 0;
}

/* Agrees on values with all ranks: the first such step. A rank without the shim never takes part,
 * so the others report that after a while and end the job instead of waiting for ever. */
static void agree(int *choice, int count) {
    enum { SAYS_S = 10, ENDS_S = 60 };
    const char *wanted = getenv("FABRICAST_INIT_TIMEOUT");
    char *rest = NULL;
    double ends = wanted ? strtod(wanted, &rest) : 0;
    int known = ends > 0 && !*rest;
    if (wanted && *wanted && !known && shim.rank == 0)
        say("FABRICAST_INIT_TIMEOUT is a number of seconds above 0, not '%s': %d", wanted, ENDS_S);
    ends = known ? ends : ENDS_S;
    double says = ends / 2 < SAYS_S ? ends / 2 : SAYS_S;
    int done = 0, said = 0;
    MPI_Request request;
    PMPI_Iallreduce(MPI_IN_PLACE, choice, count, MPI_INT, MPI_MAX, MPI_COMM_WORLD, &request);
    double began = PMPI_Wtime();
    for (long pause_ns = first_pause_ns;
         PMPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done;) {
        double waited = PMPI_Wtime() - began;
        if (waited >= says && !said++ && shim.rank < 2)
            say("has waited %g s for ranks that run without Fabricast, or not at all: is what "
                "LD_PRELOAD names (%s) on every host, "
                "and is it set for every rank? The job is ended after %.0f s "
                "(FABRICAST_INIT_TIMEOUT); FABRICAST=off does without",
                says, getenv("LD_PRELOAD") ? getenv("LD_PRELOAD") : "nothing", ends);
        if (waited >= ends) {
            say("ends the job: not all ranks have come to MPI_Init with Fabricast within %.0f s",
                ends);
            /* The launcher discards output of an aborted job that it has not read yet. */
            nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
            PMPI_Abort(MPI_COMM_WORLD, 1);
        }
        sleep_longer(&pause_ns);
    }
    if (!done)
        PMPI_Abort(MPI_COMM_WORLD, 1);
}

/* One more than the largest number that a group may have. */
static uint64_t numbers_end(void) {
    uint32_t max = 0;
    if (shim.world_set)
        fabricast_context_group_max(shim.world_set->context, &max);
    return (uint64_t)max + 1;
}

extern char **environ;

/* Reports variables that begin with FABRICAST_ but mean nothing: the name may be misspelt. Rank 0
 * checks its own environment. */
static void tell_unknown(void) {
    static const char *const known[] = {
        "STATS", "INTERFACE",    "INJECT_LOSS", "INJECT_DELAY", "SCHEME", "TUNE",
        "CACHE", "INIT_TIMEOUT", "MPI",         "LIB",          "LOG",    "CLUSTER" /* testbed */,
        "BROADCAST", "GROUPS", "SUBNET", "ADDRESSES"};
    static const char ours[] = "FABRICAST_";
    for (char **variable = environ; *variable; variable++) {
        if (strncmp(*variable, ours, sizeof ours - 1) != 0)
            continue;
        const char *name = *variable + sizeof ours - 1;
        size_t length = strcspn(name, "="), i = 0, count = sizeof known / sizeof *known;
        while (i < count && (strlen(known[i]) != length || strncmp(name, known[i], length) != 0))
            i++;
        if (i == count)
            say("there is no variable %s%.*s (docs/mpi.md lists them)", ours, (int)length, name);
    }
}

/* Runs a few broadcasts and barriers before the program does. The first ones take milliseconds: for
 * memory, for threads that have never run, for the MPI library's messages between calls of
 * Fabricast. The program does not pay for that, and the statistics exclude it. With each broadcast
 * rank 0 tells whether there is time for another round. A failure here repeats in the program's
 * first call, which reports it. The watchdog ends ranks that wait for a lost process in the MPI
 * library's barrier. */
static void rehearse(const struct comm_state *state) {
    enum { ROUNDS = 8 };
    const double most_s = 0.01;
    if (!state || !state->group)
        return;
    statistics_measuring(1);
    double began = PMPI_Wtime();
    char again = 1;
    for (int i = 1; again && fabricast_barrier(state->group) == FABRICAST_OK; i++) {
        again = i < ROUNDS && PMPI_Wtime() - began < most_s;
        if (fabricast_bcast(state->group, &again, sizeof again, 0) != FABRICAST_OK)
            break;
        PMPI_Barrier(shim.world);
    }
    fabricast_flush(state->set->context);
    statistics_measuring(0);
}

void shim_begin(void) {
    if (begun++ || is_other_library())
        return;
    const char *wanted = getenv("FABRICAST");
    wanted = wanted && *wanted ? wanted : "on";
    int size;
    PMPI_Comm_rank(MPI_COMM_WORLD, &shim.rank);
    PMPI_Comm_size(MPI_COMM_WORLD, &size);
    int known = !strcmp(wanted, "on") || !strcmp(wanted, "off") || !strcmp(wanted, "verbose");
    if (!known && shim.rank == 0)
        say("FABRICAST is on, off or verbose, not '%s': off", wanted);
    /* Ranks may have different environments, but must decide the same. */
    int choice[] = {!known || !strcmp(wanted, "off"), !strcmp(wanted, "verbose"),
                    is_set("FABRICAST_STATS")};
    int off = choice[0];
    inside++;
    agree(choice, 3);
    shim.verbose = choice[1];
    shim.stats = choice[2];
    if (choice[0]) {
        if (shim.rank == 0 && (shim.verbose || !off))
            say("leaves everything to the MPI library: it is off%s", off ? "" : " on another rank");
        goto out;
    }
    if (shim.rank == 0)
        tell_unknown();
    PMPI_Comm_dup(MPI_COMM_SELF, &shim.self);
    PMPI_Comm_set_errhandler(shim.self, MPI_ERRORS_RETURN);
    if (size > 1 && !(shim.world_set = process_set_create(MPI_COMM_WORLD))) {
        PMPI_Comm_free(&shim.self);
        goto out;
    }
    int end;
    sockets_clear();
    shim.sets = shim.world_set;
    shim.next = 1;
    shim.end = numbers_end();
    PMPI_Comm_dup(MPI_COMM_WORLD, &shim.world);
    PMPI_Comm_create_keyval(comm_state_copy, comm_state_delete, &shim.keyval, NULL);
    PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, comm_state_forget_part, &shim.part, NULL);
    PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, finalize, &end, NULL);
    PMPI_Comm_set_attr(MPI_COMM_SELF, end, NULL);
    PMPI_Comm_free_keyval(&end);
    pthread_atfork(before_fork, forked, forked_child);
    shim.on = 1;
    windows_begin(has_local_ranks(size));
    watchdog_begin();
    tune_begin();
    /* All ranks are here, so they agree now on the communicator that nearly every program uses
     * first. */
    struct comm_state *world = comm_state_of(MPI_COMM_WORLD);
    rehearse(world);
    if (world)
        world->name[0] = '\0'; /* the program may give it a name before its first call */
    if (shim.verbose && shim.rank == 0)
        say("serves MPI_Bcast and MPI_Barrier of %d ranks", size);
out:
    inside--;
}

ENTRY int MPI_Init(int *argc, char ***argv) {
    int (*library)(int *, char ***) = library_function("MPI_Init");
    inside++;
    int status = library(argc, argv);
    inside--;
    if (status == MPI_SUCCESS)
        shim_begin();
    return status;
}

ENTRY int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    int (*library)(int *, char ***, int, int *) = library_function("MPI_Init_thread");
    inside++;
    int status = library(argc, argv, required, provided);
    inside--;
    if (status == MPI_SUCCESS)
        shim_begin();
    return status;
}

ENTRY int MPI_Finalize(void) {
    int (*library)(void) = library_function("MPI_Finalize");
    int status = library();
    watchdog_end();
    return status;
}
