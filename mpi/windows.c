/* Windows of one-sided communication. Ranks of one host access each other's windows through memory,
 * and only the MPI library sees such requests. So while this rank has a window and shares its host
 * with others, a wait in the shim drives the MPI library continuously, as a wait in the MPI library
 * does.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <pthread.h>

static int keyval = MPI_KEYVAL_INVALID;
static int count;
/* Guards `count` and the bell, which change together: the bell is set while there are windows. */
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

static void counts(int more) {
    pthread_mutex_lock(&counting);
    int before = count;
    count += more;
    if (!before != !count)
        sockets_busy(count != 0);
    pthread_mutex_unlock(&counting);
}

static int window_goes(MPI_Win win, int key, void *value, void *extra) {
    (void)win, (void)key, (void)value, (void)extra;
    counts(-1);
    return MPI_SUCCESS;
}

void windows_begin(int local_ranks) {
    if (local_ranks)
        PMPI_Win_create_keyval(MPI_WIN_NULL_COPY_FN, window_goes, &keyval, NULL);
}

void windows_end(void) {
    if (keyval != MPI_KEYVAL_INVALID)
        PMPI_Win_free_keyval(&keyval);
}

void window_comes(int status, MPI_Win win) {
    if (status != MPI_SUCCESS || !shim.on || keyval == MPI_KEYVAL_INVALID)
        return;
    if (PMPI_Win_set_attr(win, keyval, NULL) == MPI_SUCCESS)
        counts(1);
}

/* Defines a call that makes a window. TAKES: its parameters, the last one is the window. PASSES:
 * the arguments. */
#define MAKES(name, takes, passes)                                                                 \
    ENTRY int name takes {                                                                         \
        static int(*library) takes;                                                                \
        if (!library)                                                                              \
            library = (int(*) takes)library_function(#name);                                       \
        inside++;                                                                                  \
        int status = library passes;                                                               \
        inside--;                                                                                  \
        window_comes(status, *win);                                                                \
        return status;                                                                             \
    }

MAKES(MPI_Win_create,
      (void *base, MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm, MPI_Win *win),
      (base, size, unit, info, comm, win))
MAKES(MPI_Win_allocate,
      (MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm, void *base, MPI_Win *win),
      (size, unit, info, comm, base, win))
MAKES(MPI_Win_allocate_shared,
      (MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm, void *base, MPI_Win *win),
      (size, unit, info, comm, base, win))
MAKES(MPI_Win_create_dynamic, (MPI_Info info, MPI_Comm comm, MPI_Win *win), (info, comm, win))
#if MPI_VERSION >= 4
MAKES(MPI_Win_create_c,
      (void *base, MPI_Aint size, MPI_Aint unit, MPI_Info info, MPI_Comm comm, MPI_Win *win),
      (base, size, unit, info, comm, win))
MAKES(MPI_Win_allocate_c,
      (MPI_Aint size, MPI_Aint unit, MPI_Info info, MPI_Comm comm, void *base, MPI_Win *win),
      (size, unit, info, comm, base, win))
MAKES(MPI_Win_allocate_shared_c,
      (MPI_Aint size, MPI_Aint unit, MPI_Info info, MPI_Comm comm, void *base, MPI_Win *win),
      (size, unit, info, comm, base, win))
#endif
