/*
 * What the cases share: processes made by fork, which exchange bytes through shared memory, and
 * calls whose results are checked.
 */
#ifndef API_H
#define API_H

#define _GNU_SOURCE
#include "fabricast.h"

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PROCESSES = 4, ROOM = 1 << 16 };

extern struct shared {
    pthread_barrier_t barrier;
    int entered;
    unsigned char bytes[PROCESSES][ROOM];
} *shared;

extern int rank;
/* Number of calls of `progress` in this process. */
extern int progressed;
/* Number of processes on each host. */
extern int per_host;

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: process %d: not so: %s (last error: %s)\n", __FILE__,          \
                    __LINE__, rank, #condition, fabricast_last_error());                           \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)
#define OK(call) CHECK((call) == FABRICAST_OK)
/* Checks that the call returns `status`, and that the reason contains `words`. */
#define FAILS(status, words, call)                                                                 \
    do {                                                                                           \
        CHECK((call) == (status));                                                                 \
        CHECK(strstr(fabricast_last_error(), words) != NULL);                                      \
    } while (0)

/* Waits for all processes. */
void meet(void);
int allgather(void *user, const void *mine, void *all, size_t bytes);
fabricast_options options(void);
fabricast_context *context_of(fabricast_options o);
/* Creates a group of all processes. */
fabricast_group *group_of(fabricast_context *context, uint32_t id);
/* Flushes, waits for all processes, and destroys the context. */
void end(fabricast_context *context);

/* A buffer of `len` bytes: the root's, or one for a broadcast to fill. */
unsigned char *filled(size_t len, uint32_t root, int is_root);
/* Checks that the buffer holds what the root sent, and frees it. */
void checked(unsigned char *buffer, size_t len, uint32_t root);

/* The cases. */
void algorithms(void);
void alone(void);
void blocking(void);
void child(void);
void interface(void);
void lost(void);
void mismatch(void);
void misuse(void);
void nonblocking(void);
void order(void);
void outsiders(void);
void schedules(void);
void sizes(void);
void words(void);

#endif
