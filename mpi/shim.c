/* MPI_Bcast and MPI_Barrier by Fabricast, for programs that know nothing of it.
 *
 * Preloaded into the ranks of a job, this library stands before the MPI library. Where it can
 * serve a call it does; everything else it hands on. What it decides depends only on what is equal on all
 * ranks: the communicator, the root, the number of bytes.
 *
 *   MPI_Init       makes one context for MPI_COMM_WORLD
 *   first use      of a communicator: all its ranks agree on a group, or that there is none
 *   MPI_Bcast      a group's broadcast, or the library's
 *   MPI_Finalize   begins by deleting the attributes of MPI_COMM_SELF: then everything is flushed
 */
#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fabricast.h"

/* Processes that have made themselves known to each other. */
struct scope {
    struct scope *next;
    uint64_t name; /* the same at all its members, and different from other scopes' */
    fabricast_context *context;
    MPI_Group group;
};

/* What is known of a communicator; an attribute of it. */
struct place {
    fabricast_group *group; /* none: it is the library's */
    struct scope *scope;
    int size;
};

static struct {
    pthread_mutex_t lock;
    pid_t process;      /* after a fork the child has none of this */
    int on;             /* whether anything is served */
    int verbose;
    int keyval;
    int rank;           /* in MPI_COMM_WORLD */
    MPI_Comm world;     /* ours alone */
    struct scope *scopes;
    uint32_t next;      /* number of the next group */
    uint64_t served_bcast, handed_bcast;
} shim = {.lock = PTHREAD_MUTEX_INITIALIZER, .keyval = MPI_KEYVAL_INVALID};

/* Set while the MPI library works for us: what it calls is its own business. */
static __thread int inside;

static void say(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char text[1024];
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "fabricast: rank %d: %s\n", shim.rank, text);
}

/* The MPI library's own function of this name. */
void *fabricast_library(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) {
        fprintf(stderr, "fabricast: the MPI library has no %s\n", name);
        abort();
    }
    return found;
}

/* --- Contexts ------------------------------------------------------------------------------ */

static int allgather(void *comm, const void *mine, void *all, size_t bytes) {
    return PMPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, *(MPI_Comm *)comm);
}

/* Lets the MPI library go on with what is under way, while we block (its progress rule). In a communicator with
 * others: for one of this rank alone MPICH asks no network. */
static void progress(void *unused) {
    (void)unused;
    int flag;
    inside++;
    PMPI_Iprobe(MPI_ANY_SOURCE, 0, shim.world, &flag, MPI_STATUS_IGNORE);
    inside--;
}

/* Makes the processes of `comm` known to each other; NULL with a reason on all of them alike. */
static struct scope *scope_create(MPI_Comm comm) {
    int rank, size;
    PMPI_Comm_rank(comm, &rank);
    PMPI_Comm_size(comm, &size);
    fabricast_options options;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.rank = (uint32_t)rank;
    options.size = (uint32_t)size;
    options.allgather = allgather;
    options.progress = progress;
    options.user = &comm;
    options.interface = getenv("FABRICAST_INTERFACE");
    options.scheme = getenv("FABRICAST_SCHEME");
    const char *loss = getenv("FABRICAST_INJECT_LOSS");
    options.inject_loss = loss ? atof(loss) : 0;
    struct scope *scope = calloc(1, sizeof *scope);
    if (!scope)
        return NULL;
    if (fabricast_context_create(&options, &scope->context) != FABRICAST_OK) {
        if (rank == 0)
            say("steps aside: %s", fabricast_last_error());
        free(scope);
        return NULL;
    }
    PMPI_Comm_group(comm, &scope->group);
    scope->name = ((uint64_t)getpid() << 32 | (uint32_t)time(NULL)) ^ (uint64_t)(uintptr_t)scope;
    PMPI_Bcast(&scope->name, 1, MPI_UINT64_T, 0, comm);
    return scope;
}

static void scope_destroy(struct scope *scope) {
    PMPI_Group_free(&scope->group);
    fabricast_context_destroy(scope->context);
    free(scope);
}

/* Whether all of `group` are in the scope; writes which they are there. */
static int scope_has(const struct scope *scope, MPI_Group group, int size, int *members) {
    int *ranks = size > 0 ? malloc(sizeof *ranks * (size_t)size) : NULL;
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

/* --- Communicators ------------------------------------------------------------------------- */

static int place_delete(MPI_Comm comm, int keyval, void *value, void *extra) {
    (void)comm, (void)keyval, (void)extra;
    struct place *place = value;
    if (place->group && shim.on)
        fabricast_group_destroy(place->group);
    free(place);
    return MPI_SUCCESS;
}

/* Numbers that all ranks give; the largest of each comes back. */
struct vote {
    uint64_t no, scope, not_scope, next;
};

static void agree(MPI_Comm comm, struct vote *vote) {
    PMPI_Allreduce(MPI_IN_PLACE, vote, sizeof *vote / sizeof(uint64_t), MPI_UINT64_T, MPI_MAX, comm);
}

/* A group for the communicator, if all its ranks can have one. All ranks call it at once. */
static void place_group(MPI_Comm comm, struct place *place) {
    MPI_Group group;
    PMPI_Comm_group(comm, &group);
    int *members = malloc(sizeof *members * (size_t)place->size);
    struct scope *scope = NULL;
    pthread_mutex_lock(&shim.lock);
    for (struct scope *s = shim.scopes; members && s && !scope; s = s->next)
        scope = scope_has(s, group, place->size, members) ? s : NULL;
    struct vote vote = {!members, scope ? scope->name : 0, scope ? ~scope->name : 0, shim.next};
    pthread_mutex_unlock(&shim.lock);
    agree(comm, &vote);
    if (vote.no)
        goto out;
    if (vote.scope != ~vote.not_scope || !scope) {
        /* Processes that meet for the first time: those of a spawn, or of two jobs that connected. */
        scope = scope_create(comm);
        if (!scope)
            goto out;
        scope_has(scope, group, place->size, members);
        pthread_mutex_lock(&shim.lock);
        struct scope **last = &shim.scopes;
        while (*last)
            last = &(*last)->next;
        *last = scope;
        pthread_mutex_unlock(&shim.lock);
    }
    /* Until all have claimed one number: another thread may be about to take the same. */
    uint64_t id;
    do {
        id = vote.next;
        pthread_mutex_lock(&shim.lock);
        int mine = id >= shim.next;
        if (mine)
            shim.next = (uint32_t)id + 1;
        vote = (struct vote){.no = !mine, .next = shim.next};
        pthread_mutex_unlock(&shim.lock);
        agree(comm, &vote);
    } while (vote.no);
    if (fabricast_group_create(scope->context, (uint32_t)id, (const uint32_t *)members,
                               (size_t)place->size, &place->group) != FABRICAST_OK) {
        say("a communicator of %d ranks is left to the MPI library: %s", place->size,
            fabricast_last_error());
        vote.no = 1;
    }
    agree(comm, &vote);
    if (vote.no && place->group) {
        fabricast_group_abandon(place->group);
        place->group = NULL;
    }
    place->scope = scope;
out:
    free(members);
    PMPI_Group_free(&group);
}

/* What is known of the communicator, found out at its first use; NULL: it is the library's. */
static struct place *place_of(MPI_Comm comm) {
    if (!shim.on || inside || comm == MPI_COMM_NULL || shim.process != getpid())
        return NULL;
    struct place *place;
    int found;
    if (PMPI_Comm_get_attr(comm, shim.keyval, &place, &found) != MPI_SUCCESS)
        return NULL;
    if (!found) {
        place = calloc(1, sizeof *place);
        if (!place)
            return NULL;
        int inter;
        PMPI_Comm_test_inter(comm, &inter);
        PMPI_Comm_size(comm, &place->size);
        inside++;
        if (!inter && place->size > 1)
            place_group(comm, place);
        inside--;
        PMPI_Comm_set_attr(comm, shim.keyval, place);
    }
    return place->group ? place : NULL;
}

/* --- Calls --------------------------------------------------------------------------------- */

/* An operation has failed for good: MPI's error handler of the communicator decides. */
static int fail(MPI_Comm comm) {
    say("%s", fabricast_last_error());
    inside++;
    int status = PMPI_Comm_call_errhandler(comm, MPI_ERR_OTHER);
    inside--;
    return status == MPI_SUCCESS ? MPI_ERR_OTHER : status;
}

/* Whether elements lie one after the other in memory in the order in which they are sent. */
static int is_plain(MPI_Datatype type, MPI_Count size) {
    int integers, addresses, types, combiner;
    MPI_Aint lower, extent;
    PMPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner);
    PMPI_Type_get_extent(type, &lower, &extent);
    return combiner == MPI_COMBINER_NAMED && lower == 0 && extent == size;
}

/* Packs or unpacks `count` elements, a part at a time, for MPI counts bytes in an int. */
static int repack(int pack, char *elements, MPI_Count count, MPI_Datatype type, MPI_Count size,
                  char *packed, MPI_Comm comm) {
    MPI_Aint lower, extent;
    PMPI_Type_get_extent(type, &lower, &extent);
    MPI_Count step = (1 << 30) / size;
    for (MPI_Count done = 0; done < count; done += step) {
        int n = (int)(count - done < step ? count - done : step), at = 0;
        int bytes = (int)(n * size);
        char *from = elements + done * extent, *to = packed + done * size;
        int status = pack ? PMPI_Pack(from, n, type, to, bytes, &at, comm)
                          : PMPI_Unpack(to, bytes, &at, from, n, type, comm);
        if (status != MPI_SUCCESS)
            return status;
    }
    return MPI_SUCCESS;
}

int fabricast_serve_bcast(void *buffer, MPI_Count count, MPI_Datatype type, int root, MPI_Comm comm,
                          int *status) {
    struct place *place = place_of(comm);
    if (!place || count <= 0 || root < 0 || root >= place->size || type == MPI_DATATYPE_NULL)
        return 0;
    MPI_Count size;
    if (PMPI_Type_size_x(type, &size) != MPI_SUCCESS || size <= 0 || size > 1 << 30)
        return 0;
    uint64_t bytes = (uint64_t)size * (uint64_t)count;
    if (is_plain(type, size)) {
        *status = fabricast_bcast(place->group, buffer, bytes, (uint32_t)root) ? fail(comm)
                                                                               : MPI_SUCCESS;
        return 1;
    }
    char *packed = malloc(bytes);
    if (!packed) {
        say("no memory for %llu bytes of a broadcast", (unsigned long long)bytes);
        *status = PMPI_Comm_call_errhandler(comm, MPI_ERR_NO_MEM);
        return 1;
    }
    int rank;
    PMPI_Comm_rank(comm, &rank);
    inside++;
    *status = rank == root ? repack(1, buffer, count, type, size, packed, comm) : MPI_SUCCESS;
    inside--;
    if (fabricast_bcast(place->group, packed, bytes, (uint32_t)root) != FABRICAST_OK) {
        *status = fail(comm);
    } else if (rank != root) {
        inside++;
        *status = repack(0, buffer, count, type, size, packed, comm);
        inside--;
    }
    free(packed);
    return 1;
}

int MPI_Bcast(void *buffer, int count, MPI_Datatype type, int root, MPI_Comm comm) {
    static int (*library)(void *, int, MPI_Datatype, int, MPI_Comm);
    int status;
    if (fabricast_serve_bcast(buffer, count, type, root, comm, &status))
        return status;
    if (!library)
        library = fabricast_library("MPI_Bcast");
    return library(buffer, count, type, root, comm);
}

#if MPI_VERSION >= 4
int MPI_Bcast_c(void *buffer, MPI_Count count, MPI_Datatype type, int root, MPI_Comm comm) {
    static int (*library)(void *, MPI_Count, MPI_Datatype, int, MPI_Comm);
    int status;
    if (fabricast_serve_bcast(buffer, count, type, root, comm, &status))
        return status;
    if (!library)
        library = fabricast_library("MPI_Bcast_c");
    return library(buffer, count, type, root, comm);
}
#endif

int fabricast_serve_barrier(MPI_Comm comm, int *status) {
    struct place *place = place_of(comm);
    if (!place)
        return 0;
    *status = fabricast_barrier(place->group) ? fail(comm) : MPI_SUCCESS;
    return 1;
}

int MPI_Barrier(MPI_Comm comm) {
    static int (*library)(MPI_Comm);
    int status;
    if (fabricast_serve_barrier(comm, &status))
        return status;
    if (!library)
        library = fabricast_library("MPI_Barrier");
    return library(comm);
}

/* --- The beginning and the end ------------------------------------------------------------- */

static void statistics(void) {
    const char *wanted = getenv("FABRICAST_STATS");
    if (!wanted || !*wanted || *wanted == '0')
        return;
    for (struct scope *s = shim.scopes; s; s = s->next) {
        fabricast_statistics c = {.struct_size = sizeof c};
        fabricast_context_statistics(s->context, &c);
        say("sent %llu broadcasts (%llu bytes), received %llu (%llu bytes), %llu barriers; packets: %llu by multicast, "
            "%llu by unicast, sent again: %llu by multicast, %llu by unicast; losses mended here: %llu",
            (unsigned long long)c.sent, (unsigned long long)c.sent_bytes,
            (unsigned long long)c.received, (unsigned long long)c.received_bytes,
            (unsigned long long)c.barriers, (unsigned long long)c.packets_multicast, (unsigned long long)c.packets_unicast,
            (unsigned long long)c.repairs_multicast, (unsigned long long)c.repairs_unicast,
            (unsigned long long)c.losses);
    }
}

/* MPI_Finalize deletes the attributes of MPI_COMM_SELF first, while MPI still works. */
static int finalize(MPI_Comm comm, int keyval, void *value, void *extra) {
    (void)comm, (void)keyval, (void)value, (void)extra;
    if (!shim.on || shim.process != getpid())
        return MPI_SUCCESS;
    inside++;
    for (struct scope *s = shim.scopes; s; s = s->next)
        if (fabricast_flush(s->context) != FABRICAST_OK)
            say("%s", fabricast_last_error());
    PMPI_Barrier(shim.world);
    statistics();
    shim.on = 0;
    while (shim.scopes) {
        struct scope *s = shim.scopes;
        shim.scopes = s->next;
        scope_destroy(s);
    }
    PMPI_Comm_free(&shim.world);
    inside--;
    return MPI_SUCCESS;
}

void fabricast_initialized(void) {
    const char *wanted = getenv("FABRICAST");
    if (shim.on || (wanted && !strcmp(wanted, "off")))
        return;
    shim.verbose = wanted && !strcmp(wanted, "verbose");
    inside++;
    PMPI_Comm_rank(MPI_COMM_WORLD, &shim.rank);
    struct scope *scope = NULL;
    int size;
    PMPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size > 1)
        scope = scope_create(MPI_COMM_WORLD);
    if (scope || size == 1) {
        int end;
        PMPI_Comm_dup(MPI_COMM_WORLD, &shim.world);
        PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, place_delete, &shim.keyval, NULL);
        PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, finalize, &end, NULL);
        PMPI_Comm_set_attr(MPI_COMM_SELF, end, NULL);
        PMPI_Comm_free_keyval(&end);
        shim.scopes = scope;
        shim.next = 1;
        shim.process = getpid();
        shim.on = 1;
    }
    if (shim.verbose && shim.rank == 0 && shim.on)
        say("serves MPI_Bcast for %d ranks", size);
    inside--;
}

int MPI_Init(int *argc, char ***argv) {
    int (*library)(int *, char ***) = fabricast_library("MPI_Init");
    int status = library(argc, argv);
    if (status == MPI_SUCCESS)
        fabricast_initialized();
    return status;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    int (*library)(int *, char ***, int, int *) = fabricast_library("MPI_Init_thread");
    int status = library(argc, argv, required, provided);
    if (status == MPI_SUCCESS)
        fabricast_initialized();
    return status;
}
