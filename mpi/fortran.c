/* The same calls from Fortran.
 *
 * The Fortran bindings of the MPI libraries differ. Open MPI's calls PMPI_Bcast directly, past any
 * library that replaces MPI_Bcast. So the shim replaces the Fortran names themselves, in every
 * spelling that a Fortran compiler may use. MPICH's binding calls MPI_Bcast (also from mpi_f08,
 * whose array descriptors it reads there); only some entries of mpi_f08 go past the shim.
 *
 * Arguments are pointers to integers. The pointer to the error is null if the caller of mpi_f08
 * omitted it.
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
typedef void bcast_entry(void *, const MPI_Fint *, const MPI_Fint *, const MPI_Fint *,
                         const MPI_Fint *, MPI_Fint *);

/* The MPI library's entry of this name. If a module was loaded privately, as Python does, dlsym may
 * not find it: then the caller uses the C function that the entry would call. */
#define LIBRARY(type, name)                                                                        \
    static type *library;                                                                          \
    if (!library)                                                                                  \
    library = (type *)dlsym(RTLD_NEXT, #name)

/* MPI_Init or MPI_Finalize. ELSE replaces the MPI library's entry if it is not found; THEN runs
 * afterwards. */
#define WHOLE(name, ELSE, THEN)                                                                    \
    ENTRY void name(MPI_Fint *error) {                                                             \
        LIBRARY(whole_entry, name);                                                                \
        MPI_Fint status = MPI_SUCCESS;                                                             \
        if (library)                                                                               \
            library(&status);                                                                      \
        else                                                                                       \
            status = ELSE;                                                                         \
        answer(error, status);                                                                     \
        THEN;                                                                                      \
    }

static void begin_after(MPI_Fint status) {
    if (status == MPI_SUCCESS)
        shim_begin();
}

#define INIT(name)     WHOLE(name, PMPI_Init(NULL, NULL), begin_after(status))
#define FINALIZE(name) WHOLE(name, PMPI_Finalize(), watchdog_end())

#define INIT_THREAD(name)                                                                          \
    ENTRY void name(const MPI_Fint *required, MPI_Fint *provided, MPI_Fint *error) {               \
        LIBRARY(init_thread_entry, name);                                                          \
        MPI_Fint status = MPI_SUCCESS;                                                             \
        if (library)                                                                               \
            library(required, provided, &status);                                                  \
        else                                                                                       \
            status = PMPI_Init_thread(NULL, NULL, *required, provided);                            \
        answer(error, status);                                                                     \
        begin_after(status);                                                                       \
    }

#define BARRIER(name)                                                                              \
    ENTRY void name(const MPI_Fint *comm, MPI_Fint *error) {                                       \
        LIBRARY(barrier_entry, name);                                                              \
        if (library && is_other_library()) {                                                       \
            library(comm, error);                                                                  \
            return;                                                                                \
        }                                                                                          \
        MPI_Comm c = MPI_Comm_f2c(*comm);                                                          \
        int status;                                                                                \
        if (serve_barrier(c, &status))                                                             \
            answer(error, status);                                                                 \
        else if (library)                                                                          \
            library(comm, error);                                                                  \
        else                                                                                       \
            answer(error, PMPI_Barrier(c));                                                        \
    }

#define BCAST(name)                                                                                \
    ENTRY void name(void *buffer, const MPI_Fint *count, const MPI_Fint *type,                     \
                    const MPI_Fint *root, const MPI_Fint *comm, MPI_Fint *error) {                 \
        LIBRARY(bcast_entry, name);                                                                \
        if (library && is_other_library()) {                                                       \
            library(buffer, count, type, root, comm, error);                                       \
            return;                                                                                \
        }                                                                                          \
        MPI_Comm c = MPI_Comm_f2c(*comm);                                                          \
        MPI_Datatype t = MPI_Type_f2c(*type);                                                      \
        int status;                                                                                \
        if (serve_bcast(address(buffer), *count, t, *root, c, &status))                            \
            answer(error, status);                                                                 \
        else if (library)                                                                          \
            library(buffer, count, type, root, comm, error);                                       \
        else                                                                                       \
            answer(error, PMPI_Bcast(address(buffer), *count, t, *root, c));                       \
    }

#ifdef OPEN_MPI

/* Calls that make windows. All arguments are addresses; the last but one is the window's. */
typedef void window_entry(void *, void *, void *, void *, void *, MPI_Fint *, MPI_Fint *);
typedef void dynamic_entry(const MPI_Fint *, const MPI_Fint *, MPI_Fint *, MPI_Fint *);

/* Calls the MPI library's entry, or the C function of the same name if dlsym did not find the
 * entry. */
#define WINDOW(name, takes, type, passes, ELSE)                                                    \
    ENTRY void name takes {                                                                        \
        LIBRARY(type, name);                                                                       \
        MPI_Fint status = MPI_SUCCESS;                                                             \
        MPI_Win made = MPI_WIN_NULL;                                                               \
        inside++;                                                                                  \
        if (library) {                                                                             \
            library passes;                                                                        \
            made = MPI_Win_f2c(*win);                                                              \
        } else {                                                                                   \
            status = ELSE;                                                                         \
            *win = MPI_Win_c2f(made);                                                              \
        }                                                                                          \
        inside--;                                                                                  \
        answer(error, status);                                                                     \
        window_comes(status, made);                                                                \
    }

#define WIN_CREATE(name)                                                                           \
    WINDOW(name,                                                                                   \
           (void *base, void *size, void *unit, void *info, void *comm, MPI_Fint *win,             \
            MPI_Fint *error),                                                                      \
           window_entry, (base, size, unit, info, comm, win, &status),                             \
           PMPI_Win_create(address(base), *(MPI_Aint *)size, *(MPI_Fint *)unit,                    \
                           MPI_Info_f2c(*(MPI_Fint *)info), MPI_Comm_f2c(*(MPI_Fint *)comm),       \
                           &made))
#define WIN_ALLOCATE(name, function)                                                               \
    WINDOW(name,                                                                                   \
           (void *size, void *unit, void *info, void *comm, void *base, MPI_Fint *win,             \
            MPI_Fint *error),                                                                      \
           window_entry, (size, unit, info, comm, base, win, &status),                             \
           function(*(MPI_Aint *)size, *(MPI_Fint *)unit, MPI_Info_f2c(*(MPI_Fint *)info),         \
                    MPI_Comm_f2c(*(MPI_Fint *)comm), base, &made))
#define WIN_CREATE_DYNAMIC(name)                                                                   \
    WINDOW(name, (const MPI_Fint *info, const MPI_Fint *comm, MPI_Fint *win, MPI_Fint *error),     \
           dynamic_entry, (info, comm, win, &status),                                              \
           PMPI_Win_create_dynamic(MPI_Info_f2c(*info), MPI_Comm_f2c(*comm), &made))

typedef void create_group_entry(const MPI_Fint *, const MPI_Fint *, const MPI_Fint *, MPI_Fint *,
                                MPI_Fint *);

#define CREATE_GROUP(name)                                                                         \
    ENTRY void name(const MPI_Fint *comm, const MPI_Fint *group, const MPI_Fint *tag,              \
                    MPI_Fint *made, MPI_Fint *error) {                                             \
        LIBRARY(create_group_entry, name);                                                         \
        MPI_Fint status = MPI_SUCCESS;                                                             \
        creates_group++;                                                                           \
        if (library) {                                                                             \
            library(comm, group, tag, made, &status);                                              \
        } else {                                                                                   \
            MPI_Comm c = MPI_COMM_NULL;                                                            \
            status = PMPI_Comm_create_group(MPI_Comm_f2c(*comm), MPI_Group_f2c(*group), *tag, &c); \
            *made = MPI_Comm_c2f(c);                                                               \
        }                                                                                          \
        creates_group--;                                                                           \
        answer(error, status);                                                                     \
    }

/* MPI_BOTTOM is the address of a Fortran common block. Each compiler spells the name of the block
 * differently. */
static void *address(void *buffer) {
    static const char *const bottoms[] = {"mpi_fortran_bottom_", "mpi_fortran_bottom__",
                                          "mpi_fortran_bottom", "MPI_FORTRAN_BOTTOM"};
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

CREATE_GROUP(mpi_comm_create_group)
CREATE_GROUP(mpi_comm_create_group_)
CREATE_GROUP(mpi_comm_create_group__)
CREATE_GROUP(MPI_COMM_CREATE_GROUP)
CREATE_GROUP(mpi_comm_create_group_f08_)

WIN_CREATE(mpi_win_create)
WIN_CREATE(mpi_win_create_)
WIN_CREATE(mpi_win_create__)
WIN_CREATE(MPI_WIN_CREATE)
WIN_CREATE(mpi_win_create_f08_)

WIN_ALLOCATE(mpi_win_allocate, PMPI_Win_allocate)
WIN_ALLOCATE(mpi_win_allocate_, PMPI_Win_allocate)
WIN_ALLOCATE(mpi_win_allocate__, PMPI_Win_allocate)
WIN_ALLOCATE(MPI_WIN_ALLOCATE, PMPI_Win_allocate)
WIN_ALLOCATE(mpi_win_allocate_f08_, PMPI_Win_allocate)
/* The name that `use mpi` gives it for an address of type(c_ptr). */
WIN_ALLOCATE(mpi_win_allocate_cptr, PMPI_Win_allocate)
WIN_ALLOCATE(mpi_win_allocate_cptr_, PMPI_Win_allocate)
WIN_ALLOCATE(mpi_win_allocate_cptr__, PMPI_Win_allocate)
WIN_ALLOCATE(MPI_WIN_ALLOCATE_CPTR, PMPI_Win_allocate)

WIN_ALLOCATE(mpi_win_allocate_shared, PMPI_Win_allocate_shared)
WIN_ALLOCATE(mpi_win_allocate_shared_, PMPI_Win_allocate_shared)
WIN_ALLOCATE(mpi_win_allocate_shared__, PMPI_Win_allocate_shared)
WIN_ALLOCATE(MPI_WIN_ALLOCATE_SHARED, PMPI_Win_allocate_shared)
WIN_ALLOCATE(mpi_win_allocate_shared_f08_, PMPI_Win_allocate_shared)
WIN_ALLOCATE(mpi_win_allocate_shared_cptr, PMPI_Win_allocate_shared)
WIN_ALLOCATE(mpi_win_allocate_shared_cptr_, PMPI_Win_allocate_shared)
WIN_ALLOCATE(mpi_win_allocate_shared_cptr__, PMPI_Win_allocate_shared)
WIN_ALLOCATE(MPI_WIN_ALLOCATE_SHARED_CPTR, PMPI_Win_allocate_shared)

WIN_CREATE_DYNAMIC(mpi_win_create_dynamic)
WIN_CREATE_DYNAMIC(mpi_win_create_dynamic_)
WIN_CREATE_DYNAMIC(mpi_win_create_dynamic__)
WIN_CREATE_DYNAMIC(MPI_WIN_CREATE_DYNAMIC)
WIN_CREATE_DYNAMIC(mpi_win_create_dynamic_f08_)

#else

INIT(mpi_init_f08_)
INIT_THREAD(mpi_init_thread_f08_)
FINALIZE(mpi_finalize_f08_)
BARRIER(mpi_barrier_f08_)

#endif
