/*
 * A root that has broadcast and then computes, without any call of MPI, while receivers may have
 * lost packets: they get their bytes all the same. The root computes until every receiver has
 * reported its bytes in shared memory (--shared), at the end for some seconds more, and fails after
 * a minute. Messages are small: with a large one the root's call may wait for receivers.
 *
 * A library without a progress thread does not promise this. It has sent a single small message
 * when the call returns, but perhaps not all of a burst. So bursts are tried with --progress only,
 * given when the shim is tested.
 */
#include "check.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

typedef volatile _Atomic uint32_t word;

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void computes_until(word *done, uint32_t turn) {
    double limit = seconds() + 60;
    for (int r = 0; r < ranks; r++)
        while (r != rank && atomic_load(&done[r]) < turn)
            CHECK(seconds() < limit, "rank %d has not got broadcast %u while its root computes", r,
                  turn);
}

static void computes_for(double s) {
    for (double end = seconds() + s; seconds() < end;)
        ;
}

/* Runs TURNS broadcasts. After each one the root computes until all receivers have it. */
static void root_computes(word *done, int root, size_t len, uint32_t turns) {
    static uint32_t turn;
    for (uint32_t i = 0; i < turns; i++) {
        turn++;
        broadcast(MPI_COMM_WORLD, root, len, turn);
        atomic_store(&done[rank], turn);
        if (rank == root)
            computes_until(done, turn);
    }
}

/* A burst of broadcasts, then the root computes. Receivers notice a loss last at the end of a
 * burst. */
static void root_computes_after_burst(word *done, int root, size_t len) {
    enum { BURST = 20 };
    static uint32_t turn = 1u << 20;
    for (int i = 0; i < BURST; i++)
        broadcast(MPI_COMM_WORLD, root, len, ++turn);
    atomic_store(&done[rank], turn);
    if (rank == root) {
        computes_until(done, turn);
        /* The others already wait in the next broadcast. */
        computes_for(2);
    }
}

int main(int argc, char **argv) {
    start(argc, argv);
    word *done = (word *)shared_words("done", (size_t)ranks);
    if (!done) {
        skipped("late", "no --shared=DIRECTORY");
        MPI_Finalize();
        return 0;
    }
    static const size_t sizes[] = {4, 1400, 8000};
    for (int i = 0; i < 3; i++) {
        for (int root = 0; root < ranks; root++)
            root_computes(done, root, sizes[i], 40);
        ok("late: the root computes after each broadcast of %zu bytes", sizes[i]);
    }
    if (wanted("--progress")) {
        for (int root = 0; root < ranks; root++)
            root_computes_after_burst(done, root, 3000);
        ok("late: the root computes after a burst");
    }
    /* The last receiver enters when the root has been computing for long. */
    for (int root = 0; root < ranks; root++) {
        static uint32_t turn = 1u << 30;
        turn++;
        if (rank == (root + 1) % ranks)
            pause_us(300000);
        broadcast(MPI_COMM_WORLD, root, 1000, turn);
        atomic_store(&done[rank], turn);
        if (rank == root)
            computes_until(done, turn);
    }
    ok("late: a receiver enters while the root computes");
    MPI_Finalize();
    return 0;
}
