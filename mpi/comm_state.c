/* The state of communicators. All ranks of a communicator create its state together at its first
 * use: they agree on a group, or that there is none. From then on the state alone decides whether
 * Fabricast or the MPI library serves it.
 *
 * A duplicate needs no agreement if the original was used before: the processes are the same. The
 * number of its group follows from the original's number and from how many duplicates there were,
 * which all ranks make in the same order. The group is created during the duplication. MPI
 * libraries copy attributes before they agree on a duplicate themselves, so when one rank has the
 * duplicate, the other ranks have its group.
 *
 * The number of a part (MPI_Comm_split and the like) follows likewise from the number of the whole.
 * It is only a proposal: calls that the shim does not see may make parts too, on one rank and not
 * on another. At the part's first use its ranks tell each other what they propose, and whether they
 * have created a group.
 */
#include "shim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How many group numbers ranks agree on at once: one for the communicator, the others for
 * communicators made of it. Once half of all numbers are used, each communicator gets one number
 * only. MPI_COMM_WORLD comes first and has a quarter of all. */
enum { NUMBERS = 4096, WORLD = 1 };
/* A call that makes parts takes one part in 256 of the numbers left for parts, and divides them
 * equally among the ranks of the whole, because each rank may become a part by itself. When fewer
 * numbers are left than ranks, nothing is proposed any more. A communicator of 8 ranks that was
 * duplicated or split from MPI_COMM_WORLD can be split some thousand times. */
enum { PARTS_PART = 256 };

/* Consecutive group numbers. */
struct numbers {
    uint64_t first, count;
};

static uint64_t numbers_from(uint64_t id) {
    return id == WORLD ? shim.end / 4 : id < shim.end / 2 ? NUMBERS : 1;
}

/* Divides the numbers: the first is the communicator's, half of the others are for duplicates, half
 * for parts. */
static void own(struct comm_state *state, struct numbers all) {
    state->next = all.first + 1;
    state->end = state->parts = all.first + (all.count + 1) / 2;
    state->parts_end = all.first + all.count;
}

/* Numbers that ranks compare in one allreduce, which returns the largest of each. */
struct vote {
    uint64_t no; /* nonzero: an objection; `size - rank` where the first objector must be known */
    /* A value and its complement: the two maxima show whether all ranks gave the same value. */
    uint64_t set, not_set;
    uint64_t next, full;
    /* The complement of `next`, and whether a rank could not create the group. */
    uint64_t not_next, failed;
    /* The multicast address that one rank has taken for the group. */
    uint64_t address;
};

static void agree(MPI_Comm comm, struct vote *vote) {
    PMPI_Allreduce(MPI_IN_PLACE, vote, sizeof *vote / sizeof(uint64_t), MPI_UINT64_T, MPI_MAX,
                   comm);
}

/* Takes numbers that no other thread has. */
static struct numbers take_numbers(void) {
    pthread_mutex_lock(&shim.lock);
    struct numbers all = {shim.next, numbers_from(shim.next)};
    shim.next += all.count;
    pthread_mutex_unlock(&shim.lock);
    return all;
}

/* The numbers that all ranks propose for this communicator, if they made it together as part of
 * another one. Otherwise numbers that no other thread has; with many threads these differ between
 * ranks. */
static struct numbers propose(MPI_Comm comm) {
    struct numbers *proposal;
    int found;
    if (PMPI_Comm_get_attr(comm, shim.part, &proposal, &found) == MPI_SUCCESS && found)
        return *proposal;
    return take_numbers();
}

/* Numbers that all ranks have claimed. Repeats while another thread takes one on any rank. */
static struct numbers claim(MPI_Comm comm, uint64_t next) {
    struct vote vote = {.next = next};
    uint64_t id;
    do {
        id = vote.next;
        pthread_mutex_lock(&shim.lock);
        int free = id >= shim.next;
        if (free)
            shim.next = id + numbers_from(id);
        vote = (struct vote){.no = !free, .next = shim.next};
        pthread_mutex_unlock(&shim.lock);
        agree(comm, &vote);
    } while (vote.no);
    return (struct numbers){id, numbers_from(id)};
}

/* Creates this rank's part of the group. Returns whether that worked. */
static int make(struct comm_state *state, struct process_set *set, struct numbers all) {
    own(state, all);
    return all.first < shim.end &&
           fabricast_group_create(set->context, (uint32_t)all.first, state->members,
                                  (size_t)state->size, &state->group) == FABRICAST_OK;
}

/* Creates the group, on all ranks or on none. */
static void create(MPI_Comm comm, struct comm_state *state, struct numbers all) {
    int failed = !make(state, state->set, all);
    uint64_t mine = failed ? (uint64_t)(state->size - state->rank) : 0;
    struct vote vote = {.no = mine};
    agree(comm, &vote);
    if (vote.no && vote.no == mine)
        say("leaves %s of %d ranks to the MPI library: %s", state->name, state->size,
            fabricast_last_error());
    if (vote.no) {
        fabricast_group_destroy(state->group);
        state->group = NULL;
    }
}

/* Creates a group for the communicator, if all its ranks can have one. */
static void settle(MPI_Comm comm, struct comm_state *state) {
    MPI_Group group;
    PMPI_Comm_group(comm, &group);
    int *members = malloc(sizeof *members * (size_t)state->size);
    state->members = (uint32_t *)members;
    struct process_set *set = members ? process_set_find(group, state->size, members) : NULL;
    /* Usually all ranks have made equally many groups and propose the same number. Then one
     * agreement is enough. */
    struct numbers guess = propose(comm);
    int fullest, failed = set && process_set_hosts(set, members, state->size, &fullest) > 1 &&
                          !make(state, set, guess);
    uint64_t address = 0;
    if (state->group)
        fabricast_address_take(set->context, state->members, (size_t)state->size, &address);
    struct vote vote = {.no = !members,
                        .set = set ? set->name : 0,
                        .not_set = set ? ~set->name : ~0ull,
                        .full = !process_set_room(),
                        .next = guess.first,
                        .not_next = ~guess.first,
                        .failed = (uint64_t)failed,
                        .address = address};
    agree(comm, &vote);
    int known = vote.set && vote.set == ~vote.not_set;
    int agreed = known && !vote.no && !vote.failed && vote.next == ~vote.not_next;
    if (state->group && agreed)
        fabricast_group_grant(state->group, vote.address);
    if (state->group && !agreed) {
        fabricast_address_put_back(set->context, address);
        fabricast_group_destroy(state->group);
        state->group = NULL;
    }
    if (set && (vote.no || !known)) {
        process_set_release(set);
        set = NULL;
    }
    if (!vote.no && !known && vote.full) {
        if (state->rank == 0)
            say("leaves %d ranks to the MPI library: too many sets of processes have met since "
                "MPI_Init",
                state->size);
    } else if (!vote.no && !known) {
        set = process_set_create(comm);
        if (set) {
            process_set_add(set);
            process_set_members(set, group, state->size, members);
        }
    }
    state->hosts = set ? process_set_hosts(set, members, state->size, &fullest) : 0;
    if (state->hosts == 1) {
        state->why = ONE_HOST;
        process_set_release(set);
        set = NULL;
    }
    state->set = set;
    if (set && !state->group)
        create(comm, state, claim(comm, vote.next + numbers_from(vote.next)));
    if (set && !state->group) {
        process_set_release(set);
        state->set = NULL;
    }
    PMPI_Group_free(&group);
}

/* Inserts the state into the list. */
static void enter(struct comm_state *state) {
    pthread_mutex_lock(&shim.lock);
    state->next_state = shim.states;
    state->before = &shim.states;
    if (state->next_state)
        state->next_state->before = &state->next_state;
    shim.states = state;
    pthread_mutex_unlock(&shim.lock);
}

static struct comm_state *state_new(void) {
    struct comm_state *state = calloc(1, sizeof *state);
    if (!state) {
        /* The other ranks would wait for this one: the job ends instead. */
        say("no memory for a communicator");
        PMPI_Abort(MPI_COMM_WORLD, 1);
    }
    return state;
}

static void name(struct comm_state *state, MPI_Comm comm) {
    char name[MPI_MAX_OBJECT_NAME];
    int len = 0;
    state->comm = comm;
    PMPI_Comm_get_name(comm, name, &len);
    snprintf(state->name, sizeof state->name, "%.31s", len ? name : "(unnamed)");
}

static struct comm_state *state_create(MPI_Comm comm) {
    struct comm_state *state = state_new();
    int inter;
    PMPI_Comm_test_inter(comm, &inter);
    PMPI_Comm_size(comm, &state->size);
    PMPI_Comm_rank(comm, &state->rank);
    state->why = inter ? INTER : NO_GROUP;
    name(state, comm);
    inside++;
    if (!inter && state->size > 1)
        settle(comm, state);
    inside--;
    if (state->group) {
        state->why = SERVED;
        tune_choose(state);
    }
    enter(state);
    PMPI_Comm_set_attr(comm, shim.keyval, state);
    return state;
}

__thread int creates_group;

int comm_state_copy(MPI_Comm comm, int keyval, void *extra, void *value, void *copy, int *copied) {
    (void)comm, (void)keyval, (void)extra;
    struct comm_state *old = value, *state;
    *copied = 0;
    if (!shim.on || creates_group || (old->group && old->next == old->end))
        return MPI_SUCCESS; /* the ranks agree at its first use */
    state = state_new();
    state->comm = MPI_COMM_NULL;
    state->why = old->why;
    state->rank = old->rank;
    state->size = old->size;
    state->hosts = old->hosts;
    if (old->group) {
        /* The first duplicate gets half of the numbers, the k-th one in k(k + 1). So MPI_COMM_WORLD
         * has numbers for thirty thousand duplicates, and the last ones have one each. */
        uint64_t left = old->end - old->next, part = left / (old->duplicates + 2);
        part = part ? part : 1;
        old->duplicates++;
        old->end -= part;
        own(state, (struct numbers){old->end, part});
        size_t bytes = sizeof *state->members * (size_t)state->size;
        state->members = malloc(bytes);
        if (!state->members) {
            say("no memory for a communicator");
            PMPI_Abort(MPI_COMM_WORLD, 1);
        }
        memcpy(state->members, old->members, bytes);
        process_set_hold(state->set = old->set);
        if (fabricast_group_create(state->set->context, (uint32_t)old->end, state->members,
                                   (size_t)state->size, &state->group) == FABRICAST_OK)
            tune_choose(state);
    }
    enter(state);
    *(void **)copy = state;
    *copied = 1;
    return MPI_SUCCESS;
}

void comm_state_of_part(MPI_Comm comm, MPI_Comm made) {
    struct comm_state *whole;
    int found;
    if (!shim.on || inside)
        return;
    if (PMPI_Comm_get_attr(comm, shim.keyval, &whole, &found) != MPI_SUCCESS || !found)
        return;
    /* All ranks take numbers for all possible parts, so that they all take the same. */
    uint64_t size = (uint64_t)whole->size, left = whole->parts_end - whole->parts;
    if (!whole->group || left < size)
        return;
    struct numbers each = {whole->parts, left / PARTS_PART / size};
    each.count = each.count ? each.count : 1;
    whole->parts += each.count * size;
    struct numbers *proposal = made == MPI_COMM_NULL ? NULL : malloc(sizeof *proposal);
    if (!proposal)
        return;
    /* The first member identifies the part: no two parts have the same. */
    MPI_Group all, part;
    int leader = 0, there;
    PMPI_Comm_group(comm, &all);
    PMPI_Comm_group(made, &part);
    PMPI_Group_translate_ranks(part, 1, &leader, all, &there);
    PMPI_Group_free(&all);
    PMPI_Group_free(&part);
    *proposal = (struct numbers){each.first + (uint64_t)there * each.count, each.count};
    PMPI_Comm_set_attr(made, shim.part, proposal);
}

int comm_state_forget_part(MPI_Comm comm, int keyval, void *proposal, void *extra) {
    (void)comm, (void)keyval, (void)extra;
    free(proposal);
    return MPI_SUCCESS;
}

struct comm_state *comm_state_of(MPI_Comm comm) {
    struct comm_state *state;
    int found;
    if (PMPI_Comm_get_attr(comm, shim.keyval, &state, &found) != MPI_SUCCESS)
        return NULL;
    if (found && state->name[0] == '\0')
        name(state, comm);
    return found ? state : state_create(comm);
}

/* Removes the state from the list and leaves its group. The caller holds the lock. */
static void leave(struct comm_state *state) {
    statistics_state(state);
    *state->before = state->next_state;
    if (state->next_state)
        state->next_state->before = state->before;
    state->before = NULL;
    fabricast_group_destroy(state->group);
    state->group = NULL;
}

int comm_state_delete(MPI_Comm comm, int keyval, void *value, void *extra) {
    (void)comm, (void)keyval, (void)extra;
    struct comm_state *state = value;
    if (shim.on) {
        pthread_mutex_lock(&shim.lock);
        leave(state);
        pthread_mutex_unlock(&shim.lock);
        if (state->set)
            process_set_release(state->set);
        process_sets_sweep();
    }
    free(state->members);
    free(state);
    return MPI_SUCCESS;
}

void comm_states_leave(void) {
    pthread_mutex_lock(&shim.lock);
    while (shim.states)
        leave(shim.states);
    pthread_mutex_unlock(&shim.lock);
}
