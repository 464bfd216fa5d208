/*
 * Broadcasts mixed with other calls: back to back from changing roots, between point-to-point
 * messages, probes and other collectives. The program must not see any message or request of the
 * shim itself.
 */
#include "check.h"

#include <stdlib.h>

static void back_to_back(void) {
    enum { ROUNDS = 600 };
    for (uint64_t i = 0; i < ROUNDS; i++)
        broadcast(MPI_COMM_WORLD, (int)draw(i, (uint32_t)ranks),
                  draw(i + 10000, i % 20 == 0 ? 100000 : 3000), i);
    ok("mixed: %d broadcasts back to back, roots and sizes at random", ROUNDS);
}

/* A root that runs ahead of all others without limit. */
static void one_root_ahead(void) {
    enum { ROUNDS = 2000 };
    for (int root = 0; root < ranks; root += ranks - 1) {
        for (uint32_t i = 0; i < ROUNDS; i++) {
            uint32_t word = rank == root ? i ^ 0xabcd : 0;
            MPI(MPI_Bcast(&word, 1, MPI_UINT32_T, root, MPI_COMM_WORLD));
            CHECK(word == (i ^ 0xabcd), "broadcast %u brought %u", i, word ^ 0xabcd);
            /* One rank is late now and then, so that the others are far ahead of it. */
            if (i % 500 == 0 && rank == (int)(1 + i / 500) % ranks)
                pause_us(20000);
        }
    }
    ok("mixed: %d words from one root, a receiver late now and then", ROUNDS);
}

/* The root overwrites its buffer as soon as its call has returned. */
static void buffer_used_again(void) {
    static unsigned char buffer[9000];
    for (uint64_t i = 0; i < 200; i++) {
        int root = (int)(i / 20) % ranks;
        size_t len = i % 2 ? 700 : sizeof buffer;
        if (rank == root)
            fill(buffer, len, i);
        MPI(MPI_Bcast(buffer, (int)len, MPI_BYTE, root, MPI_COMM_WORLD));
        CHECK(differs(buffer, len, i) < 0, "broadcast %d: bytes of another one", (int)i);
    }
    ok("mixed: the root's buffer is used again at once");
}

static void with_messages(void) {
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    for (uint64_t i = 0; i < 150; i++) {
        size_t len = draw(i, i % 10 == 0 ? 300000 : 4000);
        unsigned char *out = take(len), *in = take(len);
        MPI_Request requests[2];
        MPI_Status status;
        int got;
        fill(out, len, i << 8 | (uint64_t)rank);
        MPI(MPI_Irecv(in, (int)len, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD,
                      &requests[0]));
        broadcast_twice(MPI_COMM_WORLD, (int)i % ranks, draw(i + 500, 5000), i);
        MPI(MPI_Isend(out, (int)len, MPI_BYTE, next, (int)i, MPI_COMM_WORLD, &requests[1]));
        broadcast(MPI_COMM_WORLD, (int)(i + 1) % ranks, draw(i + 900, 5000), i + 1);
        MPI(MPI_Wait(&requests[0], &status));
        MPI(MPI_Wait(&requests[1], MPI_STATUS_IGNORE));
        MPI(MPI_Get_count(&status, MPI_BYTE, &got));
        CHECK(status.MPI_SOURCE == before && status.MPI_TAG == (int)i && (size_t)got == len,
              "a receive from anybody took %d bytes with tag %d from %d", got, status.MPI_TAG,
              status.MPI_SOURCE);
        CHECK(differs(in, len, i << 8 | (uint64_t)before) < 0,
              "a message of %zu bytes between broadcasts is wrong", len);
        give_back(out, len, "Isend");
        give_back(in, len, "Irecv");
    }
    ok("mixed: messages between broadcasts, received from anybody");
}

static void with_probes(void) {
    for (int i = 0; i < 100; i++) {
        int flag;
        MPI_Status status;
        MPI(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, &status));
        CHECK(!flag, "a probe sees a message that the program never sent: tag %d from %d",
              status.MPI_TAG, status.MPI_SOURCE);
        broadcast(MPI_COMM_WORLD, i % ranks, 100 + (size_t)i, (uint64_t)i);
    }
    ok("mixed: probes see nothing of it");
}

static void with_collectives(void) {
    for (int i = 0; i < 150; i++) {
        int mine = rank + i, sum = 0, at_root[1024];
        broadcast(MPI_COMM_WORLD, i % ranks, draw((uint64_t)i, 2000), (uint64_t)i);
        MPI(MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
        CHECK(sum == ranks * (ranks - 1) / 2 + ranks * i, "MPI_Allreduce between broadcasts: %d",
              sum);
        if (i % 3 == 0)
            MPI(MPI_Barrier(MPI_COMM_WORLD));
        CHECK(ranks <= 1024, "too many ranks for this case");
        MPI(MPI_Gather(&mine, 1, MPI_INT, at_root, 1, MPI_INT, i % ranks, MPI_COMM_WORLD));
        for (int r = 0; rank == i % ranks && r < ranks; r++)
            CHECK(at_root[r] == r + i, "MPI_Gather between broadcasts: %d of %d", at_root[r], r);
    }
    ok("mixed: other collectives between broadcasts");
}

int main(int argc, char **argv) {
    start(argc, argv);
    back_to_back();
    one_root_ahead();
    buffer_used_again();
    with_messages();
    with_probes();
    with_collectives();
    MPI_Finalize();
    return 0;
}
