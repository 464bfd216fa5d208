/*
 * Creating a duplicate of MPI_COMM_WORLD, using it once and freeing it, 2000 times (--iterations=).
 * The use is a broadcast of 4 bytes, whose root changes. Each rank's mean time for all three (row
 * 0), and for each of them (rows 1 to 3); the slowest is the largest mean.
 */
#include "measure.h"

#include <stdio.h>

enum { WARM = 20, LENGTH = 4, ROWS = 4 };

int main(int argc, char **argv) {
    static const size_t none[] = {1, 0};
    unsigned char buffer[LENGTH];
    start(argc, argv, none, 2000);
    int count = iterations_of(0);
    double took[ROWS] = {0};
    for (int i = -WARM; i < count; i++) {
        MPI_Comm made;
        if (i == 0)
            PMPI_Barrier(MPI_COMM_WORLD);
        double at[ROWS] = {now_us()};
        MPI_Comm_dup(MPI_COMM_WORLD, &made);
        at[1] = now_us();
        int root = (i + WARM) % ranks;
        if (rank == root)
            mark(buffer, LENGTH, (unsigned)(i + WARM));
        MPI_Bcast(buffer, LENGTH, MPI_BYTE, root, made);
        expect(buffer, LENGTH, (unsigned)(i + WARM));
        at[2] = now_us();
        MPI_Comm_free(&made);
        at[3] = now_us();
        for (int row = 1; i >= 0 && row < ROWS; row++)
            took[row] += (at[row] - at[row - 1]) / count;
    }
    took[0] = took[1] + took[2] + took[3];
    head("Duplicates: all (0), made (1), used once (2), freed (3)", "");
    for (int row = 0; row < ROWS; row++) {
        line((size_t)row, took[row], 1, took[row], count);
        if (rank == 0)
            printf("\n");
    }
    MPI_Finalize();
    return 0;
}
