/*
 * 64 communicators (--communicators=) of half of the ranks each, all of different sets, and 1000
 * broadcasts (--iterations=) of 1000 bytes on each, in turn. It is run for what the hosts outside
 * receive meanwhile: `bench/mpi/foreign` counts that. Prints the time for each broadcast.
 */
#include "measure.h"

#include <stdio.h>
#include <stdlib.h>

enum { LENGTH = 1000, MOST = 256 };

int main(int argc, char **argv) {
    static const size_t none[] = {1, 0};
    static MPI_Comm comms[MOST];
    static unsigned char buffer[LENGTH];
    start(argc, argv, none, 1000);
    int turns = iterations_of(LENGTH),
        count = option("--communicators=") ? atoi(option("--communicators=")) : 64;
    turns = iterations_of(0) < turns ? iterations_of(0) : turns;
    int n = 0;
    for (unsigned set = 0; ranks <= 16 && set < 1u << ranks && n < count && n < MOST; set++) {
        if (__builtin_popcount(set) != ranks / 2)
            continue;
        int in = set >> rank & 1;
        MPI_Comm_split(MPI_COMM_WORLD, in ? 0 : MPI_UNDEFINED, rank, &comms[n++]);
    }
    PMPI_Barrier(MPI_COMM_WORLD);
    double began = now_us();
    for (int turn = 0; turn < turns; turn++) {
        for (int c = 0; c < n; c++) {
            if (comms[c] == MPI_COMM_NULL)
                continue;
            int me, members;
            MPI_Comm_rank(comms[c], &me);
            MPI_Comm_size(comms[c], &members);
            unsigned number = (unsigned)(turn * MOST + c);
            if (me == turn % members)
                mark(buffer, LENGTH, number);
            MPI_Bcast(buffer, LENGTH, MPI_BYTE, turn % members, comms[c]);
            expect(buffer, LENGTH, number);
        }
    }
    double own = (now_us() - began) / turns / n;
    PMPI_Barrier(MPI_COMM_WORLD);
    char what[80];
    snprintf(what, sizeof what, "%d communicators of %d ranks, %d broadcasts on each", n, ranks / 2,
             turns);
    head(what, "");
    line(LENGTH, own, 1, own, turns * n);
    if (rank == 0)
        printf("\n");
    for (int c = 0; c < n; c++)
        if (comms[c] != MPI_COMM_NULL)
            MPI_Comm_free(&comms[c]);
    MPI_Finalize();
    return 0;
}
