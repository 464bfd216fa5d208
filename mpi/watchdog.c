/* Who waits inside a call of ours learns there that a process is lost. This thread is for those who
 * do not: they compute, or wait inside the MPI library for a message that never comes.
 *
 * Where errors are fatal, as MPI has it by default, the job has failed with the process, and who
 * has not come to a call of ours for a while ends here. Where a program has set another error
 * handler for MPI_COMM_WORLD it goes on, and its next call of ours that needs the lost process
 * answers with an error, until it calls MPI_Finalize, in which the library may wait for the lost
 * one for ever.
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
    atomic_int finalizes; /* this rank is in MPI_Finalize */
    atomic_int waited_ms; /* since one was lost, or since then if that was before */
} watch = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Asked when the job has failed already: what the program might do to its handler at this moment is
 * no worse. */
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
        /* At once: another rank may end this one soon (MPI_Abort). */
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
    /* Whoever sets the date does not change how soon it looks. */
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&watch.rung, &clock);
    pthread_condattr_destroy(&clock);
    /* The program's signals are for its own threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    watch.runs = pthread_create(&watch.thread, NULL, run, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!watch.runs)
        say("no thread to watch for lost processes: a rank that waits elsewhere may wait for ever");
}

/* Without the lock, with which the thread may wait for the MPI library. */
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
