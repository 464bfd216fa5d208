/*
 * The network drops the root's multicasts for a while. Each communicator lives for one broadcast,
 * too short for its sender to detect that. Only the first of them may wait for retransmissions;
 * mpi/tests/run counts these.
 *
 *     cut --cut=COMMAND --mend=COMMAND
 *
 * --cut names a command that drops multicasts from the second rank's host, --mend one that ends it.
 */
#include "check.h"

#include <stdlib.h>

enum { ROOT = 1, MEMBERS = 3, TURNS = 40, LEN = 1000 };

static void communicators(uint64_t seed) {
    for (int turn = 0; turn < TURNS; turn++) {
        MPI_Comm comm;
        int is_member = rank < MEMBERS;
        MPI(MPI_Comm_split(MPI_COMM_WORLD, is_member ? 0 : MPI_UNDEFINED, rank, &comm));
        if (is_member) {
            broadcast(comm, ROOT, LEN, seed + turn);
            MPI(MPI_Barrier(comm));
            MPI(MPI_Comm_free(&comm));
        }
    }
    MPI(MPI_Barrier(MPI_COMM_WORLD));
}

static void run(const char *option) {
    const char *command = value(option);
    CHECK(command != NULL, "no %sCOMMAND", option);
    if (rank == 0)
        CHECK(system(command) == 0, "%s has failed", command);
    MPI(MPI_Barrier(MPI_COMM_WORLD));
}

int main(int argc, char **argv) {
    start(argc, argv);
    communicators(1 << 10);
    run("--cut=");
    communicators(2 << 10);
    run("--mend=");
    communicators(3 << 10);
    ok("cut: %d communicators", 3 * TURNS);
    MPI_Finalize();
    return 0;
}
