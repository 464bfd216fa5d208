/* What was served, and what was not and why: rank 0 prints it once, at the end, for all ranks.
 *
 * Rank 0 of each communicator counts for the communicator. Communicators with the same name and
 * size are one row.
 */
#include "shim.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 32 };

struct row {
    char name[32];
    uint64_t size, hosts, communicators, bcasts, bytes, barriers, handed;
};

/* Rows of this process. If there is no free row, the last one collects the rest. */
static struct row rows[ROWS];

static const char *const reasons[REASONS] = {
    [INVALID] = "with arguments that make no sense",
    [INTER] = "on inter-communicators",
    [ONE_HOST] = "between ranks of one host, who share its memory",
    [NO_GROUP] = "on communicators without a group of ours",
    [FASTER] = "in which it is faster, as was measured",
};

static void add(const struct row *more) {
    int i = 0;
    while (i < ROWS - 1 && rows[i].communicators &&
           (strcmp(rows[i].name, more->name) != 0 || rows[i].size != more->size))
        i++;
    struct row *row = &rows[i];
    if (!row->communicators) {
        memcpy(row->name, more->name, sizeof row->name);
        row->size = more->size;
        row->hosts = more->hosts;
    } else if (strcmp(row->name, more->name) != 0 || row->size != more->size) {
        strcpy(row->name, "(others)");
        row->size = 0;
    }
    if (row->hosts != more->hosts)
        row->hosts = 0;
    row->communicators += more->communicators;
    row->bcasts += more->bcasts;
    row->bytes += more->bytes;
    row->barriers += more->barriers;
    row->handed += more->handed;
}

/* Counts the call. Returns whether to report it as well: once for each reason, marked by a bit. */
static int count_handed(struct comm_state *state, enum reason why, unsigned bit) {
    __atomic_fetch_add(&shim.handed[why], 1, __ATOMIC_RELAXED);
    if (!state)
        return 0;
    state->handed++;
    int told = !shim.verbose || state->said & bit;
    state->said |= bit;
    return !told;
}

void statistics_handed(struct comm_state *state, MPI_Comm comm, enum reason why) {
    int rank;
    PMPI_Comm_rank(comm, &rank);
    if (rank != 0 || (state && state->size == 1) || !count_handed(state, why, 1u << why))
        return;
    say("leaves to the MPI library: calls %s (%s, %d ranks)", reasons[why], state->name,
        state->size);
}

void statistics_faster(struct comm_state *state, const struct measured *by) {
    int at = 0;
    while (at < state->choice.points && state->choice.of[at].by != by)
        at++; /* the index behind the last point means the barrier */
    if (state->rank != 0 || !count_handed(state, FASTER, 1u << (REASONS + at)))
        return;
    char what[64] = "barriers";
    if (by->bytes)
        snprintf(what, sizeof what, "broadcasts of about %" PRIu32 " bytes", by->bytes);
    say("leaves to the MPI library: %s (%s, %d ranks), for it is faster: %.1f against %.1f us "
        "between %" PRIu32 " ranks",
        what, state->name, state->size, (double)by->library_ns * 1e-3, (double)by->ours_ns * 1e-3,
        by->ranks);
}

void statistics_state(const struct comm_state *state) {
    if (state->rank != 0 || !(state->bcasts || state->barriers || state->handed))
        return;
    struct row row = {.size = (uint64_t)state->size,
                      .hosts = (uint64_t)state->hosts,
                      .communicators = 1,
                      .bcasts = state->bcasts,
                      .bytes = state->bytes,
                      .barriers = state->barriers,
                      .handed = state->handed};
    memcpy(row.name, state->name, sizeof row.name);
    add(&row);
}

/* The statistics are a size, followed by a row of numbers. */
#define NUMBER(field) ((offsetof(fabricast_statistics, field) - sizeof(size_t)) / sizeof(uint64_t))
enum { NUMBERS = (sizeof(fabricast_statistics) - sizeof(size_t)) / sizeof(uint64_t) };

/* Whether a number is a level, which goes up and down, and not a counter. */
static int is_level(size_t number) {
    return number >= NUMBER(addresses_in_use) && number <= NUMBER(addresses_shared_max);
}

static uint64_t *counters(fabricast_statistics *statistics) {
    return (uint64_t *)((char *)statistics + sizeof(size_t));
}

/* Whether a number is about traffic, which measuring causes too. What is known of addresses and
 * their reasons is not. */
static int is_traffic(size_t number) {
    return number < NUMBER(addresses_refused) || number == NUMBER(frames_foreign);
}

void statistics_context(const fabricast_context *context) {
    fabricast_statistics now = {.struct_size = sizeof now};
    fabricast_context_statistics(context, &now);
    for (size_t i = 0; i < NUMBERS; i++)
        if (!is_level(i))
            counters(&shim.ended)[i] += counters(&now)[i];
        else if (counters(&shim.ended)[i] < counters(&now)[i])
            counters(&shim.ended)[i] = counters(&now)[i];
}

void statistics_measuring(int begins) {
    fabricast_statistics now = {.struct_size = sizeof now};
    fabricast_context_statistics(shim.world_set->context, &now);
    for (size_t i = 0; i < NUMBERS; i++)
        if (is_traffic(i))
            counters(&shim.ended)[i] += (uint64_t)(begins ? 1 : -1) * counters(&now)[i];
}

/* The way that the row's datagrams take. If communicators of one name are placed differently on
 * hosts, the row names all the ways that any of them may need. */
static const char *served_by(const struct row *r) {
    if (!r->bcasts && !r->barriers)
        return "the MPI library";
    if (r->hosts == r->size)
        return r->hosts == 2 ? "unicast" : "multicast";
    return r->hosts == 2 ? "shared memory and unicast" : "shared memory and multicast";
}

static double mean_ms(uint64_t us, uint64_t times) {
    return times ? (double)us * 1e-3 / (double)times : 0;
}

static void tell_rows(void) {
    say("%-31s %6s %7s %11s %15s %11s %11s  %s", "communicator", "ranks", "number", "broadcasts",
        "bytes", "barriers", "by library", "served by");
    for (int i = 0; i < ROWS && rows[i].communicators; i++) {
        const struct row *r = &rows[i];
        say("%-31s %6" PRIu64 " %7" PRIu64 " %11" PRIu64 " %15" PRIu64 " %11" PRIu64 " %11" PRIu64
            "  %s",
            r->name, r->size, r->communicators, r->bcasts, r->bytes, r->barriers, r->handed,
            served_by(r));
    }
}

/* When communicators get multicast addresses of their own. Returns whether they do. */
static int tell_strategy(void) {
    const char *shared = "shared";
    char strategy[128] = "shared";
    if (shim.world_set)
        fabricast_context_strategy(shim.world_set->context, strategy, sizeof strategy);
    say("addresses of communicators: %s", strategy);
    return strncmp(strategy, shared, strlen(shared)) != 0;
}

/* Why communicators had no multicast addresses of their own. */
static void tell_refusals(const fabricast_statistics *sum) {
    if (sum->addresses_refused)
        say("addresses refused: %" PRIu64 "; no more addresses: %" PRIu64 ", denied: %" PRIu64
            ", no answer: %" PRIu64,
            sum->addresses_refused, sum->refused_exhausted, sum->refused_denied,
            sum->refused_unanswered);
    if (sum->groups_unaddressed)
        say("communicators that had no address of their own, at least for a while: %" PRIu64
            "; because all addresses were taken: %" PRIu64 ", denied: %" PRIu64
            ", no answer: %" PRIu64 ", not reached: %" PRIu64 ", a host was gone: %" PRIu64,
            sum->groups_unaddressed, sum->groups_exhausted, sum->groups_denied,
            sum->groups_unanswered, sum->groups_unproven, sum->groups_gone);
    if (sum->groups_unled)
        say("communicators that can have no address of their own, because they lack the lowest "
            "rank of one of their hosts: %" PRIu64,
            sum->groups_unled);
    if (sum->hosts_set_aside || sum->addresses_unproven)
        say("hosts that could not join what others had joined: %" PRIu64
            "; addresses given up because probes did not arrive: %" PRIu64,
            sum->hosts_set_aside, sum->addresses_unproven);
}

/* How communicators got multicast addresses of their own. */
static void tell_addresses(const fabricast_statistics *sum, const fabricast_statistics *most) {
    if (tell_strategy()) {
        say("broadcasts by an address of the communicator's own hosts: %" PRIu64, sum->sent_own);
        say("addresses that a host sent to: at most %" PRIu64 " (several communicators: %" PRIu64
            "), at the end %" PRIu64 " (%" PRIu64 ")",
            most->addresses_in_use_max, most->addresses_shared_max, most->addresses_in_use,
            most->addresses_shared);
    }
    if (sum->address_joins)
        say("addresses: %" PRIu64 " joined, each after %.3f ms; %" PRIu64
            " proven, %.3f ms later; communicators came to use one %" PRIu64
            " times, %.3f ms after their first call",
            sum->address_joins, mean_ms(sum->address_join_us, sum->address_joins),
            sum->address_proofs, mean_ms(sum->address_proof_us, sum->address_proofs),
            sum->address_changes, mean_ms(sum->address_change_us, sum->address_changes));
    tell_refusals(sum);
    if (sum->memberships_lost)
        say("memberships that the network had forgotten, and that were joined again: %" PRIu64,
            sum->memberships_lost);
}

void statistics_tell(void) {
    int rank, size;
    PMPI_Comm_rank(shim.world, &rank);
    PMPI_Comm_size(shim.world, &size);
    fabricast_statistics sum = {0}, most = {0};
    for (struct process_set *s = shim.sets; s; s = s->next)
        statistics_context(s->context);
    for (struct process_set *s = shim.retired; s; s = s->next)
        statistics_context(s->context);
    uint64_t handed[REASONS];
    PMPI_Reduce(counters(&shim.ended), counters(&sum), NUMBERS, MPI_UINT64_T, MPI_SUM, 0,
                shim.world);
    PMPI_Reduce(counters(&shim.ended), counters(&most), NUMBERS, MPI_UINT64_T, MPI_MAX, 0,
                shim.world);
    if (!shim.stats) {
        if (rank == 0) {
            tell_strategy();
            tell_refusals(&sum);
        }
        return;
    }
    PMPI_Reduce(shim.handed, handed, REASONS, MPI_UINT64_T, MPI_SUM, 0, shim.world);
    if (rank != 0) {
        PMPI_Send(rows, sizeof rows, MPI_BYTE, 0, 0, shim.world);
        return;
    }
    struct row theirs[ROWS];
    for (int from = 1; from < size; from++) {
        PMPI_Recv(theirs, sizeof theirs, MPI_BYTE, from, 0, shim.world, MPI_STATUS_IGNORE);
        for (int i = 0; i < ROWS; i++)
            if (theirs[i].communicators)
                add(&theirs[i]);
    }
    tell_rows();
    tune_tell();
    say("packets: %" PRIu64 " to groups, %" PRIu64 " to one rank each; sent again: %" PRIu64
        " to groups, %" PRIu64 " to one rank each",
        sum.packets_multicast, sum.packets_unicast, sum.repairs_multicast, sum.repairs_unicast);
    tell_addresses(&sum, &most);
    say("frames that reached ranks outside their communicator: %" PRIu64, sum.frames_foreign);
    if (sum.packets_shared)
        say("through shared memory: %" PRIu64 " packets, %" PRIu64
            " bytes with everything; ranks that fell a whole ring behind: "
            "%" PRIu64,
            sum.packets_shared, sum.bytes_shared, sum.overruns_shared);
    if (sum.unshared)
        say("ranks that share no memory with others of their hosts, though they are there: "
            "%" PRIu64,
            sum.unshared);
    say("losses noticed and mended: %" PRIu64 "; dropped by kernels: %" PRIu64
        ", on purpose: %" PRIu64,
        sum.losses, sum.dropped_by_kernel, sum.dropped_on_purpose);
    say("ranks that multicast did not reach, or no more, and that are served by unicast: %" PRIu64,
        sum.unreached);
    for (int why = INVALID; why < REASONS; why++)
        if (handed[why])
            say("left to the MPI library: %" PRIu64 " calls %s", handed[why], reasons[why]);
}
