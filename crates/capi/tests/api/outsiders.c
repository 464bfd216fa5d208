/* Another user of the host, who connects and rings where the processes meet. */
#include "api.h"

#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

enum { SILENT = 16, NOBODY = 65534 };

/* What follows the first occurrence of `word` on the endpoint descriptor of process `of`. */
static const char *on_card(int of, const char *word) {
    const char *card = (const char *)shared->bytes[of], *at = strstr(card, word);
    CHECK(at != NULL);
    return at + strlen(word);
}

/* Acts as another user of the host: connects to rank 0 and is silent, and sends a descriptor to all
 * FD channels until they are gone. */
static void attack(int ready, int end) {
    enum { BELLS = PROCESSES };
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    alarm(60);
    for (int fd = 3; fd < 256; fd++)
        if (fd != ready && fd != end)
            close(fd);
    CHECK(setgid(NOBODY) == 0 && setuid(NOBODY) == 0);
    struct sockaddr_in rank0 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    rank0.sin_port = htons((uint16_t)atoi(on_card(0, "\"watch\":\"127.0.0.1:")));
    for (int i = 0; i < SILENT; i++) {
        int outsider = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(connect(outsider, (struct sockaddr *)&rank0, sizeof rank0) == 0);
    }
    struct sockaddr_un bells[BELLS];
    socklen_t lens[BELLS];
    int gone[BELLS] = {0}, left = BELLS, bell = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    for (int i = 0; i < BELLS; i++) {
        unsigned long long name = strtoull(strchr(on_card(i, "\"host\":["), ',') + 1, NULL, 10);
        bells[i] = (struct sockaddr_un){.sun_family = AF_UNIX};
        lens[i] = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
                              (size_t)sprintf(bells[i].sun_path + 1, "fabricast-%016llx", name));
    }
    char control[CMSG_SPACE(sizeof bell)] = {0}, byte = 1;
    struct iovec piece = {&byte, 1};
    struct msghdr ring = {.msg_iov = &piece,
                          .msg_iovlen = 1,
                          .msg_control = control,
                          .msg_controllen = sizeof control};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&ring);
    *rights = (struct cmsghdr){
        .cmsg_len = CMSG_LEN(sizeof bell), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(rights), &bell, sizeof bell);
    for (int full = 0; left > 0;) {
        int some = 0;
        for (int i = 0; i < BELLS; i++) {
            ring.msg_name = &bells[i];
            ring.msg_namelen = lens[i];
            if (gone[i])
                continue;
            if (sendmsg(bell, &ring, MSG_NOSIGNAL) == 1) {
                some = 1;
            } else if (errno == ECONNREFUSED) {
                gone[i] = 1;
                left--;
            } else {
                CHECK(errno == EAGAIN || errno == ETOOMANYREFS);
            }
        }
        if (!some && !full++)
            CHECK(write(ready, &byte, 1) == 1);
    }
    CHECK(read(end, &byte, 1) == 0);
}

static pid_t attacker;
static int attacking = -1;

/* All processes have told their addresses, and none has connected yet. */
static int attacked(void *user, const void *mine, void *all, size_t bytes) {
    int status = allgather(user, mine, all, bytes);
    if (rank == PROCESSES - 1 && !attacker) {
        int ready[2], over[2];
        char byte;
        CHECK(pipe(ready) == 0 && pipe(over) == 0);
        attacking = over[1];
        attacker = fork();
        if (attacker == 0) {
            attack(ready[1], over[0]);
            _exit(0);
        }
        CHECK(read(ready[0], &byte, 1) == 1);
    }
    meet();
    return status;
}

/* The processes do not hear the attacker and lose no time. When they have met, there is nothing
 * left to ring at. */
void outsiders(void) {
    fabricast_options o = options();
    o.allgather = geteuid() == 0 ? attacked : allgather;
    alarm(SILENT); /* one after the other, they took two seconds each */
    fabricast_context *context = context_of(o);
    alarm(100);
    close(attacking);
    fabricast_group *group = group_of(context, 1);
    CHECK(fabricast_unshared(context) == NULL);
    for (int i = 0; i < 10; i++)
        OK(fabricast_barrier(group));
    int status = 0;
    CHECK(!attacker || waitpid(attacker, &status, 0) == attacker);
    CHECK(status == 0);
    meet();
    end(context);
    OK(fabricast_group_destroy(group));
}
