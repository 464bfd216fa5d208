/*
 * Fabricast's barrier (gather and multicast release) by two bare UDP sockets: no repair, no groups,
 * no threads, and one socket to wait at. Its time is that of the kernel and the switch. It must not
 * be used for anything else: a lost datagram hangs it.
 *
 *   --wait=block   waits in recv (default)
 *   --wait=epoll   waits in epoll_wait
 *   --wait=yield   polls and gives the core to other processes
 */
#define _GNU_SOURCE
#include "measure.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* LENGTH is that of a datagram with one of Fabricast's barrier words. */
enum { WARM = 200, ROOT = 0, LENGTH = 40 };

static int check(int result, const char *what) {
    if (result < 0) {
        perror(what);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return result;
}

/* This host's address on the testbed. */
static struct sockaddr_in own_address(int socket) {
    struct ifreq request = {.ifr_name = "eth0"};
    check(ioctl(socket, SIOCGIFADDR, &request), "the address of eth0");
    struct sockaddr_in address;
    memcpy(&address, &request.ifr_addr, sizeof address);
    return address;
}

static void receive(int socket, int epoll, int flags) {
    char word[LENGTH];
    struct epoll_event event;
    if (epoll >= 0)
        check(epoll_wait(epoll, &event, 1, -1), "epoll_wait");
    while (recv(socket, word, sizeof word, flags) < 0) {
        check(errno == EAGAIN ? 0 : -1, "recv");
        sched_yield();
    }
}

int main(int argc, char **argv) {
    static const size_t none[] = {1, 0};
    start(argc, argv, none, 1000);
    const char *wait = option("--wait=") ? option("--wait=") : "block";
    int count = iterations_of(0), flags = strcmp(wait, "yield") == 0 ? MSG_DONTWAIT : 0, off = 0;

    int own = check(socket(AF_INET, SOCK_DGRAM, 0), "socket"),
        group = check(socket(AF_INET, SOCK_DGRAM, 0), "socket");
    struct sockaddr_in here = own_address(own), root,
                       all = {.sin_family = AF_INET, .sin_port = htons(17777)};
    all.sin_addr.s_addr = inet_addr("239.255.9.9");
    check(bind(own, (struct sockaddr *)&here, sizeof here), "bind");
    socklen_t length = sizeof here;
    check(getsockname(own, (struct sockaddr *)&here, &length), "getsockname");
    root = here;
    PMPI_Bcast(&root, sizeof root, MPI_BYTE, ROOT, MPI_COMM_WORLD);
    check(bind(group, (struct sockaddr *)&all, sizeof all), "bind");
    struct ip_mreq join = {all.sin_addr, here.sin_addr};
    check(setsockopt(group, IPPROTO_IP, IP_ADD_MEMBERSHIP, &join, sizeof join), "joining");
    check(setsockopt(own, IPPROTO_IP, IP_MULTICAST_IF, &here.sin_addr, sizeof here.sin_addr),
          "IP_MULTICAST_IF");
    check(setsockopt(own, IPPROTO_IP, IP_MULTICAST_LOOP, &off, sizeof off), "IP_MULTICAST_LOOP");

    int waits_at = rank == ROOT ? own : group, words = rank == ROOT ? ranks - 1 : 1, epoll = -1;
    if (strcmp(wait, "epoll") == 0) {
        struct epoll_event event = {.events = EPOLLIN};
        epoll = check(epoll_create1(0), "epoll_create1");
        check(epoll_ctl(epoll, EPOLL_CTL_ADD, waits_at, &event), "epoll_ctl");
    }
    struct sockaddr_in to = rank == ROOT ? all : root;
    char word[LENGTH] = {0};

    /* Wait until the switch has learned which ports have joined. */
    sleep(1);
    PMPI_Barrier(MPI_COMM_WORLD);
    double began = 0;
    for (int i = -WARM; i < count; i++) {
        if (i == 0)
            began = now_us();
        for (int k = 0; rank == ROOT && k < words; k++)
            receive(waits_at, epoll, flags);
        check(sendto(own, word, sizeof word, 0, (struct sockaddr *)&to, sizeof to), "sendto");
        for (int k = 0; rank != ROOT && k < words; k++)
            receive(waits_at, epoll, flags);
    }
    double each = (now_us() - began) / count;
    head("A bare barrier", "");
    line(0, each, 1, each, count);
    if (rank == ROOT)
        printf("\n");
    MPI_Finalize();
    return 0;
}
