/*
 * Communicators that appear at run time: two halves of the job connect and merge, and the job
 * starts two more ranks (MPI_Comm_spawn) and merges with them. A case is skipped where the MPI
 * library or its launcher cannot do that. Open MPI's launcher needs --oversubscribe for the new
 * ranks.
 */
#include "check.h"

#include <stdlib.h>
#include <string.h>

static void use(MPI_Comm comm) {
    int members;
    MPI(MPI_Comm_size(comm, &members));
    static const size_t sizes[] = {1, 1400, 1401, 70000};
    for (int i = 0; i < 4; i++)
        for (int root = 0; root < members; root++)
            broadcast_twice(comm, root, sizes[i], (uint64_t)(i * members + root));
    for (int i = 0; i < 20; i++)
        MPI(MPI_Barrier(comm));
}

/* The MPI library serves the inter-communicator. Fabricast serves the communicator merged from
 * it. */
static void use_between(MPI_Comm inter, int high) {
    int word = high ? 0 : 4711, me;
    MPI(MPI_Comm_rank(inter, &me));
    MPI(MPI_Bcast(&word, 1, MPI_INT, high ? 0 : me == 0 ? MPI_ROOT : MPI_PROC_NULL, inter));
    CHECK(word == 4711, "a broadcast between two groups brought %d", word);
    MPI(MPI_Barrier(inter));
    MPI_Comm merged;
    MPI(MPI_Intercomm_merge(inter, high, &merged));
    use(merged);
    MPI(MPI_Comm_free(&merged));
}

static void connected(void) {
    int low = rank < ranks / 2, me;
    char port[MPI_MAX_PORT_NAME] = "";
    MPI_Comm half, inter;
    MPI(MPI_Comm_split(MPI_COMM_WORLD, low, rank, &half));
    MPI(MPI_Comm_rank(half, &me));
    int open = 1;
    if (rank == 0)
        open = MPI_Open_port(MPI_INFO_NULL, port) == MPI_SUCCESS;
    MPI(PMPI_Bcast(&open, 1, MPI_INT, 0, MPI_COMM_WORLD));
    if (!open) {
        MPI(MPI_Comm_free(&half));
        skipped("spawn: connect and accept", "the library opens no port");
        return;
    }
    MPI(PMPI_Bcast(port, sizeof port, MPI_CHAR, 0, MPI_COMM_WORLD));
    int connects = low ? MPI_Comm_accept(port, MPI_INFO_NULL, 0, half, &inter)
                       : MPI_Comm_connect(port, MPI_INFO_NULL, 0, half, &inter);
    int all;
    connects = connects == MPI_SUCCESS;
    MPI(PMPI_Allreduce(&connects, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD));
    if (all) {
        use_between(inter, !low);
        MPI(MPI_Comm_disconnect(&inter));
        use(half);
    }
    if (rank == 0)
        MPI(MPI_Close_port(port));
    MPI(MPI_Comm_free(&half));
    if (all)
        ok("spawn: connect, accept, merge");
    else
        skipped("spawn: connect and accept", "the library connects nobody here");
}

static void spawned(char *program) {
    enum { MORE = 2 };
    MPI_Comm inter;
    int codes[MORE];
    char *arguments[] = {"child", NULL};
    /* Both on the first rank's host: Open MPI 4.1's new ranks do not find each other on different
     * hosts. */
    char host[MPI_MAX_PROCESSOR_NAME];
    int len;
    MPI_Info info;
    MPI(MPI_Get_processor_name(host, &len));
    MPI(MPI_Info_create(&info));
    MPI(MPI_Info_set(info, "host", host));
    int started = MPI_Comm_spawn(program, arguments, MORE, info, 0, MPI_COMM_WORLD, &inter, codes);
    MPI(MPI_Info_free(&info));
    if (started != MPI_SUCCESS) {
        skipped("spawn: more ranks", "the library starts none here");
        return;
    }
    use_between(inter, 0);
    MPI(MPI_Comm_disconnect(&inter));
    ok("spawn: more ranks, and merge");
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "child") == 0) {
        MPI_Comm parent;
        start(argc, argv);
        MPI(MPI_Comm_get_parent(&parent));
        use(MPI_COMM_WORLD);
        use_between(parent, 1);
        MPI(MPI_Comm_disconnect(&parent));
        MPI_Finalize();
        return 0;
    }
    start(argc, argv);
    MPI(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    if (wanted("connect"))
        connected();
    if (wanted("spawn"))
        spawned(argv[0]);
    use(MPI_COMM_WORLD);
    ok("spawn: the world still works");
    MPI_Finalize();
    return 0;
}
