/* Measures whether Fabricast or the MPI library is faster at broadcasts and barriers, and which of
 * Fabricast's barriers is fastest (P2.4). That happens once for each shape of a job; a file keeps
 * the results (tuning_table.c). Creating a communicator never waits for a measurement.
 *
 *   MPI_Init      rank 0 reads what an earlier job of this shape has measured, and gives it to the
 *                 others
 *   first use     of a communicator: takes the results for the nearest number of ranks
 *   MPI_Finalize  of a job that found no results and used Fabricast: measures, for later jobs
 *
 * With FABRICAST_TUNE=now MPI_Init measures. The time of the slowest rank counts. All ranks know it
 * for every sample, so they agree on the number of samples and on when to stop.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Fewest calls of Fabricast in a job for which measuring pays. */
enum { WORTH_CALLS = 48 };
/* Time limits of a measurement in nanoseconds: at the end of a job, and at its beginning, where the
 * user asked for it. */
static const uint64_t end_ns = 3000000000, now_ns = 6000000000;
/* WARM_PART: warming up Fabricast takes 1/12 of the time limit. SAMPLES: the median of three
 * samples counts. SAMPLE_PART, OPERATIONS_MAX: a sample takes 1/200 of the limit or 2000
 * operations, whichever is less. BEFORE_PART: 1/4 of a sample runs uncounted before it, because
 * operations after a pause are slower for a while, some more than others. */
enum { WARM_PART = 12, SAMPLES = 3, SAMPLE_PART = 200, OPERATIONS_MAX = 2000, BEFORE_PART = 4 };

static const uint32_t sizes[] = {4, 1 << 10, 8 << 10, 64 << 10, 1 << 20};
enum { SIZES = sizeof sizes / sizeof *sizes, LARGEST = 1 << 20 };

/* How long MPI_Init waits for the end of the groups in which it measured, in nanoseconds. */
enum { GONE_NS = 1000000000 };

enum when { NEVER, AT_THE_END, AT_ONCE };

/* Rank 0's decision and table, which all other ranks get. */
static struct {
    uint64_t when;
    uint64_t kept; /* whether the table was read from a file */
    struct tuning_table table;
} tune;
/* Set on rank 0 alone. */
static char shape[SHAPE_MAX], path[PATH_MAX];

/* --- The decision of rank 0 ----------------------------------------------------------------- */

static long number_of(const char *interface, const char *what) {
    char name[128];
    long number = 0;
    snprintf(name, sizeof name, "/sys/class/net/%s/%s", interface, what);
    FILE *file = fopen(name, "re");
    if (!file)
        return 0;
    if (fscanf(file, "%ld", &number) != 1)
        number = 0;
    fclose(file);
    return number;
}

/* Writes the shape: everything known that decides the results. */
static void describe(int size, int hosts, int fullest) {
    char library[MPI_MAX_LIBRARY_VERSION_STRING], interface[64] = "";
    int len;
    PMPI_Get_library_version(library, &len);
    library[strcspn(library, ",\n")] = '\0';
    char *colon = strstr(library, ":\t"); /* MPICH separates name and version by it */
    if (colon) {
        memmove(colon, colon + 1, strlen(colon));
        *colon = ' ';
    }
    fabricast_context_interface(shim.world_set->context, interface, sizeof interface);
    const char *scheme = set_by("FABRICAST_SCHEME"), *by = set_by("FABRICAST_BROADCAST");
    if (by && strcmp(by, "multicast") == 0)
        by = NULL; /* the default */
    snprintf(shape, sizeof shape,
             "%.60s, %d ranks on %d hosts, %d on the fullest, %s of MTU %ld and %ld Mbit/s, "
             "Fabricast %s%s%.40s%s%.20s",
             library, size, hosts, fullest, interface, number_of(interface, "mtu"),
             number_of(interface, "speed"), fabricast_version(), scheme ? ", " : "",
             scheme ? scheme : "", by ? ", " : "", by ? by : "");
}

/* Decides whether and when to measure, and reads the table. Rank 0 alone calls this. */
static void decide(void) {
    const char *wanted = getenv("FABRICAST_TUNE");
    wanted = wanted && *wanted ? wanted : "on";
    int state = tuning_table_path(shape, path, sizeof path);
    if (!state)
        *path = '\0';
    if (strcmp(wanted, "now") == 0)
        tune.when = AT_ONCE;
    else if (strcmp(wanted, "on") == 0)
        tune.when = state && !is_disturbed() ? AT_THE_END : NEVER;
    else if (strcmp(wanted, "off") != 0)
        say("FABRICAST_TUNE is on, off or now, not '%s': off", wanted);
    if (!state || tune.when == AT_ONCE)
        return;
    int there = access(path, F_OK) == 0 || errno != ENOENT;
    const char *why = tuning_table_load(path, shape, &tune.table);
    tune.kept = !why;
    if (!why)
        tune.when = NEVER;
    if (shim.verbose || (why && tuning_table_is_damage(why)))
        say("%s: %s", path,
            !there ? "not measured yet"
            : why  ? why
                   : "this is who is faster, as an earlier job has measured it");
}

/* --- Measuring ------------------------------------------------------------------------------ */

/* The first ranks of the job, in a communicator and a group of their own, and what they
 * measured. */
struct field {
    MPI_Comm comm;
    struct comm_state *state;
    uint64_t begun, spent, budget;
    struct tuning_table *found;
};

enum { ENTRANTS_MAX = 8 };

/* One of the implementations that are compared. */
struct entrant {
    int ours;
    const char *schedule; /* of Fabricast's barrier */
    uint64_t ns;
};

static unsigned char buffer[LARGEST];

static uint64_t now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static int once(const struct field *f, const struct entrant *e, uint32_t bytes) {
    if (!e->ours)
        return (bytes ? PMPI_Bcast(buffer, (int)bytes, MPI_BYTE, 0, f->comm)
                      : PMPI_Barrier(f->comm)) == MPI_SUCCESS;
    return (bytes ? fabricast_bcast(f->state->group, buffer, bytes, 0)
                  : fabricast_barrier(f->state->group)) == FABRICAST_OK;
}

/* Nanoseconds per operation at this rank, for COUNT operations back to back. 0: an operation
 * failed. */
static uint64_t sample(const struct field *f, const struct entrant *e, uint32_t bytes,
                       uint64_t count) {
    /* Packets still under way belong to the previous sample. */
    int good = fabricast_flush(f->state->set->context) == FABRICAST_OK;
    if (e->schedule)
        good &= fabricast_group_set_barrier(f->state->group, e->schedule) == FABRICAST_OK;
    PMPI_Barrier(f->comm);
    uint64_t warm = count / BEFORE_PART, begun = now();
    for (uint64_t i = 0; i < warm + count && good; i++) {
        if (i == warm)
            begun = now();
        good = once(f, e, bytes);
    }
    return good ? (now() - begun) / count + 1 : 0;
}

/* Takes one sample of each implementation, so that a disturbance hits all of them. `ns` becomes the
 * slowest rank's times. Returns whether to go on, which is the same on all ranks. */
static int turn(struct field *f, const struct entrant *entrants, int count, uint32_t bytes,
                uint64_t operations, uint64_t *ns) {
    uint64_t numbers[ENTRANTS_MAX + 2] = {0};
    for (int e = 0; e < count; e++) {
        numbers[e] = sample(f, &entrants[e], bytes, operations);
        numbers[count] |= numbers[e] == 0;
    }
    numbers[count + 1] = now() - f->begun;
    PMPI_Allreduce(MPI_IN_PLACE, numbers, count + 2, MPI_UINT64_T, MPI_MAX, f->comm);
    memcpy(ns, numbers, (size_t)count * sizeof *ns);
    f->spent = numbers[count + 1];
    return !numbers[count] && f->spent < f->budget;
}

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Measures all implementations. Returns 0 if the time limit does not allow it. */
static int compete(struct field *f, struct entrant *entrants, int count, uint32_t bytes) {
    uint64_t slowest = 1, sum = 0, ns[SAMPLES][ENTRANTS_MAX];
    for (uint64_t warm = 1; warm <= 2; warm++)
        if (!turn(f, entrants, count, bytes, warm, ns[0]))
            return 0;
    for (int e = 0; e < count; e++) {
        sum += ns[0][e];
        slowest = ns[0][e] > slowest ? ns[0][e] : slowest;
    }
    uint64_t operations = f->budget / SAMPLE_PART / slowest + 1;
    if (operations > OPERATIONS_MAX)
        operations = OPERATIONS_MAX;
    if (f->spent + sum * operations * SAMPLES * (BEFORE_PART + 1) / BEFORE_PART > f->budget)
        return 0;
    for (int s = 0; s < SAMPLES; s++)
        if (!turn(f, entrants, count, bytes, operations, ns[s]))
            return 0;
    for (int e = 0; e < count; e++) {
        uint64_t of[SAMPLES];
        for (int s = 0; s < SAMPLES; s++)
            of[s] = ns[s][e];
        qsort(of, SAMPLES, sizeof *of, by_value);
        entrants[e].ns = of[SAMPLES / 2];
    }
    return 1;
}

static void add(struct field *f, const struct entrant *ours, const struct entrant *library,
                uint32_t bytes) {
    if (f->found->count == ROWS_MAX)
        return;
    struct measured *row = &f->found->rows[f->found->count++];
    *row = (struct measured){.ranks = (uint32_t)f->state->size,
                             .bytes = bytes,
                             .ours_ns = ours->ns,
                             .library_ns = library->ns};
    if (ours->schedule)
        strcpy(row->schedule, ours->schedule);
}

/* Fabricast's barriers, each with the smallest number of ranks that it is measured for. */
static const struct {
    int ranks;
    const char *schedule;
} barriers[] = {
    {2, "release(32)"},      {10, "release(8)"},      {2, "dissemination(1)"},
    {3, "dissemination(2)"}, {4, "dissemination(3)"}, {8, "dissemination(7)"},
};
enum { BARRIERS = sizeof barriers / sizeof *barriers };
_Static_assert(1 + BARRIERS <= ENTRANTS_MAX, "they are compared with the library's");

static void measure_in(struct field *f) {
    struct entrant entrants[ENTRANTS_MAX] = {{.ours = 0}};
    int count = 1;
    for (int b = 0; b < BARRIERS; b++)
        if (f->state->size >= barriers[b].ranks)
            entrants[count++] = (struct entrant){.ours = 1, .schedule = barriers[b].schedule};
    if (compete(f, entrants, count, 0))
        for (int e = 1; e < count; e++)
            add(f, &entrants[e], &entrants[0], 0);
    /* The pacer's rate begins low and rises only while Fabricast sends. */
    struct entrant ours = {.ours = 1};
    uint64_t until = f->spent + f->budget / WARM_PART, unused;
    while (f->spent < until && turn(f, &ours, 1, LARGEST, 4, &unused))
        ;
    for (int s = SIZES - 1; s >= 0; s--) {
        struct entrant two[2] = {{.ours = 0}, {.ours = 1}};
        if (compete(f, two, 2, sizes[s]))
            add(f, &two[1], &two[0], sizes[s]);
    }
}

/* The next smaller number of ranks to measure: the powers of two below the job's, down to two. */
static int fewer(int ranks) {
    int power = 1;
    while (2 * power < ranks)
        power *= 2;
    return power;
}

static int kept_for_later;

/* Measures, and gives all ranks the results unless a process was lost. The statistics exclude this
 * traffic. */
static void measure(uint64_t budget) {
    enum { FIELDS_MAX = 33 };
    static struct tuning_table found;
    MPI_Comm comms[FIELDS_MAX];
    int rank, size, fields = 0;
    PMPI_Comm_rank(shim.world, &rank);
    PMPI_Comm_size(shim.world, &size);
    inside++;
    for (int ranks = size; ranks > 1; ranks = fewer(ranks))
        PMPI_Comm_split(shim.world, rank < ranks ? 0 : MPI_UNDEFINED, rank, &comms[fields++]);
    struct field f = {.begun = now(), .budget = budget, .found = &found};
    statistics_measuring(1);
    for (int i = 0; i < fields && comms[i] != MPI_COMM_NULL; i++) {
        f.comm = comms[i];
        f.state = comm_state_of(f.comm);
        if (f.state->group)
            measure_in(&f);
        PMPI_Comm_free(&f.comm);
    }
    MPI_Request request;
    PMPI_Ibcast(&found, sizeof found, MPI_BYTE, 0, shim.world, &request);
    int done = await(&request);
    statistics_measuring(0);
    inside--;
    if (!done)
        return;
    tune.table = found;
    if (shim.rank != 0)
        return;
    const char *why = *path ? tuning_table_save(path, shape, &found) : NULL;
    kept_for_later = *path && !why;
    if (shim.verbose)
        say("measured in %d ms who is faster in jobs of this shape: %s", (int)(f.spent / 1000000),
            *path ? path : "it is not to be kept");
    /* Said without --verbose, because each job measures again. */
    if (why)
        say("who is faster cannot be kept in %s: %s; another FABRICAST_CACHE can, and "
            "FABRICAST_TUNE=off does not measure",
            path, why);
}

/* --- Called by other files ------------------------------------------------------------------- */

void tune_begin(void) {
    int size, fullest;
    PMPI_Comm_size(shim.world, &size);
    int hosts = shim.world_set ? process_set_hosts(shim.world_set, NULL, size, &fullest) : 1;
    if (hosts == 1)
        return;
    if (shim.rank == 0) {
        describe(size, hosts, fullest);
        decide();
    }
    PMPI_Bcast(&tune, sizeof tune, MPI_BYTE, 0, shim.world);
    if (tune.when != AT_ONCE)
        return;
    measure(now_ns);
    /* Groups end a moment after ranks leave them. Until then each arriving datagram is checked for
     * them too. */
    fabricast_statistics s = {.struct_size = sizeof s};
    uint64_t until = now() + GONE_NS;
    do {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        fabricast_context_statistics(shim.world_set->context, &s);
    } while (s.groups > 0 && now() < until);
}

void tune_end(void) {
    if (tune.when != AT_THE_END)
        return;
    fabricast_statistics s = {.struct_size = sizeof s};
    fabricast_context_statistics(shim.world_set->context, &s);
    uint64_t calls = s.sent + s.received + s.barriers;
    MPI_Request request;
    PMPI_Iallreduce(MPI_IN_PLACE, &calls, 1, MPI_UINT64_T, MPI_MAX, shim.world, &request);
    if (await(&request) && calls >= WORTH_CALLS)
        measure(end_ns);
}

void tune_choose(struct comm_state *state) {
    /* Processes outside MPI_COMM_WORLD may have another table or none. Within MPI_COMM_WORLD all
     * have the same. */
    if (state->set != shim.world_set)
        return;
    tuning_table_choose(&tune.table, (uint32_t)state->size, &state->choice);
    const struct measured *barrier = state->choice.barrier;
    /* An unknown schedule is refused on all ranks alike. */
    if (barrier)
        fabricast_group_set_barrier(state->group, barrier->schedule);
}

void tune_tell(void) {
    const char *by = tune.kept              ? path
                     : tune.when == AT_ONCE ? "what was measured in MPI_Init"
                                            : NULL;
    int later = kept_for_later && tune.when == AT_THE_END;
    say("%s%s%s%s",
        by ? "who is faster is judged by "
           : "who is faster: nothing measured yet; all that can be served was",
        by ? by : "", later ? "; later jobs go by what was measured at the end: " : "",
        later ? path : "");
}
