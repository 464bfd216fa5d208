/*
 * Broadcasts and barriers of a job in whose ranks' names somebody else sends datagrams (forged,
 * beside this file): all of them come to their end, with the right bytes. No broadcast has as few
 * bytes as what is forged.
 */
#include "check.h"

int main(int argc, char **argv) {
    enum { ROUNDS = 2500, LEAST = 100 };
    start(argc, argv);
    for (unsigned i = 0; i < ROUNDS; i++) {
        broadcast(MPI_COMM_WORLD, (int)i % ranks, LEAST + draw(i, 6000), i);
        if (i % 2)
            MPI(MPI_Barrier(MPI_COMM_WORLD));
        if (i % 50 == 0)
            pause_us(20000);
    }
    ok("forged: %d broadcasts", ROUNDS);
    MPI_Finalize();
    return 0;
}
