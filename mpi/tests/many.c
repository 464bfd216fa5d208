/*
 * Thousands of communicators made, used and freed in one job: 2000 by default, --communicators=N.
 * Descriptors, memory and memberships in IP groups must not grow with their number.
 */
#include "check.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int descriptors(void) {
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    CHECK(dir, "no /proc/self/fd");
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static long resident_kib(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%*s %ld", &pages) == 1, "no /proc/self/statm");
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* The IPv4 groups that this host has joined, by all its processes. */
static int ip_groups(void) {
    char line[256];
    int n = 0;
    FILE *file = fopen("/proc/self/net/igmp", "r");
    while (file && fgets(line, sizeof line, file))
        n += line[0] == '\t';
    if (file)
        fclose(file);
    return n;
}

static int groups_at_start, groups_most;

static void use(MPI_Comm comm, uint64_t seed) {
    int members;
    MPI(MPI_Comm_size(comm, &members));
    broadcast(comm, (int)(seed % (uint64_t)members), 1 + draw(seed, 3000), seed);
    if (seed % 8 == 0)
        MPI(MPI_Barrier(comm));
    if (ip_groups() > groups_most)
        groups_most = ip_groups();
}

/* The Nth communicator: a duplicate, halves, all ranks but one, or neighbours. */
static MPI_Comm make(uint64_t n) {
    MPI_Comm comm;
    switch (n % 4) {
    case 0: MPI(MPI_Comm_dup(MPI_COMM_WORLD, &comm)); break;
    case 1: MPI(MPI_Comm_split(MPI_COMM_WORLD, rank % 2, 0, &comm)); break;
    case 2:
        MPI(MPI_Comm_split(MPI_COMM_WORLD, rank == (int)(n % (uint64_t)ranks) ? MPI_UNDEFINED : 0,
                           -rank, &comm));
        break;
    default: MPI(MPI_Comm_split(MPI_COMM_WORLD, rank / 2, 0, &comm)); break;
    }
    return comm;
}

static void one_by_one(uint64_t from, uint64_t to) {
    for (uint64_t n = from; n < to; n++) {
        MPI_Comm comm = make(n);
        if (comm != MPI_COMM_NULL) {
            use(comm, n);
            MPI(MPI_Comm_free(&comm));
        }
    }
}

static void at_once(uint64_t from) {
    enum { HELD = 100 };
    MPI_Comm held[HELD];
    for (int i = 0; i < HELD; i++)
        held[i] = make(from + (uint64_t)i);
    for (int turn = 0; turn < 2; turn++)
        for (int i = 0; i < HELD; i++)
            if (held[i] != MPI_COMM_NULL)
                use(held[i], from + (uint64_t)i);
    /* Frees them in another order than they were made in. */
    for (int i = HELD - 1; i >= 0; i--)
        if (held[i] != MPI_COMM_NULL)
            MPI(MPI_Comm_free(&held[i]));
}

int main(int argc, char **argv) {
    uint64_t count = 2000;
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], "--communicators=", 16) == 0)
            count = (uint64_t)atoi(argv[i] + 16);
    groups_at_start = ip_groups();
    start(argc, argv);
    at_once(0);
    one_by_one(0, count / 4);
    int fds = descriptors();
    long kib = resident_kib();
    at_once(count / 4);
    one_by_one(count / 4, count);
    /* The host leaves a group a moment after the group ends: one IP group more or less is
     * possible. */
    /* The default: eight addresses in advance, up to 32 if communicators come fast, and as many in
     * use. */
    int most = 8 + 2 * 32;
    CHECK(descriptors() <= fds + most, "%d descriptors, %d after the first quarter", descriptors(),
          fds);
    long grown = resident_kib() - kib;
    CHECK(grown < 16384, "%ld KiB more than after the first quarter", grown);
    int groups = groups_most - groups_at_start;
    CHECK(groups <= most, "%d IP groups joined, at most %d allowed", groups, most);
    if (rank == 0)
        fprintf(
            stderr,
            "many: rank 0: %d descriptors, %ld KiB more in the last three quarters, %d IP groups\n",
            descriptors(), grown, groups);
    ok("many: %d communicators", (int)count);
    MPI_Finalize();
    return 0;
}
