/*
 * Small broadcasts from one process to two others over the loopback, so that callgrind can count
 * the instructions of one. The root sends BURST broadcasts, which are copied; only then do the
 * receivers call for them, so that nobody waits for anything while it is measured.
 *
 *     small ROUNDS     each process prints its rank and its process number
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fabricast.h"

enum { PROCESSES = 3, BURST = 32, ROOM = 1024 };

static struct shared {
    pthread_barrier_t barrier;
    char bytes[PROCESSES][ROOM];
} *shared;

static uint32_t rank;

static void ok(int status) {
    if (status == FABRICAST_OK)
        return;
    fprintf(stderr, "rank %u: %s\n", rank, fabricast_last_error());
    exit(1);
}

static int allgather(void *user, const void *mine, void *all, size_t bytes) {
    (void)user;
    memcpy(shared->bytes[rank], mine, bytes);
    pthread_barrier_wait(&shared->barrier);
    for (int i = 0; i < PROCESSES; i++)
        memcpy((char *)all + (size_t)i * bytes, shared->bytes[i], bytes);
    pthread_barrier_wait(&shared->barrier);
    return 0;
}

/* What is counted. */
__attribute__((noinline)) void measured(fabricast_group *group) {
    char word[8] = "a word";
    for (int i = 0; i < BURST; i++)
        ok(fabricast_bcast(group, word, sizeof word, 0));
}

static void part(int rounds) {
    static const char *const hosts[PROCESSES] = {"a", "b", "c"};
    static const uint32_t everybody[PROCESSES] = {0, 1, 2};
    fabricast_options options;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.rank = rank;
    options.size = PROCESSES;
    options.allgather = allgather;
    options.interface = "127.0.0.1";
    options.host = hosts[rank];
    fabricast_context *context;
    fabricast_group *group;
    ok(fabricast_context_create(&options, &context));
    ok(fabricast_group_create(context, 1, everybody, PROCESSES, &group));
    printf("%u %d\n", rank, (int)getpid());
    fflush(stdout);
    for (int round = 0; round < rounds; round++) {
        pthread_barrier_wait(&shared->barrier);
        if (rank == 0) {
            measured(group);
            ok(fabricast_flush(context));
        } else {
            usleep(100000);
            measured(group);
        }
        pthread_barrier_wait(&shared->barrier);
    }
    ok(fabricast_group_destroy(group));
    ok(fabricast_flush(context));
    pthread_barrier_wait(&shared->barrier);
    ok(fabricast_context_destroy(context));
}

int main(int argc, char **argv) {
    int rounds = argc == 2 ? atoi(argv[1]) : 0;
    if (rounds < 1) {
        fprintf(stderr, "usage: small ROUNDS\n");
        return 2;
    }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t across;
    pthread_barrierattr_init(&across);
    pthread_barrierattr_setpshared(&across, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->barrier, &across, PROCESSES);
    for (rank = 1; rank < PROCESSES; rank++)
        if (fork() == 0) {
            part(rounds);
            return 0;
        }
    rank = 0;
    part(rounds);
    int failed = 0, status;
    while (wait(&status) > 0)
        failed |= status;
    return failed != 0;
}
