/*
 * Throughput (P1.12, P4.11): a barrier, then broadcasts back to back. Each rank reports its own
 * time per broadcast, the median of several samples. The slowest time runs until the root knows
 * that every rank has the last broadcast: a message takes this time in the end.
 */
#include "measure.h"

#include <stdio.h>
#include <stdlib.h>

enum { ROOT = 0, WARM = 20, SAMPLES = 5 };

int main(int argc, char **argv) {
    static const size_t sizes[] = {4, 64, 512, 1400, 2048, 8192, 32768, 65536, 1 << 20, 0};
    start(argc, argv, sizes, 200);
    head("MPI_Bcast, back to back", "        MB/s");
    for (int n = 0; size_of(n); n++) {
        size_t size = size_of(n);
        int count = iterations_of(size);
        unsigned char *buffer = calloc(1, size), done = 0, *all = calloc((size_t)ranks, 1);
        double own[SAMPLES], all_done[SAMPLES];
        unsigned number = 0;
        for (int s = -1; s < SAMPLES; s++) {
            int rounds = s < 0 ? (count < WARM ? count : WARM) : count;
            PMPI_Barrier(MPI_COMM_WORLD);
            double began = now_us();
            for (int i = 0; i < rounds; i++) {
                number++;
                if (rank == ROOT)
                    mark(buffer, size, number);
                MPI_Bcast(buffer, (int)size, MPI_BYTE, ROOT, MPI_COMM_WORLD);
                expect(buffer, size, number);
            }
            double through = now_us();
            PMPI_Gather(&done, 1, MPI_BYTE, all, 1, MPI_BYTE, ROOT, MPI_COMM_WORLD);
            if (s >= 0) {
                own[s] = (through - began) / rounds;
                all_done[s] = (now_us() - began) / rounds;
            }
        }
        /* Only the root's time counts: the other ranks leave the gather at once. */
        double slowest = rank == ROOT ? median(all_done, SAMPLES) : 0;
        line(size, median(own, SAMPLES), 1, slowest, count * SAMPLES);
        if (rank == ROOT)
            printf(" %11.2f\n", (double)size / slowest);
        free(all);
        free(buffer);
    }
    MPI_Finalize();
    return 0;
}
