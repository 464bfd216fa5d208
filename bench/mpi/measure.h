/*
 * What the benchmarks share: options, times, and a table as the OSU benchmarks print it, with one
 * column more: when the slowest rank had it.
 *
 *   --sizes=A,B,...   bytes, default as each program says
 *   --iterations=N    for the smallest size; larger ones get fewer, by their bytes
 */
#ifndef MEASURE_H
#define MEASURE_H

#include <mpi.h>
#include <stddef.h>

/* Of MPI_COMM_WORLD. */
extern int rank, ranks;

/* Starts MPI and reads the options; SIZES are the default, ends with 0. */
void start(int argc, char **argv, const size_t *sizes, int iterations);
/* The Nth size, or 0 after the last. */
size_t size_of(int n);
/* How often to measure a size. */
int iterations_of(size_t size);
/* The value of an option such as "--delays=", or NULL. */
const char *option(const char *name);

/* Microseconds; hosts of the testbed share the clock. */
double now_us(void);
void sleep_us(double us);

/* Sorts VALUES. One time slice among a hundred microseconds would decide a mean. */
double median(double *values, int count);

void head(const char *what, const char *columns);
/* One line: a rank's own figure, told by each; of the ranks in TAKES_PART the mean, least and most
 * are printed. */
void line(size_t size, double own_us, int takes_part, double slowest_us, int iterations);

/* Bytes that iteration I of a broadcast of SIZE brings, and a look whether they have come: a
 * benchmark that is fast and wrong is none. Looks at a few bytes only, so as not to be what is
 * measured. */
void mark(unsigned char *buffer, size_t size, unsigned i);
void expect(const unsigned char *buffer, size_t size, unsigned i);

#endif
