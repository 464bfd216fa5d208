/* MPI_Barrier, back to back (P2): each rank's mean; the slowest is the largest mean. The numbers of
 * barriers and of warm-ups are those of the OSU benchmark. */
#include "measure.h"

#include <stdio.h>

enum { WARM = 200 };

int main(int argc, char **argv) {
    static const size_t none[] = {1, 0};
    start(argc, argv, none, 1000);
    int count = iterations_of(0);
    double began = 0;
    for (int i = -WARM; i < count; i++) {
        if (i == 0)
            began = now_us();
        MPI_Barrier(MPI_COMM_WORLD);
    }
    double own = (now_us() - began) / count;
    head("MPI_Barrier", "");
    line(0, own, 1, own, count);
    if (rank == 0)
        printf("\n");
    MPI_Finalize();
    return 0;
}
