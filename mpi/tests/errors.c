/* Invalid calls: the MPI library's own error reaches the communicator's own handler, and later
 * calls work. */
#include "check.h"

static int handled, last_class;

static void on_error(MPI_Comm *comm, int *code, ...) {
    (void)comm;
    handled++;
    MPI_Error_class(*code, &last_class);
}

static int buffer[4];

struct call {
    const char *name;
    void *buffer;
    int count;
    MPI_Datatype type;
    int root;
};

/* Both calls must fail alike, each after exactly one call of the handler. */
static void fails_alike(MPI_Comm comm, const struct call *c) {
    handled = 0;
    int theirs = PMPI_Bcast(c->buffer, c->count, c->type, c->root, comm);
    int their_calls = handled, their_class = last_class;
    handled = 0;
    int ours = MPI_Bcast(c->buffer, c->count, c->type, c->root, comm);
    CHECK(theirs != MPI_SUCCESS, "%s: the library takes it", c->name);
    CHECK(ours != MPI_SUCCESS, "%s: taken, the library refuses it", c->name);
    int our_class, class;
    MPI_Error_class(ours, &our_class);
    MPI_Error_class(theirs, &class);
    CHECK(our_class == class, "%s: error class %d, the library's is %d", c->name, our_class, class);
    CHECK(handled == their_calls, "%s: handler called %d times, by the library %d", c->name,
          handled, their_calls);
    CHECK(handled == 0 || last_class == their_class, "%s: handler told class %d, by the library %d",
          c->name, last_class, their_class);
}

static void invalid(MPI_Comm comm, const char *how) {
    MPI_Datatype uncommitted;
    MPI(MPI_Type_contiguous(3, MPI_INT, &uncommitted));
    const struct call calls[] = {
        {"root of -1", buffer, 4, MPI_INT, -1},
        {"root too large", buffer, 4, MPI_INT, ranks},
        {"MPI_ROOT within a communicator", buffer, 4, MPI_INT, MPI_ROOT},
        {"negative count", buffer, -1, MPI_INT, 0},
        {"no datatype", buffer, 4, MPI_DATATYPE_NULL, 0},
        {"datatype not committed", buffer, 1, uncommitted, 0},
#ifdef OPEN_MPI /* MPICH 4.0 does not check for it, and reads it */
        {"MPI_IN_PLACE", MPI_IN_PLACE, 4, MPI_INT, 0},
#else /* Open MPI does not check: it writes to NULL and takes the number for an address */
        {"no buffer", NULL, 4, MPI_INT, 0},
        {"a number that is no datatype", buffer, 4, (MPI_Datatype)0x12345678, 0},
#endif
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        fails_alike(comm, &calls[i]);
    MPI(MPI_Type_free(&uncommitted));
    broadcast_twice(comm, 1, 4000, 1);
    MPI(MPI_Barrier(comm));
    ok("errors: %s", how);
}

int main(int argc, char **argv) {
    start(argc, argv);
    MPI_Comm comm;
    MPI_Errhandler handler;
    MPI(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
    MPI(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
    invalid(comm, "MPI_ERRORS_RETURN");
    MPI(MPI_Comm_create_errhandler(on_error, &handler));
    MPI(MPI_Comm_set_errhandler(comm, handler));
    invalid(comm, "a handler of the program's");
    CHECK(handled == 1, "the program's handler was not called");
    MPI(MPI_Comm_free(&comm));
    /* MPI_COMM_NULL: the handler is that of MPI_COMM_WORLD, or of MPI_COMM_SELF. */
    MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    MPI(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    const struct call none = {"no communicator", buffer, 4, MPI_INT, 0};
    fails_alike(MPI_COMM_NULL, &none);
    CHECK(MPI_Barrier(MPI_COMM_NULL) != MPI_SUCCESS, "a barrier of no communicator was taken");
    broadcast_twice(MPI_COMM_WORLD, 0, 4000, 2);
    ok("errors: MPI_COMM_NULL");
    MPI(MPI_Errhandler_free(&handler));
    MPI_Finalize();
    return 0;
}
