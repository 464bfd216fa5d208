/*
 * A barrier holds: no rank leaves it before every rank has entered it. And no receiver has a
 * broadcast's bytes before the root has entered the broadcast. Entries are counted in memory that
 * all ranks share (--shared), not by clocks.
 */
#include "check.h"

#include <stdatomic.h>
#include <stdlib.h>

typedef volatile _Atomic uint32_t word;

/* Ends a case, also for ranks that took no part in it. */
static void stand_by(const char *name) {
    ok("barrier: %s", name);
}

static void barriers(MPI_Comm comm, word *entered, uint32_t count, const char *name) {
    int me, members;
    MPI(MPI_Comm_rank(comm, &me));
    MPI(MPI_Comm_size(comm, &members));
    int *takes_part = calloc((size_t)ranks, sizeof(int)),
        *members_are = calloc((size_t)members, sizeof(int));
    CHECK(takes_part && members_are, "no memory");
    MPI(PMPI_Allgather(&rank, 1, MPI_INT, members_are, 1, MPI_INT, comm));
    for (int m = 0; m < members; m++)
        takes_part[members_are[m]] = 1;
    free(members_are);
    for (uint32_t i = 1; i <= count; i++) {
        /* One rank is late, each time another one. */
        if (i % 8 == 0 && me == (int)draw(i, (uint32_t)members))
            pause_us(draw(i, 3000));
        atomic_store(&entered[rank], i);
        MPI(MPI_Barrier(comm));
        for (int r = 0; r < ranks; r++) {
            uint32_t seen = atomic_load(&entered[r]);
            CHECK(seen >= i || !takes_part[r], "%s: out of barrier %u, rank %d has entered %u only",
                  name, i, r, seen);
        }
    }
    free(takes_part);
    PMPI_Barrier(comm);
    atomic_store(&entered[rank], 0);
    stand_by(name);
}

static void after_broadcasts(word *entered, uint32_t count) {
    for (uint32_t i = 1; i <= count; i++) {
        int root = (int)i % ranks;
        if (i % 8 == 0 && rank == root)
            pause_us(draw(i, 3000));
        atomic_store(&entered[rank], i);
        /* At least one byte: with none, a receiver would not wait for the root. */
        broadcast(MPI_COMM_WORLD, root, 1 + draw(i, 5000), i);
        uint32_t seen = atomic_load(&entered[root]);
        CHECK(seen >= i, "broadcast %u is here, its root %d has entered %u only", i, root, seen);
        if (i % 3 == 0) {
            MPI(MPI_Barrier(MPI_COMM_WORLD));
            for (int r = 0; r < ranks; r++)
                CHECK(atomic_load(&entered[r]) >= i,
                      "out of the barrier after broadcast %u, rank %d is not there", i, r);
        }
    }
    ok("barrier: among broadcasts, %u times", count);
}

int main(int argc, char **argv) {
    start(argc, argv);
    word *entered = (word *)shared_words("entered", (size_t)ranks);
    if (!entered) {
        skipped("barrier", "no --shared=DIRECTORY");
        MPI_Finalize();
        return 0;
    }
    for (int r = 0; r < ranks; r++)
        CHECK(atomic_load(&entered[r]) == 0, "the shared words are not new");
    MPI(PMPI_Barrier(MPI_COMM_WORLD));
    barriers(MPI_COMM_WORLD, entered, 1000, "the world");
    MPI_Comm comm;
    MPI(MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &comm));
    barriers(comm, entered, 200, "in reverse order");
    MPI(MPI_Comm_free(&comm));
    for (int turn = 0; turn < 2; turn++) {
        MPI(MPI_Comm_split(MPI_COMM_WORLD, rank % 2 == turn ? 0 : MPI_UNDEFINED, rank, &comm));
        if (comm != MPI_COMM_NULL)
            barriers(comm, entered, 200, turn ? "odd ranks" : "even ranks");
        else
            stand_by(turn ? "odd ranks" : "even ranks");
        if (comm != MPI_COMM_NULL)
            MPI(MPI_Comm_free(&comm));
    }
    after_broadcasts(entered, 300);
    for (int i = 0; i < 50; i++)
        MPI(MPI_Barrier(MPI_COMM_SELF));
    ok("barrier: MPI_COMM_SELF");
    MPI_Finalize();
    return 0;
}
