/*
 * Communicators of many different sets of ranks, many of them at once: 2000 by default,
 * --communicators=N. On eight ranks there are 218 different sets of three to seven. Each
 * communicator broadcasts from two roots as soon as it is made, and from a third when later ones
 * have been made. The second broadcast is compared with that of the MPI library. --held=N says how
 * many exist at once, 96 by default.
 */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HELD_MAX = 1000, SETS_MAX = 1 << 16 };

static unsigned sets[SETS_MAX];
static int set_count;

static int number(int argc, char **argv, const char *name, int otherwise) {
    size_t length = strlen(name);
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], name, length) == 0)
            return atoi(argv[i] + length);
    return otherwise;
}

/* All sets of three ranks to all but one, in an order that is the same on all ranks and leads to no
 * rank more often than to others. */
static void list_sets(void) {
    unsigned all = ranks < 16 ? 1u << ranks : 0;
    for (unsigned set = 0; set < all; set++) {
        int members = __builtin_popcount(set);
        if (members >= 3 && members < ranks)
            sets[set_count++] = set;
    }
    for (int i = set_count - 1; i > 0; i--) {
        int other = (int)draw((uint64_t)i, (uint32_t)(i + 1));
        unsigned set = sets[i];
        sets[i] = sets[other];
        sets[other] = set;
    }
}

static int is_member(int n) {
    return sets[n % set_count] >> rank & 1;
}

static void use(MPI_Comm comm, int n, int turn) {
    int members;
    MPI(MPI_Comm_size(comm, &members));
    uint64_t seed = 3 * (uint64_t)n + (uint64_t)turn;
    int root = (n + turn) % members;
    size_t length = 1 + draw(seed, 6000);
    if (turn == 1)
        broadcast_twice(comm, root, length, seed);
    else
        broadcast(comm, root, length, seed);
}

int main(int argc, char **argv) {
    start(argc, argv);
    int count = number(argc, argv, "--communicators=", 2000),
        held = number(argc, argv, "--held=", 96);
    CHECK(held >= 1 && held <= HELD_MAX, "--held is at most %d", HELD_MAX);
    static MPI_Comm comms[HELD_MAX];
    list_sets();
    if (set_count == 0) {
        skipped("sets", "there are no sets of three ranks and a rank outside, or too many");
        MPI_Finalize();
        return 0;
    }
    double began = MPI_Wtime();
    for (int n = 0; n < count + held; n++) {
        MPI_Comm *place = &comms[n % held];
        /* The communicator that was made HELD turns ago has had time to get its address. */
        if (n >= held && is_member(n - held)) {
            use(*place, n - held, 2);
            MPI(MPI_Comm_free(place));
        }
        if (n >= count)
            continue;
        MPI(MPI_Comm_split(MPI_COMM_WORLD, is_member(n) ? 0 : MPI_UNDEFINED, rank, place));
        if (is_member(n)) {
            use(*place, n, 0);
            use(*place, n, 1);
        }
    }
    if (rank == 0)
        printf("sets: %.1f s\n", MPI_Wtime() - began);
    ok("sets: %d communicators of %d sets, %d at once", count,
       set_count < count ? set_count : count, held);
    MPI_Finalize();
    return 0;
}
