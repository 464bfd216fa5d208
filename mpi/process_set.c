/* Contexts. MPI_COMM_WORLD has one. Processes that meet later, by a spawn or because two jobs
 * connect, create another one at the first use of a communicator of theirs. It is destroyed with
 * its last communicator, once no other process may still request data that this one has sent.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* The most contexts beside MPI_COMM_WORLD's. Each costs two threads and a few sockets. */
enum { LATER_MAX = 16 };

static int allgather(void *comm, const void *mine, void *all, size_t bytes) {
    return PMPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, *(MPI_Comm *)comm);
}

void progress(void *unused) {
    (void)unused;
    int flag;
    sockets_clear();
    inside++;
    /* Probes a communicator of all ranks: MPICH ignores the network for a communicator of one. */
    PMPI_Iprobe(MPI_ANY_SOURCE, 0, shim.world, &flag, MPI_STATUS_IGNORE);
    inside--;
}

/* A number that is the same for all processes of a host and different elsewhere: a hash of the
 * host's name, of its boot ID (names are not always unique), and of the network namespace (the MPI
 * library's shared memory does not leave it). Fabricast gets this number, so that Fabricast and the
 * shim always mean the same by a host.
 */
static uint64_t this_host(void) {
    char text[256] = "";
    gethostname(text, sizeof text / 2);
    size_t len = strnlen(text, sizeof text / 2);
    FILE *boot = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (boot) {
        len += fread(text + len, 1, sizeof text - len, boot);
        fclose(boot);
    }
    uint64_t hash = 0xcbf29ce484222325; /* FNV-1a */
    for (size_t i = 0; i < len; i++)
        hash = (hash ^ (unsigned char)text[i]) * 0x100000001b3;
    struct stat network;
    if (stat("/proc/thread-self/ns/net", &network) == 0)
        for (int shift = 0; shift < 64; shift += 8)
            hash = (hash ^ (((uint64_t)network.st_ino >> shift) & 0xff)) * 0x100000001b3;
    return hash;
}

int process_set_hosts(const struct process_set *set, const int *members, int size, int *fullest) {
    int count = 0;
    *fullest = 0;
    for (int i = 0; i < size; i++) {
        int before = 0, same = 0;
        for (int j = 0; j < size; j++)
            if (set->hosts[members ? members[j] : j] == set->hosts[members ? members[i] : i]) {
                before += j < i;
                same++;
            }
        count += before == 0;
        if (same > *fullest)
            *fullest = same;
    }
    return count;
}

const char *set_by(const char *variable) {
    const char *value = getenv(variable);
    return value && *value ? value : NULL;
}

/* The variable's value, or 0 if it is unset. What is no number becomes NAN, which Fabricast
 * refuses. */
static double number_of(const char *variable) {
    const char *value = set_by(variable);
    if (!value)
        return 0;
    char *end;
    double number = strtod(value, &end);
    return *end ? NAN : number;
}

/* The most addresses of communicators' own, if the variable says it. Rank 0 reports what is no
 * number. */
static const uint32_t *address_limit(uint32_t *limit) {
    const char *value = set_by("FABRICAST_ADDRESSES");
    if (!value)
        return NULL;
    char *end;
    unsigned long number = strtoul(value, &end, 10);
    if (*value < '0' || *value > '9' || *end || number > UINT32_MAX) {
        if (shim.rank == 0)
            say("FABRICAST_ADDRESSES is a number from 0 on, not '%s', and is ignored: "
                "communicators may get all addresses that there are",
                value);
        return NULL;
    }
    *limit = (uint32_t)number;
    return limit;
}

int is_disturbed(void) {
    return number_of("FABRICAST_INJECT_LOSS") != 0 || number_of("FABRICAST_INJECT_DELAY") != 0;
}

struct process_set *process_set_create(MPI_Comm comm) {
    int rank, size;
    PMPI_Comm_rank(comm, &rank);
    PMPI_Comm_size(comm, &size);
    uint64_t here = this_host();
    char host[17];
    snprintf(host, sizeof host, "%016" PRIx64, here);
    uint32_t addresses;
    fabricast_options options = {
        .struct_size = sizeof options,
        .rank = (uint32_t)rank,
        .size = (uint32_t)size,
        .allgather = allgather,
        .progress = progress,
        .user = &comm,
        .interface = set_by("FABRICAST_INTERFACE"),
        .scheme = set_by("FABRICAST_SCHEME"),
        .broadcast = set_by("FABRICAST_BROADCAST"),
        .inject_loss = number_of("FABRICAST_INJECT_LOSS"),
        .host = host,
        .work = sockets_work(),
        .inject_delay = number_of("FABRICAST_INJECT_DELAY"),
        .groups = set_by("FABRICAST_GROUPS"),
        .subnet = set_by("FABRICAST_SUBNET"),
        .addresses = address_limit(&addresses),
    };
    struct process_set *set = calloc(1, sizeof *set);
    fabricast_context *context = NULL;
    if (set)
        set->hosts = calloc((size_t)size, sizeof *set->hosts);
    int made = fabricast_context_create(&options, &context) == FABRICAST_OK && set && set->hosts;
    /* One process alone may fail, for instance to create a thread. The others learn of that
     * here. */
    int mine = made ? size : rank, first;
    PMPI_Allreduce(&mine, &first, 1, MPI_INT, MPI_MIN, comm);
    if (first < size) {
        if (rank == first)
            say("leaves %d ranks to the MPI library: %s", size, fabricast_last_error());
        fabricast_context_destroy(context);
        if (set)
            free(set->hosts);
        free(set);
        return NULL;
    }
    if (shim.verbose && fabricast_unshared(context))
        say("shares no memory with other ranks of its host, and speaks to the network by itself: "
            "%s",
            fabricast_unshared(context));
    PMPI_Allgather(&here, 1, MPI_UINT64_T, set->hosts, 1, MPI_UINT64_T, comm);
    set->context = context;
    set->states = 1;
    PMPI_Comm_group(comm, &set->group);
    set->name = ((uint64_t)getpid() << 32 | (uint32_t)time(NULL)) ^ (uint64_t)(uintptr_t)set;
    PMPI_Bcast(&set->name, 1, MPI_UINT64_T, 0, comm);
    return set;
}

static void process_set_destroy(struct process_set *set) {
    statistics_context(set->context);
    fabricast_context_destroy(set->context);
    free(set->hosts);
    free(set);
}

int process_set_members(const struct process_set *set, MPI_Group group, int size, int *members) {
    int *ranks = calloc((size_t)size, sizeof *ranks);
    if (!ranks)
        return 0;
    for (int i = 0; i < size; i++)
        ranks[i] = i;
    PMPI_Group_translate_ranks(group, size, ranks, set->group, members);
    free(ranks);
    for (int i = 0; i < size; i++)
        if (members[i] == MPI_UNDEFINED)
            return 0;
    return 1;
}

struct process_set *process_set_find(MPI_Group group, int size, int *members) {
    pthread_mutex_lock(&shim.lock);
    struct process_set *set = shim.sets;
    while (set && !process_set_members(set, group, size, members))
        set = set->next;
    if (set)
        set->states++;
    pthread_mutex_unlock(&shim.lock);
    return set;
}

void process_set_add(struct process_set *set) {
    pthread_mutex_lock(&shim.lock);
    struct process_set **last = &shim.sets;
    while (*last)
        last = &(*last)->next;
    *last = set;
    pthread_mutex_unlock(&shim.lock);
}

void process_set_hold(struct process_set *set) {
    pthread_mutex_lock(&shim.lock);
    set->states++;
    pthread_mutex_unlock(&shim.lock);
}

void process_set_release(struct process_set *set) {
    pthread_mutex_lock(&shim.lock);
    if (--set->states == 0) {
        struct process_set **at = &shim.sets;
        while (*at != set)
            at = &(*at)->next;
        *at = set->next;
        PMPI_Group_free(&set->group);
        set->next = shim.retired;
        shim.retired = set;
    }
    pthread_mutex_unlock(&shim.lock);
}

int process_set_room(void) {
    int count = 0;
    pthread_mutex_lock(&shim.lock);
    for (struct process_set *s = shim.sets; s; s = s->next)
        count++;
    for (struct process_set *s = shim.retired; s; s = s->next)
        count++;
    pthread_mutex_unlock(&shim.lock);
    return count <= LATER_MAX;
}

/* Whether all other processes have what they need from this one. */
static int is_over(struct process_set *set) {
    fabricast_statistics now = {.struct_size = sizeof now};
    fabricast_context_statistics(set->context, &now);
    return now.groups == 0 || fabricast_lost(set->context) >= 0;
}

void process_sets_sweep(void) {
    pthread_mutex_lock(&shim.lock);
    for (struct process_set **at = &shim.retired; shim.on && *at;) {
        struct process_set *set = *at;
        if (is_over(set)) {
            *at = set->next;
            process_set_destroy(set);
        } else {
            at = &set->next;
        }
    }
    pthread_mutex_unlock(&shim.lock);
}

int64_t process_sets_lost(void) {
    int64_t lost = -1;
    pthread_mutex_lock(&shim.lock);
    for (struct process_set *s = shim.sets; s && lost < 0; s = s->next)
        lost = fabricast_lost(s->context);
    pthread_mutex_unlock(&shim.lock);
    return lost;
}

int process_sets_flush(void) {
    for (struct process_set *s = shim.sets; s; s = s->next)
        if (fabricast_flush(s->context) != FABRICAST_OK || fabricast_lost(s->context) >= 0)
            return 0;
    /* The shim ends MPI_COMM_WORLD's set with a barrier of the MPI library. The other sets have no
     * such barrier. */
    struct process_set *lists[] = {shim.world_set ? shim.world_set->next : shim.sets, shim.retired};
    for (int i = 0; i < 2; i++)
        for (struct process_set *s = lists[i]; s; s = s->next)
            while (!is_over(s)) {
                fabricast_flush(s->context);
                progress(NULL);
                nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
            }
    return 1;
}

void process_sets_forked(void) {
    struct process_set *lists[] = {shim.sets, shim.retired};
    for (int i = 0; i < 2; i++)
        for (struct process_set *s = lists[i]; s; s = s->next)
            fabricast_context_forked(s->context);
}

void process_sets_destroy(void) {
    struct process_set **lists[] = {&shim.sets, &shim.retired};
    for (int i = 0; i < 2; i++)
        while (*lists[i]) {
            struct process_set *set = *lists[i];
            *lists[i] = set->next;
            if (i == 0)
                PMPI_Group_free(&set->group);
            process_set_destroy(set);
        }
}
