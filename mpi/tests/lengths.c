/*
 * Ranks whose lengths for one broadcast differ. With MPI_ERRORS_RETURN each rank whose length is
 * not the root's gets MPI_ERR_TRUNCATE. Each other rank gets an error in that call or in its next
 * one on the communicator. No rank waits for ever, and other communicators work. With `fatal`,
 * errors are fatal and the job must end.
 */
#include "check.h"

enum { LIMIT_S = 10 };

static int class_of(int status) {
    int class;
    MPI(MPI_Error_class(status, &class));
    return class;
}

static void differs_at(int root, int odd, size_t len, size_t other) {
    MPI_Comm comm;
    MPI(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
    MPI(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
    broadcast(comm, root, 1000, 1);
    size_t mine = rank == odd ? other : len, roots = root == odd ? other : len;
    unsigned char *buffer = take(mine);
    double began = MPI_Wtime();
    int got = MPI_Bcast(buffer, (int)mine, MPI_BYTE, root, comm), next = MPI_Barrier(comm);
    double took = MPI_Wtime() - began;
    CHECK(took < LIMIT_S, "root %d, %zu bytes, %zu at %d: took %g s", root, len, other, odd, took);
    CHECK(mine == roots || class_of(got) == MPI_ERR_TRUNCATE,
          "root %d, %zu bytes, %zu at %d: class %d", root, len, other, odd, class_of(got));
    CHECK(got != MPI_SUCCESS || next != MPI_SUCCESS, "root %d, %zu bytes, %zu at %d: no error",
          root, len, other, odd);
    give_back(buffer, mine, "MPI_Bcast");
    MPI(MPI_Comm_free(&comm));
}

int main(int argc, char **argv) {
    start(argc, argv);
    if (wanted("fatal")) {
        static char buffer[20];
        MPI(MPI_Bcast(buffer, rank == 1 ? 20 : 10, MPI_BYTE, 0, MPI_COMM_WORLD));
        MPI(MPI_Barrier(MPI_COMM_WORLD));
        fail(__FILE__, __LINE__, "no error");
    }
    /* One packet and many, one segment and many, copied by the sender or not. */
    static const size_t lens[][2] = {{4, 8},
                                     {8, 4},
                                     {0, 9},
                                     {9, 0},
                                     {1000, 200000},
                                     {200000, 1000},
                                     {300000, 300004},
                                     {3 << 17, 2 << 17},
                                     {2 << 17, 3 << 17}};
    for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
        for (int root = 0; root < ranks; root++)
            differs_at(root, (root + 1 + (int)i % (ranks - 1)) % ranks, lens[i][0], lens[i][1]);
        /* The root is the only rank with another length. */
        differs_at((int)i % ranks, (int)i % ranks, lens[i][0], lens[i][1]);
        broadcast_twice(MPI_COMM_WORLD, (int)i % ranks, 4000, i);
        ok("lengths: %zu and %zu bytes", lens[i][0], lens[i][1]);
    }
    MPI_Finalize();
    return 0;
}
