/*
 * An application: all ranks together train a logistic regression, each on rows of its own. In every
 * step the first rank broadcasts the weights, all ranks compute gradients, and a reduction sums the
 * gradients at the first rank. Every tenth step all ranks wait for each other, as for a checkpoint.
 * The result does not depend on how the bytes travelled: it is printed, to be compared.
 */
#include "measure.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 64, STEPS = 100 };

int main(int argc, char **argv) {
    /* Sizes of the weights in bytes: sizeof(double) times their number. */
    static const size_t sizes[] = {8192, 65536, 524288, 0};
    start(argc, argv, sizes, STEPS);
    head("training, one step", "        loss");
    for (int n = 0; size_of(n); n++) {
        size_t width = size_of(n) / sizeof(double);
        int steps = iterations_of(size_of(n) * 4);
        float *rows = malloc(ROWS * width * sizeof *rows);
        double *weights = calloc(width, sizeof *weights),
               *gradient = malloc(width * sizeof *gradient);
        double *sum = malloc(width * sizeof *sum), loss = 0, all_loss = 0;
        uint32_t state = 1u + (uint32_t)rank;
        for (size_t i = 0; i < ROWS * width; i++) {
            state = state * 1664525u + 1013904223u; /* Numerical Recipes' generator */
            rows[i] = (float)(state >> 8) / (1 << 23) - 1;
        }
        MPI_Barrier(MPI_COMM_WORLD);
        double began = now_us();
        for (int s = 0; s < steps; s++) {
            MPI_Bcast(weights, (int)width, MPI_DOUBLE, 0, MPI_COMM_WORLD);
            loss = 0;
            for (size_t k = 0; k < width; k++)
                gradient[k] = 0;
            for (int r = 0; r < ROWS; r++) {
                const float *row = rows + (size_t)r * width;
                double z = 0, label = row[0] > 0;
                for (size_t k = 0; k < width; k++)
                    z += weights[k] * row[k];
                double p = 1 / (1 + exp(-z));
                loss -= log(fmax(label > 0 ? p : 1 - p, 1e-12));
                for (size_t k = 0; k < width; k++)
                    gradient[k] += (p - label) * row[k];
            }
            MPI_Reduce(gradient, sum, (int)width, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
            for (size_t k = 0; rank == 0 && k < width; k++)
                weights[k] -= 0.1 / (ROWS * ranks) * sum[k];
            if (s % 10 == 9)
                MPI_Barrier(MPI_COMM_WORLD);
        }
        double own = (now_us() - began) / steps;
        PMPI_Reduce(&loss, &all_loss, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
        line(size_of(n), own, 1, own, steps);
        if (rank == 0)
            printf(" %11.6f\n", all_loss / (ROWS * ranks));
        free(rows);
        free(weights);
        free(gradient);
        free(sum);
    }
    MPI_Finalize();
    return 0;
}
