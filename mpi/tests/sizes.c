/* Every size around the edges of words, datagrams and payload sizes, from every root. At an MTU of
 * 1500 the payload size is 1440 bytes. */
#include "check.h"

static const size_t small[] = {
    0,    1,    2,    3,    4,    5,    7,    8,    9,    15,   16,   17,   31,   32,    33,   63,
    64,   65,   127,  128,  129,  255,  256,  257,  511,  512,  513,  1023, 1024, 1025,  1399, 1400,
    1401, 1431, 1432, 1433, 1439, 1440, 1441, 1471, 1472, 1473, 1499, 1500, 1501, 2047,  2048, 2049,
    2799, 2800, 2801, 2879, 2880, 2881, 4096, 8191, 8192, 8193, 8959, 8960, 8961, 16384,
};
/* Around 64 payloads, around the limit up to which the root copies, and around a window of 2048
 * payloads. */
static const size_t medium[] = {32767, 32768, 32769, 65507,  65535,  65536,  65537,
                                92159, 92160, 92161, 131072, 262143, 262144, 262145};
static const size_t large[] = {(1 << 20) - 1, 1 << 20, (1 << 20) + 1, 2949119,
                               2949120,       2949121, 3333333};

#define EACH(list) for (size_t i = 0; i < sizeof list / sizeof *list; i++)

int main(int argc, char **argv) {
    start(argc, argv);
    uint64_t seed = 1;
    for (int root = 0; root < ranks; root++) {
        EACH(small) broadcast_twice(MPI_COMM_WORLD, root, small[i], seed++);
        EACH(medium) broadcast_twice(MPI_COMM_WORLD, root, medium[i], seed++);
    }
    ok("sizes to 256 KiB, every root");
    for (int root = 0; root < ranks; root++)
        EACH(large) broadcast_twice(MPI_COMM_WORLD, root, large[i], seed++);
    ok("sizes round 1 MiB and a window, every root");
    for (int root = 0; root < ranks; root += ranks - 1)
        broadcast(MPI_COMM_WORLD, root, 16 << 20, seed++);
    ok("16 MiB");
    MPI_Finalize();
    return 0;
}
