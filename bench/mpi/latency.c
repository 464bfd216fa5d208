/*
 * Latency by the method of P1.12: the root broadcasts, and one receiver answers; the receivers take
 * turns. The latency to this receiver is the root's time for both, less the time of a message. A
 * ping-pong with the same receiver follows each broadcast, so that the message is timed while the
 * other ranks do the same as before: they wait for the next broadcast. Each receiver has the median
 * of its latencies; the slowest receiver has the largest median.
 */
#include "measure.h"

#include <stdio.h>
#include <stdlib.h>

enum { TAG = 1, ROOT = 0 };

static char word;

static void answer(int from, int to) {
    if (rank == from)
        MPI_Send(&word, 1, MPI_CHAR, to, TAG, MPI_COMM_WORLD);
    else if (rank == to)
        MPI_Recv(&word, 1, MPI_CHAR, from, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

/* The root's time, in microseconds, for a broadcast that rank TURN answers. */
static double broadcast_us(unsigned char *buffer, size_t size, int turn, unsigned number) {
    if (rank == ROOT)
        mark(buffer, size, number);
    double began = now_us();
    MPI_Bcast(buffer, (int)size, MPI_BYTE, ROOT, MPI_COMM_WORLD);
    answer(turn, ROOT);
    double took = now_us() - began;
    expect(buffer, size, number);
    return took;
}

/* The time of a message, half of a ping-pong with rank TURN, in microseconds. */
static double message_us(int turn) {
    double began = now_us();
    answer(ROOT, turn);
    answer(turn, ROOT);
    return (now_us() - began) / 2;
}

/* Measures, at the root, the latency to each receiver. */
static void measure(double *latency, unsigned char *buffer, size_t size, int each) {
    enum { WARM = 3 };
    double *broadcast = calloc((size_t)(ranks * each), sizeof *broadcast);
    double *message = calloc((size_t)(ranks * each), sizeof *message);
    unsigned number = 0;
    for (int i = -WARM; i < each; i++) {
        for (int turn = 1; turn < ranks; turn++) {
            double both = broadcast_us(buffer, size, turn, ++number), one = message_us(turn);
            if (i >= 0) {
                broadcast[turn * each + i] = both;
                message[turn * each + i] = one;
            }
        }
    }
    for (int r = 1; r < ranks; r++)
        latency[r] = median(broadcast + r * each, each) - median(message + r * each, each);
    free(broadcast);
    free(message);
}

int main(int argc, char **argv) {
    static const size_t sizes[] = {4, 64, 512, 1400, 2048, 8192, 32768, 65536, 0};
    start(argc, argv, sizes, 50);
    double *latency = calloc((size_t)ranks, sizeof *latency), own = 0;
    head("MPI_Bcast, latency", "");
    for (int n = 0; size_of(n); n++) {
        int each = iterations_of(size_of(n));
        unsigned char *buffer = calloc(1, size_of(n));
        measure(latency, buffer, size_of(n), each);
        /* The root tells each receiver its latency. */
        PMPI_Scatter(latency, 1, MPI_DOUBLE, &own, 1, MPI_DOUBLE, ROOT, MPI_COMM_WORLD);
        line(size_of(n), own, rank != ROOT, own, each * (ranks - 1));
        if (rank == ROOT)
            printf("\n");
        free(buffer);
    }
    free(latency);
    MPI_Finalize();
    return 0;
}
