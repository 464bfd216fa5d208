/*
 * Adds latency to the subnet management packets that OpenSM sends: a library that is preloaded
 * into OpenSM. The simulated switches of ibsim answer at once, which no real switch does.
 *
 * SMP_DELAY_US=D: a request that reads or writes an attribute (SMP Get, Set) reaches the switch
 * D us after OpenSM has sent it. Requests do not wait for each other. Packets of subnet
 * administration (joins and their answers) are not delayed. "fabric up --preload" loads this file.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Of libibumad, whose headers need not be installed. */
void *umad_get_mad(void *umad);
size_t umad_size(void);

typedef int (*send_fn)(int port, int agent, void *umad, int len, int timeout, int retries);

/* A packet that waits until it is due. */
struct packet {
	struct packet *next;
	struct timespec due;
	int port, agent, len, timeout, retries;
	char umad[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t arrived = PTHREAD_COND_INITIALIZER;
/* OpenSM's threads and the one here send by the same descriptor. */
static pthread_mutex_t sending = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct packet *first, **end = &first;
static send_fn really_send;
static long delay_us;

static int send_now(int port, int agent, void *umad, int len, int timeout, int retries)
{
	int sent;

	pthread_mutex_lock(&sending);
	sent = really_send(port, agent, umad, len, timeout, retries);
	pthread_mutex_unlock(&sending);
	return sent;
}

/* All packets wait equally long, so that the first is always due first. */
static void *deliver(void *unused)
{
	struct packet *p;

	for (;;) {
		pthread_mutex_lock(&lock);
		while (!first)
			pthread_cond_wait(&arrived, &lock);
		p = first;
		first = p->next;
		if (!first)
			end = &first;
		pthread_mutex_unlock(&lock);
		while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &p->due, NULL))
			;
		send_now(p->port, p->agent, p->umad, p->len, p->timeout, p->retries);
		free(p);
	}
	return unused;
}

static void start(void)
{
	const char *delay = getenv("SMP_DELAY_US");
	pthread_t thread;

	really_send = (send_fn)dlsym(RTLD_NEXT, "umad_send");
	delay_us = delay ? atol(delay) : 0;
	if (!really_send || (delay_us > 0 && pthread_create(&thread, NULL, deliver, NULL)))
		abort();
}

/* Whether this is a request of subnet management, with a directed route or a LID. */
static int is_smp(const unsigned char *mad)
{
	int class = mad[1], method = mad[3];

	return (class == 0x81 || class == 0x01) && (method == 1 || method == 2);
}

int umad_send(int port, int agent, void *umad, int len, int timeout, int retries)
{
	size_t size = umad_size() + (size_t)len;
	struct packet *p;

	pthread_once(&once, start);
	if (delay_us <= 0 || len < 4 || !is_smp(umad_get_mad(umad)))
		return send_now(port, agent, umad, len, timeout, retries);
	p = malloc(sizeof *p + size);
	if (!p)
		abort();
	*p = (struct packet){ .port = port, .agent = agent, .len = len, .timeout = timeout,
			      .retries = retries };
	memcpy(p->umad, umad, size);
	clock_gettime(CLOCK_MONOTONIC, &p->due);
	p->due.tv_sec += delay_us / 1000000;
	p->due.tv_nsec += delay_us % 1000000 * 1000;
	if (p->due.tv_nsec >= 1000000000) {
		p->due.tv_sec++;
		p->due.tv_nsec -= 1000000000;
	}
	pthread_mutex_lock(&lock);
	*end = p;
	end = &p->next;
	pthread_cond_signal(&arrived);
	pthread_mutex_unlock(&lock);
	return 0;
}
