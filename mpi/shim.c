/* MPI_Bcast and MPI_Barrier by Fabricast, for programs that know nothing of it.
 *
 * Preloaded into the ranks of a job, this library stands before the MPI library. Where it can serve
 * a call it does; everything else it hands on. What it decides depends only on what is equal on all
 * ranks: the communicator, the root, the number of bytes.
 *
 *   MPI_Init       makes one context for MPI_COMM_WORLD, and its group
 *   first use      of a communicator: all its ranks agree on a group, or that there is none
 *   MPI_Bcast      a group's broadcast, or the library's
 *   MPI_Finalize   begins by deleting the attributes of MPI_COMM_SELF: then everything is flushed
 */
#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct shim shim = {.lock = PTHREAD_MUTEX_INITIALIZER, .keyval = MPI_KEYVAL_INVALID};
__thread int inside;

void say(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char text[1024];
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "fabricast: rank %d: %s\n", shim.rank, text);
}

/* The program's MPI library, if it is not the one for which this was built: then nothing here means
 * the same. */
static void *other_library;

static const char *library_of(int open_mpi) {
    return open_mpi ? "Open MPI" : "MPICH";
}

/* Of the libraries that are loaded, those that are called as MPI libraries are. */
struct libraries {
    int count;
    char *paths[8];
};

static int note_library(struct dl_phdr_info *info, size_t size, void *found) {
    (void)size;
    struct libraries *all = found;
    const char *slash = strrchr(info->dlpi_name, '/'), *name = slash ? slash + 1 : info->dlpi_name;
    int is_one = strncmp(name, "libmpi.so", 9) == 0 || strncmp(name, "libmpich.so", 11) == 0;
    if (is_one && all->count < (int)(sizeof all->paths / sizeof *all->paths))
        all->paths[all->count++] = strdup(info->dlpi_name);
    return 0;
}

static void look_for_other_library(void) {
#ifdef OPEN_MPI
    enum { OURS = 1 };
#else
    enum { OURS = 0 };
#endif
    struct libraries all = {0};
    dl_iterate_phdr(note_library, &all);
    for (int i = 0; i < all.count; i++) {
        void *library = all.paths[i] ? dlopen(all.paths[i], RTLD_LAZY | RTLD_NOLOAD) : NULL;
        int is_other = library && (dlsym(library, "ompi_mpi_comm_world") != NULL) != OURS;
        /* The program may have both, or load one privately, as Python does: which one it calls
         * cannot be told. */
        if (is_other && dlsym(library, "PMPI_Init") == dlsym(RTLD_NEXT, "PMPI_Init"))
            other_library = library;
        else if (is_other)
            fprintf(stderr, "fabricast: what is preloaded is for %s, and a library of %s is loaded, too: a program of that one needs "
                    "the launcher of its own library\n", library_of(OURS), library_of(!OURS));
        if (library && library != other_library)
            dlclose(library);
        free(all.paths[i]);
    }
    if (other_library)
        fprintf(stderr, "fabricast: this is a program of %s, but what is preloaded is for %s, whose launcher has started it: it is "
                "left alone; start it with the launcher of its own library\n", library_of(!OURS), library_of(OURS));
}

int is_other_library(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, look_for_other_library);
    return other_library != NULL;
}

void *library_function(const char *name) {
    void *found = is_other_library() ? dlsym(other_library, name) : dlsym(RTLD_NEXT, name);
    if (!found) {
        fprintf(stderr, "fabricast: the MPI library has no %s\n", name);
        abort();
    }
    return found;
}

/* --- Calls --------------------------------------------------------------------------------- */

/* An error code whose text, by MPI_Error_string, is that of the first loss. */
static int code_of_loss = MPI_ERR_OTHER;

static void heed_first_loss(void) {
    /* The first rank that aborts ends the others: they are to have said who is lost, too. */
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    char text[MPI_MAX_ERROR_STRING], known[MPI_MAX_ERROR_STRING];
    int code, class, len;
    snprintf(text, sizeof text, "fabricast: %s", fabricast_last_error());
    if (PMPI_Add_error_code(MPI_ERR_OTHER, &code) != MPI_SUCCESS || PMPI_Add_error_string(code, text) != MPI_SUCCESS)
        return;
    /* MPICH takes such codes for others, unless their class is new as well. */
    PMPI_Error_class(code, &class);
    PMPI_Error_string(code, known, &len);
    if (class == MPI_ERR_OTHER && strcmp(text, known) == 0)
        code_of_loss = code;
}

/* Says why a call has failed, but not again and again. */
static void say_why(void) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static char last[256];
    pthread_mutex_lock(&lock);
    if (strncmp(last, fabricast_last_error(), sizeof last - 1) != 0) {
        snprintf(last, sizeof last, "%s", fabricast_last_error());
        say("%s", last);
    }
    pthread_mutex_unlock(&lock);
}

/* An operation has failed for good: MPI's error handler of the communicator decides what comes of
 * it. */
static int fail(MPI_Comm comm, int status) {
    static pthread_once_t lost = PTHREAD_ONCE_INIT;
    int code = MPI_ERR_OTHER;
    say_why();
    if (status == FABRICAST_ERR_PEER_LOST) {
        pthread_once(&lost, heed_first_loss);
        code = code_of_loss;
    } else if (status == FABRICAST_ERR_ARGUMENT) {
        code = MPI_ERR_TRUNCATE; /* what the library answers to another length than the root's */
    }
    PMPI_Comm_call_errhandler(comm, code);
    return code;
}

/* A duplicate could not have its group when it was made: a process of it was lost. */
static int fail_without_group(MPI_Comm comm) {
    return fail(comm, scopes_lost() >= 0 ? FABRICAST_ERR_PEER_LOST : FABRICAST_ERR_SYSTEM);
}

static int begun;

/* A tool stands before MPI_Init and has called PMPI_Init itself: all ranks do without, and one of
 * them says so. */
static void say_passed_by(void) {
    const char *wanted = getenv("FABRICAST");
    int initialized = 0;
    PMPI_Initialized(&initialized);
    if (!initialized || (wanted && strcmp(wanted, "off") == 0))
        return;
    PMPI_Comm_rank(MPI_COMM_WORLD, &shim.rank);
    if (shim.rank == 0)
        say("leaves everything to the MPI library: a tool has called PMPI_Init past it");
}

/* Whether anything can be served at all. */
static int is_on(MPI_Comm comm) {
    static pthread_once_t passed_by = PTHREAD_ONCE_INIT;
    if (!begun && !inside)
        pthread_once(&passed_by, say_passed_by);
    return shim.on && !inside && comm != MPI_COMM_NULL;
}

static int is_inter(MPI_Comm comm) {
    int inter = 0;
    PMPI_Comm_test_inter(comm, &inter);
    return inter;
}

/* Elements that do not lie in memory as they are sent. */
static int bcast_packed(struct place *place, void *buffer, MPI_Count count, MPI_Datatype type, MPI_Count size,
                        int root) {
    uint64_t bytes = (uint64_t)size * (uint64_t)count;
    char *packed = malloc(bytes);
    if (!packed) {
        say("no memory for %llu bytes of a broadcast", (unsigned long long)bytes);
        PMPI_Comm_call_errhandler(place->comm, MPI_ERR_NO_MEM);
        return MPI_ERR_NO_MEM;
    }
    int is_root = place->rank == root, moved = MPI_SUCCESS;
    inside++;
    if (is_root)
        moved = elements_move(1, buffer, count, type, size, packed, shim.self);
    inside--;
    int status = fabricast_bcast(place->group, packed, bytes, (uint32_t)root);
    inside++;
    if (!is_root && status == FABRICAST_OK)
        moved = elements_move(0, buffer, count, type, size, packed, shim.self);
    inside--;
    free(packed);
    if (status != FABRICAST_OK)
        return fail(place->comm, status);
    if (moved != MPI_SUCCESS)
        PMPI_Comm_call_errhandler(place->comm, moved);
    return moved;
}

int serve_bcast(void *buffer, MPI_Count count, MPI_Datatype type, int root, MPI_Comm comm, int *status) {
    if (!is_on(comm))
        return 0;
    /* Before anything is agreed on: one rank alone may be wrong, and is to be told so at once. (The
     * root of an inter-communicator may be negative.) */
    MPI_Count size = 0;
    if (count < 0 || root < 0 || buffer == MPI_IN_PLACE || type == MPI_DATATYPE_NULL || !elements_are_usable(type) ||
        PMPI_Type_size_x(type, &size) != MPI_SUCCESS) {
        tally_handed(NULL, comm, root < 0 && is_inter(comm) ? INTER : INVALID);
        return 0;
    }
    /* One of no bytes is served like others: it may be of some at another rank, which is to learn
     * of that. */
    int empty = count == 0 || size <= 0, plain = empty || elements_are_plain(type, size);
    /* Of other types the addresses may be in the type, and this is MPI_BOTTOM. */
    if (plain && !empty && !buffer) {
        tally_handed(NULL, comm, INVALID);
        return 0;
    }
    struct place *place = place_of(comm);
    if (!place)
        return 0;
    enum reason why = place->group && root >= place->size ? INVALID : place->why;
    if (why != SERVED) {
        tally_handed(place, comm, why);
        return 0;
    }
    uint64_t bytes = empty ? 0 : (uint64_t)size * (uint64_t)count;
    if (!place->group) {
        *status = fail_without_group(comm);
        return 1;
    }
    const struct measured *by = choice_bcast(&place->choice, bytes);
    if (by && verdict_is_lost(by)) {
        tally_faster(place, by);
        return 0;
    }
    place->bcasts++;
    place->bytes += bytes;
    if (plain) {
        int done = fabricast_bcast(place->group, buffer, bytes, (uint32_t)root);
        *status = done == FABRICAST_OK ? MPI_SUCCESS : fail(comm, done);
    } else {
        *status = bcast_packed(place, buffer, count, type, size, root);
    }
    return 1;
}

int serve_barrier(MPI_Comm comm, int *status) {
    struct place *place = is_on(comm) ? place_of(comm) : NULL;
    if (!place)
        return 0;
    if (place->why != SERVED) {
        tally_handed(place, comm, place->why);
        return 0;
    }
    if (!place->group) {
        *status = fail_without_group(comm);
        return 1;
    }
    const struct measured *by = place->choice.barrier;
    if (by && verdict_is_lost(by)) {
        tally_faster(place, by);
        return 0;
    }
    place->barriers++;
    int done = fabricast_barrier(place->group);
    *status = done == FABRICAST_OK ? MPI_SUCCESS : fail(comm, done);
    return 1;
}

ENTRY int MPI_Bcast(void *buffer, int count, MPI_Datatype type, int root, MPI_Comm comm) {
    static int (*library)(void *, int, MPI_Datatype, int, MPI_Comm);
    int status;
    if (serve_bcast(buffer, count, type, root, comm, &status))
        return status;
    if (!library)
        library = library_function("MPI_Bcast");
    return library(buffer, count, type, root, comm);
}

#if MPI_VERSION >= 4
ENTRY int MPI_Bcast_c(void *buffer, MPI_Count count, MPI_Datatype type, int root, MPI_Comm comm) {
    static int (*library)(void *, MPI_Count, MPI_Datatype, int, MPI_Comm);
    int status;
    if (serve_bcast(buffer, count, type, root, comm, &status))
        return status;
    if (!library)
        library = library_function("MPI_Bcast_c");
    return library(buffer, count, type, root, comm);
}
#endif

ENTRY int MPI_Comm_create_group(MPI_Comm comm, MPI_Group group, int tag, MPI_Comm *made) {
    static int (*library)(MPI_Comm, MPI_Group, int, MPI_Comm *);
    if (!library)
        library = library_function("MPI_Comm_create_group");
    creates_group++;
    int status = library(comm, group, tag, made);
    creates_group--;
    return status;
}

/* A call of all ranks of COMM that makes communicators of parts of it. */
#define PARTS(name, takes, gives)                   \
    ENTRY int name takes {                          \
        static int (*library) takes;                \
        if (!library)                               \
            library = library_function(#name);      \
        int status = library gives;                 \
        if (status == MPI_SUCCESS)                  \
            place_part(comm, *made);                \
        return status;                              \
    }

PARTS(MPI_Comm_split, (MPI_Comm comm, int color, int key, MPI_Comm *made), (comm, color, key, made))
PARTS(MPI_Comm_split_type, (MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *made),
      (comm, type, key, info, made))
PARTS(MPI_Comm_create, (MPI_Comm comm, MPI_Group group, MPI_Comm *made), (comm, group, made))

ENTRY int MPI_Barrier(MPI_Comm comm) {
    static int (*library)(MPI_Comm);
    int status;
    if (serve_barrier(comm, &status))
        return status;
    if (!library)
        library = library_function("MPI_Barrier");
    return library(comm);
}

/* --- The beginning and the end ------------------------------------------------------------- */

/* Between two looks, the first time: each time it becomes longer. */
static const long first_pause_ns = 20000;

static void sleep_longer(long *pause_ns) {
    nanosleep(&(struct timespec){.tv_nsec = *pause_ns}, NULL);
    *pause_ns = *pause_ns < 1000000 ? 2 * *pause_ns : *pause_ns;
}

int await(MPI_Request *request) {
    int done = 0;
    long pause_ns = first_pause_ns;
    while (PMPI_Test(request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done) {
        if (scopes_lost() >= 0)
            return 0;
        sleep_longer(&pause_ns);
    }
    return done;
}

static int meet(void) {
    MPI_Request request;
    PMPI_Ibarrier(shim.world, &request);
    return await(&request);
}

/* MPI_Finalize deletes the attributes of MPI_COMM_SELF first, the last one set first, while MPI
 * still works. */
static int finalize(MPI_Comm comm, int keyval, void *value, void *extra) {
    (void)comm, (void)keyval, (void)value, (void)extra;
    if (!shim.on)
        return MPI_SUCCESS;
    watch_finalize();
    tune_end();
    pthread_mutex_lock(&shim.lock);
    shim.on = 0;
    pthread_mutex_unlock(&shim.lock);
    places_leave();
    /* The watch goes on when a process is lost, for what the library does from here on may wait for
     * it. */
    if (!scopes_flush() || !meet())
        return fail(MPI_COMM_WORLD, scopes_lost() >= 0 ? FABRICAST_ERR_PEER_LOST : FABRICAST_ERR_SYSTEM);
    if (shim.stats)
        tally_tell();
    watch_end();
    scopes_destroy();
    windows_end();
    PMPI_Comm_free_keyval(&shim.keyval);
    PMPI_Comm_free_keyval(&shim.part);
    PMPI_Comm_free(&shim.world);
    PMPI_Comm_free(&shim.self);
    return MPI_SUCCESS;
}

/* No other thread changes the lists while the process forks. */
static void before_fork(void) {
    pthread_mutex_lock(&shim.lock);
}

static void forked(void) {
    pthread_mutex_unlock(&shim.lock);
}

/* The child has none of our threads, and may not use MPI. */
static void forked_child(void) {
    shim.on = 0;
    scopes_forked();
    pthread_mutex_unlock(&shim.lock);
}

/* Whether other ranks of MPI_COMM_WORLD are on this host. */
static int has_mates(int size) {
    int mates = 0;
    for (int i = 0; i < size && shim.world_scope; i++)
        mates += shim.world_scope->hosts[i] == shim.world_scope->hosts[shim.rank];
    return mates > 1;
}

static int is_set(const char *variable) {
    const char *value = getenv(variable);
    return value && *value && strcmp(value, "0") != 0;
}

/* The first thing that all ranks agree on. One that runs without this library never comes: whoever
 * waits for it says so, and does not wait for ever. */
static void agree(int *choice, int count) {
    enum { SAYS_S = 10, ENDS_S = 60 };
    const char *wanted = getenv("FABRICAST_INIT_TIMEOUT");
    char *rest = NULL;
    double ends = wanted ? strtod(wanted, &rest) : 0;
    int known = ends > 0 && !*rest;
    if (wanted && *wanted && !known && shim.rank == 0)
        say("FABRICAST_INIT_TIMEOUT is a number of seconds above 0, not '%s': %d", wanted, ENDS_S);
    ends = known ? ends : ENDS_S;
    double says = ends / 2 < SAYS_S ? ends / 2 : SAYS_S;
    int done = 0, said = 0;
    MPI_Request request;
    PMPI_Iallreduce(MPI_IN_PLACE, choice, count, MPI_INT, MPI_MAX, MPI_COMM_WORLD, &request);
    double began = PMPI_Wtime();
    for (long pause_ns = first_pause_ns; PMPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done;) {
        double waited = PMPI_Wtime() - began;
        if (waited >= says && !said++ && shim.rank < 2)
            say("has waited %g s for ranks that run without Fabricast, or not at all: is what LD_PRELOAD names (%s) on every host, "
                "and is it set for every rank? The job is ended after %.0f s (FABRICAST_INIT_TIMEOUT); FABRICAST=off does without", says,
                getenv("LD_PRELOAD") ? getenv("LD_PRELOAD") : "nothing", ends);
        if (waited >= ends) {
            say("ends the job: not all ranks have come to MPI_Init with Fabricast within %.0f s", ends);
            /* A launcher drops what it has not read yet of a job that is aborted. */
            nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
            PMPI_Abort(MPI_COMM_WORLD, 1);
        }
        sleep_longer(&pause_ns);
    }
    if (!done)
        PMPI_Abort(MPI_COMM_WORLD, 1);
}

extern char **environ;

/* A variable that nobody reads is perhaps a slip: rank 0 tells of each in its environment. */
static void tell_unknown(void) {
    static const char *const known[] = {"STATS", "INTERFACE", "INJECT_LOSS", "SCHEME", "TUNE",
                                        "CACHE", "INIT_TIMEOUT", "MPI", "LIB", "CLUSTER" /* the testbed's */};
    static const char ours[] = "FABRICAST_";
    for (char **variable = environ; *variable; variable++) {
        if (strncmp(*variable, ours, sizeof ours - 1) != 0)
            continue;
        const char *name = *variable + sizeof ours - 1;
        size_t length = strcspn(name, "="), i = 0, count = sizeof known / sizeof *known;
        while (i < count && (strlen(known[i]) != length || strncmp(name, known[i], length) != 0))
            i++;
        if (i == count)
            say("there is no variable %s%.*s (docs/mpi.md lists them)", ours, (int)length, name);
    }
}

/* What is done for the first time takes milliseconds: memory, threads that have never run, the
 * library's messages between our calls. It is not the program's and not counted. Rank 0 tells with
 * each broadcast whether there is time for another round. Whatever fails here fails again in the
 * program's first call, which says so; those who wait for a lost process in the library's barrier
 * are ended by watch.c. */
static void rehearse(const struct place *place) {
    enum { ROUNDS = 8 };
    const double most_s = 0.01;
    if (!place || !place->group)
        return;
    tally_measuring(1);
    double began = PMPI_Wtime();
    char again = 1;
    for (int i = 1; again && fabricast_barrier(place->group) == FABRICAST_OK; i++) {
        again = i < ROUNDS && PMPI_Wtime() - began < most_s;
        if (fabricast_bcast(place->group, &again, sizeof again, 0) != FABRICAST_OK)
            break;
        PMPI_Barrier(shim.world);
    }
    fabricast_flush(place->scope->context);
    tally_measuring(0);
}

void shim_begin(void) {
    if (begun++ || is_other_library())
        return;
    const char *wanted = getenv("FABRICAST");
    wanted = wanted && *wanted ? wanted : "on";
    int size;
    PMPI_Comm_rank(MPI_COMM_WORLD, &shim.rank);
    PMPI_Comm_size(MPI_COMM_WORLD, &size);
    int known = !strcmp(wanted, "on") || !strcmp(wanted, "off") || !strcmp(wanted, "verbose");
    if (!known && shim.rank == 0)
        say("FABRICAST is on, off or verbose, not '%s': off", wanted);
    /* The environment of one rank may be another's, what is decided may not. */
    int choice[] = {!known || !strcmp(wanted, "off"), !strcmp(wanted, "verbose"), is_set("FABRICAST_STATS")};
    int off = choice[0];
    inside++;
    agree(choice, 3);
    shim.verbose = choice[1];
    shim.stats = choice[2];
    if (choice[0]) {
        if (shim.rank == 0 && (shim.verbose || !off))
            say("leaves everything to the MPI library: it is off%s", off ? "" : " on another rank");
        goto out;
    }
    if (shim.rank == 0)
        tell_unknown();
    PMPI_Comm_dup(MPI_COMM_SELF, &shim.self);
    PMPI_Comm_set_errhandler(shim.self, MPI_ERRORS_RETURN);
    if (size > 1 && !(shim.world_scope = scope_create(MPI_COMM_WORLD))) {
        PMPI_Comm_free(&shim.self);
        goto out;
    }
    int end;
    sockets_heed();
    shim.scopes = shim.world_scope;
    shim.next = 1;
    PMPI_Comm_dup(MPI_COMM_WORLD, &shim.world);
    PMPI_Comm_create_keyval(place_copy, place_delete, &shim.keyval, NULL);
    PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, place_forget, &shim.part, NULL);
    PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, finalize, &end, NULL);
    PMPI_Comm_set_attr(MPI_COMM_SELF, end, NULL);
    PMPI_Comm_free_keyval(&end);
    pthread_atfork(before_fork, forked, forked_child);
    shim.on = 1;
    windows_begin(has_mates(size));
    watch_begin();
    tune_begin();
    /* All ranks are here, so agree now on what nearly every program uses first. */
    struct place *world = place_of(MPI_COMM_WORLD);
    rehearse(world);
    if (world)
        world->name[0] = '\0'; /* the program may give it a name before its first call */
    if (shim.verbose && shim.rank == 0)
        say("serves MPI_Bcast and MPI_Barrier of %d ranks", size);
out:
    inside--;
}

ENTRY int MPI_Init(int *argc, char ***argv) {
    int (*library)(int *, char ***) = library_function("MPI_Init");
    inside++;
    int status = library(argc, argv);
    inside--;
    if (status == MPI_SUCCESS)
        shim_begin();
    return status;
}

ENTRY int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    int (*library)(int *, char ***, int, int *) = library_function("MPI_Init_thread");
    inside++;
    int status = library(argc, argv, required, provided);
    inside--;
    if (status == MPI_SUCCESS)
        shim_begin();
    return status;
}

ENTRY int MPI_Finalize(void) {
    int (*library)(void) = library_function("MPI_Finalize");
    int status = library();
    watch_end();
    return status;
}
