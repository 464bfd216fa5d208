/*
 * Times of the first broadcasts of a job, from the last rank's call until the slowest rank has
 * returned, and the time of MPI_Init at the slowest rank. Each broadcast follows a barrier of the
 * MPI library. With --at-once= nothing stands between MPI_Init and the first broadcast, so that
 * ranks may still be leaving MPI_Init. Broadcast N is the row of size N; row 0 is MPI_Init.
 */
#include "measure.h"

#include <stdio.h>

enum { BROADCASTS = 10, LENGTH = 4, ROOT = 0 };

static double most(double value) {
    PMPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return value;
}

int main(int argc, char **argv) {
    static const size_t none[] = {1, 0};
    unsigned char buffer[LENGTH];
    double took[1 + BROADCASTS], began = now_us();
    start(argc, argv, none, 1);
    took[0] = now_us() - began;
    for (int i = 1; i <= BROADCASTS; i++) {
        if (i > 1 || !option("--at-once="))
            PMPI_Barrier(MPI_COMM_WORLD);
        if (rank == ROOT)
            mark(buffer, LENGTH, (unsigned)i);
        began = now_us();
        MPI_Bcast(buffer, LENGTH, MPI_BYTE, ROOT, MPI_COMM_WORLD);
        double ended = now_us();
        expect(buffer, LENGTH, (unsigned)i);
        began = most(began);
        took[i] = ended - began;
    }
    head("MPI_Init (0), and the first broadcasts", "");
    for (int i = 0; i <= BROADCASTS; i++) {
        line((size_t)i, took[i], 1, took[i], 1);
        if (rank == ROOT)
            printf("\n");
    }
    MPI_Finalize();
    return 0;
}
