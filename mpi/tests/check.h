/*
 * What all test programs use: expected bytes to compare broadcasts with, buffers with guards, and
 * cases. A case ends with a line "ok NAME", or with a message and MPI_Abort.
 *
 * A program runs on at least two ranks. --level=single|funneled|serialized|multiple requests a
 * thread level; --shared=DIRECTORY names a directory that all ranks can write to.
 */
#ifndef CHECK_H
#define CHECK_H

#include <mpi.h>
#include <stddef.h>
#include <stdint.h>

/* This rank in MPI_COMM_WORLD, and its size. */
extern int rank, ranks;
/* The directory of --shared, or NULL. */
extern const char *shared_directory;

/* Starts MPI. If the thread level is not available, prints a line "skipped: REASON" and ends the
 * program. */
void start(int argc, char **argv);
/* Whether NAME is among the program's arguments. */
int wanted(const char *name);

/* Ends a case. All ranks of MPI_COMM_WORLD call this when they have finished it. */
void ok(const char *name, ...) __attribute__((format(printf, 1, 2)));
/* Ends a case that cannot be tried, for the reason WHY. */
void skipped(const char *name, const char *why);

void fail(const char *file, int line, const char *format, ...)
    __attribute__((noreturn, format(printf, 3, 4)));
#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition))                                                                          \
            fail(__FILE__, __LINE__, __VA_ARGS__);                                                 \
    } while (0)
#define MPI(call) CHECK((call) == MPI_SUCCESS, "%s failed", #call)

/* Fills BUFFER with the expected bytes: LEN bytes that depend on SEED alone, and differ at every
 * offset and for every seed. */
void fill(void *buffer, size_t len, uint64_t seed);
/* Where BUFFER first differs from the expected bytes, or -1. */
ptrdiff_t differs(const void *buffer, size_t len, uint64_t seed);
/* A number below BOUND that depends on SEED alone. */
uint32_t draw(uint64_t seed, uint32_t bound);

/* Returns a buffer with guards on both sides, filled with other than the expected bytes.
 * `give_back` checks the guards. */
unsigned char *take(size_t len);
void give_back(unsigned char *buffer, size_t len, const char *what);

/* Broadcasts LEN bytes by MPI_Bcast and compares them with the expected bytes. */
void broadcast(MPI_Comm comm, int root, size_t len, uint64_t seed);
/* Like `broadcast`, but also compares with the result of the MPI library's own broadcast
 * (PMPI_Bcast). */
void broadcast_twice(MPI_Comm comm, int root, size_t len, uint64_t seed);

/* Memory of COUNT words that all ranks share, in a file in --shared. NULL without --shared. */
volatile uint32_t *shared_words(const char *name, size_t count);
/* Sleeps, to make a rank late. */
void pause_us(unsigned us);

#endif
