/* The same calls from Fortran.
 *
 * What a library's Fortran binding calls itself differs: Open MPI's goes to PMPI_Bcast straight, past whoever
 * stands before MPI_Bcast, so that its names are served here, in every spelling that a Fortran compiler may give
 * them. MPICH's goes to MPI_Bcast (also from mpi_f08, whose array descriptors it reads there), and only some
 * entries of mpi_f08 go past us.
 *
 * Arguments are pointers to integers; that of the error is null if the caller of mpi_f08 left it out.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <stddef.h>

static void answer(MPI_Fint *error, int status) {
    if (error)
        *error = status;
}

typedef void whole_entry(MPI_Fint *);
typedef void init_thread_entry(const MPI_Fint *, MPI_Fint *, MPI_Fint *);
typedef void barrier_entry(const MPI_Fint *, MPI_Fint *);
typedef void bcast_entry(void *, const MPI_Fint *, const MPI_Fint *, const MPI_Fint *, const MPI_Fint *, MPI_Fint *);

/* The library's entry of this name. A module that was loaded privately, as Python does, may keep it to itself:
 * then what it would call is called. */
#define LIBRARY(type, name)     \
    static type *library;       \
    if (!library)               \
    library = (type *)dlsym(RTLD_NEXT, #name)

/* MPI_Init or MPI_Finalize: ELSE stands for the library's entry, THEN follows. */
#define WHOLE(name, ELSE, THEN)                     \
    ENTRY void name(MPI_Fint *error) {              \
        LIBRARY(whole_entry, name);                 \
        MPI_Fint status = MPI_SUCCESS;              \
        if (library)                                \
            library(&status);                       \
        else                                        \
            status = ELSE;                          \
        answer(error, status);                      \
        THEN;                                       \
    }

static void begin_after(MPI_Fint status) {
    if (status == MPI_SUCCESS)
        shim_begin();
}

#define INIT(name) WHOLE(name, PMPI_Init(NULL, NULL), begin_after(status))
#define FINALIZE(name) WHOLE(name, PMPI_Finalize(), watch_end())

#define INIT_THREAD(name)                                                          \
    ENTRY void name(const MPI_Fint *required, MPI_Fint *provided, MPI_Fint *error) {     \
        LIBRARY(init_thread_entry, name);                                          \
        MPI_Fint status = MPI_SUCCESS;                                             \
        if (library)                                                               \
            library(required, provided, &status);                                  \
        else                                                                       \
            status = PMPI_Init_thread(NULL, NULL, *required, provided);            \
        answer(error, status);                                                     \
        begin_after(status);                                                       \
    }

#define BARRIER(name)                                                   \
    ENTRY void name(const MPI_Fint *comm, MPI_Fint *error) {                  \
        LIBRARY(barrier_entry, name);                                   \
        if (library && is_other_library()) {                            \
            library(comm, error);                                       \
            return;                                                     \
        }                                                               \
        MPI_Comm c = MPI_Comm_f2c(*comm);                               \
        int status;                                                     \
        if (serve_barrier(c, &status))                                  \
            answer(error, status);                                      \
        else if (library)                                               \
            library(comm, error);                                       \
        else                                                            \
            answer(error, PMPI_Barrier(c));                             \
    }

#define BCAST(name)                                                                                \
    ENTRY void name(void *buffer, const MPI_Fint *count, const MPI_Fint *type, const MPI_Fint *root,     \
              const MPI_Fint *comm, MPI_Fint *error) {                                             \
        LIBRARY(bcast_entry, name);                                                                \
        if (library && is_other_library()) {                                                       \
            library(buffer, count, type, root, comm, error);                                       \
            return;                                                                                \
        }                                                                                          \
        MPI_Comm c = MPI_Comm_f2c(*comm);                                                          \
        MPI_Datatype t = MPI_Type_f2c(*type);                                                      \
        int status;                                                                                \
        if (serve_bcast(address(buffer), *count, t, *root, c, &status))                  \
            answer(error, status);                                                                 \
        else if (library)                                                                          \
            library(buffer, count, type, root, comm, error);                                       \
        else                                                                                       \
            answer(error, PMPI_Bcast(address(buffer), *count, t, *root, c));                       \
    }

#ifdef OPEN_MPI

/* MPI_BOTTOM is the address of a common block in Fortran, whose name is spelled as the compiler does. */
static void *address(void *buffer) {
    static const char *const bottoms[] = {"mpi_fortran_bottom_", "mpi_fortran_bottom__", "mpi_fortran_bottom",
                                          "MPI_FORTRAN_BOTTOM"};
    for (size_t i = 0; i < sizeof bottoms / sizeof *bottoms; i++) {
        static void *found[sizeof bottoms / sizeof *bottoms];
        if (!found[i])
            found[i] = dlsym(RTLD_DEFAULT, bottoms[i]);
        if (buffer && buffer == found[i])
            return MPI_BOTTOM;
    }
    return buffer;
}

INIT(mpi_init)
INIT(mpi_init_)
INIT(mpi_init__)
INIT(MPI_INIT)
INIT(mpi_init_f08_)

INIT_THREAD(mpi_init_thread)
INIT_THREAD(mpi_init_thread_)
INIT_THREAD(mpi_init_thread__)
INIT_THREAD(MPI_INIT_THREAD)
INIT_THREAD(mpi_init_thread_f08_)

FINALIZE(mpi_finalize)
FINALIZE(mpi_finalize_)
FINALIZE(mpi_finalize__)
FINALIZE(MPI_FINALIZE)
FINALIZE(mpi_finalize_f08_)

BARRIER(mpi_barrier)
BARRIER(mpi_barrier_)
BARRIER(mpi_barrier__)
BARRIER(MPI_BARRIER)
BARRIER(mpi_barrier_f08_)

BCAST(mpi_bcast)
BCAST(mpi_bcast_)
BCAST(mpi_bcast__)
BCAST(MPI_BCAST)
BCAST(mpi_bcast_f08_)

#else

INIT(mpi_init_f08_)
INIT_THREAD(mpi_init_thread_f08_)
FINALIZE(mpi_finalize_f08_)
BARRIER(mpi_barrier_f08_)

#endif
