/*
 * Communicators of changing sets of ranks, several at once, which are used until the program is
 * told to go on, so that somebody can look which hosts the network forwards their multicasts to.
 *
 *     owned --shared=DIRECTORY
 *
 * For stage K, rank 0 writes the ranks of all communicators that exist to DIRECTORY/stage.K, one
 * communicator a line, and waits for DIRECTORY/go.K.
 */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { PLACES = 4 };

/* What happens to one of the communicators at the beginning of a stage. */
static const struct change {
    int stage, place;
    enum { MAKE, DUPLICATE, FREE } what;
    unsigned of; /* MAKE: the set of ranks; DUPLICATE: the other's place */
} changes[] = {
    {0, 0, MAKE, 0x07},
    /* Another set. Two of its ranks are in the first, too. */
    {1, 1, MAKE, 0x1e},
    /* The same set twice, and one of two ranks, which needs no address. */
    {2, 2, DUPLICATE, 0},
    {2, 3, MAKE, 0x81},
    /* The set exists still. */
    {3, 0, FREE, 0},
    {3, 1, FREE, 0},
    {3, 0, MAKE, 0xe7},
    {4, 0, FREE, 0},
    {4, 2, FREE, 0},
    /* A set that has been there before, beside one of all ranks. */
    {4, 0, MAKE, 0x1e},
    {4, 1, MAKE, 0xff},
    {5, 0, FREE, 0},
    {5, 1, FREE, 0},
    {5, 3, FREE, 0},
};
enum { CHANGES = sizeof changes / sizeof *changes, STAGES = 6 };

static unsigned sets[PLACES];
static MPI_Comm comms[PLACES];

static int is_member(int place) {
    return sets[place] >> rank & 1;
}

static void apply(const struct change *change) {
    int place = change->place;
    MPI_Comm *comm = &comms[place];
    switch (change->what) {
    case MAKE:
        sets[place] = change->of & ((1u << ranks) - 1);
        MPI(MPI_Comm_split(MPI_COMM_WORLD, is_member(place) ? 1 : MPI_UNDEFINED, rank, comm));
        break;
    case DUPLICATE:
        sets[place] = sets[change->of];
        if (is_member(place))
            MPI(MPI_Comm_dup(comms[change->of], comm));
        break;
    case FREE:
        if (is_member(place))
            MPI(MPI_Comm_free(comm));
        sets[place] = 0;
    }
}

static void use(MPI_Comm comm) {
    int size;
    MPI(MPI_Comm_size(comm, &size));
    for (int turn = 0; turn < 10; turn++) {
        int value = turn;
        MPI(MPI_Bcast(&value, 1, MPI_INT, turn % size, comm));
        CHECK(value == turn, "got %d in turn %d", value, turn);
    }
}

static int exists(const char *name, int stage) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s.%d", shared_directory, name, stage);
    return access(path, F_OK) == 0;
}

/* Tells which ranks are in each communicator. */
static void tell(int stage) {
    char path[512], part[520];
    snprintf(path, sizeof path, "%s/stage.%d", shared_directory, stage);
    snprintf(part, sizeof part, "%s.part", path);
    FILE *file = fopen(part, "w");
    CHECK(file != NULL, "cannot write %s", part);
    for (int place = 0; place < PLACES; place++) {
        for (int i = 0; i < ranks; i++)
            if (sets[place] >> i & 1)
                fprintf(file, "%d ", i);
        if (sets[place])
            fprintf(file, "\n");
    }
    fclose(file);
    CHECK(rename(part, path) == 0, "cannot name %s", path);
}

int main(int argc, char **argv) {
    start(argc, argv);
    CHECK(shared_directory != NULL, "no --shared=DIRECTORY");
    for (int stage = 0; stage < STAGES; stage++) {
        for (int i = 0; i < CHANGES; i++)
            if (changes[i].stage == stage)
                apply(&changes[i]);
        if (rank == 0)
            tell(stage);
        for (int more = 1; more;) {
            for (int place = 0; place < PLACES; place++)
                if (is_member(place))
                    use(comms[place]);
            more = rank == 0 ? !exists("go", stage) : 0;
            MPI(MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD));
            usleep(2000);
        }
    }
    ok("owned: %d stages", STAGES);
    MPI_Finalize();
    return 0;
}
