/*
 * Ranks wait in MPI_Barrier or MPI_Bcast while others need them: as targets of passive one-sided
 * operations, in non-blocking collectives, and as receivers or senders of messages too long to be
 * sent before they are received. The MPI library promises progress in every call of its own. A
 * program that waits in a call of Fabricast must get the same.
 *
 * --loops=N sets how often each case is tried. Each case prints how long it took.
 */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONG = 300000 };

static uint64_t loops = 40;

static void done(const char *what, double began) {
    double took = MPI_Wtime() - began;
    ok("onesided: %s (%.3f s)", what, took);
}

/* Each rank adds to every rank's counter by compare and swap, except where it is the
 * target. Then all enter a barrier, or a broadcast and a barrier. */
static void locks(int wait_by_broadcast) {
    int *counter;
    MPI_Win win;
    MPI(MPI_Win_allocate(sizeof *counter, sizeof *counter, MPI_INFO_NULL, MPI_COMM_WORLD, &counter,
                         &win));
    MPI(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank, 0, win));
    *counter = 0;
    MPI(MPI_Win_unlock(rank, win));
    MPI(MPI_Barrier(MPI_COMM_WORLD));
    double began = MPI_Wtime();
    for (uint64_t i = 0; i < loops; i++) {
        int target = (int)(i % (uint64_t)ranks), before, after;
        /* All ranks but the target take part. The target is in the barrier or the broadcast at
         * once. */
        for (int seen = (int)(i / (uint64_t)ranks) * (ranks - 1); rank != target;) {
            after = seen + 1;
            MPI(MPI_Win_lock(MPI_LOCK_SHARED, target, 0, win));
            MPI(MPI_Compare_and_swap(&after, &seen, &before, MPI_INT, target, 0, win));
            MPI(MPI_Win_unlock(target, win));
            if (before == seen)
                break;
            seen = before;
        }
        if (wait_by_broadcast)
            broadcast(MPI_COMM_WORLD, (target + 1) % ranks, 64, i);
        MPI(MPI_Barrier(MPI_COMM_WORLD));
    }
    done(wait_by_broadcast ? "targets wait in a broadcast" : "targets wait in a barrier", began);
    MPI(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank, 0, win));
    int turns = (int)((loops + (uint64_t)(ranks - 1 - rank)) / (uint64_t)ranks);
    CHECK(*counter == turns * (ranks - 1), "counter is %d after %d turns", *counter, turns);
    MPI(MPI_Win_unlock(rank, win));
    MPI(MPI_Win_free(&win));
}

/* A rank waits in a barrier of another communicator while other ranks' trees lead through it. */
static void ibcasts(MPI_Comm other) {
    unsigned char *buffer = take(LONG);
    double began = MPI_Wtime();
    for (uint64_t i = 0; i < loops; i++) {
        int root = (int)(i % (uint64_t)ranks);
        MPI_Request request;
        if (rank == root)
            fill(buffer, LONG, i);
        MPI(MPI_Ibcast(buffer, LONG, MPI_BYTE, root, other, &request));
        if (rank == (root + 1) % ranks)
            MPI(MPI_Wait(&request, MPI_STATUS_IGNORE));
        MPI(MPI_Barrier(MPI_COMM_WORLD));
        if (rank != (root + 1) % ranks)
            MPI(MPI_Wait(&request, MPI_STATUS_IGNORE));
        CHECK(differs(buffer, LONG, i) < 0, "MPI_Ibcast %d is wrong", (int)i);
    }
    done("MPI_Ibcast beside a barrier", began);
    give_back(buffer, LONG, "MPI_Ibcast");
}

/* The sender waits in a barrier until the receiver has come; then the receiver waits for the
 * sender. */
static void messages(void) {
    unsigned char *out = take(LONG), *in = take(LONG);
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    double began = MPI_Wtime();
    for (uint64_t i = 0; i < loops; i++) {
        /* The ranks take turns: one rank waits for its message before the barrier. */
        int waits = (int)(i % (uint64_t)ranks), sends = (waits + ranks - 1) % ranks;
        MPI_Request send, receive;
        fill(out, LONG, i << 8 | (uint64_t)rank);
        if (rank == waits && i % 2 == 0) {
            MPI(MPI_Recv(in, LONG, MPI_BYTE, before, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
            receive = MPI_REQUEST_NULL;
        } else {
            MPI(MPI_Irecv(in, LONG, MPI_BYTE, before, 1, MPI_COMM_WORLD, &receive));
        }
        MPI(MPI_Isend(out, LONG, MPI_BYTE, next, 1, MPI_COMM_WORLD, &send));
        if (rank == sends && i % 2 == 1)
            MPI(MPI_Wait(&send, MPI_STATUS_IGNORE));
        MPI(MPI_Barrier(MPI_COMM_WORLD));
        MPI(MPI_Wait(&send, MPI_STATUS_IGNORE));
        MPI(MPI_Wait(&receive, MPI_STATUS_IGNORE));
        CHECK(differs(in, LONG, i << 8 | (uint64_t)before) < 0, "message %d is wrong", (int)i);
    }
    done("long messages beside a barrier", began);
    give_back(out, LONG, "MPI_Isend");
    give_back(in, LONG, "MPI_Irecv");
}

int main(int argc, char **argv) {
    start(argc, argv);
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], "--loops=", 8) == 0)
            loops = strtoull(argv[i] + 8, NULL, 10);
    MPI_Comm other;
    MPI(MPI_Comm_dup(MPI_COMM_WORLD, &other));
    locks(0);
    locks(1);
    ibcasts(other);
    messages();
    MPI(MPI_Comm_free(&other));
    MPI_Finalize();
    return 0;
}
