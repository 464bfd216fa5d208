/* The MPI library's connections.
 *
 * A rank that waits in a call of ours sleeps until something arrives for us. Other ranks may need
 * its MPI library meanwhile: it is the target of one-sided operations, has started a non-blocking
 * collective, or holds a message that its receiver has come for. MPI libraries do such work only
 * when they are called. So what arrives at one of their TCP connections ends the sleep, and the
 * library is driven as long as more arrives.
 *
 * The library opens its connections when it first needs them and tells nobody, so /proc/self/fd is
 * searched for them from time to time. All TCP sockets of the process count, ours and the
 * program's, too: an edge-triggered event costs one call of the library, and of these sockets there
 * is little to tell.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <dirent.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>

/* Between two searches: so long after one that has found something, and doubled after each that has
 * not, up to the second. */
static const int64_t soon_ns = 5000000, late_ns = 100000000;

static struct {
    pthread_mutex_t lock; /* of what follows */
    int begun;            /* epoll and bell have been made, or could not be */
    int epoll;            /* -1: there is none */
    int bell;             /* -1, or an eventfd in it, rung while the library is always driven */
    int64_t due_ns, pause_ns;
} sockets = {.lock = PTHREAD_MUTEX_INITIALIZER, .epoll = -1, .bell = -1};

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static int is_tcp(int fd) {
    int value;
    socklen_t size = sizeof value;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &size) != 0 || value != SOCK_STREAM)
        return 0;
    size = sizeof value;
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &value, &size) == 0 &&
           (value == AF_INET || value == AF_INET6);
}

/* Whether there is one that was not known. */
static int search(void) {
    DIR *all = opendir("/proc/self/fd");
    int found = 0;
    if (!all)
        return 0;
    for (struct dirent *entry; (entry = readdir(all));) {
        char *end;
        long fd = strtol(entry->d_name, &end, 10);
        struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET};
        if (end == entry->d_name || *end || fd == dirfd(all) || !is_tcp((int)fd))
            continue;
        /* EEXIST: it is known. One that is closed goes by itself. */
        found |= epoll_ctl(sockets.epoll, EPOLL_CTL_ADD, (int)fd, &event) == 0;
    }
    closedir(all);
    return found;
}

const int *sockets_work(void) {
    pthread_mutex_lock(&sockets.lock);
    if (!sockets.begun) {
        struct epoll_event event = {.events = EPOLLIN};
        sockets.epoll = epoll_create1(EPOLL_CLOEXEC);
        sockets.bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        sockets.begun = 1;
        if (sockets.bell >= 0)
            epoll_ctl(sockets.epoll, EPOLL_CTL_ADD, sockets.bell, &event);
    }
    pthread_mutex_unlock(&sockets.lock);
    return sockets.epoll >= 0 ? &sockets.epoll : NULL;
}

void sockets_busy(int busy) {
    eventfd_t value;
    if (sockets.epoll >= 0 && sockets.bell >= 0 &&
        (busy ? eventfd_write(sockets.bell, 1) : eventfd_read(sockets.bell, &value)))
        say("the MPI library may be slow while a rank waits");
}

void sockets_heed(void) {
    struct epoll_event events[64];
    if (sockets.epoll < 0)
        return;
    epoll_wait(sockets.epoll, events, sizeof events / sizeof *events, 0);
    int64_t now = now_ns();
    if (now < __atomic_load_n(&sockets.due_ns, __ATOMIC_RELAXED) ||
        pthread_mutex_trylock(&sockets.lock) != 0)
        return;
    int found = search();
    int64_t longer = 2 * sockets.pause_ns < late_ns ? 2 * sockets.pause_ns : late_ns;
    sockets.pause_ns = found || longer < soon_ns ? soon_ns : longer;
    __atomic_store_n(&sockets.due_ns, now + sockets.pause_ns, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&sockets.lock);
}
