/* What the C and the Fortran entry points share. */
#ifndef FABRICAST_SHIM_H
#define FABRICAST_SHIM_H

#include <mpi.h>

/* The MPI library's own function of this name. */
void *fabricast_library(const char *name);

/* MPI has been initialised in this process. */
void fabricast_initialized(void);

/* Whether the broadcast was served; then `status` is what the call answers. */
int fabricast_serve_bcast(void *buffer, MPI_Count count, MPI_Datatype type, int root, MPI_Comm comm,
                          int *status);

/* Whether the barrier was served; then `status` is what the call answers. */
int fabricast_serve_barrier(MPI_Comm comm, int *status);

#endif
