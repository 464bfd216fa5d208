/* The MPI library's connections.
 *
 * A rank that waits in a call of the shim sleeps until something arrives for Fabricast. Meanwhile
 * other ranks may need its MPI library: the rank is the target of one-sided operations, has started
 * a non-blocking collective, or holds a message that its receiver now wants. MPI libraries do such
 * work only when they are called. So data on one of their TCP connections ends the sleep, and the
 * rank drives the MPI library as long as more arrives.
 *
 * The MPI library opens a connection when it first needs it and reports that to nobody, so this
 * file searches /proc/self/fd from time to time. All TCP sockets of the process are watched, also
 * Fabricast's and the program's: one cannot tell them apart, and an edge-triggered event costs only
 * one call of the MPI library.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <dirent.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>

/* Pauses between two searches, in nanoseconds: `soon_ns` after a search that found a socket,
 * doubled after each search that found none, at most `late_ns`. */
static const int64_t soon_ns = 5000000, late_ns = 100000000;

static struct {
    pthread_mutex_t lock; /* guards the fields below */
    int begun;            /* whether epoll and bell were created, or creation failed */
    int epoll;            /* -1 if there is none */
    int bell;             /* -1, or an eventfd in epoll, set while the library is always driven */
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

/* Adds new TCP sockets to epoll. Returns whether there were any. */
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
        /* EEXIST: the socket is known. The kernel removes closed sockets. */
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

void sockets_clear(void) {
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
