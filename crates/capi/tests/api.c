/*
 * libfabricast.so as a C program uses it: several processes by fork, which give each other bytes
 * through memory that they share. Started with the name of a case; says what went wrong and ends
 * with 1, or ends with 0.
 */
#define _GNU_SOURCE
#include "fabricast.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROCESSES = 4, ROOM = 1 << 16 };

static struct shared {
    pthread_barrier_t barrier;
    int entered;
    unsigned char bytes[PROCESSES][ROOM];
} *shared;

static int rank;

#define CHECK(condition)                                                                                      \
    do {                                                                                                      \
        if (!(condition)) {                                                                                   \
            fprintf(stderr, "%s:%d: process %d: not so: %s (last error: %s)\n", __FILE__, __LINE__, rank,     \
                    #condition, fabricast_last_error());                                                      \
            _exit(1);                                                                                         \
        }                                                                                                     \
    } while (0)
#define OK(call) CHECK((call) == FABRICAST_OK)
/* The call answers so, and says why in words that contain this. */
#define FAILS(status, words, call)                             \
    do {                                                       \
        CHECK((call) == (status));                             \
        CHECK(strstr(fabricast_last_error(), words) != NULL);  \
    } while (0)

static void meet(void) {
    pthread_barrier_wait(&shared->barrier);
}

static int allgather(void *user, const void *mine, void *all, size_t bytes) {
    CHECK(user == shared && bytes <= ROOM);
    memcpy(shared->bytes[rank], mine, bytes);
    meet();
    for (int i = 0; i < PROCESSES; i++)
        memcpy((char *)all + (size_t)i * bytes, shared->bytes[i], bytes);
    meet();
    return 0;
}

static int progressed;

static void progress(void *user) {
    CHECK(user == shared);
    progressed++;
}

/* Processes that share a host. */
static int per_host = 1;

static fabricast_options options(void) {
    static const char *const hosts[PROCESSES] = {"a", "b", "c", "d"};
    fabricast_options o;
    memset(&o, 0, sizeof o);
    o.struct_size = sizeof o;
    o.rank = (uint32_t)rank;
    o.size = PROCESSES;
    o.allgather = allgather;
    o.progress = progress;
    o.user = shared;
    o.interface = "127.0.0.1";
    o.host = hosts[rank / per_host];
    return o;
}

static fabricast_context *context_of(fabricast_options o) {
    fabricast_context *context = NULL;
    OK(fabricast_context_create(&o, &context));
    CHECK(context != NULL);
    return context;
}

static fabricast_group *group_of(fabricast_context *context, uint32_t id) {
    static const uint32_t everybody[PROCESSES] = {0, 1, 2, 3};
    fabricast_group *group = NULL;
    OK(fabricast_group_create(context, id, everybody, PROCESSES, &group));
    CHECK(group != NULL);
    return group;
}

static void end(fabricast_context *context) {
    OK(fabricast_flush(context));
    meet();
    OK(fabricast_context_destroy(context));
}

static unsigned char byte(size_t i, uint32_t root, size_t len) {
    return (unsigned char)(i * 31 + root * 7 + len);
}

static unsigned char *filled(size_t len, uint32_t root, int is_root) {
    unsigned char *buffer = malloc(len + 1);
    for (size_t i = 0; i < len; i++)
        buffer[i] = is_root ? byte(i, root, len) : 0xee;
    buffer[len] = 0x77;
    return buffer;
}

static void checked(unsigned char *buffer, size_t len, uint32_t root) {
    for (size_t i = 0; i < len; i++)
        CHECK(buffer[i] == byte(i, root, len));
    CHECK(buffer[len] == 0x77);
    free(buffer);
}

static const size_t lengths[] = {0, 1, 1399, 1400, 1401, 70000, 1 << 20};
enum { LENGTHS = sizeof lengths / sizeof *lengths };

static void blocking(void) {
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
    /* Members in an order of their own. */
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
        /* Of two on a host the first speaks to the network, to the one other. */
        CHECK(s.packets_multicast == 0 && (s.packets_unicast > 0) == (rank != 1));
        CHECK(s.packets_shared > 0 && s.bytes_shared > bytes);
    } else {
        CHECK(s.packets_multicast == 0 && s.packets_unicast == 0 && s.packets_shared > 0);
    }
    OK(fabricast_context_destroy(context));
}

static void nonblocking(void) {
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
    /* What is over is over. */
    int done = 0;
    OK(fabricast_wait(&barrier));
    OK(fabricast_test(&barrier, &done));
    CHECK(done == 1);
    end(context);
    OK(fabricast_group_destroy(group));
}

static void schedules(void) {
    static const char *const names[] = {"dissemination(1)", "dissemination(3)", "release(2)",  "combining(2)", "central",
                                        "mcs",              "tournament",       "butterfly", "bst",          NULL};
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
    /* What it refuses changes nothing. */
    FAILS(FABRICAST_ERR_ARGUMENT, "unknown barrier", fabricast_group_set_barrier(group, "dissemination"));
    FAILS(FABRICAST_ERR_ARGUMENT, "UTF-8", fabricast_group_set_barrier(group, "\xff"));
    FAILS(FABRICAST_ERR_ARGUMENT, "null", fabricast_group_set_barrier(NULL, "central"));
    OK(fabricast_barrier(group));
    end(context);
    OK(fabricast_group_destroy(group));
}

static void interface(void) {
    fabricast_context *context = context_of(options());
    char name[16] = "";
    OK(fabricast_context_interface(context, name, sizeof name));
    CHECK(strcmp(name, "lo") == 0);
    FAILS(FABRICAST_ERR_ARGUMENT, "room", fabricast_context_interface(context, name, 2));
    FAILS(FABRICAST_ERR_ARGUMENT, "room", fabricast_context_interface(context, NULL, 16));
    FAILS(FABRICAST_ERR_ARGUMENT, "null", fabricast_context_interface(NULL, name, 16));
    end(context);
}

static int refuses(void *user, const void *mine, void *all, size_t bytes) {
    (void)user, (void)mine, (void)all, (void)bytes;
    return 5;
}

static void misuse(void) {
    fabricast_context *context = NULL;
    fabricast_group *group = NULL, *none = NULL;
    fabricast_request *request = NULL;
    int done;
    enum { WRONG = FABRICAST_ERR_ARGUMENT };
    /* No context comes of it, and nobody else is asked. */
    fabricast_options o = options();
    FAILS(WRONG, "options", fabricast_context_create(NULL, &context));
    FAILS(WRONG, "null", fabricast_context_create(&o, NULL));
    o.rank = PROCESSES;
    FAILS(WRONG, "rank", fabricast_context_create(&o, &context));
    o = options();
    o.allgather = NULL;
    FAILS(WRONG, "allgather", fabricast_context_create(&o, &context));
    o = options();
    o.scheme = "\xff";
    FAILS(WRONG, "UTF-8", fabricast_context_create(&o, &context));
    o = options();
    o.allgather = refuses;
    FAILS(FABRICAST_ERR_REFUSED, "allgather failed (5)", fabricast_context_create(&o, &context));
    CHECK(context == NULL);
    /* What one cannot do is told to all. */
    o = options();
    if (rank == 2)
        o.interface = "nowhere0";
    FAILS(FABRICAST_ERR_REFUSED, "rank 2 cannot take part",
          fabricast_context_create(&o, &context));
    CHECK(strstr(fabricast_last_error(), "nowhere0") != NULL && context == NULL);
    o = options();
    if (rank == 1)
        o.inject_loss = 0.95;
    FAILS(FABRICAST_ERR_REFUSED, "inject_loss", fabricast_context_create(&o, &context));
    o = options();
    o.scheme = "no-such-scheme";
    CHECK(fabricast_context_create(&o, &context) == FABRICAST_ERR_REFUSED && context == NULL);

    context = context_of(options());
    static const uint32_t twice[] = {0, 1, 2, 3, 3}, strangers[] = {0, 1, 2, 3, 4}, others[2][2] = {{0, 1}, {2, 3}};
    FAILS(WRONG, "null", fabricast_group_create(NULL, 1, twice, 4, &group));
    FAILS(WRONG, "null", fabricast_group_create(context, 1, twice, 4, NULL));
    FAILS(WRONG, "members", fabricast_group_create(context, 1, NULL, 4, &group));
    FAILS(WRONG, "members", fabricast_group_create(context, 1, twice, 0, &group));
    FAILS(WRONG, "different processes", fabricast_group_create(context, 1, twice, 5, &group));
    FAILS(WRONG, "different processes", fabricast_group_create(context, 1, strangers, 5, &group));
    FAILS(WRONG, "this one", fabricast_group_create(context, 1, others[rank < 2], 2, &group));
    CHECK(group == NULL);
    group = group_of(context, 1);
    CHECK(fabricast_group_create(context, 1, twice, 4, &none) == WRONG && none == NULL);

    unsigned char buffer[8];
    FAILS(WRONG, "null", fabricast_bcast(NULL, buffer, 8, 0));
    FAILS(WRONG, "buffer", fabricast_bcast(group, NULL, 8, 0));
    FAILS(WRONG, "4", fabricast_bcast(group, buffer, 8, PROCESSES));
    FAILS(WRONG, "null", fabricast_ibcast(NULL, buffer, 8, 0, &request));
    FAILS(WRONG, "null", fabricast_ibcast(group, buffer, 8, 0, NULL));
    FAILS(WRONG, "buffer", fabricast_ibcast(group, NULL, 8, 0, &request));
    FAILS(WRONG, "4", fabricast_ibcast(group, buffer, 8, PROCESSES, &request));
    FAILS(WRONG, "null", fabricast_barrier(NULL));
    FAILS(WRONG, "null", fabricast_ibarrier(NULL, &request));
    FAILS(WRONG, "null", fabricast_ibarrier(group, NULL));
    CHECK(request == NULL);
    FAILS(WRONG, "null", fabricast_test(NULL, &done));
    FAILS(WRONG, "null", fabricast_test(&request, NULL));
    FAILS(WRONG, "null", fabricast_wait(NULL));
    FAILS(WRONG, "null", fabricast_flush(NULL));
    FAILS(WRONG, "null", fabricast_context_statistics(NULL, NULL));
    FAILS(WRONG, "null", fabricast_context_statistics(context, NULL));
    CHECK(fabricast_lost(NULL) == -1);
    OK(fabricast_context_destroy(NULL));
    OK(fabricast_group_destroy(NULL));
    /* None of that has done any harm. */
    OK(fabricast_barrier(group));
    end(context);
    OK(fabricast_group_destroy(group));
}

static void sizes(void) {
    fabricast_options o = options();
    fabricast_context *context = NULL;
    o.struct_size = 0;
    FAILS(FABRICAST_ERR_ARGUMENT, "struct_size", fabricast_context_create(&o, &context));
    o.struct_size = offsetof(fabricast_options, progress) - 1;
    FAILS(FABRICAST_ERR_ARGUMENT, "struct_size", fabricast_context_create(&o, &context));
    /* An older program: what it has not, has its default, whatever lies behind. */
    o = options();
    o.struct_size = offsetof(fabricast_options, inject_loss);
    o.inject_loss = 55;
    context = context_of(o);
    end(context);
    /* A newer one: what we know nothing of is left alone. */
    struct newer {
        fabricast_options known;
        char more[64];
    } newer;
    memset(&newer, 0xaa, sizeof newer);
    newer.known = options();
    newer.known.struct_size = sizeof newer;
    context = context_of(newer.known);

    struct {
        fabricast_statistics known;
        unsigned char more[16];
    } s;
    memset(&s, 0xaa, sizeof s);
    s.known.struct_size = 0;
    FAILS(FABRICAST_ERR_ARGUMENT, "struct_size", fabricast_context_statistics(context, &s.known));
    s.known.struct_size = offsetof(fabricast_statistics, barriers);
    OK(fabricast_context_statistics(context, &s.known));
    CHECK(s.known.struct_size == offsetof(fabricast_statistics, barriers));
    CHECK(s.known.sent == 0 && s.known.received_bytes == 0 && s.known.barriers == 0xaaaaaaaaaaaaaaaa);
    s.known.struct_size = sizeof s; /* a newer program's */
    OK(fabricast_context_statistics(context, &s.known));
    CHECK(s.known.barriers == 0 && s.known.groups == 0 && s.more[0] == 0xaa && s.more[15] == 0xaa);
    end(context);
}

static void mismatch(void) {
    fabricast_context *context = context_of(options());
    fabricast_group *group = group_of(context, 1);
    /* Others may end a group before a process that comes late has created it. */
    meet();
    static unsigned char buffer[3000];
    if (rank == 0) {
        OK(fabricast_bcast(group, buffer, 3000, 0));
    } else {
        /* A process whose host has another leader may hear from the others that lengths differ,
         * before it finds that its own does. */
        CHECK(fabricast_bcast(group, buffer, 2999, 0) == FABRICAST_ERR_ARGUMENT);
        const char *why = fabricast_last_error();
        CHECK(strstr(why, "another number of bytes") || strstr(why, "of one length"));
        FAILS(FABRICAST_ERR_ARGUMENT, "the group has ended", fabricast_barrier(group));
        /* Other groups go on. */
    }
    fabricast_group *other = group_of(context, 2);
    OK(fabricast_barrier(other));
    meet();
    OK(fabricast_context_destroy(context));
    OK(fabricast_group_destroy(other));
    OK(fabricast_group_destroy(group));
}

static void order(void) {
    /* The context goes first; what is left of it still works. */
    fabricast_context *context = context_of(options());
    fabricast_group *group = group_of(context, 1);
    fabricast_request *request;
    unsigned char *buffer = filled(600000, 1, rank == 1);
    OK(fabricast_ibcast(group, buffer, 600000, 1, &request));
    OK(fabricast_context_destroy(context));
    OK(fabricast_barrier(group));
    OK(fabricast_wait(&request));
    checked(buffer, 600000, 1);
    meet();
    OK(fabricast_group_destroy(group));
    /* A group goes before what was begun in it. */
    context = context_of(options());
    group = group_of(context, 1);
    buffer = filled(600000, 2, rank == 2);
    OK(fabricast_ibcast(group, buffer, 600000, 2, &request));
    OK(fabricast_group_destroy(group));
    OK(fabricast_wait(&request));
    checked(buffer, 600000, 2);
    end(context);
    /* Many, one after the other: nothing is left of them. */
    for (int i = 0; i < 5; i++) {
        context = context_of(options());
        group = group_of(context, 1);
        OK(fabricast_barrier(group));
        OK(fabricast_flush(context));
        meet();
        OK(fabricast_group_destroy(group));
        OK(fabricast_context_destroy(context));
    }
    meet();
    int open = 0;
    for (int fd = 3; fd < 256; fd++)
        open += lseek(fd, 0, SEEK_CUR) != -1 || dup2(fd, fd) == fd;
    CHECK(open == 0);
}

/* Although its child lives as long as the case. */
static void lost(void) {
    fabricast_context *context = context_of(options());
    fabricast_group *group = group_of(context, 1);
    OK(fabricast_barrier(group));
    meet(); /* or a rank that has not been woken yet finds rank 2 lost in this barrier */
    if (rank == 2) {
        pid_t all = getppid();
        if (fork() != 0)
            _exit(0); /* as one that is killed */
        OK(fabricast_context_forked(context));
        close(1); /* which the test reads to its end */
        close(2);
        while (kill(all, 0) == 0)
            usleep(10000);
        _exit(0);
    }
    FAILS(FABRICAST_ERR_PEER_LOST, "rank 2 is lost", fabricast_barrier(group));
    CHECK(fabricast_lost(context) == 2);
    CHECK(strstr(fabricast_last_error(), "rank 2 is lost") != NULL);
    unsigned char buffer[100];
    FAILS(FABRICAST_ERR_PEER_LOST, "rank 2", fabricast_bcast(group, buffer, 100, 0));
    /* Those that are left can go on. */
    static const uint32_t left[] = {0, 1, 3};
    fabricast_group *rest;
    OK(fabricast_group_create(context, 2, left, 3, &rest));
    OK(fabricast_barrier(rest));
    OK(fabricast_flush(context));
    OK(fabricast_barrier(rest));
    OK(fabricast_group_destroy(rest));
    OK(fabricast_group_destroy(group));
    usleep(200000); /* the others may still ask; there are no four any more that could meet */
    OK(fabricast_context_destroy(context));
}

static void child(void) {
    fabricast_context *context = context_of(options());
    fabricast_group *group = group_of(context, 1);
    for (int i = 0; i < 10; i++) {
        OK(fabricast_barrier(group));
        pid_t child = fork();
        if (child == 0)
            exit(0); /* with all that a program does at its end */
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    end(context);
    OK(fabricast_group_destroy(group));
}

enum { SILENT = 16, NOBODY = 65534 };

/* What stands behind the first of these words on a card. */
static const char *on_card(int of, const char *word) {
    const char *card = (const char *)shared->bytes[of], *at = strstr(card, word);
    CHECK(at != NULL);
    return at + strlen(word);
}

/* Another user of the host: connects to rank 0 and is silent, and rings with a descriptor at all
 * doorbells until they are gone. */
static void attack(int ready, int end) {
    enum { BELLS = PROCESSES };
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    alarm(60);
    for (int fd = 3; fd < 256; fd++)
        if (fd != ready && fd != end)
            close(fd);
    CHECK(setgid(NOBODY) == 0 && setuid(NOBODY) == 0);
    struct sockaddr_in rank0 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    rank0.sin_port = htons((uint16_t)atoi(on_card(0, "\"watch\":\"127.0.0.1:")));
    for (int i = 0; i < SILENT; i++) {
        int stranger = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(connect(stranger, (struct sockaddr *)&rank0, sizeof rank0) == 0);
    }
    struct sockaddr_un bells[BELLS];
    socklen_t lens[BELLS];
    int gone[BELLS] = {0}, left = BELLS, bell = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    for (int i = 0; i < BELLS; i++) {
        unsigned long long name = strtoull(strchr(on_card(i, "\"host\":["), ',') + 1, NULL, 10);
        bells[i] = (struct sockaddr_un){.sun_family = AF_UNIX};
        lens[i] = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
                              (size_t)sprintf(bells[i].sun_path + 1, "fabricast-%016llx", name));
    }
    char control[CMSG_SPACE(sizeof bell)] = {0}, byte = 1;
    struct iovec piece = {&byte, 1};
    struct msghdr ring = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&ring);
    *rights = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof bell), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(rights), &bell, sizeof bell);
    for (int full = 0; left > 0;) {
        int some = 0;
        for (int i = 0; i < BELLS; i++) {
            ring.msg_name = &bells[i];
            ring.msg_namelen = lens[i];
            if (gone[i])
                continue;
            if (sendmsg(bell, &ring, MSG_NOSIGNAL) == 1) {
                some = 1;
            } else if (errno == ECONNREFUSED) {
                gone[i] = 1;
                left--;
            } else {
                CHECK(errno == EAGAIN || errno == ETOOMANYREFS);
            }
        }
        if (!some && !full++)
            CHECK(write(ready, &byte, 1) == 1);
    }
    CHECK(read(end, &byte, 1) == 0);
}

static pid_t attacker;
static int attacking = -1;

/* All have told where they are, and nobody has gone there yet. */
static int attacked(void *user, const void *mine, void *all, size_t bytes) {
    int status = allgather(user, mine, all, bytes);
    if (rank == PROCESSES - 1 && !attacker) {
        int ready[2], over[2];
        char byte;
        CHECK(pipe(ready) == 0 && pipe(over) == 0);
        attacking = over[1];
        attacker = fork();
        if (attacker == 0) {
            attack(ready[1], over[0]);
            _exit(0);
        }
        CHECK(read(ready[0], &byte, 1) == 1);
    }
    meet();
    return status;
}

/* They are not heard and delay nobody, and when the processes have met there is nothing left to
 * ring at. */
static void strangers(void) {
    fabricast_options o = options();
    o.allgather = geteuid() == 0 ? attacked : allgather;
    alarm(SILENT); /* one after the other, they took two seconds each */
    fabricast_context *context = context_of(o);
    alarm(100);
    close(attacking);
    fabricast_group *group = group_of(context, 1);
    CHECK(fabricast_unshared(context) == NULL);
    for (int i = 0; i < 10; i++)
        OK(fabricast_barrier(group));
    int status = 0;
    CHECK(!attacker || waitpid(attacker, &status, 0) == attacker);
    CHECK(status == 0);
    meet();
    end(context);
    OK(fabricast_group_destroy(group));
}

static void alone(void) {
    /* One process needs nobody. */
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

static void words(void) {
    CHECK(strcmp(fabricast_version(), VERSION) == 0);
    CHECK(strcmp(fabricast_last_error(), "") == 0);
    for (int status = FABRICAST_OK; status <= FABRICAST_ERR_INTERNAL; status++) {
        CHECK(strlen(fabricast_strerror(status)) > 5);
        for (int other = -1; other < status; other++)
            CHECK(strcmp(fabricast_strerror(status), fabricast_strerror(other)) != 0);
    }
    CHECK(strcmp(fabricast_strerror(-1), fabricast_strerror(1000)) == 0);
    /* The reason is this thread's, and stays until its next failure. */
    CHECK(fabricast_flush(NULL) == FABRICAST_ERR_ARGUMENT);
    const char *why = fabricast_last_error();
    OK(fabricast_group_destroy(NULL));
    CHECK(fabricast_last_error() == why);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, in_another_thread, (void *)why) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"blocking", blocking}, {"nonblocking", nonblocking}, {"misuse", misuse}, {"sizes", sizes},
    {"mismatch", mismatch}, {"order", order},             {"lost", lost},     {"child", child},
    {"alone", alone},       {"words", words},             {"schedules", schedules}, {"interface", interface},
    {"strangers", strangers},
};

int main(int argc, char **argv) {
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t between;
    pthread_barrierattr_init(&between);
    pthread_barrierattr_setpshared(&between, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->barrier, &between, PROCESSES);
    void (*run)(void) = NULL;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (argc == 3 && strcmp(argv[1], cases[i].name) == 0)
            run = cases[i].run;
    if (!run) {
        fprintf(stderr, "no such case\n");
        return 2;
    }
    per_host = atoi(argv[2]);
    pid_t processes[PROCESSES];
    for (rank = 0; rank < PROCESSES; rank++) {
        processes[rank] = fork();
        if (processes[rank] == 0) {
            alarm(100); /* a case that hangs has failed */
            for (int fd = 3; fd < 256; fd++)
                close(fd);
            run();
            _exit(0);
        }
    }
    int failed = 0;
    for (int left = PROCESSES; left > 0; left--) {
        int status;
        wait(&status);
        /* The others wait for it: the case is over. */
        if (status != 0 && !failed++)
            for (int i = 0; i < PROCESSES; i++)
                kill(processes[i], SIGKILL);
    }
    return failed ? 1 : 0;
}
