#define _GNU_SOURCE
#include "measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

enum { SIZES_MAX = 64, BYTES_PER_SIZE = 64 << 20, ITERATIONS_MIN = 8 };

int rank, ranks;

static char **arguments;
static size_t chosen[SIZES_MAX + 1];
static int iterations_most;

const char *option(const char *name) {
    for (char **a = arguments; *a; a++)
        if (strncmp(*a, name, strlen(name)) == 0)
            return *a + strlen(name);
    return NULL;
}

void start(int argc, char **argv, const size_t *sizes, int iterations) {
    arguments = argv + 1;
    /* Short sleeps shall be as short as requested. */
    prctl(PR_SET_TIMERSLACK, 1UL);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int n = 0;
    const char *list = option("--sizes=");
    for (; list && *list && n < SIZES_MAX; list += strcspn(list, ","), list += *list == ',')
        chosen[n++] = strtoul(list, NULL, 10);
    for (; !list && sizes[n] && n < SIZES_MAX; n++)
        chosen[n] = sizes[n];
    chosen[n] = 0;
    iterations_most = option("--iterations=") ? atoi(option("--iterations=")) : iterations;
    if (option("--settle="))
        sleep_us(1e3 * atof(option("--settle=")));
}

size_t size_of(int n) {
    return chosen[n];
}

int iterations_of(size_t size) {
    size_t fit = BYTES_PER_SIZE / (size + 1);
    int n = fit < (size_t)iterations_most ? (int)fit : iterations_most;
    return n < ITERATIONS_MIN ? ITERATIONS_MIN : n;
}

double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

void sleep_us(double us) {
    struct timespec rest = {(time_t)(us / 1e6), (long)(us * 1e3) % 1000000000};
    while (nanosleep(&rest, &rest) != 0)
        ;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, by_value);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

void head(const char *what, const char *columns) {
    if (rank == 0)
        printf("# %s, %d ranks\n# %-10s %14s %14s %14s %12s %14s%s\n", what, ranks, "Size",
               "Avg(us)", "Min(us)", "Max(us)", "Iterations", "Slowest(us)", columns);
}

void line(size_t size, double own_us, int takes_part, double slowest_us, int iterations) {
    double sum = takes_part ? own_us : 0, least = takes_part ? own_us : 1e300,
           most = takes_part ? own_us : 0;
    double count = takes_part ? 1 : 0, of[2] = {sum, count}, all[2];
    PMPI_Reduce(of, all, 2, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    PMPI_Reduce(rank ? &least : MPI_IN_PLACE, &least, 1, MPI_DOUBLE, MPI_MIN, 0, MPI_COMM_WORLD);
    PMPI_Reduce(rank ? &most : MPI_IN_PLACE, &most, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    PMPI_Reduce(rank ? &slowest_us : MPI_IN_PLACE, &slowest_us, 1, MPI_DOUBLE, MPI_MAX, 0,
                MPI_COMM_WORLD);
    if (rank == 0)
        printf("  %-10zu %14.2f %14.2f %14.2f %12d %14.2f", size, all[0] / all[1], least, most,
               iterations, slowest_us);
}

static unsigned char byte_of(size_t at, unsigned i) {
    return (unsigned char)(at * 31 + i * 7 + 1);
}

static size_t looked_at(size_t size, int n) {
    return n == 0 ? 0 : n == 1 ? size / 2 : size - 1;
}

void mark(unsigned char *buffer, size_t size, unsigned i) {
    for (int n = 0; n < 3; n++)
        buffer[looked_at(size, n)] = byte_of(looked_at(size, n), i);
}

void expect(const unsigned char *buffer, size_t size, unsigned i) {
    for (int n = 0; n < 3; n++) {
        size_t at = looked_at(size, n);
        if (buffer[at] == byte_of(at, i))
            continue;
        printf("FAIL rank %d: byte %zu of broadcast %u of %zu bytes is wrong\n", rank, at, i, size);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}
