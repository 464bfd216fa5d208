/*
 * A preload that MPICH 4.0 over UCX needs on a cluster of namespaces.
 *
 * - It yields if MPICH_YIELD is set: when polling the network has found nothing, the rank gives its
 *   core to other processes. Open MPI's own setting mpi_yield_when_idle does the same.
 * - It lets jobs end. In MPI_Finalize every rank disconnects from every other rank, which has to
 *   help. Then the rank waits where it helps no other, so that about every second job hung. This
 *   preload flushes what is on its way; the connections close with the worker, after all ranks have
 *   come so far. (MPICH has dropped that wait since: its pull request 6596.)
 *
 * It is linked with libucp, so that it works where the MPI library was loaded privately, as by
 * Python.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <ucp/api/ucp.h>

typedef unsigned progress_fn(ucp_worker_h);

static _Atomic(progress_fn *) own_progress;
static _Atomic(ucp_worker_h) last_worker;
static int yielding;

__attribute__((constructor)) static void settings(void) {
    yielding = getenv("MPICH_YIELD") != NULL;
}

unsigned ucp_worker_progress(ucp_worker_h worker) {
    progress_fn *progress = atomic_load_explicit(&own_progress, memory_order_relaxed);
    if (!progress) {
        progress = (progress_fn *)dlsym(RTLD_NEXT, "ucp_worker_progress");
        atomic_store_explicit(&own_progress, progress, memory_order_relaxed);
    }
    atomic_store_explicit(&last_worker, worker, memory_order_relaxed);
    unsigned done = progress(worker);
    if (done == 0 && yielding)
        sched_yield();
    return done;
}

static void flushed(void *request, ucs_status_t status) {
    (void)request;
    (void)status;
}

/* Replaces UCX's function. Only MPI_Finalize calls it, once per connection. */
ucs_status_ptr_t ucp_disconnect_nb(ucp_ep_h ep) {
    (void)ep;
    /* The first call takes the worker and flushes for all connections. */
    ucp_worker_h worker = atomic_exchange(&last_worker, NULL);
    if (worker) {
        void *request = ucp_worker_flush_nb(worker, 0, flushed);
        if (UCS_PTR_IS_PTR(request)) {
            while (ucp_request_check_status(request) == UCS_INPROGRESS)
                own_progress(worker);
            ucp_request_free(request);
        }
    }
    return NULL; /* UCX: done at once */
}
