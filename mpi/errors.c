/* Lines on standard error, and the error codes that a failed call returns. */
#include "shim.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

void say(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char text[1024];
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "fabricast: rank %d: %s\n", shim.rank, text);
}

/* An error code whose text (MPI_Error_string) describes the first loss. */
static int code_of_loss = MPI_ERR_OTHER;

_Static_assert(2 * WATCHDOG_INTERVAL_MS < 1000, "the pause is given in nanoseconds");

static void heed_first_loss(void) {
    /* The first rank that aborts ends the others. This pause lets each of them name the lost rank
     * before that: in its own call, or in the next two intervals of its watchdog. */
    nanosleep(&(struct timespec){.tv_nsec = 2 * WATCHDOG_INTERVAL_MS * 1000000L}, NULL);
    char text[MPI_MAX_ERROR_STRING], known[MPI_MAX_ERROR_STRING];
    int code, class, len;
    snprintf(text, sizeof text, "fabricast: %s", fabricast_last_error());
    if (PMPI_Add_error_code(MPI_ERR_OTHER, &code) != MPI_SUCCESS ||
        PMPI_Add_error_string(code, text) != MPI_SUCCESS)
        return;
    /* MPICH returns the text of another code for such a code, unless its class is new as well. */
    PMPI_Error_class(code, &class);
    PMPI_Error_string(code, known, &len);
    if (class == MPI_ERR_OTHER && strcmp(text, known) == 0)
        code_of_loss = code;
}

void say_why(void) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static char last[256];
    pthread_mutex_lock(&lock);
    if (strncmp(last, fabricast_last_error(), sizeof last - 1) != 0) {
        snprintf(last, sizeof last, "%s", fabricast_last_error());
        say("%s", last);
    }
    pthread_mutex_unlock(&lock);
}

int fail(MPI_Comm comm, int status) {
    static pthread_once_t lost = PTHREAD_ONCE_INIT;
    int code = MPI_ERR_OTHER;
    say_why();
    if (status == FABRICAST_ERR_PEER_LOST) {
        pthread_once(&lost, heed_first_loss);
        code = code_of_loss;
    } else if (status == FABRICAST_ERR_ARGUMENT) {
        code = MPI_ERR_TRUNCATE; /* as MPI libraries do if a length differs from the root's */
    }
    PMPI_Comm_call_errhandler(comm, code);
    return code;
}

int fail_without_group(MPI_Comm comm) {
    return fail(comm, process_sets_lost() >= 0 ? FABRICAST_ERR_PEER_LOST : FABRICAST_ERR_SYSTEM);
}
