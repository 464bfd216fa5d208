/* The entry points of C: MPI_Bcast, MPI_Barrier, and calls that make communicators.
 *
 * The shim is preloaded into the ranks of a job, so its functions hide those of the MPI library.
 * The shim serves the calls that it can and passes all others on. Its decision depends only on
 * values that are equal on all ranks: the communicator, the root, the number of bytes.
 */
#include "shim.h"

#include <stdlib.h>
#include <string.h>

/* Reports a tool that replaces MPI_Init and calls PMPI_Init itself, past the shim. Then no rank
 * uses Fabricast; rank 0 says so. */
static void say_passed_by(void) {
    const char *wanted = getenv("FABRICAST");
    int initialized = 0;
    PMPI_Initialized(&initialized);
    if (!initialized || (wanted && strcmp(wanted, "off") == 0))
        return;
    PMPI_Comm_rank(MPI_COMM_WORLD, &shim.rank);
    if (shim.rank == 0)
        say("leaves everything to the MPI library: a tool has called PMPI_Init past it");
}

/* Whether the shim can serve any call now. */
static int is_on(MPI_Comm comm) {
    static pthread_once_t passed_by = PTHREAD_ONCE_INIT;
    if (!has_begun() && !inside)
        pthread_once(&passed_by, say_passed_by);
    return shim.on && !inside && comm != MPI_COMM_NULL;
}

static int is_inter(MPI_Comm comm) {
    int inter = 0;
    PMPI_Comm_test_inter(comm, &inter);
    return inter;
}

/* Broadcasts elements whose order in memory is not the order in which MPI sends them. */
static int bcast_packed(struct comm_state *state, void *buffer, MPI_Count count, MPI_Datatype type,
                        MPI_Count size, int root) {
    uint64_t bytes = (uint64_t)size * (uint64_t)count;
    char *packed = malloc(bytes);
    if (!packed) {
        say("no memory for %llu bytes of a broadcast", (unsigned long long)bytes);
        PMPI_Comm_call_errhandler(state->comm, MPI_ERR_NO_MEM);
        return MPI_ERR_NO_MEM;
    }
    int is_root = state->rank == root, moved = MPI_SUCCESS;
    inside++;
    if (is_root)
        moved = datatype_pack(1, buffer, count, type, size, packed, shim.self);
    inside--;
    int status = fabricast_bcast(state->group, packed, bytes, (uint32_t)root);
    inside++;
    if (!is_root && status == FABRICAST_OK)
        moved = datatype_pack(0, buffer, count, type, size, packed, shim.self);
    inside--;
    free(packed);
    if (status != FABRICAST_OK)
        return fail(state->comm, status);
    if (moved != MPI_SUCCESS)
        PMPI_Comm_call_errhandler(state->comm, moved);
    return moved;
}

int serve_bcast(void *buffer, MPI_Count count, MPI_Datatype type, int root, MPI_Comm comm,
                int *status) {
    if (!is_on(comm))
        return 0;
    /* Checked before the ranks agree on anything: if one rank alone is wrong, its call must fail at
     * once. (The root of an inter-communicator may be negative.) */
    MPI_Count size = 0;
    if (count < 0 || root < 0 || buffer == MPI_IN_PLACE || type == MPI_DATATYPE_NULL ||
        !datatype_is_usable(type) || PMPI_Type_size_x(type, &size) != MPI_SUCCESS) {
        statistics_handed(NULL, comm, root < 0 && is_inter(comm) ? INTER : INVALID);
        return 0;
    }
    /* Fabricast serves a broadcast of no bytes like others: another rank may expect bytes, and must
     * learn of the difference. */
    int empty = count == 0 || size <= 0, plain = empty || datatype_is_contiguous(type, size);
    /* With types that are not contiguous, NULL may be MPI_BOTTOM: the type holds the addresses. */
    if (plain && !empty && !buffer) {
        statistics_handed(NULL, comm, INVALID);
        return 0;
    }
    struct comm_state *state = comm_state_of(comm);
    if (!state)
        return 0;
    enum reason why = state->group && root >= state->size ? INVALID : state->why;
    if (why != SERVED) {
        statistics_handed(state, comm, why);
        return 0;
    }
    uint64_t bytes = empty ? 0 : (uint64_t)size * (uint64_t)count;
    if (!state->group) {
        *status = fail_without_group(comm);
        return 1;
    }
    const struct measured *by = choice_bcast(&state->choice, bytes);
    if (by && tuning_table_is_lost(by)) {
        statistics_faster(state, by);
        return 0;
    }
    state->bcasts++;
    state->bytes += bytes;
    if (plain) {
        int done = fabricast_bcast(state->group, buffer, bytes, (uint32_t)root);
        *status = done == FABRICAST_OK ? MPI_SUCCESS : fail(comm, done);
    } else {
        *status = bcast_packed(state, buffer, count, type, size, root);
    }
    return 1;
}

int serve_barrier(MPI_Comm comm, int *status) {
    struct comm_state *state = is_on(comm) ? comm_state_of(comm) : NULL;
    if (!state)
        return 0;
    if (state->why != SERVED) {
        statistics_handed(state, comm, state->why);
        return 0;
    }
    if (!state->group) {
        *status = fail_without_group(comm);
        return 1;
    }
    const struct measured *by = state->choice.barrier;
    if (by && tuning_table_is_lost(by)) {
        statistics_faster(state, by);
        return 0;
    }
    state->barriers++;
    int done = fabricast_barrier(state->group);
    *status = done == FABRICAST_OK ? MPI_SUCCESS : fail(comm, done);
    return 1;
}

ENTRY int MPI_Bcast(void *buffer, int count, MPI_Datatype type, int root, MPI_Comm comm) {
    static int (*library)(void *, int, MPI_Datatype, int, MPI_Comm);
    int status;
    if (serve_bcast(buffer, count, type, root, comm, &status))
        return status;
    if (!library)
        library = library_function("MPI_Bcast");
    return library(buffer, count, type, root, comm);
}

#if MPI_VERSION >= 4
ENTRY int MPI_Bcast_c(void *buffer, MPI_Count count, MPI_Datatype type, int root, MPI_Comm comm) {
    static int (*library)(void *, MPI_Count, MPI_Datatype, int, MPI_Comm);
    int status;
    if (serve_bcast(buffer, count, type, root, comm, &status))
        return status;
    if (!library)
        library = library_function("MPI_Bcast_c");
    return library(buffer, count, type, root, comm);
}
#endif

ENTRY int MPI_Comm_create_group(MPI_Comm comm, MPI_Group group, int tag, MPI_Comm *made) {
    static int (*library)(MPI_Comm, MPI_Group, int, MPI_Comm *);
    if (!library)
        library = library_function("MPI_Comm_create_group");
    creates_group++;
    int status = library(comm, group, tag, made);
    creates_group--;
    return status;
}

/* A call of all ranks of COMM that makes communicators of parts of COMM. */
#define PARTS(name, takes, gives)                                                                  \
    ENTRY int name takes {                                                                         \
        static int(*library) takes;                                                                \
        if (!library)                                                                              \
            library = library_function(#name);                                                     \
        int status = library gives;                                                                \
        if (status == MPI_SUCCESS)                                                                 \
            comm_state_of_part(comm, *made);                                                       \
        return status;                                                                             \
    }

PARTS(MPI_Comm_split, (MPI_Comm comm, int color, int key, MPI_Comm *made), (comm, color, key, made))
PARTS(MPI_Comm_split_type, (MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *made),
      (comm, type, key, info, made))
PARTS(MPI_Comm_create, (MPI_Comm comm, MPI_Group group, MPI_Comm *made), (comm, group, made))

ENTRY int MPI_Barrier(MPI_Comm comm) {
    static int (*library)(MPI_Comm);
    int status;
    if (serve_barrier(comm, &status))
        return status;
    if (!library)
        library = library_function("MPI_Barrier");
    return library(comm);
}
