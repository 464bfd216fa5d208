/*
 * libfabricast.so as a C program uses it: several processes made by fork, which exchange bytes
 * through shared memory. The program takes the name of a case and the number of processes on each
 * host. It prints what went wrong and exits with 1, or exits with 0.
 */
#include "api.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

struct shared *shared;
int rank;
int progressed;
int per_host = 1;

void meet(void) {
    pthread_barrier_wait(&shared->barrier);
}

int allgather(void *user, const void *mine, void *all, size_t bytes) {
    CHECK(user == shared && bytes <= ROOM);
    memcpy(shared->bytes[rank], mine, bytes);
    meet();
    for (int i = 0; i < PROCESSES; i++)
        memcpy((char *)all + (size_t)i * bytes, shared->bytes[i], bytes);
    meet();
    return 0;
}

static void progress(void *user) {
    CHECK(user == shared);
    progressed++;
}

fabricast_options options(void) {
    static const char *const hosts[PROCESSES] = {"a", "b", "c", "d"};
    fabricast_options o;
    memset(&o, 0, sizeof o);
    o.struct_size = sizeof o;
    o.rank = (uint32_t)rank;
    o.size = PROCESSES;
    o.allgather = allgather;
    o.progress = progress;
    o.user = shared;
    o.interface = "127.0.0.1";
    o.host = hosts[rank / per_host];
    return o;
}

fabricast_context *context_of(fabricast_options o) {
    fabricast_context *context = NULL;
    OK(fabricast_context_create(&o, &context));
    CHECK(context != NULL);
    return context;
}

fabricast_group *group_of(fabricast_context *context, uint32_t id) {
    static const uint32_t everybody[PROCESSES] = {0, 1, 2, 3};
    fabricast_group *group = NULL;
    OK(fabricast_group_create(context, id, everybody, PROCESSES, &group));
    CHECK(group != NULL);
    return group;
}

void end(fabricast_context *context) {
    OK(fabricast_flush(context));
    meet();
    OK(fabricast_context_destroy(context));
}

static unsigned char byte(size_t i, uint32_t root, size_t len) {
    return (unsigned char)(i * 31 + root * 7 + len);
}

unsigned char *filled(size_t len, uint32_t root, int is_root) {
    unsigned char *buffer = malloc(len + 1);
    for (size_t i = 0; i < len; i++)
        buffer[i] = is_root ? byte(i, root, len) : 0xee;
    buffer[len] = 0x77;
    return buffer;
}

void checked(unsigned char *buffer, size_t len, uint32_t root) {
    for (size_t i = 0; i < len; i++)
        CHECK(buffer[i] == byte(i, root, len));
    CHECK(buffer[len] == 0x77);
    free(buffer);
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"blocking", blocking},   {"nonblocking", nonblocking},
    {"misuse", misuse},       {"sizes", sizes},
    {"mismatch", mismatch},   {"order", order},
    {"lost", lost},           {"child", child},
    {"alone", alone},         {"words", words},
    {"algorithms", algorithms},
    {"schedules", schedules}, {"interface", interface},
    {"outsiders", outsiders},
};

int main(int argc, char **argv) {
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t between;
    pthread_barrierattr_init(&between);
    pthread_barrierattr_setpshared(&between, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->barrier, &between, PROCESSES);
    void (*run)(void) = NULL;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (argc == 3 && strcmp(argv[1], cases[i].name) == 0)
            run = cases[i].run;
    if (!run) {
        fprintf(stderr, "no such case\n");
        return 2;
    }
    per_host = atoi(argv[2]);
    pid_t processes[PROCESSES];
    for (rank = 0; rank < PROCESSES; rank++) {
        processes[rank] = fork();
        if (processes[rank] == 0) {
            alarm(100); /* a case that hangs has failed */
            for (int fd = 3; fd < 256; fd++)
                close(fd);
            run();
            _exit(0);
        }
    }
    int failed = 0;
    for (int left = PROCESSES; left > 0; left--) {
        int status;
        wait(&status);
        /* The others wait for the failed process, so the case is over. */
        if (status != 0 && !failed++)
            for (int i = 0; i < PROCESSES; i++)
                kill(processes[i], SIGKILL);
    }
    return failed ? 1 : 0;
}
