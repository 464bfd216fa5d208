/*
 * The first broadcast on a new communicator whose address comes from the pool, beside the first one
 * on a new communicator whose address was proven long ago (P5.6). All communicators have half of
 * the ranks, with rank 0 as the root. From the last member's call until the slowest member has
 * returned; medians; each broadcast follows a barrier of the MPI library. The rows:
 *
 *   0  a communicator that has been in use since the start
 *   1  the first broadcast on a new communicator of ranks that also have one which has been there
 *      since the start, so with an address that was proven long ago
 *   2  the first broadcast on a new communicator of ranks that have had none for seconds
 *
 * Rows 1 and 2 contain what the ranks agree on at a communicator's first use. Both take other ranks
 * each time: ranks that have just used a communicator together are faster, with the MPI library
 * alone too.
 *
 *   --pause=MS  before each new communicator; addresses are prepared meanwhile (default 50)
 */
#include "measure.h"

#include <stdio.h>
#include <stdlib.h>

enum { LENGTH = 1000, ROOT = 0, ROWS = 3, ITERATIONS_MAX = 10000 };
enum { RANKS_MIN = 8, RANKS_MAX = 16 };
/* Sets of ranks that have a communicator from the start to the end. */
enum { KEPT = 8 };

/* The sets of half of the ranks that contain rank 0, as bits. The first KEPT of them are as
 * different as the others. */
static unsigned sets[1 << RANKS_MAX];
static int set_count;

static void list_sets(void) {
    for (unsigned set = 1; set < 1u << ranks; set += 2)
        if (__builtin_popcount(set) == ranks / 2)
            sets[set_count++] = set;
    for (int kept = 1; kept < KEPT; kept++) {
        int from = kept * set_count / KEPT;
        unsigned set = sets[kept];
        sets[kept] = sets[from];
        sets[from] = set;
    }
}

static double number(const char *name, double otherwise) {
    return option(name) ? atof(option(name)) : otherwise;
}

static MPI_Comm make(int n) {
    MPI_Comm made;
    int in = sets[n] >> rank & 1;
    MPI_Comm_split(MPI_COMM_WORLD, in ? 0 : MPI_UNDEFINED, rank, &made);
    return made;
}

static double took(MPI_Comm comm) {
    static unsigned char buffer[LENGTH];
    static unsigned turn;
    double times[2] = {0, 0};
    turn++;
    PMPI_Barrier(MPI_COMM_WORLD);
    if (comm != MPI_COMM_NULL) {
        if (rank == ROOT)
            mark(buffer, LENGTH, turn);
        times[0] = now_us();
        MPI_Bcast(buffer, LENGTH, MPI_BYTE, ROOT, comm);
        times[1] = now_us();
        expect(buffer, LENGTH, turn);
    }
    PMPI_Allreduce(MPI_IN_PLACE, times, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return times[1] - times[0];
}

static double took_first(int n) {
    sleep_us(1e3 * number("--pause=", 50));
    MPI_Comm made = make(n);
    double time = took(made);
    if (made != MPI_COMM_NULL)
        MPI_Comm_free(&made);
    return time;
}

int main(int argc, char **argv) {
    static const size_t none[] = {1, 0};
    static double all[ROWS][ITERATIONS_MAX];
    start(argc, argv, none, 200);
    int count = iterations_of(0);
    count = count < ITERATIONS_MAX ? count : ITERATIONS_MAX;
    list_sets();
    if (ranks < RANKS_MIN || ranks > RANKS_MAX) {
        if (rank == 0)
            printf("%d to %d ranks are needed\n", RANKS_MIN, RANKS_MAX);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    MPI_Comm old[KEPT];
    for (int kept = 0; kept < KEPT; kept++) {
        old[kept] = make(kept);
        for (int i = 0; i < 20; i++)
            took(old[kept]);
    }
    sleep_us(1e6);
    for (int i = 0; i < count; i++) {
        all[0][i] = took(old[0]);
        all[1][i] = took_first(i % KEPT);
        all[2][i] = took_first(KEPT + i % (set_count - KEPT));
    }
    head("A broadcast on an old communicator, the first on a new one with an old and a new address",
         "");
    for (int row = 0; row < ROWS; row++) {
        double half = median(all[row], count);
        line((size_t)row, half, 1, half, count);
        if (rank == 0)
            printf("\n");
    }
    for (int kept = 0; kept < KEPT; kept++)
        if (old[kept] != MPI_COMM_NULL)
            MPI_Comm_free(&old[kept]);
    MPI_Finalize();
    return 0;
}
