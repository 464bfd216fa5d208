/*
 * What all test programs stand on: the truth that a broadcast's bytes are compared with, buffers
 * with guards, and cases that end with a line "ok NAME", or with a message and MPI_Abort.
 *
 * A program is started on at least two ranks. --level=single|funneled|serialized|multiple asks for
 * a thread level, --shared=DIRECTORY names one that all ranks can write to.
 */
#ifndef CHECK_H
#define CHECK_H

#include <mpi.h>
#include <stddef.h>
#include <stdint.h>

/* Of MPI_COMM_WORLD. */
extern int rank, ranks;
/* What was asked for with --shared, or NULL. */
extern const char *shared_directory;

/* Starts MPI. The program is left here, with a line "skipped: REASON", if the thread level is not
 * to be had. */
void start(int argc, char **argv);
/* Is NAME among the program's arguments? */
int wanted(const char *name);

/* A case: all ranks of MPI_COMM_WORLD come here when they are through with it. */
void ok(const char *name, ...) __attribute__((format(printf, 1, 2)));
/* The same, for one that cannot be tried. */
void skipped(const char *name, const char *why);

void fail(const char *file, int line, const char *format, ...)
    __attribute__((noreturn, format(printf, 3, 4)));
#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition))                                                                          \
            fail(__FILE__, __LINE__, __VA_ARGS__);                                                 \
    } while (0)
#define MPI(call) CHECK((call) == MPI_SUCCESS, "%s failed", #call)

/* The truth: LEN bytes that SEED alone decides, and that differ at every offset and for every
 * seed. */
void fill(void *buffer, size_t len, uint64_t seed);
/* Where BUFFER first differs from it, or -1. */
ptrdiff_t differs(const void *buffer, size_t len, uint64_t seed);
/* A number below BOUND that SEED alone decides. */
uint32_t draw(uint64_t seed, uint32_t bound);

/* A buffer with guards on both sides, filled with what is not the truth; GIVE_BACK checks the
 * guards. */
unsigned char *take(size_t len);
void give_back(unsigned char *buffer, size_t len, const char *what);

/* One broadcast of LEN bytes by MPI_Bcast, compared with the truth. */
void broadcast(MPI_Comm comm, int root, size_t len, uint64_t seed);
/* The same, and compared with what the library's own broadcast (PMPI_Bcast) brings. */
void broadcast_twice(MPI_Comm comm, int root, size_t len, uint64_t seed);

/* One page or more of memory that all ranks share, from a file in --shared; NULL without one. */
volatile uint32_t *shared_words(const char *name, size_t count);
/* Sleeps; for ranks that are to be late. */
void pause_us(unsigned us);

#endif
