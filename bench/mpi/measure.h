/*
 * Parts that the benchmarks share: options, times, and a table like that of the OSU benchmarks with
 * one more column, the time of the slowest rank.
 *
 *   --sizes=A,B,...   in bytes; each program has its default
 *   --settle=MS       waits after MPI_Init
 *   --iterations=N    for the smallest size; larger ones get fewer, by their bytes
 */
#ifndef MEASURE_H
#define MEASURE_H

#include <mpi.h>
#include <stddef.h>

/* This process's rank in MPI_COMM_WORLD, and the number of ranks. */
extern int rank, ranks;

/* Starts MPI and reads the options. SIZES are the default sizes and end with 0. */
void start(int argc, char **argv, const size_t *sizes, int iterations);
/* The Nth size, or 0 after the last. */
size_t size_of(int n);
/* Number of measurements of a size. */
int iterations_of(size_t size);
/* The value of an option such as "--delays=", or NULL. */
const char *option(const char *name);

/* The time in microseconds; all hosts of the testbed share the clock. */
double now_us(void);
void sleep_us(double us);

/* The median; sorts VALUES. A mean would depend on a single time slice among many short times. */
double median(double *values, int count);

void head(const char *what, const char *columns);
/* Prints a line. Every rank calls it with its own figure; the line has the mean, least and most of
 * the ranks that set TAKES_PART. */
void line(size_t size, double own_us, int takes_part, double slowest_us, int iterations);

/* `mark` sets bytes for iteration I of a broadcast of SIZE bytes; `expect` checks that they have
 * come, since a fast but wrong benchmark is worthless. Both touch a few bytes only, so that their
 * time does not show in the results. */
void mark(unsigned char *buffer, size_t size, unsigned i);
void expect(const unsigned char *buffer, size_t size, unsigned i);

#endif
