/* Communicators made in every way: on each of them, broadcasts from all roots and a barrier. */
#include "check.h"

#include <stdlib.h>

static uint64_t seed = 1;

/* Sizes below and above one datagram. The seed is the same on all ranks of MPI_COMM_WORLD. */
static void use(MPI_Comm comm) {
    static const size_t sizes[] = {1, 300, 5000, 70000};
    int members;
    MPI(MPI_Comm_size(comm, &members));
    for (int i = 0; i < 4; i++)
        for (int root = 0; root < members; root++)
            broadcast_twice(comm, root, sizes[i], seed + (uint64_t)(i * members + root));
    MPI(MPI_Barrier(comm));
}

static void use_and_free(MPI_Comm comm, const char *name) {
    if (comm != MPI_COMM_NULL) {
        use(comm);
        MPI(MPI_Comm_free(&comm));
    }
    seed += 1000;
    ok("communicators: %s", name);
}

static void duplicates(void) {
    MPI_Comm dup, of_dup;
    MPI(MPI_Comm_dup(MPI_COMM_WORLD, &dup));
    MPI(MPI_Comm_dup(dup, &of_dup));
    /* The original is freed before its copy. */
    use(dup);
    MPI(MPI_Comm_free(&dup));
    use_and_free(of_dup, "dup of a dup");
    MPI_Request request;
    MPI(MPI_Comm_idup(MPI_COMM_WORLD, &dup, &request));
    use(MPI_COMM_WORLD);
    MPI(MPI_Wait(&request, MPI_STATUS_IGNORE));
    use_and_free(dup, "idup, used after the wait");
    MPI_Info info;
    MPI(MPI_Info_create(&info));
    MPI(MPI_Comm_dup_with_info(MPI_COMM_WORLD, info, &dup));
    MPI(MPI_Info_free(&info));
    use_and_free(dup, "dup_with_info");
}

static void splits(void) {
    MPI_Comm comm, inner;
    MPI(MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &comm));
    MPI(MPI_Comm_split(comm, 0, -rank, &inner));
    use(inner);
    MPI(MPI_Comm_free(&inner));
    use_and_free(comm, "split in two, and split again");
    MPI(MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &comm));
    use_and_free(comm, "split, in reverse order");
    MPI(MPI_Comm_split(MPI_COMM_WORLD, rank == 0 ? MPI_UNDEFINED : 1, 0, &comm));
    use_and_free(comm, "split, without one rank");
    MPI(MPI_Comm_split(MPI_COMM_WORLD, rank, 0, &comm));
    use_and_free(comm, "split, each rank by itself");
    MPI(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &comm));
    MPI(MPI_Comm_set_name(comm, "one host"));
    use_and_free(comm, "split_type, ranks of one host");
    use(MPI_COMM_SELF);
    ok("communicators: MPI_COMM_SELF");
}

static void by_groups(void) {
    MPI_Group world, some;
    MPI_Comm comm;
    int range[1][3] = {{0, ranks - 1, 2}};
    MPI(MPI_Comm_group(MPI_COMM_WORLD, &world));
    MPI(MPI_Group_range_incl(world, 1, range, &some));
    MPI(MPI_Comm_create(MPI_COMM_WORLD, some, &comm));
    use_and_free(comm, "create, every second rank");
    comm = MPI_COMM_NULL;
    if (rank % 2 == 0) /* only members call it */
        MPI(MPI_Comm_create_group(MPI_COMM_WORLD, some, 7, &comm));
    use_and_free(comm, "create_group");
    MPI(MPI_Group_free(&some));
    MPI(MPI_Group_free(&world));
}

static void topologies(void) {
    MPI_Comm comm, row;
    int shape[2] = {0, 0}, wraps[2] = {1, 0}, keep[2] = {0, 1};
    MPI(MPI_Dims_create(ranks, 2, shape));
    MPI(MPI_Cart_create(MPI_COMM_WORLD, 2, shape, wraps, 1, &comm));
    MPI(MPI_Cart_sub(comm, keep, &row));
    use(row);
    MPI(MPI_Comm_free(&row));
    use_and_free(comm, "cart and its rows");
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks, weight = 1;
    MPI(MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, 1, &before, &weight, 1, &next, &weight,
                                       MPI_INFO_NULL, 0, &comm));
    use_and_free(comm, "dist_graph");
}

static void between_two(void) {
    MPI_Comm half, inter, merged;
    int low = rank < ranks / 2;
    MPI(MPI_Comm_split(MPI_COMM_WORLD, low, rank, &half));
    MPI(MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, low ? ranks / 2 : 0, 3, &inter));
    int me;
    MPI(MPI_Comm_rank(half, &me));
    for (int from_low = 0; from_low < 2; from_low++) {
        enum { LEN = 3000 };
        int i_give = low == from_low;
        unsigned char *buffer = take(LEN);
        if (i_give && me == 0)
            fill(buffer, LEN, seed + (uint64_t)from_low);
        MPI(MPI_Bcast(buffer, LEN, MPI_BYTE, i_give ? (me == 0 ? MPI_ROOT : MPI_PROC_NULL) : 0,
                      inter));
        if (!i_give)
            CHECK(differs(buffer, LEN, seed + (uint64_t)from_low) < 0,
                  "inter-communicator: wrong bytes");
        give_back(buffer, LEN, "inter-communicator");
    }
    MPI(MPI_Barrier(inter));
    ok("communicators: inter-communicator");
    MPI(MPI_Intercomm_merge(inter, !low, &merged));
    MPI(MPI_Comm_free(&inter));
    MPI(MPI_Comm_free(&half));
    use_and_free(merged, "merge");
}

static int copied, deleted;

static int on_copy(MPI_Comm comm, int key, void *extra, void *value, void *out, int *flag) {
    (void)comm, (void)key, (void)extra;
    *(void **)out = value;
    *flag = 1;
    copied++;
    return MPI_SUCCESS;
}

/* A program's own callback may use the communicator that is being freed. */
static int on_delete(MPI_Comm comm, int key, void *value, void *extra) {
    (void)key, (void)value, (void)extra;
    use(comm);
    deleted++;
    return MPI_SUCCESS;
}

static void attributes(void) {
    MPI_Comm comm, dup;
    int key, flag, mark;
    void *value;
    MPI(MPI_Comm_create_keyval(on_copy, on_delete, &key, NULL));
    MPI(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
    MPI(MPI_Comm_set_attr(comm, key, &mark));
    use(comm);
    MPI(MPI_Comm_dup(comm, &dup));
    MPI(MPI_Comm_get_attr(dup, key, &value, &flag));
    CHECK(copied == 1 && flag && value == &mark, "an attribute of the program's was not copied");
    MPI(MPI_Comm_free(&comm));
    MPI(MPI_Comm_free(&dup));
    CHECK(deleted == 2, "%d attributes of the program's deleted, not 2", deleted);
    MPI(MPI_Comm_free_keyval(&key));
    seed += 1000;
    ok("communicators: the program's own attributes, whose callbacks broadcast");
}

/* Uses overlapping communicators in turn: packets of one must never reach another. */
static void overlapping(void) {
    MPI_Comm even_odd, halves, dup;
    MPI(MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &even_odd));
    MPI(MPI_Comm_split(MPI_COMM_WORLD, rank < ranks / 2, rank, &halves));
    MPI(MPI_Comm_dup(MPI_COMM_WORLD, &dup));
    MPI_Comm all[] = {MPI_COMM_WORLD, even_odd, halves, dup};
    for (int turn = 0; turn < 200; turn++) {
        MPI_Comm comm = all[draw(seed + (uint64_t)turn, 4)];
        int members;
        MPI(MPI_Comm_size(comm, &members));
        broadcast(comm, turn % members, draw(seed + 7000 + (uint64_t)turn, 6000),
                  seed + (uint64_t)turn);
    }
    MPI(MPI_Comm_free(&even_odd));
    MPI(MPI_Comm_free(&halves));
    MPI(MPI_Comm_free(&dup));
    ok("communicators: overlapping, in turn");
}

int main(int argc, char **argv) {
    start(argc, argv);
    duplicates();
    splits();
    by_groups();
    topologies();
    between_two();
    attributes();
    overlapping();
    use(MPI_COMM_WORLD);
    ok("communicators: the world still works");
    MPI_Finalize();
    return 0;
}
