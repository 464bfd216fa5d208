/*
 * Threads as each level allows: they only compute (funneled), take turns (serialized), or all call
 * MPI at once (multiple), each on a communicator of its own, while other messages pass between
 * threads.
 */
#define _GNU_SOURCE
#include "check.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { THREADS = 4, ROUNDS = 120 };

static MPI_Comm comms[THREADS];
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static atomic_int over;

static void *computes(void *unused) {
    (void)unused;
    volatile uint64_t x = 1;
    while (!atomic_load(&over))
        for (int i = 0; i < 1000; i++)
            x = x * 6364136223846793005u + 1;
    return NULL;
}

static void funneled(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, computes, NULL) == 0, "no thread");
    for (uint64_t i = 0; i < ROUNDS; i++)
        broadcast_twice(MPI_COMM_WORLD, (int)i % ranks, draw(i, 9000), i);
    MPI(MPI_Barrier(MPI_COMM_WORLD));
    atomic_store(&over, 1);
    pthread_join(thread, NULL);
    ok("threads: one calls MPI, another computes");
}

struct relay {
    uint64_t next;
};

static void *takes_turns(void *arg) {
    struct relay *relay = arg;
    for (;;) {
        pthread_mutex_lock(&turn);
        uint64_t i = relay->next;
        if (i < ROUNDS) {
            broadcast_twice(MPI_COMM_WORLD, (int)i % ranks, draw(i + 77, 9000), i);
            relay->next++;
        }
        pthread_mutex_unlock(&turn);
        if (i >= ROUNDS)
            return NULL;
    }
}

static void run_threads(void *(*body)(void *), void *const *args) {
    pthread_t threads[THREADS];
    for (int t = 0; t < THREADS; t++)
        CHECK(pthread_create(&threads[t], NULL, body, args[t]) == 0, "no thread");
    for (int t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
}

static void serialized(void) {
    struct relay relay = {0};
    void *args[THREADS] = {&relay, &relay, &relay, &relay};
    run_threads(takes_turns, args);
    ok("threads: several, one at a time");
}

static void *on_its_own(void *arg) {
    uint64_t t = (uint64_t)(uintptr_t)arg;
    for (uint64_t i = 0; i < ROUNDS; i++) {
        uint64_t seed = t << 32 | i;
        int root = (int)draw(seed, (uint32_t)ranks);
        size_t len = draw(seed + 1, i % 16 == 0 ? 200000 : 6000);
        (i % 8 == 4 ? broadcast_twice : broadcast)(comms[t], root, len, seed);
        if (i % 8 == 0)
            MPI(MPI_Barrier(comms[t]));
    }
    return NULL;
}

static void *messages_or_broadcasts(void *arg) {
    uint64_t t = (uint64_t)(uintptr_t)arg;
    if (t != 0)
        return on_its_own(arg);
    enum { LEN = 300000 };
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    unsigned char *out = take(LEN), *in = take(LEN);
    for (uint64_t i = 0; i < ROUNDS / 2; i++) {
        fill(out, LEN, i << 8 | (uint64_t)rank);
        MPI(MPI_Sendrecv(out, LEN, MPI_BYTE, next, 5, in, LEN, MPI_BYTE, before, 5, comms[0],
                         MPI_STATUS_IGNORE));
        CHECK(differs(in, LEN, i << 8 | (uint64_t)before) < 0,
              "a message beside broadcasts is wrong");
    }
    give_back(out, LEN, "Sendrecv");
    give_back(in, LEN, "Sendrecv");
    return NULL;
}

/* One thread is in a broadcast. Its root waits for a message from another thread of the same
 * rank. */
static void *crosses(void *arg) {
    int sends = arg != NULL;
    for (int root = 0; root < ranks; root++) {
        int a = (root + 1) % ranks;
        if (sends) {
            if (rank == a) {
                pause_us(2000); /* by now the other thread is in the broadcast */
                MPI(MPI_Ssend(&root, 1, MPI_INT, root, root, comms[1]));
            }
        } else {
            int got;
            if (rank == root) {
                MPI(MPI_Recv(&got, 1, MPI_INT, a, root, comms[1], MPI_STATUS_IGNORE));
                CHECK(got == root, "the thread's message is wrong");
            }
            broadcast(comms[0], root, 5000, (uint64_t)root);
            MPI(MPI_Barrier(comms[0]));
        }
    }
    return NULL;
}

static void crossing(void) {
    pthread_t sender;
    CHECK(pthread_create(&sender, NULL, crosses, comms) == 0, "no thread");
    crosses(NULL);
    pthread_join(sender, NULL);
    ok("threads: a broadcast waits for a message of another thread");
}

/* Counts the shim's agreements: the shim reduces by PMPI_Allreduce, the MPI library's own calls do
 * not come here. Only those of the communicator that this thread has made count. */
static atomic_int reductions;
static __thread MPI_Comm made = MPI_COMM_NULL;

int PMPI_Allreduce(const void *in, void *out, int count, MPI_Datatype type, MPI_Op op,
                   MPI_Comm comm) {
    static int (*library)(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm);
    if (!library)
        *(void **)&library = dlsym(RTLD_NEXT, "PMPI_Allreduce");
    if (comm == made)
        atomic_fetch_add(&reductions, 1);
    return library(in, out, count, type, op, comm);
}

/* Threads make and free communicators independently of each other. */
enum { MADE = 10 };

static void *duplicates_and_frees(void *arg) {
    uint64_t t = (uint64_t)(uintptr_t)arg;
    for (uint64_t i = 0; i < MADE; i++) {
        MPI(MPI_Comm_dup(comms[t], &made));
        broadcast(made, (int)i % ranks, 2000, t << 32 | i);
        MPI(MPI_Comm_free(&made));
    }
    return NULL;
}

/* The numbers of MPI_COMM_WORLD's groups last for many duplicates. */
static void many_duplicates(void) {
    for (uint64_t i = 0; i < 2000; i++) {
        MPI(MPI_Comm_dup(MPI_COMM_WORLD, &made));
        broadcast(made, (int)i % ranks, 4, i);
        MPI(MPI_Comm_free(&made));
    }
    CHECK(reductions == 0, "%d agreements on many duplicates", reductions);
    ok("threads: many duplicates");
}

static void *splits_and_frees(void *arg) {
    uint64_t t = (uint64_t)(uintptr_t)arg;
    for (uint64_t i = 0; i < MADE; i++) {
        /* In every second turn the last rank is in a part of its own. */
        MPI(MPI_Comm_split(comms[t], i % 2 && rank == ranks - 1, -rank, &made));
        int size;
        MPI(MPI_Comm_size(made, &size));
        broadcast(made, (int)i % size, 2000, t << 32 | i << 1 | (size == 1));
        MPI(MPI_Comm_free(&made));
    }
    return NULL;
}

static void multiple(void) {
    void *numbers[THREADS];
    for (int t = 0; t < THREADS; t++) {
        MPI(MPI_Comm_dup(MPI_COMM_WORLD, &comms[t]));
        numbers[t] = (void *)(uintptr_t)t;
    }
    run_threads(on_its_own, numbers);
    ok("threads: a communicator for each");
    run_threads(messages_or_broadcasts, numbers);
    ok("threads: messages beside broadcasts");
    crossing();
    run_threads(duplicates_and_frees, numbers);
    CHECK(reductions == 0, "%d agreements on duplicates", reductions);
    ok("threads: communicators duplicated and freed");
    many_duplicates();
    run_threads(splits_and_frees, numbers);
    int serves = dlsym(RTLD_DEFAULT, "fabricast_group_create") != NULL;
    CHECK(reductions == serves * THREADS * (MADE - (rank == ranks - 1) * MADE / 2),
          "%d agreements on %d parts", reductions, THREADS * MADE);
    ok("threads: communicators split and freed");
    for (int t = 0; t < THREADS; t++)
        MPI(MPI_Comm_free(&comms[t]));
}

int main(int argc, char **argv) {
    start(argc, argv);
    int level;
    MPI(MPI_Query_thread(&level));
    if (level >= MPI_THREAD_FUNNELED)
        funneled();
    if (level >= MPI_THREAD_SERIALIZED)
        serialized();
    if (level >= MPI_THREAD_MULTIPLE)
        multiple();
    for (uint64_t i = 0; i < ROUNDS; i++)
        broadcast(MPI_COMM_WORLD, (int)i % ranks, draw(i, 9000), i);
    ok("threads: the one that began");
    MPI_Finalize();
    return 0;
}
