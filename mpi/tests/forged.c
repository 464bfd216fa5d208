/*
 * Broadcasts and barriers of a job, while another host sends datagrams in the names of its ranks
 * (`forged`, beside this file). All calls must complete with the right bytes. No broadcast is as
 * short as the forged ones.
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
