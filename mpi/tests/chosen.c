/*
 * Broadcasts of many sizes from all roots, and barriers, on communicators of several sizes. All
 * bytes must be right, whether Fabricast or the MPI library serves a call. The test that starts
 * this program knows the number of calls. With "few" there are hardly any. With "past" the program
 * calls PMPI_Init, as a tool does that replaces MPI_Init.
 */
#include "check.h"

static void use(MPI_Comm comm, const char *name, int times) {
    static const size_t sizes[] = {4, 100, 5000, 60000, 500000};
    int members;
    MPI(MPI_Comm_set_name(comm, name));
    MPI(MPI_Comm_size(comm, &members));
    for (int i = 0; i < times; i++) {
        for (int s = 0; s < 5; s++)
            for (int root = 0; root < members; root++)
                broadcast(comm, root, sizes[s], (uint64_t)(100 * i + 10 * s + root));
        MPI(MPI_Barrier(comm));
    }
}

int main(int argc, char **argv) {
    start(argc, argv);
    int times = wanted("few") ? 1 : 4;
    use(MPI_COMM_WORLD, "all", times);
    MPI_Comm pair;
    MPI(MPI_Comm_split(MPI_COMM_WORLD, rank / 2, rank, &pair));
    if (!wanted("few"))
        use(pair, "pair", times);
    MPI(MPI_Comm_free(&pair));
    ok("chosen");
    MPI_Finalize();
    return 0;
}
