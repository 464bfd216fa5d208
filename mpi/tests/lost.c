/*
 * A process is lost while the others are in different places. Usage: `lost DIRECTORY VICTIM
 * kill|fork|wait|return|finalize|measure|change`. Each rank writes to DIRECTORY/RANK, which exists
 * also when its host is cut off. The victim kills itself (kill), also leaving a child behind
 * (fork), or waits for the test to act (wait). The others must end, or with MPI_ERRORS_RETURN
 * (return) get an error and go on without the victim. Ranks must also end if they then call
 * MPI_Finalize (finalize), if they are measuring in MPI_Finalize (measure), or if all of them
 * create, use and free communicators until the victim kills itself (change).
 */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static void compute(void) {
    volatile double sum = 0;
    for (time_t end = time(NULL) + 120; time(NULL) < end;)
        sum += 1;
}

/* Every error names the victim, also later ones, and the remaining ranks can still broadcast. */
static void goes_on(MPI_Comm left, int victim) {
    char text[MPI_MAX_ERROR_STRING];
    int class, len, word = 0, me;
    for (int i = 0; i < 3; i++) {
        int error = MPI_Barrier(MPI_COMM_WORLD);
        MPI_Error_class(error, &class);
        MPI_Error_string(error, text, &len);
        fprintf(stderr, "barrier %d: class %s, %s\n", i, class == MPI_ERR_OTHER ? "OTHER" : "else",
                text);
    }
    MPI_Comm_rank(left, &me);
    if (me == 0)
        word = 4711 + victim;
    MPI_Bcast(&word, 1, MPI_INT, 0, left);
    MPI_Barrier(left);
    if (word == 4711 + victim)
        fprintf(stderr, "goes on\n");
    /* MPI_Finalize would wait for the lost process. */
    sleep(2);
    _exit(0);
}

/* Makes enough calls of Fabricast for MPI_Finalize to measure, which takes seconds. */
static int measures(void) {
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (int i = 0; i < 100; i++)
        MPI_Barrier(MPI_COMM_WORLD);
    fprintf(stderr, "finalizes\n");
    MPI_Finalize();
    fprintf(stderr, "finalized\n");
    return 0;
}

static void die(int signal) {
    (void)signal;
    raise(SIGKILL);
}

/* Communicators of all ranks but one come and go, so that addresses change all the time. After 30
 * of them the victim kills itself, wherever it is then. */
static void change(int rank, int ranks, int victim) {
    enum { BEFORE = 30 };
    for (int n = 0;; n++) {
        MPI_Comm comm;
        int word = n, out = n % ranks, members;
        if (n == BEFORE)
            fprintf(stderr, "has used %d communicators\n", n);
        if (n == BEFORE && rank == victim) {
            struct itimerval soon = {.it_value.tv_usec = 1 + getpid() * 7919 % 200000};
            signal(SIGALRM, die);
            setitimer(ITIMER_REAL, &soon, NULL);
        }
        MPI_Comm_split(MPI_COMM_WORLD, rank == out ? MPI_UNDEFINED : 0, rank, &comm);
        if (comm == MPI_COMM_NULL)
            continue;
        MPI_Comm_size(comm, &members);
        for (int root = 0; root < members; root++)
            MPI_Bcast(&word, 1, MPI_INT, root, comm);
        if (word != n)
            fprintf(stderr, "a wrong word\n");
        MPI_Comm_free(&comm);
    }
}

/* Holds all descriptors of its parent, and does not end with it. */
static void leave_child(void) {
    pid_t child = fork();
    if (child == 0) {
        sleep(60);
        _exit(0);
    }
    fprintf(stderr, "child %d\n", child);
}

int main(int argc, char **argv) {
    int rank, ranks, word;
    char path[4096];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 4)
        MPI_Abort(MPI_COMM_WORLD, 2);
    int victim = atoi(argv[2]), returns = strcmp(argv[3], "return") == 0,
        finalizes = strcmp(argv[3], "finalize") == 0;
    snprintf(path, sizeof path, "%s/%d", argv[1], rank);
    if (!freopen(path, "w", stderr))
        MPI_Abort(MPI_COMM_WORLD, 2);
    setvbuf(stderr, NULL, _IONBF, 0);
    MPI_Comm left;
    MPI_Comm_split(MPI_COMM_WORLD, rank == victim ? MPI_UNDEFINED : 0, rank, &left);
    if (left != MPI_COMM_NULL)
        MPI_Barrier(left);
    MPI_Barrier(MPI_COMM_WORLD);
    fprintf(stderr, "process %d\n", getpid());
    if (strcmp(argv[3], "measure") == 0)
        return measures();
    if (strcmp(argv[3], "change") == 0)
        change(rank, ranks, victim);
    if (rank == victim) {
        sleep(1);
        if (strcmp(argv[3], "fork") == 0)
            leave_child();
        if (strcmp(argv[3], "wait") != 0)
            raise(SIGKILL);
        pause();
    }
    if (returns || finalizes)
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (returns)
        goes_on(left, victim);
    if (finalizes) {
        fprintf(stderr, "barrier: %s\n", MPI_Barrier(MPI_COMM_WORLD) ? "an error" : "no error");
        /* By now the watchdog has seen that errors return. */
        sleep(3);
        MPI_Finalize();
        fprintf(stderr, "finalized\n");
        return 0;
    }
    /* One rank in a call of Fabricast, one in a call of the MPI library, one in none. */
    int place = (rank - victim + ranks) % ranks % 3;
    if (place == 1)
        MPI_Barrier(MPI_COMM_WORLD);
    else if (place == 2)
        MPI_Recv(&word, 1, MPI_INT, victim, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else
        compute();
    fprintf(stderr, "went on as if nothing had happened\n");
    return 1;
}
