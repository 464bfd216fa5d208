/* What was measured in jobs of one shape, and what follows from it. Nothing here knows MPI. */
#ifndef FABRICAST_TUNING_TABLE_H
#define FABRICAST_TUNING_TABLE_H

#include <stddef.h>
#include <stdint.h>

enum {
    ROWS_MAX = 128,    /* of a table */
    POINTS_MAX = 8,    /* sizes of broadcasts for one number of ranks */
    SCHEDULE_MAX = 24, /* bytes of a barrier's name */
    SHAPE_MAX = 200,   /* bytes of a shape, which is a file's name as well */
};

/* What one operation takes, back to back, until the slowest rank is through. */
struct measured {
    uint32_t ranks;
    uint32_t bytes;              /* of a broadcast; 0 is a barrier */
    char schedule[SCHEDULE_MAX]; /* of a barrier: how ours is made */
    uint64_t ours_ns, library_ns;
};

struct tuning_table {
    uint64_t count;
    struct measured rows[ROWS_MAX];
};

/* What a table says of communicators of one size. */
struct choice {
    int points;
    struct point {
        uint64_t up_to; /* broadcasts of so many bytes, unless an earlier one is for them */
        const struct measured *by;
    } of[POINTS_MAX];
    const struct measured *barrier; /* the fastest of ours, if any was measured */
};

/* Whether the library is faster by more than noise. */
int tuning_table_is_lost(const struct measured *by);
/* What follows for so many ranks; it points into the table. Whole numbers alone: all ranks come
 * to the same. */
void tuning_table_choose(const struct tuning_table *table, uint32_t ranks, struct choice *choice);
/* By what a broadcast of so many bytes is judged, or NULL. */
static inline const struct measured *choice_bcast(const struct choice *choice, uint64_t bytes) {
    for (int i = 0; i < choice->points; i++)
        if (bytes <= choice->of[i].up_to)
            return choice->of[i].by;
    return NULL;
}

/* The file for jobs of this shape. 0: nothing is to be kept (FABRICAST_CACHE=off), or there is no
 * state for it. */
int tuning_table_path(const char *shape, char *path, size_t room);
/* NULL, or why there is no table. */
const char *tuning_table_load(const char *path, const char *shape, struct tuning_table *table);
/* Whether that is because of what is in the file. */
int tuning_table_is_damage(const char *why);
/* Another job may do the same at this moment: the file is always that of one. NULL, or why it was
 * not written. */
const char *tuning_table_save(const char *path, const char *shape,
                              const struct tuning_table *table);

#endif
