/*
 * Datatypes: a broadcast overwrites what a rank's own layout selects and nothing else, for every
 * layout, and although ranks may describe the same values differently.
 */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VALUES = 6000 }; /* ints in each message: 24 000 bytes, many datagrams */

/* A layout of VALUES ints over a buffer of SPAN ints, some of which it skips. */
struct layout {
    const char *name;
    MPI_Datatype type;
    int count;
    int first; /* where the buffer given to MPI begins within the span */
    int span;
    int *place; /* where each value is within the span */
};

static struct layout make(const char *name, MPI_Datatype type, int count, int first, int span) {
    if (type != MPI_INT)
        MPI(MPI_Type_commit(&type));
    struct layout l = {name, type, count, first, span, malloc(VALUES * sizeof(int))};
    CHECK(l.place, "no memory");
    return l;
}

static struct layout ints(void) {
    struct layout l = make("ints", MPI_INT, VALUES, 0, VALUES);
    for (int i = 0; i < VALUES; i++)
        l.place[i] = i;
    return l;
}

static struct layout contiguous(void) {
    MPI_Datatype type;
    MPI(MPI_Type_contiguous(VALUES, MPI_INT, &type));
    struct layout l = make("contiguous", type, 1, 0, VALUES);
    for (int i = 0; i < VALUES; i++)
        l.place[i] = i;
    return l;
}

static struct layout vector(void) {
    enum { BLOCK = 3, STRIDE = 5, BLOCKS = VALUES / BLOCK };
    MPI_Datatype type;
    MPI(MPI_Type_vector(BLOCKS, BLOCK, STRIDE, MPI_INT, &type));
    struct layout l = make("vector", type, 1, 0, BLOCKS * STRIDE);
    for (int i = 0; i < VALUES; i++)
        l.place[i] = i / BLOCK * STRIDE + i % BLOCK;
    return l;
}

static struct layout resized(void) {
    /* One int in seven, repeated by the count alone. */
    MPI_Datatype type;
    MPI(MPI_Type_create_resized(MPI_INT, 0, 7 * sizeof(int), &type));
    struct layout l = make("resized", type, VALUES, 0, VALUES * 7);
    for (int i = 0; i < VALUES; i++)
        l.place[i] = i * 7;
    return l;
}

static struct layout backwards(void) {
    /* Negative displacements: the buffer begins at the last int. */
    MPI_Datatype type;
    MPI(MPI_Type_create_hvector(VALUES, 1, -(MPI_Aint)sizeof(int), MPI_INT, &type));
    struct layout l = make("negative stride", type, 1, VALUES - 1, VALUES);
    for (int i = 0; i < VALUES; i++)
        l.place[i] = VALUES - 1 - i;
    return l;
}

static struct layout indexed(void) {
    enum { BLOCKS = 3 };
    int lengths[BLOCKS] = {VALUES / 2, 1, VALUES - VALUES / 2 - 1},
        at[BLOCKS] = {VALUES, 3, VALUES / 4};
    MPI_Datatype type;
    MPI(MPI_Type_indexed(BLOCKS, lengths, at, MPI_INT, &type));
    struct layout l = make("indexed, out of order", type, 1, 0, 2 * VALUES);
    int i = 0;
    for (int b = 0; b < BLOCKS; b++)
        for (int k = 0; k < lengths[b]; k++)
            l.place[i++] = at[b] + k;
    return l;
}

static struct layout structure(void) {
    /* Two ints, a hole, one int; 2000 of them. */
    int lengths[2] = {2, 1};
    MPI_Aint at[2] = {0, 4 * sizeof(int)};
    MPI_Datatype parts[2] = {MPI_INT, MPI_INT}, inner, type;
    MPI(MPI_Type_create_struct(2, lengths, at, parts, &inner));
    MPI(MPI_Type_create_resized(inner, 0, 6 * sizeof(int), &type));
    MPI(MPI_Type_free(&inner));
    struct layout l = make("struct", type, VALUES / 3, 0, VALUES * 2);
    for (int i = 0; i < VALUES; i++)
        l.place[i] = i / 3 * 6 + (i % 3 == 2 ? 4 : i % 3);
    return l;
}

static struct layout subarray(void) {
    enum { ROWS = 60, COLUMNS = VALUES / ROWS, WIDE = COLUMNS + 9 };
    int sizes[2] = {ROWS + 4, WIDE}, part[2] = {ROWS, COLUMNS}, from[2] = {2, 5};
    MPI_Datatype type;
    MPI(MPI_Type_create_subarray(2, sizes, part, from, MPI_ORDER_C, MPI_INT, &type));
    struct layout l = make("subarray", type, 1, 0, sizes[0] * WIDE);
    for (int i = 0; i < VALUES; i++)
        l.place[i] = (i / COLUMNS + from[0]) * WIDE + i % COLUMNS + from[1];
    return l;
}

static struct layout (*const layouts[])(void) = {ints,      contiguous, vector,    resized,
                                                 backwards, indexed,    structure, subarray};
enum { LAYOUTS = sizeof layouts / sizeof *layouts, UNTOUCHED = -77 };

static int value(int i, int seed) {
    return (int)draw((uint64_t)seed << 32 | (uint32_t)i, 1 << 30);
}

typedef int broadcast_fn(void *, int, MPI_Datatype, int, MPI_Comm);

static void once(broadcast_fn *bcast, const struct layout *l, int root, int seed) {
    int *span = malloc((size_t)l->span * sizeof(int)),
        *wanted_now = malloc((size_t)l->span * sizeof(int));
    CHECK(span && wanted_now, "no memory");
    for (int i = 0; i < l->span; i++)
        span[i] = wanted_now[i] = UNTOUCHED;
    for (int i = 0; i < VALUES; i++) {
        wanted_now[l->place[i]] = value(i, seed);
        if (rank == root)
            span[l->place[i]] = value(i, seed);
    }
    MPI(bcast(span + l->first, l->count, l->type, root, MPI_COMM_WORLD));
    for (int i = 0; i < l->span; i++)
        CHECK(span[i] == wanted_now[i], "%s from %d: int %d is %d, not %d", l->name, root, i,
              span[i], wanted_now[i]);
    free(span);
    free(wanted_now);
}

static void empty(void) {
    MPI_Datatype nothing;
    MPI(MPI_Type_contiguous(0, MPI_INT, &nothing));
    MPI(MPI_Type_commit(&nothing));
    int untouched = UNTOUCHED;
    for (int root = 0; root < ranks; root++) {
        MPI(MPI_Bcast(&untouched, 5, nothing, root, MPI_COMM_WORLD));
        MPI(MPI_Bcast(&untouched, 0, MPI_INT, root, MPI_COMM_WORLD));
        MPI(MPI_Bcast(NULL, 0, MPI_INT, root, MPI_COMM_WORLD));
        /* All ranks use the same: Open MPI 4.1 by itself hangs if one rank has a count of 0 and
         * another an empty type. */
    }
    CHECK(untouched == UNTOUCHED, "a broadcast of nothing wrote");
    MPI(MPI_Type_free(&nothing));
    ok("datatypes: nothing to send");
}

static void absolute(void) {
    /* MPI_BOTTOM, with the addresses of two variables in the type. */
    int here = rank == 0 ? 12345 : UNTOUCHED;
    double there = rank == 0 ? 2.5 : 0;
    int lengths[2] = {1, 1};
    MPI_Aint at[2];
    MPI_Datatype parts[2] = {MPI_INT, MPI_DOUBLE}, type;
    MPI(MPI_Get_address(&here, &at[0]));
    MPI(MPI_Get_address(&there, &at[1]));
    MPI(MPI_Type_create_struct(2, lengths, at, parts, &type));
    MPI(MPI_Type_commit(&type));
    MPI(MPI_Bcast(MPI_BOTTOM, 1, type, 0, MPI_COMM_WORLD));
    CHECK(here == 12345 && there == 2.5, "MPI_BOTTOM: %d and %g", here, there);
    MPI(MPI_Type_free(&type));
    ok("datatypes: MPI_BOTTOM");
}

static void named(void) {
    struct {
        double value;
        int index;
    } pair = {rank == 1 ? 0.75 : 0, rank == 1 ? 42 : 0};
    MPI(MPI_Bcast(&pair, 1, MPI_DOUBLE_INT, 1, MPI_COMM_WORLD));
    CHECK(pair.value == 0.75 && pair.index == 42, "MPI_DOUBLE_INT: %g and %d", pair.value,
          pair.index);
    char packed[64] = "";
    int at = 0, numbers[3] = {1, 2, 3}, got[3] = {0, 0, 0};
    if (rank == 1)
        MPI(MPI_Pack(numbers, 3, MPI_INT, packed, sizeof packed, &at, MPI_COMM_WORLD));
    MPI(MPI_Bcast(packed, sizeof packed, MPI_PACKED, 1, MPI_COMM_WORLD));
    at = 0;
    MPI(MPI_Unpack(packed, sizeof packed, &at, got, 3, MPI_INT, MPI_COMM_WORLD));
    CHECK(memcmp(numbers, got, sizeof got) == 0, "MPI_PACKED: %d %d %d", got[0], got[1], got[2]);
    ok("datatypes: named and packed");
}

int main(int argc, char **argv) {
    start(argc, argv);
    struct layout all[LAYOUTS];
    for (int i = 0; i < LAYOUTS; i++)
        all[i] = layouts[i]();
    int seed = 1;
    for (int i = 0; i < LAYOUTS; i++) {
        for (int root = 0; root < ranks; root++) {
            once(MPI_Bcast, &all[i], root, seed);
            once(PMPI_Bcast, &all[i], root, seed++);
        }
        ok("datatypes: %s", all[i].name);
    }
    for (int root = 0; root < ranks; root++)
        for (int turn = 0; turn < LAYOUTS; turn++)
            once(MPI_Bcast, &all[(rank + turn) % LAYOUTS], root, seed++);
    ok("datatypes: each rank its own");
    empty();
    absolute();
    named();
    for (int i = 0; i < LAYOUTS; i++) {
        if (all[i].type != MPI_INT)
            MPI(MPI_Type_free(&all[i].type));
        free(all[i].place);
    }
    MPI_Finalize();
    return 0;
}
