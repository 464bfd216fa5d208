/*
 * Large counts: MPI_Bcast_c where the MPI library has it, and with `heavy` more than 2 GiB in one
 * message. A rank's two GiB are a few MiB of memory mapped again and again; only the last part has
 * memory of its own.
 */
#define _GNU_SOURCE
#include "check.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PIECE = 16 << 20, PIECES = 129 }; /* 2 GiB and 16 MiB */

/* The same PIECE mapped PIECES - 1 times, then one PIECE and TAIL bytes of their own. */
static unsigned char *fold(size_t tail) {
    size_t size = (size_t)PIECES * PIECE + tail;
    int file = memfd_create("piece", MFD_CLOEXEC);
    CHECK(file >= 0 && ftruncate(file, PIECE) == 0, "no memory file");
    unsigned char *all = mmap(NULL, size, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(all != MAP_FAILED, "no address space for %zu bytes", size);
    for (size_t i = 0; i + 1 < PIECES; i++)
        CHECK(mmap(all + i * PIECE, PIECE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file,
                   0) != MAP_FAILED,
              "cannot map the piece");
    close(file);
    return all;
}

static void above_2_gib(size_t tail, int by_count, int root, const char *name) {
    unsigned char *all = fold(tail);
    size_t own = (size_t)(PIECES - 1) * PIECE, rest = PIECE + tail;
    if (rank == root) {
        fill(all, PIECE, 1);
        fill(all + own, rest, 2);
    } else {
        memset(all, 0x5a, PIECE);
    }
    if (by_count) {
#if MPI_VERSION >= 4
        MPI(MPI_Bcast_c(all, (MPI_Count)(own + rest), MPI_BYTE, root, MPI_COMM_WORLD));
#endif
    } else {
        /* The count is small, the type is large. */
        MPI_Datatype block;
        MPI(MPI_Type_contiguous(1 << 20, MPI_BYTE, &block));
        MPI(MPI_Type_commit(&block));
        MPI(MPI_Bcast(all, (int)((own + rest) >> 20), block, root, MPI_COMM_WORLD));
        MPI(MPI_Type_free(&block));
    }
    CHECK(differs(all, PIECE, 1) < 0, "%s: the first 2 GiB are wrong", name);
    ptrdiff_t wrong = differs(all + own, rest, 2);
    CHECK(wrong < 0, "%s: wrong from byte %td after 2 GiB - 16 MiB on", name, wrong);
    munmap(all, own + rest);
    ok("large: %s", name);
}

#if MPI_VERSION >= 4
static void by_large_count(void) {
    static const size_t sizes[] = {0, 1, 1400, 1401, 65537, (1 << 20) + 1};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int root = 0; root < ranks; root++) {
            unsigned char *buffer = take(sizes[i]);
            if (rank == root)
                fill(buffer, sizes[i], i);
            MPI(MPI_Bcast_c(buffer, (MPI_Count)sizes[i], MPI_BYTE, root, MPI_COMM_WORLD));
            CHECK(differs(buffer, sizes[i], i) < 0, "MPI_Bcast_c of %zu bytes from %d is wrong",
                  sizes[i], root);
            give_back(buffer, sizes[i], "MPI_Bcast_c");
            /* Some ranks use a large count, others a small one, in the same broadcast. */
            buffer = take(sizes[i]);
            if (rank == root)
                fill(buffer, sizes[i], i + 100);
            if (rank % 2)
                MPI(MPI_Bcast_c(buffer, (MPI_Count)sizes[i], MPI_BYTE, root, MPI_COMM_WORLD));
            else
                MPI(MPI_Bcast(buffer, (int)sizes[i], MPI_BYTE, root, MPI_COMM_WORLD));
            CHECK(differs(buffer, sizes[i], i + 100) < 0,
                  "MPI_Bcast_c beside MPI_Bcast, %zu bytes: wrong", sizes[i]);
            give_back(buffer, sizes[i], "MPI_Bcast_c beside MPI_Bcast");
        }
    }
    ok("large: MPI_Bcast_c");
}
#endif

int main(int argc, char **argv) {
    start(argc, argv);
#if MPI_VERSION >= 4
    by_large_count();
#else
    skipped("large: MPI_Bcast_c", "the library is older than MPI 4");
#endif
    if (wanted("heavy")) {
        above_2_gib(0, 0, 0, "2 GiB and 16 MiB by a large type");
#if MPI_VERSION >= 4
        above_2_gib(4099, 1, ranks - 1, "2 GiB and 16 MiB and 4099 bytes by MPI_Bcast_c");
#endif
    } else {
        skipped("large: more than 2 GiB", "only with the argument heavy");
    }
    MPI_Finalize();
    return 0;
}
