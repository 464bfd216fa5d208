/*
 * Skew (P1.12): after a barrier, every receiver waits for its own delay, evenly distributed from
 * zero to twice the mean (--delays=, microseconds), and enters the broadcast. The benchmark
 * measures the time inside MPI_Bcast. Late ranks sleep: on a machine with fewer cores than ranks, a
 * computing rank would make the others wait.
 *
 * A column of its own shows receivers that enter after the data have arrived, so that only the copy
 * is left to do. Data count as arrived after twice the time of the slowest undelayed broadcast of
 * the size. This compares the clocks of hosts, so the column is valid on the testbed only.
 */
#include "measure.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROOT = 0, ROUNDS = 60, WARM = 10 };

static uint32_t state;

/* A random number, evenly distributed from 0 to 1 (xorshift32, Marsaglia 2003). */
static double chance(void) {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state / 4294967296.0;
}

struct times {
    double inside, inside_after; /* sums */
    int all, after;
};

/* Makes a broadcast after a barrier and this rank's delay; adds its times to T. */
static void once(unsigned char *buffer, size_t size, unsigned number, double delay, double reach,
                 struct times *t) {
    PMPI_Barrier(MPI_COMM_WORLD);
    if (rank == ROOT)
        mark(buffer, size, number);
    else if (delay > 0)
        sleep_us(delay);
    double entered = now_us(), sent = entered;
    MPI_Bcast(buffer, (int)size, MPI_BYTE, ROOT, MPI_COMM_WORLD);
    double inside = now_us() - entered;
    expect(buffer, size, number);
    PMPI_Bcast(&sent, 1, MPI_DOUBLE, ROOT, MPI_COMM_WORLD);
    t->inside += inside;
    t->all++;
    if (entered > sent + reach) {
        t->inside_after += inside;
        t->after++;
    }
}

int main(int argc, char **argv) {
    static const size_t sizes[] = {4, 512, 2048, 0};
    start(argc, argv, sizes, ROUNDS);
    const char *delays = option("--delays=") ? option("--delays=") : "0,400,4000";
    state = 2463534242u + 77u * (uint32_t)rank;
    for (char *rest = (char *)delays; *rest; rest += *rest == ',') {
        double mean = strtod(rest, &rest);
        char what[80];
        snprintf(what, sizeof what, "MPI_Bcast, time inside, receivers late by %.0f us in the mean",
                 mean);
        head(what, "    After(us)   After(share)");
        for (int n = 0; size_of(n); n++) {
            size_t size = size_of(n);
            int count = iterations_of(size);
            unsigned char *buffer = calloc(1, size);
            unsigned number = 0;
            struct times prompt = {0, 0, 0, 0}, late = {0, 0, 0, 0};
            for (int i = 0; i < WARM; i++)
                once(buffer, size, ++number, 0, 1e300, &prompt);
            double reach = 2 * prompt.inside / prompt.all;
            PMPI_Allreduce(MPI_IN_PLACE, &reach, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
            for (int i = 0; i < count; i++)
                once(buffer, size, ++number, 2 * mean * chance(), reach, &late);
            double own = late.inside / late.all;
            line(size, own, rank != ROOT, rank == ROOT ? 0 : own, count);
            double after[2] = {rank == ROOT ? 0 : late.inside_after, rank == ROOT ? 0 : late.after},
                   all[2];
            PMPI_Reduce(after, all, 2, MPI_DOUBLE, MPI_SUM, ROOT, MPI_COMM_WORLD);
            if (rank == ROOT && all[1] > 0)
                printf(" %12.2f %14.2f\n", all[0] / all[1], all[1] / count / (ranks - 1));
            else if (rank == ROOT)
                printf(" %12s %14.2f\n", "-", 0.0);
            free(buffer);
        }
    }
    MPI_Finalize();
    return 0;
}
