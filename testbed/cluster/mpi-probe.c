/* A rank of the self-test, which reports on itself: "rank ranks host EXPORTED INHERITED yields
 * preloads". */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *variable(const char *name) {
    const char *value = getenv(name);
    return value ? value : "-";
}

static int mapped(const char *library) {
    char line[4096];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        found |= strstr(line, library) != NULL;
    if (maps)
        fclose(maps);
    return found;
}

int main(int argc, char **argv) {
    int rank, ranks;
    char host[64];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    gethostname(host, sizeof host);
    size_t size = 1 << 20;
    char *buffer = calloc(1, size);
    for (int i = 0; i < 20; i++)
        MPI_Bcast(buffer, (int)size, MPI_BYTE, 0, MPI_COMM_WORLD);
    int yields =
        strcmp(variable("OMPI_MCA_mpi_yield_when_idle"), "1") == 0 || getenv("MPICH_YIELD");
    printf("%d %d %s %s %s %d %d\n", rank, ranks, host, variable("EXPORTED"), variable("INHERITED"),
           yields, mapped("/testbed/mpich.so"));
    free(buffer);
    MPI_Finalize();
    return argc > 1 ? atoi(argv[1]) : 0;
}
