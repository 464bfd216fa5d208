/* Converts elements of any datatype to a row of bytes, in the order in which MPI sends them, and
 * back. */
#include "shim.h"

#include <pthread.h>
#include <stddef.h>

/* Bytes packed by one call, because MPI_Pack counts bytes in an int; bytes of one block of
 * `row`. */
enum { PART = 1 << 30, BLOCK = 1 << 20 };

/* The constructor of a type and the number of its arguments. With MPI 4 the shim asks for large
 * counts: only these calls accept a type that was made with large counts. */
#if MPI_VERSION >= 4
struct made {
    MPI_Count integers, addresses, counts, types;
    int combiner;
};

static struct made made(MPI_Datatype type) {
    struct made m;
    PMPI_Type_get_envelope_c(type, &m.integers, &m.addresses, &m.counts, &m.types, &m.combiner);
    return m;
}

static MPI_Datatype made_from(MPI_Datatype type, struct made m) {
    int integer[1];
    MPI_Aint address[1];
    MPI_Count count[1];
    MPI_Datatype inner;
    PMPI_Type_get_contents_c(type, m.integers, m.addresses, m.counts, m.types, integer, address,
                             count, &inner);
    return inner;
}
#else
struct made {
    int integers, addresses, types, combiner;
};

static struct made made(MPI_Datatype type) {
    struct made m;
    PMPI_Type_get_envelope(type, &m.integers, &m.addresses, &m.types, &m.combiner);
    return m;
}

static MPI_Datatype made_from(MPI_Datatype type, struct made m) {
    int integer[1];
    MPI_Aint address[1];
    MPI_Datatype inner;
    PMPI_Type_get_contents(type, m.integers, m.addresses, m.types, integer, address, &inner);
    return inner;
}
#endif

int datatype_is_usable(MPI_Datatype type) {
    char none[1];
    int at = 0, size;
    /* Comes first because it takes a communicator. A call without one would call the error handler
     * of MPI_COMM_WORLD or MPI_COMM_SELF. */
    if (PMPI_Pack_size(0, type, shim.self, &size) != MPI_SUCCESS)
        return 0;
    return made(type).combiner == MPI_COMBINER_NAMED ||
           PMPI_Pack(none, 0, type, none, 0, &at, shim.self) == MPI_SUCCESS;
}

int datatype_is_contiguous(MPI_Datatype type, MPI_Count size) {
    MPI_Count lower, extent;
    PMPI_Type_get_extent_x(type, &lower, &extent);
    if (lower != 0 || extent != size)
        return 0;
    struct made m = made(type);
    if (m.combiner != MPI_COMBINER_DUP && m.combiner != MPI_COMBINER_CONTIGUOUS)
        return m.combiner == MPI_COMBINER_NAMED;
    MPI_Datatype inner = made_from(type, m);
    PMPI_Type_size_x(inner, &size);
    int plain = datatype_is_contiguous(inner, size);
    if (made(inner).combiner != MPI_COMBINER_NAMED)
        PMPI_Type_free(&inner);
    return plain;
}

/* A type of this many bytes, which may be more than an int counts. */
static MPI_Datatype row(MPI_Count bytes) {
    MPI_Datatype block, row;
    PMPI_Type_contiguous(BLOCK, MPI_BYTE, &block);
    int lengths[] = {(int)(bytes / BLOCK), (int)(bytes % BLOCK)};
    MPI_Aint at[] = {0, (MPI_Aint)(bytes - bytes % BLOCK)};
    MPI_Datatype types[] = {block, MPI_BYTE};
    PMPI_Type_create_struct(2, lengths, at, types, &row);
    PMPI_Type_commit(&row);
    PMPI_Type_free(&block);
    return row;
}

/* Packs or unpacks by a message from this rank to itself, where MPI_Pack fails: for elements longer
 * than an int counts and, with MPICH, for elements at MPI_BOTTOM. */
static int by_message(int pack, void *elements, int n, MPI_Datatype type, void *bytes,
                      MPI_Count size, MPI_Comm self) {
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER; /* one thread at a time */
    MPI_Datatype whole = row(n * size);
    pthread_mutex_lock(&one);
    int status = pack ? PMPI_Sendrecv(elements, n, type, 0, 1, bytes, 1, whole, 0, 1, self,
                                      MPI_STATUS_IGNORE)
                      : PMPI_Sendrecv(bytes, 1, whole, 0, 1, elements, n, type, 0, 1, self,
                                      MPI_STATUS_IGNORE);
    pthread_mutex_unlock(&one);
    PMPI_Type_free(&whole);
    return status;
}

int datatype_pack(int pack, void *elements, MPI_Count count, MPI_Datatype type, MPI_Count size,
                  char *bytes, MPI_Comm self) {
    MPI_Count lower, extent;
    PMPI_Type_get_extent_x(type, &lower, &extent);
    MPI_Count step = size < PART ? PART / size : 1;
    int status = MPI_SUCCESS;
    for (MPI_Count done = 0; done < count && status == MPI_SUCCESS; done += step) {
        int n = (int)(count - done < step ? count - done : step), at = 0;
        char *part = (char *)elements + done * extent, *to = bytes + done * size;
        if (size > PART || elements == MPI_BOTTOM)
            status = by_message(pack, part, n, type, to, size, self);
        else
            status = pack ? PMPI_Pack(part, n, type, to, (int)(n * size), &at, self)
                          : PMPI_Unpack(to, (int)(n * size), &at, part, n, type, self);
    }
    return status;
}
