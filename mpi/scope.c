/* Contexts. MPI_COMM_WORLD has one. Processes that meet later, those of a spawn or of two jobs that
 * connected, make one more at the first use of a communicator of theirs. It ends with the last
 * communicator in it, as soon as no other process may still ask for something that it has sent.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Contexts beside MPI_COMM_WORLD's. Each costs two threads and a few sockets. */
enum { LATER_MAX = 16 };

static int allgather(void *comm, const void *mine, void *all, size_t bytes) {
    return PMPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, *(MPI_Comm *)comm);
}

void progress(void *unused) {
    (void)unused;
    int flag;
    sockets_heed();
    inside++;
    /* Of all ranks: MPICH does not look at the network for a communicator of one. */
    PMPI_Iprobe(MPI_ANY_SOURCE, 0, shim.world, &flag, MPI_STATUS_IGNORE);
    inside--;
}

/* The same number on all processes of a host, and another elsewhere: of its name, and of when it
 * started, for names are not always different.
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
    return hash;
}

int scope_hosts(const struct scope *scope, const int *members, int size, int *fullest) {
    int count = 0;
    *fullest = 0;
    for (int i = 0; i < size; i++) {
        int before = 0, same = 0;
        for (int j = 0; j < size; j++)
            if (scope->hosts[members ? members[j] : j] == scope->hosts[members ? members[i] : i]) {
                before += j < i;
                same++;
            }
        count += before == 0;
        if (same > *fullest)
            *fullest = same;
    }
    return count;
}

/* An empty variable is none. */
static const char *set_by(const char *variable) {
    const char *value = getenv(variable);
    return value && *value ? value : NULL;
}

/* Of all datagrams. What is no number at all is taken for no share, and refused as one. */
double loss_on_purpose(void) {
    const char *loss = set_by("FABRICAST_INJECT_LOSS");
    if (!loss)
        return 0;
    char *end;
    double share = strtod(loss, &end);
    return *end ? NAN : share;
}

struct scope *scope_create(MPI_Comm comm) {
    int rank, size;
    PMPI_Comm_rank(comm, &rank);
    PMPI_Comm_size(comm, &size);
    fabricast_options options = {
        .struct_size = sizeof options,
        .rank = (uint32_t)rank,
        .size = (uint32_t)size,
        .allgather = allgather,
        .progress = progress,
        .user = &comm,
        .interface = set_by("FABRICAST_INTERFACE"),
        .scheme = set_by("FABRICAST_SCHEME"),
        .inject_loss = loss_on_purpose(),
        .work = sockets_work(),
    };
    struct scope *scope = calloc(1, sizeof *scope);
    fabricast_context *context = NULL;
    if (scope)
        scope->hosts = calloc((size_t)size, sizeof *scope->hosts);
    int made = fabricast_context_create(&options, &context) == FABRICAST_OK && scope && scope->hosts;
    /* What only one lacks, a thread for instance, the others do not know. */
    int mine = made ? size : rank, first;
    PMPI_Allreduce(&mine, &first, 1, MPI_INT, MPI_MIN, comm);
    if (first < size) {
        if (rank == first)
            say("leaves %d ranks to the MPI library: %s", size, fabricast_last_error());
        fabricast_context_destroy(context);
        if (scope)
            free(scope->hosts);
        free(scope);
        return NULL;
    }
    if (shim.verbose && fabricast_unshared(context))
        say("shares no memory with other ranks of its host, and speaks to the network by itself: %s",
            fabricast_unshared(context));
    uint64_t here = this_host();
    PMPI_Allgather(&here, 1, MPI_UINT64_T, scope->hosts, 1, MPI_UINT64_T, comm);
    scope->context = context;
    scope->places = 1;
    PMPI_Comm_group(comm, &scope->group);
    scope->name = ((uint64_t)getpid() << 32 | (uint32_t)time(NULL)) ^ (uint64_t)(uintptr_t)scope;
    PMPI_Bcast(&scope->name, 1, MPI_UINT64_T, 0, comm);
    return scope;
}

static void scope_destroy(struct scope *scope) {
    tally_context(scope->context);
    fabricast_context_destroy(scope->context);
    free(scope->hosts);
    free(scope);
}

int scope_members(const struct scope *scope, MPI_Group group, int size, int *members) {
    int *ranks = calloc((size_t)size, sizeof *ranks);
    if (!ranks)
        return 0;
    for (int i = 0; i < size; i++)
        ranks[i] = i;
    PMPI_Group_translate_ranks(group, size, ranks, scope->group, members);
    free(ranks);
    for (int i = 0; i < size; i++)
        if (members[i] == MPI_UNDEFINED)
            return 0;
    return 1;
}

struct scope *scope_find(MPI_Group group, int size, int *members) {
    pthread_mutex_lock(&shim.lock);
    struct scope *scope = shim.scopes;
    while (scope && !scope_members(scope, group, size, members))
        scope = scope->next;
    if (scope)
        scope->places++;
    pthread_mutex_unlock(&shim.lock);
    return scope;
}

void scope_add(struct scope *scope) {
    pthread_mutex_lock(&shim.lock);
    struct scope **last = &shim.scopes;
    while (*last)
        last = &(*last)->next;
    *last = scope;
    pthread_mutex_unlock(&shim.lock);
}

void scope_hold(struct scope *scope) {
    pthread_mutex_lock(&shim.lock);
    scope->places++;
    pthread_mutex_unlock(&shim.lock);
}

void scope_release(struct scope *scope) {
    pthread_mutex_lock(&shim.lock);
    if (--scope->places == 0) {
        struct scope **at = &shim.scopes;
        while (*at != scope)
            at = &(*at)->next;
        *at = scope->next;
        PMPI_Group_free(&scope->group);
        scope->next = shim.retired;
        shim.retired = scope;
    }
    pthread_mutex_unlock(&shim.lock);
}

int scope_room(void) {
    int count = 0;
    pthread_mutex_lock(&shim.lock);
    for (struct scope *s = shim.scopes; s; s = s->next)
        count++;
    for (struct scope *s = shim.retired; s; s = s->next)
        count++;
    pthread_mutex_unlock(&shim.lock);
    return count <= LATER_MAX;
}

/* Whether all others have what they need from here. */
static int is_over(struct scope *scope) {
    fabricast_statistics now = {.struct_size = sizeof now};
    fabricast_context_statistics(scope->context, &now);
    return now.groups == 0 || fabricast_lost(scope->context) >= 0;
}

void scopes_sweep(void) {
    pthread_mutex_lock(&shim.lock);
    for (struct scope **at = &shim.retired; shim.on && *at;) {
        struct scope *scope = *at;
        if (is_over(scope)) {
            *at = scope->next;
            scope_destroy(scope);
        } else {
            at = &scope->next;
        }
    }
    pthread_mutex_unlock(&shim.lock);
}

int64_t scopes_lost(void) {
    int64_t lost = -1;
    pthread_mutex_lock(&shim.lock);
    for (struct scope *s = shim.scopes; s && lost < 0; s = s->next)
        lost = fabricast_lost(s->context);
    pthread_mutex_unlock(&shim.lock);
    return lost;
}

int scopes_flush(void) {
    for (struct scope *s = shim.scopes; s; s = s->next)
        if (fabricast_flush(s->context) != FABRICAST_OK || fabricast_lost(s->context) >= 0)
            return 0;
    /* MPI_COMM_WORLD's ends with a barrier of the library; nothing else does it for the others. */
    struct scope *lists[] = {shim.world_scope ? shim.world_scope->next : shim.scopes, shim.retired};
    for (int i = 0; i < 2; i++)
        for (struct scope *s = lists[i]; s; s = s->next)
            while (!is_over(s)) {
                fabricast_flush(s->context);
                progress(NULL);
                nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
            }
    return 1;
}

void scopes_forked(void) {
    struct scope *lists[] = {shim.scopes, shim.retired};
    for (int i = 0; i < 2; i++)
        for (struct scope *s = lists[i]; s; s = s->next)
            fabricast_context_forked(s->context);
}

void scopes_destroy(void) {
    struct scope **lists[] = {&shim.scopes, &shim.retired};
    for (int i = 0; i < 2; i++)
        while (*lists[i]) {
            struct scope *scope = *lists[i];
            *lists[i] = scope->next;
            if (i == 0)
                PMPI_Group_free(&scope->group);
            scope_destroy(scope);
        }
}
