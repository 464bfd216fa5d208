/* The format: text, in one file for each shape of jobs.
 *
 *     fabricast verdict 1
 *     shape MPICH 4.0.2, 8 ranks on 8 hosts, ...
 *     # ranks, bytes or how ours is made, ns of ours, ns of the library's
 *     barrier 8 release(32) 41000 95000
 *     bcast 8 65536 560000 967000
 *     end
 *
 * A size between two measured sizes uses the nearer one, as a ratio: 1 KB and 8 KB are equally near
 * to 2.8 KB.
 */
#define _GNU_SOURCE
#include "tuning_table.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char first_line[] = "fabricast verdict 1";

/* Fabricast serves calls in which it is slower by no more than this percentage. */
enum { NOISE_PERCENT = 10 };

/* Upper limit of a time in a table: 1000 s, longer than any operation takes. Sums and products of
 * it fit 64 bits. */
static const uint64_t ns_max = 1000ull * 1000 * 1000 * 1000;

int tuning_table_is_lost(const struct measured *by) {
    return by->library_ns * (100 + NOISE_PERCENT) < by->ours_ns * 100;
}

/* Of two numbers, the one whose ratio to N is smaller. 0 means that there is no number. */
static uint64_t nearer(uint64_t below, uint64_t n, uint64_t above) {
    if (!below || !above)
        return below ? below : above;
    return n * n < below * above ? below : above;
}

/* The measured number of ranks that is nearest to RANKS, for barriers or for broadcasts. 0: none
 * was measured. */
static uint32_t nearest_ranks(const struct tuning_table *table, int barriers, uint32_t ranks) {
    uint32_t below = 0, above = 0;
    for (uint64_t i = 0; i < table->count; i++) {
        const struct measured *m = &table->rows[i];
        if (barriers != (m->bytes == 0))
            continue;
        if (m->ranks <= ranks && m->ranks > below)
            below = m->ranks;
        if (m->ranks >= ranks && (!above || m->ranks < above))
            above = m->ranks;
    }
    return (uint32_t)nearer(below, ranks, above);
}

/* The largest number that is nearer to BELOW than to ABOVE. */
static uint64_t border(uint64_t below, uint64_t above) {
    uint64_t low = below, high = above;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (nearer(below, middle, above) == below)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static void add_point(struct choice *choice, const struct measured *by) {
    if (choice->points == POINTS_MAX)
        return;
    int at = choice->points++;
    for (; at > 0 && choice->of[at - 1].by->bytes > by->bytes; at--)
        choice->of[at] = choice->of[at - 1];
    choice->of[at].by = by;
}

void tuning_table_choose(const struct tuning_table *table, uint32_t ranks, struct choice *choice) {
    *choice = (struct choice){0};
    uint32_t of_barrier = nearest_ranks(table, 1, ranks), of_bcast = nearest_ranks(table, 0, ranks);
    for (uint64_t i = 0; i < table->count; i++) {
        const struct measured *m = &table->rows[i];
        if (m->bytes && m->ranks == of_bcast)
            add_point(choice, m);
        if (!m->bytes && m->ranks == of_barrier &&
            (!choice->barrier || m->ours_ns < choice->barrier->ours_ns))
            choice->barrier = m;
    }
    for (int i = 0; i < choice->points; i++)
        choice->of[i].up_to = i + 1 < choice->points
                                  ? border(choice->of[i].by->bytes, choice->of[i + 1].by->bytes)
                                  : UINT64_MAX;
}

/* --- Files --------------------------------------------------------------------------------- */

int tuning_table_path(const char *shape, char *path, size_t room) {
    static const struct {
        const char *variable, *below;
    } states[] = {
        {"FABRICAST_CACHE", ""}, {"XDG_CACHE_HOME", "/fabricast"}, {"HOME", "/.cache/fabricast"}};
    for (int i = 0; i < 3; i++) {
        const char *state = getenv(states[i].variable);
        if (!state || !*state)
            continue;
        if (i == 0 && strcmp(state, "off") == 0)
            return 0;
        int base = snprintf(path, room, "%s%s/", state, states[i].below);
        if (base < 0 || (size_t)base >= room)
            return 0;
        int len = snprintf(path + base, room - (size_t)base, "%s", shape);
        for (char *at = path + base; *at; at++)
            if (!isalnum((unsigned char)*at) && *at != '.')
                *at = '-';
        return len >= 0 && (size_t)len < room - (size_t)base;
    }
    return 0;
}

/* Parses one row. Returns 0 if it is damaged. All numbers are whole: how a fraction is written
 * depends on the program's locale. */
static int read_row(const char *line, struct measured *row) {
    uint64_t bytes = 0;
    int end = 0;
    *row = (struct measured){0};
    if (sscanf(line, "barrier %" SCNu32 " %23s %" SCNu64 " %" SCNu64 " %n", &row->ranks,
               row->schedule, &row->ours_ns, &row->library_ns, &end) < 4 ||
        !end) {
        memset(row->schedule, 0, sizeof row->schedule);
        if (sscanf(line, "bcast %" SCNu32 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %n", &row->ranks,
                   &bytes, &row->ours_ns, &row->library_ns, &end) < 4 ||
            !end || bytes == 0 || bytes > UINT32_MAX)
            return 0;
    }
    row->bytes = (uint32_t)bytes;
    return line[end] == '\0' && row->ranks > 1 && row->ours_ns - 1 < ns_max &&
           row->library_ns - 1 < ns_max;
}

static const char damaged[] =
    "it is damaged, or of another version of Fabricast: nothing is taken from it";

int tuning_table_is_damage(const char *why) {
    return why == damaged;
}

static const char *read_all(FILE *file, const char *shape, struct tuning_table *table) {
    char line[SHAPE_MAX + 64];
    int number = 0, ended = 0;
    while (fgets(line, sizeof line, file)) {
        size_t len = strlen(line);
        /* A line that begins with NUL has length 0. A power failure can leave files of zeros. */
        if (ended || len == 0 || line[len - 1] != '\n')
            return damaged;
        line[len - 1] = '\0';
        if (number++ == 0) {
            if (strcmp(line, first_line) != 0)
                return damaged;
        } else if (number == 2) {
            if (strncmp(line, "shape ", 6) != 0)
                return damaged;
            if (strcmp(line + 6, shape) != 0)
                return "it is of jobs of another shape";
        } else if (strcmp(line, "end") == 0) {
            ended = 1;
        } else if (*line != '#') {
            if (table->count == ROWS_MAX || !read_row(line, &table->rows[table->count]))
                return damaged;
            table->count++;
        }
    }
    return ended ? NULL : damaged;
}

const char *tuning_table_load(const char *path, const char *shape, struct tuning_table *table) {
    memset(table, 0, sizeof *table);
    FILE *file = fopen(path, "re");
    if (!file)
        return strerror(errno);
    const char *why = read_all(file, shape, table);
    fclose(file);
    if (why)
        memset(table, 0, sizeof *table);
    return why;
}

static void make_directories(const char *path) {
    char at[4096];
    snprintf(at, sizeof at, "%s", path);
    for (char *slash = at + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = '\0';
        mkdir(at, 0700);
    }
}

const char *tuning_table_save(const char *path, const char *shape,
                              const struct tuning_table *table) {
    char whole[4096 + 8];
    snprintf(whole, sizeof whole, "%s.XXXXXX", path);
    make_directories(path);
    int fd = mkstemp(whole);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!file)
        return strerror(errno);
    fprintf(file,
            "%s\nshape %s\n# ranks, bytes or how ours is made, ns of ours, ns of the library's\n",
            first_line, shape);
    for (uint64_t i = 0; i < table->count; i++) {
        const struct measured *m = &table->rows[i];
        if (m->bytes)
            fprintf(file, "bcast %" PRIu32 " %" PRIu32, m->ranks, m->bytes);
        else
            fprintf(file, "barrier %" PRIu32 " %s", m->ranks, m->schedule);
        fprintf(file, " %" PRIu64 " %" PRIu64 "\n", m->ours_ns, m->library_ns);
    }
    fprintf(file, "end\n");
    /* The data is on the disk before the file gets its name: after a power failure the file is
     * complete or absent. */
    int failed = fflush(file) != 0 || ferror(file) || fsync(fd) != 0;
    failed |= fclose(file) != 0;
    if (failed || rename(whole, path) != 0) {
        const char *why = strerror(errno);
        unlink(whole);
        return why;
    }
    return NULL;
}
