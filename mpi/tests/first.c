/* The first broadcasts of a job, right after MPI_Init, one from every root. With --progress, given
 * when the shim is tested, the other ranks come only when the root has returned. The root cannot
 * return if the ranks still have to agree on something. The statistics tell whether anything was
 * lost because a root sent it before the switch forwarded. */
#include "check.h"

int main(int argc, char **argv) {
    enum { LIMIT_MS = 20000 };
    start(argc, argv);
    volatile uint32_t *through = wanted("--progress") ? shared_words("first", (size_t)ranks) : NULL;
    for (int root = 0; root < ranks; root++) {
        for (int ms = 0; through && rank != root && !through[root]; ms++) {
            CHECK(ms < LIMIT_MS, "root %d is not through with its first broadcast", root);
            pause_us(1000);
        }
        broadcast(MPI_COMM_WORLD, root, 4, (uint64_t)root + 1);
        if (through)
            through[root] = 1;
    }
    ok("the first broadcasts");
    MPI_Finalize();
    return 0;
}
