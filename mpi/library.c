/* The MPI library that the program uses, and its functions. */
#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The program's MPI library, if the shim was not built for it. The types and constants differ, so
 * the shim does nothing then. */
static void *other_library;

static const char *library_of(int open_mpi) {
    return open_mpi ? "Open MPI" : "MPICH";
}

/* The loaded libraries whose file names are those of MPI libraries. */
struct libraries {
    int count;
    char *paths[8];
};

static int note_library(struct dl_phdr_info *info, size_t size, void *found) {
    (void)size;
    struct libraries *all = found;
    const char *slash = strrchr(info->dlpi_name, '/'), *name = slash ? slash + 1 : info->dlpi_name;
    int is_one = strncmp(name, "libmpi.so", 9) == 0 || strncmp(name, "libmpich.so", 11) == 0;
    if (is_one && all->count < (int)(sizeof all->paths / sizeof *all->paths))
        all->paths[all->count++] = strdup(info->dlpi_name);
    return 0;
}

static void look_for_other_library(void) {
#ifdef OPEN_MPI
    enum { OURS = 1 };
#else
    enum { OURS = 0 };
#endif
    struct libraries all = {0};
    dl_iterate_phdr(note_library, &all);
    for (int i = 0; i < all.count; i++) {
        void *library = all.paths[i] ? dlopen(all.paths[i], RTLD_LAZY | RTLD_NOLOAD) : NULL;
        int is_other = library && (dlsym(library, "ompi_mpi_comm_world") != NULL) != OURS;
        /* The program may use both, or load one privately, as Python does. Which one it calls is
         * unknown. */
        if (is_other && dlsym(library, "PMPI_Init") == dlsym(RTLD_NEXT, "PMPI_Init"))
            other_library = library;
        else if (is_other)
            fprintf(stderr,
                    "fabricast: the preloaded library is for %s, and the program uses %s: start it "
                    "with the launcher of its own MPI library\n",
                    library_of(OURS), library_of(!OURS));
        if (library && library != other_library)
            dlclose(library);
        free(all.paths[i]);
    }
    if (other_library)
        fprintf(stderr,
                "fabricast: this is a program of %s, but what is preloaded is for %s, whose "
                "launcher has started it: it is "
                "left alone; start it with the launcher of its own library\n",
                library_of(!OURS), library_of(OURS));
}

int is_other_library(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, look_for_other_library);
    return other_library != NULL;
}

void *library_function(const char *name) {
    void *found = is_other_library() ? dlsym(other_library, name) : dlsym(RTLD_NEXT, name);
    if (!found) {
        fprintf(stderr, "fabricast: the MPI library has no %s\n", name);
        abort();
    }
    return found;
}
