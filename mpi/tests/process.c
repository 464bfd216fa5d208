/*
 * What a process does beside MPI: it forks children, timers interrupt its system calls, it
 * broadcasts in callbacks at the end, and it ends right after a broadcast whose receivers come
 * late.
 */
#define _GNU_SOURCE
#include "check.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static void loop(int rounds) {
    for (int i = 0; i < rounds; i++) {
        broadcast(MPI_COMM_WORLD, i % ranks, draw((uint64_t)i, 9000), (uint64_t)i);
        if (i % 8 == 0)
            MPI(MPI_Barrier(MPI_COMM_WORLD));
    }
}

static void ends_well(pid_t child, const char *what) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child, "%s: no child", what);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s: ended with %d", what, status);
}

static void children(void) {
    for (int i = 0; i < 3; i++) {
        loop(20);
        /* One child leaves at once, one runs the exit handlers, one becomes another program. */
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        ends_well(child, "fork and _exit");
        child = fork();
        if (child == 0)
            exit(0);
        loop(20);
        ends_well(child, "fork and exit, while the parent broadcasts");
        CHECK(system("true") == 0, "system() failed");
    }
    loop(50);
    ok("process: children");
}

static volatile sig_atomic_t alarms;

static void on_alarm(int number) {
    (void)number;
    alarms++;
}

static void signals(void) {
    /* No SA_RESTART: every system call may end with EINTR. */
    struct sigaction action = {.sa_handler = on_alarm}, old;
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    sigemptyset(&action.sa_mask);
    sigaction(SIGALRM, &action, &old);
    setitimer(ITIMER_REAL, &often, NULL);
    loop(300);
    setitimer(ITIMER_REAL, &never, NULL);
    sigaction(SIGALRM, &old, NULL);
    CHECK(alarms > 0, "the timer never struck");
    ok("process: a timer that interrupts");
}

/* Called by MPI_Finalize, which deletes the attributes of MPI_COMM_SELF first, while MPI still
 * works. */
static int at_the_end(MPI_Comm comm, int key, void *value, void *extra) {
    (void)comm, (void)key, (void)value, (void)extra;
    loop(10);
    return MPI_SUCCESS;
}

int main(int argc, char **argv) {
    start(argc, argv);
    children();
    signals();
    int key;
    MPI(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, at_the_end, &key, NULL));
    MPI(MPI_Comm_set_attr(MPI_COMM_SELF, key, NULL));
    /* The root is in MPI_Finalize long before the others enter its last broadcast. */
    if (rank != 0)
        pause_us(500000);
    broadcast(MPI_COMM_WORLD, 0, 6000, 99);
    MPI_Finalize();
    if (rank == 0)
        printf("ok process: an end with broadcasts in callbacks and late receivers\n");
    return 0;
}
