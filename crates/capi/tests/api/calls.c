/* Broadcasts and barriers, blocking and nonblocking, with every schedule; what a context tells of
 * itself. */
#include "api.h"

#include <stdlib.h>

static const size_t lengths[] = {0, 1, 1399, 1400, 1401, 70000, 1 << 20};
enum { LENGTHS = sizeof lengths / sizeof *lengths };

void blocking(void) {
    fabricast_context *context = context_of(options());
    fabricast_group *group = group_of(context, 1);
    for (uint32_t root = 0; root < PROCESSES; root++)
        for (int i = 0; i < LENGTHS; i++) {
            unsigned char *buffer = filled(lengths[i], root, rank == (int)root);
            OK(fabricast_bcast(group, buffer, lengths[i], root));
            checked(buffer, lengths[i], root);
            OK(fabricast_barrier(group));
        }
    OK(fabricast_bcast(group, NULL, 0, 0));
    /* A group whose members are in another order. */
    static const uint32_t backwards[] = {3, 1};
    if (rank == 1 || rank == 3) {
        fabricast_group *two;
        OK(fabricast_group_create(context, 2, backwards, 2, &two));
        unsigned char *buffer = filled(5000, 0, rank == 3);
        OK(fabricast_bcast(two, buffer, 5000, 0));
        checked(buffer, 5000, 0);
        OK(fabricast_group_destroy(two));
    }
    CHECK(progressed > 0);
    CHECK(fabricast_lost(context) == -1);
    fabricast_statistics s;
    memset(&s, 0, sizeof s);
    s.struct_size = sizeof s;
    OK(fabricast_context_statistics(context, &s));
    uint64_t bytes = 0;
    for (int i = 0; i < LENGTHS; i++)
        bytes += lengths[i];
    CHECK(s.struct_size == sizeof s);
    uint64_t roots = (rank == 0) + (rank == 3), other = (rank != 0) + (rank == 1);
    CHECK(s.sent == LENGTHS + roots && s.sent_bytes == bytes + (rank == 3 ? 5000 : 0));
    CHECK(s.received == 3 * LENGTHS + other);
    CHECK(s.received_bytes == 3 * bytes + (rank == 1 ? 5000 : 0));
    CHECK(s.barriers == PROCESSES * LENGTHS);
    OK(fabricast_group_destroy(group));
    do /* until nobody can ask for anything any more */
        OK(fabricast_context_statistics(context, &s));
    while (s.groups > 0 && usleep(1000) == 0);
    CHECK(fabricast_unshared(context) == NULL && s.unshared == 0);
    if (per_host == 1) {
        CHECK(rank != 3 || s.packets_unicast > 0);
        CHECK(s.packets_multicast > 0 && s.packets_shared == 0 && s.bytes_shared == 0);
    } else if (per_host == 2) {
        /* With two processes on a host, the first one of each host talks to the network, to one
         * peer. */
        CHECK(s.packets_multicast == 0 && (s.packets_unicast > 0) == (rank != 1));
        CHECK(s.packets_shared > 0 && s.bytes_shared > bytes);
    } else {
        CHECK(s.packets_multicast == 0 && s.packets_unicast == 0 && s.packets_shared > 0);
    }
    OK(fabricast_context_destroy(context));
}

void nonblocking(void) {
    fabricast_context *context = context_of(options());
    fabricast_group *group = group_of(context, 1);
    enum { MANY = 20 };
    fabricast_request *requests[MANY], *barrier;
    unsigned char *buffers[MANY];
    size_t len[MANY];
    for (uint32_t i = 0; i < MANY; i++) {
        len[i] = i % 5 == 0 ? 400000 : 100 * i;
        buffers[i] = filled(len[i], i % PROCESSES, rank == (int)i % PROCESSES);
        OK(fabricast_ibcast(group, buffers[i], len[i], i % PROCESSES, &requests[i]));
    }
    OK(fabricast_ibarrier(group, &barrier));
    for (uint32_t i = 0; i < MANY; i++) {
        if (i % 2) {
            OK(fabricast_wait(&requests[i]));
        } else {
            int done = 0;
            while (!done) {
                OK(fabricast_test(&requests[i], &done));
                CHECK(!done == (requests[i] != NULL));
            }
        }
        CHECK(requests[i] == NULL);
        checked(buffers[i], len[i], i % PROCESSES);
    }
    OK(fabricast_wait(&barrier));
    /* A request that is complete stays complete. */
    int done = 0;
    OK(fabricast_wait(&barrier));
    OK(fabricast_test(&barrier, &done));
    CHECK(done == 1);
    end(context);
    OK(fabricast_group_destroy(group));
}

void schedules(void) {
    static const char *const names[] = {"dissemination(1)",
                                        "dissemination(3)",
                                        "release(2)",
                                        "combining(2)",
                                        "central",
                                        "mcs",
                                        "tournament",
                                        "butterfly",
                                        "bst",
                                        NULL};
    enum { NAMES = sizeof names / sizeof *names, EACH = 10 };
    fabricast_context *context = context_of(options());
    fabricast_group *group = group_of(context, 1);
    for (int i = 0; i < NAMES * EACH; i++) {
        if (i % EACH == 0)
            OK(fabricast_group_set_barrier(group, names[i / EACH]));
        __atomic_fetch_add(&shared->entered, 1, __ATOMIC_SEQ_CST);
        OK(fabricast_barrier(group));
        CHECK(__atomic_load_n(&shared->entered, __ATOMIC_SEQ_CST) >= PROCESSES * (i + 1));
    }
    /* A refused name changes nothing. */
    FAILS(FABRICAST_ERR_ARGUMENT, "unknown barrier",
          fabricast_group_set_barrier(group, "dissemination"));
    FAILS(FABRICAST_ERR_ARGUMENT, "UTF-8", fabricast_group_set_barrier(group, "\xff"));
    FAILS(FABRICAST_ERR_ARGUMENT, "null", fabricast_group_set_barrier(NULL, "central"));
    OK(fabricast_barrier(group));
    end(context);
    OK(fabricast_group_destroy(group));
}

void interface(void) {
    fabricast_options o = options();
    o.groups = "lazy";
    fabricast_context *context = context_of(o);
    char name[16] = "";
    OK(fabricast_context_interface(context, name, sizeof name));
    CHECK(strcmp(name, "lo") == 0);
    FAILS(FABRICAST_ERR_ARGUMENT, "room", fabricast_context_interface(context, name, 2));
    FAILS(FABRICAST_ERR_ARGUMENT, "room", fabricast_context_interface(context, NULL, 16));
    FAILS(FABRICAST_ERR_ARGUMENT, "null", fabricast_context_interface(NULL, name, 16));
    /* Two hosts need no multicast addresses. */
    char strategy[128] = "";
    const char *two = "shared: there are fewer than three hosts";
    OK(fabricast_context_strategy(context, strategy, sizeof strategy));
    CHECK(strcmp(strategy, per_host == 1 ? "lazy by igmp" : two) == 0);
    FAILS(FABRICAST_ERR_ARGUMENT, "room", fabricast_context_strategy(context, name, 2));
    FAILS(FABRICAST_ERR_ARGUMENT, "null", fabricast_context_strategy(NULL, name, 16));
    end(context);
}

void alone(void) {
    /* A single process needs no other. */
    fabricast_options o = options();
    o.rank = 0;
    o.size = 1;
    o.allgather = NULL;
    fabricast_context *context = context_of(o);
    fabricast_group *group;
    fabricast_request *request;
    static const uint32_t me[] = {0};
    OK(fabricast_group_create(context, 9, me, 1, &group));
    char buffer[] = "as it was";
    OK(fabricast_bcast(group, buffer, sizeof buffer, 0));
    OK(fabricast_ibcast(group, buffer, sizeof buffer, 0, &request));
    OK(fabricast_wait(&request));
    OK(fabricast_barrier(group));
    CHECK(strcmp(buffer, "as it was") == 0);
    OK(fabricast_flush(context));
    OK(fabricast_group_destroy(group));
    OK(fabricast_context_destroy(context));
}

static void *in_another_thread(void *first) {
    CHECK(strcmp(fabricast_last_error(), "") == 0);
    CHECK(fabricast_barrier(NULL) == FABRICAST_ERR_ARGUMENT);
    CHECK(fabricast_last_error() != first);
    return NULL;
}

void words(void) {
    CHECK(strcmp(fabricast_version(), VERSION) == 0);
    CHECK(strcmp(fabricast_last_error(), "") == 0);
    for (int status = FABRICAST_OK; status <= FABRICAST_ERR_INTERNAL; status++) {
        CHECK(strlen(fabricast_strerror(status)) > 5);
        for (int other = -1; other < status; other++)
            CHECK(strcmp(fabricast_strerror(status), fabricast_strerror(other)) != 0);
    }
    CHECK(strcmp(fabricast_strerror(-1), fabricast_strerror(1000)) == 0);
    /* The reason belongs to this thread, and stays until the thread's next failure. */
    CHECK(fabricast_flush(NULL) == FABRICAST_ERR_ARGUMENT);
    const char *why = fabricast_last_error();
    OK(fabricast_group_destroy(NULL));
    CHECK(fabricast_last_error() == why);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, in_another_thread, (void *)why) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

/* Broadcasts by every algorithm, with 2 % loss: several lengths and roots, blocking and not. */
void algorithms(void) {
    static const char *const names[] = {"tree", "chain", "scatter-allgather", "cover", "multicast"};
    static const size_t lens[] = {0, 1, 100000, 3000000};
    static const uint32_t set[] = {2, 0, 3};
    static const size_t three = 3;
    enum { NAMES = sizeof names / sizeof *names, LENS = sizeof lens / sizeof *lens };
    for (int name = 0; name < NAMES; name++) {
        fabricast_options o = options();
        o.broadcast = names[name];
        o.inject_loss = 0.02;
        fabricast_context *context = context_of(o);
        fabricast_group *group = group_of(context, 1);
        OK(fabricast_group_set_cover(group, set, &three, 1));
        for (uint32_t root = 0; root < PROCESSES; root++)
            for (int i = 0; i < LENS; i++) {
                unsigned char *buffer = filled(lens[i], root, rank == (int)root);
                OK(fabricast_bcast(group, buffer, lens[i], root));
                checked(buffer, lens[i], root);
            }
        fabricast_request *requests[LENS];
        unsigned char *buffers[LENS];
        for (int i = 0; i < LENS; i++) {
            buffers[i] = filled(lens[i], 1, rank == 1);
            OK(fabricast_ibcast(group, buffers[i], lens[i], 1, &requests[i]));
        }
        for (int i = 0; i < LENS; i++) {
            OK(fabricast_wait(&requests[i]));
            checked(buffers[i], lens[i], 1);
        }
        OK(fabricast_barrier(group));
        OK(fabricast_flush(context));
        fabricast_statistics s;
        memset(&s, 0, sizeof s);
        s.struct_size = sizeof s;
        OK(fabricast_context_statistics(context, &s));
        CHECK(s.dropped_on_purpose > 0 || name == NAMES - 1);
        if (name == NAMES - 1)
            CHECK((s.packets_multicast > 0) == (per_host == 1));
        else if (name == 3) /* process 1 alone is in no set */
            CHECK((s.packets_multicast > 0) == (rank != 1) && s.packets_shared == 0);
        else
            CHECK(s.packets_multicast == 0 && s.packets_shared == 0 && s.packets_unicast > 0);
        OK(fabricast_group_destroy(group));
        end(context);
    }
    fabricast_options o = options();
    fabricast_context *context = NULL;
    o.broadcast = "star";
    FAILS(FABRICAST_ERR_REFUSED, "FABRICAST_BROADCAST: unknown",
          fabricast_context_create(&o, &context));
    /* One process chooses another algorithm. */
    o.broadcast = rank == 1 ? "chain" : "tree";
    FAILS(FABRICAST_ERR_REFUSED, "FABRICAST_BROADCAST", fabricast_context_create(&o, &context));
    o.broadcast = NULL;
    o.groups = "pond(3)";
    FAILS(FABRICAST_ERR_REFUSED, "FABRICAST_GROUPS: no strategy 'pond(3)'",
          fabricast_context_create(&o, &context));
    o.groups = NULL;
    o.subnet = "sea";
    FAILS(FABRICAST_ERR_REFUSED, "FABRICAST_SUBNET: unknown subnet 'sea'",
          fabricast_context_create(&o, &context));
    o.subnet = NULL;
    o.groups = rank == 1 ? "lazy" : "pool(3)";
    FAILS(FABRICAST_ERR_REFUSED, "FABRICAST_GROUPS", fabricast_context_create(&o, &context));
}
