/*
 * Programs that hang unless a rank that blocks in a collective call keeps the MPI library's
 * progress going. A starts an operation with B that cannot end without A, and blocks in a broadcast
 * or a barrier. B waits for the operation to end and only then enters the collective. All are legal
 * MPI.
 */
#include "check.h"

#include <stdlib.h>

enum { RENDEZVOUS = 4 << 20, SMALL = 8 };

/* The operation that A starts, and what B does to end it. */
struct deal {
    const char *name;
    void (*start)(int with, MPI_Request *request);
    void (*end)(int with);
};

static unsigned char *outgoing, *incoming;

static void start_send(int with, MPI_Request *request) {
    MPI(MPI_Isend(outgoing, RENDEZVOUS, MPI_BYTE, with, 1, MPI_COMM_WORLD, request));
}

static void start_synchronous(int with, MPI_Request *request) {
    MPI(MPI_Issend(outgoing, SMALL, MPI_BYTE, with, 1, MPI_COMM_WORLD, request));
}

static void take_message(int with) {
    MPI_Status status;
    int len;
    MPI(MPI_Recv(incoming, RENDEZVOUS, MPI_BYTE, with, 1, MPI_COMM_WORLD, &status));
    MPI(MPI_Get_count(&status, MPI_BYTE, &len));
    CHECK(differs(incoming, (size_t)len, (uint64_t)with) < 0,
          "a message of %d bytes from %d is wrong", len, with);
}

static void start_receive(int with, MPI_Request *request) {
    MPI(MPI_Irecv(incoming, RENDEZVOUS, MPI_BYTE, with, 2, MPI_COMM_WORLD, request));
}

static void send_synchronously(int with) {
    MPI(MPI_Ssend(outgoing, RENDEZVOUS, MPI_BYTE, with, 2, MPI_COMM_WORLD));
}

static const struct deal deals[] = {
    {"rendezvous Isend", start_send, take_message},
    {"Issend", start_synchronous, take_message},
    {"Irecv of a rendezvous", start_receive, send_synchronously},
};
enum { DEALS = sizeof deals / sizeof *deals };

/* B is the root of a broadcast, or the last rank to enter a barrier. */
static void broadcast_after(const struct deal *deal, int a, int b, size_t len, uint64_t seed) {
    MPI_Request request = MPI_REQUEST_NULL;
    if (rank == a)
        deal->start(b, &request);
    if (rank == b)
        deal->end(a);
    broadcast(MPI_COMM_WORLD, b, len, seed);
    MPI(MPI_Wait(&request, MPI_STATUS_IGNORE));
}

static void barrier_after(const struct deal *deal, int a, int b) {
    MPI_Request request = MPI_REQUEST_NULL;
    if (rank == a)
        deal->start(b, &request);
    if (rank == b)
        deal->end(a);
    MPI(MPI_Barrier(MPI_COMM_WORLD));
    MPI(MPI_Wait(&request, MPI_STATUS_IGNORE));
}

/* The root blocks while a message from it is on its way to a receiver that wants it first. */
static void from_the_root(int root, int b, size_t len, uint64_t seed) {
    MPI_Request request = MPI_REQUEST_NULL;
    if (rank == root)
        start_send(b, &request);
    if (rank == b)
        take_message(root);
    broadcast(MPI_COMM_WORLD, root, len, seed);
    MPI(MPI_Wait(&request, MPI_STATUS_IGNORE));
}

/* All send to the root, which receives every message before it broadcasts. */
static void from_everybody(int root, uint64_t seed) {
    MPI_Request request = MPI_REQUEST_NULL;
    if (rank != root)
        start_send(root, &request);
    else
        for (int from = 0; from < ranks; from++)
            if (from != root)
                take_message(from);
    broadcast(MPI_COMM_WORLD, root, 2000, seed);
    MPI(MPI_Wait(&request, MPI_STATUS_IGNORE));
}

/* A's message goes to C, which then notifies B, the root. B itself has no operation open with A. */
static void round_a_corner(int a, int b, int c, uint64_t seed) {
    MPI_Request request = MPI_REQUEST_NULL;
    if (rank == a)
        start_send(c, &request);
    if (rank == c) {
        take_message(a);
        MPI(MPI_Ssend(outgoing, SMALL, MPI_BYTE, b, 3, MPI_COMM_WORLD));
    }
    if (rank == b)
        MPI(MPI_Recv(incoming, SMALL, MPI_BYTE, c, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    broadcast(MPI_COMM_WORLD, b, 2000, seed);
    MPI(MPI_Wait(&request, MPI_STATUS_IGNORE));
}

/* A broadcast blocks while a collective operation of the MPI library is open on the same
 * communicator. */
static void nonblocking_collective(int root, uint64_t seed) {
    int a = (root + 1) % ranks;
    unsigned char *bytes = take(RENDEZVOUS);
    if (rank == a)
        fill(bytes, RENDEZVOUS, seed);
    MPI_Request request;
    MPI(MPI_Ibcast(bytes, RENDEZVOUS, MPI_BYTE, a, MPI_COMM_WORLD, &request));
    if (rank == root)
        MPI(MPI_Wait(&request, MPI_STATUS_IGNORE));
    broadcast(MPI_COMM_WORLD, root, 2000, seed + 1);
    if (rank != root)
        MPI(MPI_Wait(&request, MPI_STATUS_IGNORE));
    CHECK(differs(bytes, RENDEZVOUS, seed) < 0, "MPI_Ibcast beside a broadcast: wrong bytes");
    give_back(bytes, RENDEZVOUS, "MPI_Ibcast");
}

/* The root writes into A's window and waits until the data is there, while A is in the
 * broadcast. */
static void one_sided(int root, uint64_t seed) {
    int a = (root + 1) % ranks;
    unsigned char *memory;
    MPI_Win window;
    MPI(MPI_Win_allocate(RENDEZVOUS, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window));
    if (rank == root) {
        MPI(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, a, 0, window));
        MPI(MPI_Put(outgoing, RENDEZVOUS, MPI_BYTE, a, 0, RENDEZVOUS, MPI_BYTE, window));
        MPI(MPI_Win_unlock(a, window));
    }
    broadcast(MPI_COMM_WORLD, root, 2000, seed);
    if (rank == a) {
        MPI(MPI_Win_lock(MPI_LOCK_SHARED, a, 0, window));
        CHECK(differs(memory, RENDEZVOUS, (uint64_t)root) < 0,
              "MPI_Put beside a broadcast: wrong bytes");
        MPI(MPI_Win_unlock(a, window));
    }
    MPI(MPI_Win_free(&window));
}

int main(int argc, char **argv) {
    start(argc, argv);
    outgoing = take(RENDEZVOUS);
    incoming = take(RENDEZVOUS);
    fill(outgoing, RENDEZVOUS, (uint64_t)rank);
    uint64_t seed = 1;
    static const size_t sizes[] = {0, 4, 20000, 3 << 20};
    for (int d = 0; d < DEALS; d++) {
        for (int b = 0; b < ranks; b++)
            for (int away = 1; away < ranks; away += away < 2 ? 1 : ranks / 2)
                for (int i = 0; i < 4; i++)
                    broadcast_after(&deals[d], (b + away) % ranks, b, sizes[i], seed++);
        ok("crossing: %s, then a broadcast", deals[d].name);
        for (int b = 0; b < ranks; b++)
            barrier_after(&deals[d], (b + 1) % ranks, b);
        ok("crossing: %s, then a barrier", deals[d].name);
    }
    for (int root = 0; root < ranks; root++)
        for (int i = 0; i < 4; i++)
            from_the_root(root, (root + 1) % ranks, sizes[i], seed++);
    ok("crossing: the root's own message comes first");
    for (int root = 0; root < ranks; root++)
        from_everybody(root, seed++);
    ok("crossing: messages from everybody to the root");
    if (ranks > 2) {
        for (int b = 0; b < ranks; b++)
            round_a_corner((b + 1) % ranks, b, (b + 2) % ranks, seed++);
        ok("crossing: round a corner");
    }
    for (int root = 0; root < ranks; root++, seed += 2)
        nonblocking_collective(root, seed);
    ok("crossing: a non-blocking collective is open");
    int level;
    MPI(MPI_Query_thread(&level));
#ifdef OPEN_MPI
    if (level == MPI_THREAD_MULTIPLE) {
        skipped("crossing: one-sided", "Open MPI 4.1 has no windows over TCP at this thread level");
        level = -1;
    }
#endif
    if (level >= 0) {
        for (int root = 0; root < ranks; root++)
            one_sided(root, seed++);
        ok("crossing: one-sided, to a target that is in the broadcast");
    }
    give_back(outgoing, RENDEZVOUS, "outgoing");
    give_back(incoming, RENDEZVOUS, "incoming");
    MPI_Finalize();
    return 0;
}
