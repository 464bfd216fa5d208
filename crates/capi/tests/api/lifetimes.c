/* Lifetimes: contexts, groups, requests, and processes that end or fork. */
#include "api.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

void order(void) {
    /* The context is destroyed first; its group and request still work. */
    fabricast_context *context = context_of(options());
    fabricast_group *group = group_of(context, 1);
    fabricast_request *request;
    unsigned char *buffer = filled(600000, 1, rank == 1);
    OK(fabricast_ibcast(group, buffer, 600000, 1, &request));
    OK(fabricast_context_destroy(context));
    OK(fabricast_barrier(group));
    OK(fabricast_wait(&request));
    checked(buffer, 600000, 1);
    meet();
    OK(fabricast_group_destroy(group));
    /* A group is destroyed before an operation that was started in it ends. */
    context = context_of(options());
    group = group_of(context, 1);
    buffer = filled(600000, 2, rank == 2);
    OK(fabricast_ibcast(group, buffer, 600000, 2, &request));
    OK(fabricast_group_destroy(group));
    OK(fabricast_wait(&request));
    checked(buffer, 600000, 2);
    end(context);
    /* Many contexts, one after the other, leave nothing behind. */
    for (int i = 0; i < 5; i++) {
        context = context_of(options());
        group = group_of(context, 1);
        OK(fabricast_barrier(group));
        OK(fabricast_flush(context));
        meet();
        OK(fabricast_group_destroy(group));
        OK(fabricast_context_destroy(context));
    }
    meet();
    int open = 0;
    for (int fd = 3; fd < 256; fd++)
        open += lseek(fd, 0, SEEK_CUR) != -1 || dup2(fd, fd) == fd;
    CHECK(open == 0);
}

/* Rank 2 is found lost although its child lives as long as the case. */
void lost(void) {
    fabricast_context *context = context_of(options());
    fabricast_group *group = group_of(context, 1);
    OK(fabricast_barrier(group));
    meet(); /* or a rank that has not been woken yet finds rank 2 lost in this barrier */
    if (rank == 2) {
        pid_t all = getppid();
        if (fork() != 0)
            _exit(0); /* as one that is killed */
        OK(fabricast_context_forked(context));
        close(1); /* which the test reads to its end */
        close(2);
        while (kill(all, 0) == 0)
            usleep(10000);
        _exit(0);
    }
    FAILS(FABRICAST_ERR_PEER_LOST, "rank 2 is lost", fabricast_barrier(group));
    CHECK(fabricast_lost(context) == 2);
    CHECK(strstr(fabricast_last_error(), "rank 2 is lost") != NULL);
    unsigned char buffer[100];
    FAILS(FABRICAST_ERR_PEER_LOST, "rank 2", fabricast_bcast(group, buffer, 100, 0));
    /* The processes that are left can go on. */
    static const uint32_t left[] = {0, 1, 3};
    fabricast_group *rest;
    OK(fabricast_group_create(context, 2, left, 3, &rest));
    OK(fabricast_barrier(rest));
    OK(fabricast_flush(context));
    OK(fabricast_barrier(rest));
    OK(fabricast_group_destroy(rest));
    OK(fabricast_group_destroy(group));
    usleep(200000); /* the others may still ask; there are no four any more that could meet */
    OK(fabricast_context_destroy(context));
}

void child(void) {
    fabricast_context *context = context_of(options());
    fabricast_group *group = group_of(context, 1);
    for (int i = 0; i < 10; i++) {
        OK(fabricast_barrier(group));
        pid_t child = fork();
        if (child == 0)
            exit(0); /* with all that a program does at its end */
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    end(context);
    OK(fabricast_group_destroy(group));
}
