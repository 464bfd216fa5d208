#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

int rank, ranks;
const char *shared_directory;

static char **arguments;

static const struct level {
    const char *name;
    int level;
} levels[] = {
    {"single", MPI_THREAD_SINGLE},
    {"funneled", MPI_THREAD_FUNNELED},
    {"serialized", MPI_THREAD_SERIALIZED},
    {"multiple", MPI_THREAD_MULTIPLE},
};

static const char *option(const char *name) {
    size_t len = strlen(name);
    for (char **a = arguments; *a; a++)
        if (strncmp(*a, name, len) == 0)
            return *a + len;
    return NULL;
}

int wanted(const char *name) {
    for (char **a = arguments; *a; a++)
        if (strcmp(*a, name) == 0)
            return 1;
    return 0;
}

void start(int argc, char **argv) {
    arguments = argv + 1;
    shared_directory = option("--shared=");
    const char *level = option("--level=");
    if (level) {
        int provided;
        for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
            if (strcmp(level, levels[i].name) != 0)
                continue;
            MPI_Init_thread(&argc, &argv, levels[i].level, &provided);
            MPI_Comm_rank(MPI_COMM_WORLD, &rank);
            if (provided < levels[i].level) {
                if (rank == 0)
                    printf("skipped: the library has no thread level %s\n", level);
                MPI_Finalize();
                exit(0);
            }
        }
    } else if (wanted("past")) {
        PMPI_Init(&argc, &argv); /* as a tool does that replaces MPI_Init */
    } else {
        MPI_Init(&argc, &argv);
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    CHECK(ranks >= 2, "at least two ranks are needed");
}

void fail(const char *file, int line, const char *format, ...) {
    char text[512];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    printf("FAIL rank %d of %d, %s:%d: %s\n", rank, ranks, file, line, text);
    fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, 1);
    _exit(1);
}

void ok(const char *name, ...) {
    /* PMPI: the check must not depend on the calls under test. */
    int one = 1, all = 0;
    MPI(PMPI_Allreduce(&one, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
    CHECK(all == ranks, "%d of %d ranks came to the end of a case", all, ranks);
    if (rank != 0)
        return;
    char text[256];
    va_list list;
    va_start(list, name);
    vsnprintf(text, sizeof text, name, list);
    va_end(list);
    printf("ok %s\n", text);
    fflush(stdout);
}

void skipped(const char *name, const char *why) {
    if (rank == 0) {
        printf("skipped: %s: %s\n", name, why);
        fflush(stdout);
    }
}

/* splitmix64 (Steele, Lea, Flood 2014): every bit of the result depends on every bit of X. */
static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

uint32_t draw(uint64_t seed, uint32_t bound) {
    return (uint32_t)(mix(seed) % bound);
}

void fill(void *buffer, size_t len, uint64_t seed) {
    unsigned char *at = buffer;
    uint64_t base = mix(seed);
    for (size_t i = 0; i < len; i += 8) {
        uint64_t word = mix(base + i);
        memcpy(at + i, &word, len - i < 8 ? len - i : 8);
    }
}

ptrdiff_t differs(const void *buffer, size_t len, uint64_t seed) {
    const unsigned char *at = buffer;
    uint64_t base = mix(seed);
    for (size_t i = 0; i < len; i += 8) {
        uint64_t word = mix(base + i);
        size_t n = len - i < 8 ? len - i : 8;
        if (memcmp(at + i, &word, n) != 0)
            return (ptrdiff_t)i; /* the first difference is within the eight bytes from here */
    }
    return -1;
}

enum { GUARD = 64, GUARD_BYTE = 0xa5, FOREIGN = 0x5a };

unsigned char *take(size_t len) {
    unsigned char *all = malloc(len + 2 * GUARD);
    CHECK(all, "no memory for %zu bytes", len);
    memset(all, GUARD_BYTE, GUARD);
    memset(all + GUARD, FOREIGN, len);
    memset(all + GUARD + len, GUARD_BYTE, GUARD);
    return all + GUARD;
}

void give_back(unsigned char *buffer, size_t len, const char *what) {
    for (int i = 0; i < GUARD; i++) {
        CHECK(buffer[-1 - i] == GUARD_BYTE, "%s: written %d bytes before the buffer", what, i + 1);
        CHECK(buffer[len + i] == GUARD_BYTE, "%s: written %d bytes behind the buffer", what, i);
    }
    free(buffer - GUARD);
}

void broadcast(MPI_Comm comm, int root, size_t len, uint64_t seed) {
    int me;
    MPI(MPI_Comm_rank(comm, &me));
    unsigned char *buffer = take(len);
    if (me == root)
        fill(buffer, len, seed);
    MPI(MPI_Bcast(buffer, (int)len, MPI_BYTE, root, comm));
    ptrdiff_t wrong = differs(buffer, len, seed);
    CHECK(wrong < 0, "broadcast of %zu bytes from %d: wrong from byte %td on", len, root, wrong);
    give_back(buffer, len, "broadcast");
}

void broadcast_twice(MPI_Comm comm, int root, size_t len, uint64_t seed) {
    int me;
    MPI(MPI_Comm_rank(comm, &me));
    unsigned char *ours = take(len), *theirs = take(len);
    if (me == root) {
        fill(ours, len, seed);
        fill(theirs, len, seed);
    }
    MPI(MPI_Bcast(ours, (int)len, MPI_BYTE, root, comm));
    MPI(PMPI_Bcast(theirs, (int)len, MPI_BYTE, root, comm));
    ptrdiff_t wrong = differs(ours, len, seed);
    CHECK(wrong < 0, "broadcast of %zu bytes from %d: wrong from byte %td on", len, root, wrong);
    CHECK(memcmp(ours, theirs, len) == 0,
          "broadcast of %zu bytes from %d: not what the library's own brings", len, root);
    give_back(ours, len, "MPI_Bcast");
    give_back(theirs, len, "PMPI_Bcast");
}

volatile uint32_t *shared_words(const char *name, size_t count) {
    if (!shared_directory)
        return NULL;
    char path[4096];
    size_t size = count * sizeof(uint32_t);
    snprintf(path, sizeof path, "%s/%s", shared_directory, name);
    int file = -1;
    /* Rank 0 creates the file, then all open it: nobody may read what an earlier run left. */
    if (rank == 0) {
        unlink(path);
        file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        CHECK(file >= 0 && ftruncate(file, (off_t)size) == 0, "cannot make %s", path);
    }
    MPI(PMPI_Barrier(MPI_COMM_WORLD));
    if (rank != 0)
        file = open(path, O_RDWR | O_CLOEXEC);
    CHECK(file >= 0, "cannot open %s: --shared must name a directory that all ranks share", path);
    void *words = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(words != MAP_FAILED, "cannot map %s", path);
    close(file);
    return words;
}

void pause_us(unsigned us) {
    struct timespec rest = {us / 1000000, (long)(us % 1000000) * 1000};
    while (nanosleep(&rest, &rest) != 0)
        ;
}
