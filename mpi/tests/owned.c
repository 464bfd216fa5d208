/*
 * Communicators of changing sets of ranks, each of which is used until it is told to go on, so that
 * somebody can look which hosts the network forwards its multicasts to.
 *
 *     owned --shared=DIRECTORY
 *
 * For stage K, rank 0 writes the ranks of the communicator to DIRECTORY/stage.K, and waits for
 * DIRECTORY/go.K.
 */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int exists(const char *name, int stage) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s.%d", shared_directory, name, stage);
    return access(path, F_OK) == 0;
}

/* Tells which ranks are in the communicator of this stage. */
static void tell(int stage, unsigned set) {
    char path[512], part[520];
    snprintf(path, sizeof path, "%s/stage.%d", shared_directory, stage);
    snprintf(part, sizeof part, "%s.part", path);
    FILE *file = fopen(part, "w");
    CHECK(file != NULL, "cannot write %s", part);
    for (int i = 0; i < ranks; i++)
        if (set >> i & 1)
            fprintf(file, "%d\n", i);
    fclose(file);
    CHECK(rename(part, path) == 0, "cannot name %s", path);
}

int main(int argc, char **argv) {
    start(argc, argv);
    CHECK(shared_directory != NULL, "no --shared=DIRECTORY");
    unsigned all = (1u << ranks) - 1;
    unsigned sets[] = {0x7, 0x1e, 0xe7, 0x3c, 0x7, all};
    int stages = sizeof sets / sizeof *sets;
    for (int stage = 0; stage < stages; stage++) {
        unsigned set = sets[stage] & all;
        int in = set >> rank & 1, more = 1;
        MPI_Comm comm;
        MPI(MPI_Comm_split(MPI_COMM_WORLD, in ? 1 : MPI_UNDEFINED, rank, &comm));
        if (rank == 0)
            tell(stage, set);
        while (more) {
            for (int turn = 0; in && turn < 20; turn++) {
                int value = turn, size;
                MPI(MPI_Comm_size(comm, &size));
                MPI(MPI_Bcast(&value, 1, MPI_INT, turn % size, comm));
                CHECK(value == turn, "got %d in turn %d", value, turn);
            }
            more = rank == 0 ? !exists("go", stage) : 0;
            MPI(MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD));
            usleep(2000);
        }
        if (in)
            MPI(MPI_Comm_free(&comm));
    }
    ok("owned: %d stages", stages);
    MPI_Finalize();
    return 0;
}
