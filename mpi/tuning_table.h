/* Results of measurements in jobs of one shape, and the choices that follow. Independent of MPI. */
#ifndef FABRICAST_TUNING_TABLE_H
#define FABRICAST_TUNING_TABLE_H

#include <stddef.h>
#include <stdint.h>

enum {
    ROWS_MAX = 128,    /* rows of a table */
    POINTS_MAX = 8,    /* measured sizes of broadcasts per number of ranks */
    SCHEDULE_MAX = 24, /* bytes of the name of a barrier's schedule */
    SHAPE_MAX = 200,   /* bytes of a shape, which is a file's name as well */
};

/* Times of one operation in a series back to back, at the slowest rank. */
struct measured {
    uint32_t ranks;
    uint32_t bytes;              /* size of a broadcast; 0 means a barrier */
    char schedule[SCHEDULE_MAX]; /* of Fabricast's barrier; empty for a broadcast */
    uint64_t ours_ns, library_ns;
};

struct tuning_table {
    uint64_t count;
    struct measured rows[ROWS_MAX];
};

/* The part of a table that applies to communicators of one size. */
struct choice {
    int points;
    struct point {
        uint64_t up_to; /* the largest broadcast, in bytes, that this point covers */
        const struct measured *by;
    } of[POINTS_MAX];
    const struct measured *barrier; /* Fabricast's fastest; NULL if none was measured */
};

/* Whether the MPI library is faster by more than noise. */
int tuning_table_is_lost(const struct measured *by);
/* Fills `choice` for communicators of RANKS ranks; it points into the table. Uses integers only, so
 * that all ranks get the same result. */
void tuning_table_choose(const struct tuning_table *table, uint32_t ranks, struct choice *choice);
/* The row that decides about a broadcast of this many bytes, or NULL. */
static inline const struct measured *choice_bcast(const struct choice *choice, uint64_t bytes) {
    for (int i = 0; i < choice->points; i++)
        if (bytes <= choice->of[i].up_to)
            return choice->of[i].by;
    return NULL;
}

/* Writes the path of the file for jobs of this shape. Returns 0 if FABRICAST_CACHE=off, or if no
 * directory is known. */
int tuning_table_path(const char *shape, char *path, size_t room);
/* Reads a table. Returns NULL, or why there is none. */
const char *tuning_table_load(const char *path, const char *shape, struct tuning_table *table);
/* Whether the reason is that the file's content is damaged. */
int tuning_table_is_damage(const char *why);
/* Writes a table. If several jobs write at once, the file is complete and from one of them. Returns
 * NULL, or why it failed. */
const char *tuning_table_save(const char *path, const char *shape,
                              const struct tuning_table *table);

#endif
