/* A thread for ranks that are not in a call of the shim. A rank in such a call learns there that a
 * process is lost. Others do not: they compute, or wait in the MPI library for a message that never
 * comes.
 *
 * If errors are fatal, as is MPI's default, the job has failed with the process. Then this thread
 * ends a rank that makes no call of the shim for a while. If the program has set another error
 * handler for MPI_COMM_WORLD, the rank goes on. Its next call of the shim that needs the lost
 * process returns an error. But in MPI_Finalize the library may wait for the lost process for ever,
 * so the thread ends the rank there.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* How long the thread gives a rank to end by itself. */
enum { GRACE_MS = 2000 };

static struct {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t rung;
    int runs, over;
    atomic_int finalizes; /* whether this rank is in MPI_Finalize */
    atomic_int waited_ms; /* since the loss, or since MPI_Finalize began if that is later */
} watch = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Reads the error handler, when the job has already failed. A concurrent change by the program does
 * no harm then. */
static int errors_are_fatal(void) {
    MPI_Errhandler handler;
    if (PMPI_Comm_get_errhandler(MPI_COMM_WORLD, &handler) != MPI_SUCCESS)
        return 1;
#ifdef MPI_ERRORS_ABORT
    if (handler == MPI_ERRORS_ABORT)
        return 1;
#endif
    return handler == MPI_ERRORS_ARE_FATAL;
}

static void *run(void *unused) {
    struct timespec at;
    pthread_mutex_lock(&watch.lock);
    while (!watch.over) {
        clock_gettime(CLOCK_MONOTONIC, &at);
        at.tv_nsec += WATCHDOG_INTERVAL_MS * 1000000;
        at.tv_sec += at.tv_nsec / 1000000000;
        at.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&watch.rung, &watch.lock, &at);
        process_sets_sweep();
        if (process_sets_lost() < 0)
            continue;
        /* Reported at once: another rank may soon end this one (MPI_Abort). */
        if (watch.waited_ms == 0)
            say_why();
        watch.waited_ms += WATCHDOG_INTERVAL_MS;
        if (watch.waited_ms != GRACE_MS || !(watch.finalizes || errors_are_fatal()))
            continue;
        say("%s; this rank ends, for %s", fabricast_last_error(),
            watch.finalizes ? "MPI_Finalize waits for the lost one"
                            : "errors are fatal in this job");
        _exit(EXIT_FAILURE);
    }
    pthread_mutex_unlock(&watch.lock);
    return unused;
}

void watchdog_begin(void) {
    /* The monotonic clock: setting the date does not change the interval. */
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&watch.rung, &clock);
    pthread_condattr_destroy(&clock);
    /* Blocks all signals in the new thread: the program's signals are for the program's threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    watch.runs = pthread_create(&watch.thread, NULL, run, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!watch.runs)
        say("no thread to watch for lost processes: a rank that waits elsewhere may wait for ever");
}

/* Does not take the lock: the thread may hold it while it waits for the MPI library. */
void watchdog_finalize(void) {
    watch.waited_ms = 0;
    watch.finalizes = 1;
}

void watchdog_end(void) {
    if (!watch.runs)
        return;
    pthread_mutex_lock(&watch.lock);
    watch.over = 1;
    pthread_cond_signal(&watch.rung);
    pthread_mutex_unlock(&watch.lock);
    pthread_join(watch.thread, NULL);
    watch.runs = 0;
}
