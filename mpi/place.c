/* What is known of a communicator is found out at its first use, when all its ranks are there to
 * agree: on a group of ours, or that there is none. From then on it depends on nothing else which
 * of the two serves it.
 *
 * Of a duplicate nothing is left to agree on, if the original was used before: the processes are
 * the same, and the number of its group follows from the original's number and from how many
 * duplicates there were, which all ranks make in the same order. Its group is made while it is
 * duplicated. MPI libraries copy attributes before they agree on a duplicate themselves, so when a
 * rank has the duplicate the others have its group.
 *
 * The number of a part (MPI_Comm_split and the like) follows likewise from that of the whole. It is
 * only proposed: calls that are not seen here may make parts, too, on one rank and not on another.
 * At the part's first use its ranks tell each other what they propose, and whether they have a
 * group.
 */
#include "shim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Numbers of groups that are agreed on at once: one for the communicator, the others for what is
 * made of it. When half of all numbers are gone there are no others. MPI_COMM_WORLD, which is the
 * first, has a quarter of all. */
enum { NUMBERS = 4096, WORLD = 1 };
static const uint64_t NUMBERS_OF_WORLD = 1u << 30;
/* Of those that are left a duplicate gets this part, for itself and what is made of it. */
enum { DUPLICATES_PART = 64 };
/* Of those that are left for parts one call that makes parts takes this part, as many for each rank
 * of the whole: it may become a part by itself. When fewer are left than it has ranks, nothing is
 * proposed any more. A communicator of 8 ranks that MPI_COMM_WORLD was duplicated or split into can
 * be split some thousand times. */
enum { PARTS_PART = 256 };

/* Numbers in a row. */
struct numbers {
    uint64_t first, count;
};

static uint64_t numbers_from(uint64_t id) {
    return id == WORLD ? NUMBERS_OF_WORLD : id < UINT32_MAX / 2 ? NUMBERS : 1;
}

/* The first number is the communicator's; of the others half are for duplicates, half for parts. */
static void own(struct place *place, struct numbers all) {
    place->next = all.first + 1;
    place->end = place->parts = all.first + (all.count + 1) / 2;
    place->parts_end = all.first + all.count;
}

/* Numbers that all ranks give; the largest of each comes back. */
struct vote {
    uint64_t no;               /* counted from the last rank where the first who says no is to be known */
    uint64_t scope, not_scope; /* equal numbers are told by the largest of both */
    uint64_t next, full;
    uint64_t not_next, failed; /* equal numbers likewise; whether a group could not be made of them */
};

static void agree(MPI_Comm comm, struct vote *vote) {
    PMPI_Allreduce(MPI_IN_PLACE, vote, sizeof *vote / sizeof(uint64_t), MPI_UINT64_T, MPI_MAX, comm);
}

/* Numbers that no other thread has. */
static struct numbers take_numbers(void) {
    pthread_mutex_lock(&shim.lock);
    struct numbers all = {shim.next, numbers_from(shim.next)};
    shim.next += all.count;
    pthread_mutex_unlock(&shim.lock);
    return all;
}

/* Numbers that all ranks of this communicator propose, if they made it together as part of another
 * one; otherwise numbers that no other thread has, with many threads not the same on all ranks. */
static struct numbers propose(MPI_Comm comm) {
    struct numbers *proposal;
    int found;
    if (PMPI_Comm_get_attr(comm, shim.part, &proposal, &found) == MPI_SUCCESS && found)
        return *proposal;
    return take_numbers();
}

/* A number that all have claimed: another thread may be about to take one. */
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

/* This rank's part of the group. Whether it came about. */
static int make(struct place *place, struct scope *scope, struct numbers all) {
    own(place, all);
    return all.first < UINT32_MAX &&
           fabricast_group_create(scope->context, (uint32_t)all.first, place->members,
                                  (size_t)place->size, &place->group) == FABRICAST_OK;
}

/* The group, on all ranks or on none. */
static void create(MPI_Comm comm, struct place *place, struct numbers all) {
    int failed = !make(place, place->scope, all);
    uint64_t mine = failed ? (uint64_t)(place->size - place->rank) : 0;
    struct vote vote = {.no = mine};
    agree(comm, &vote);
    if (vote.no && vote.no == mine)
        say("leaves %s of %d ranks to the MPI library: %s", place->name, place->size, fabricast_last_error());
    if (vote.no) {
        fabricast_group_abandon(place->group);
        place->group = NULL;
    }
}

/* A group for the communicator, if all its ranks can have one. */
static void settle(MPI_Comm comm, struct place *place) {
    MPI_Group group;
    PMPI_Comm_group(comm, &group);
    int *members = malloc(sizeof *members * (size_t)place->size);
    place->members = (uint32_t *)members;
    struct scope *scope = members ? scope_find(group, place->size, members) : NULL;
    /* Mostly all ranks have made as many groups: then each knows the number, and it is enough that
     * all say so. */
    struct numbers guess = propose(comm);
    int fullest, failed = scope && scope_hosts(scope, members, place->size, &fullest) > 1 && !make(place, scope, guess);
    struct vote vote = {.no = !members, .scope = scope ? scope->name : 0, .not_scope = scope ? ~scope->name : ~0ull,
                        .full = !scope_room(), .next = guess.first, .not_next = ~guess.first, .failed = (uint64_t)failed};
    agree(comm, &vote);
    int known = vote.scope && vote.scope == ~vote.not_scope;
    int agreed = known && !vote.no && !vote.failed && vote.next == ~vote.not_next;
    if (place->group && !agreed) {
        fabricast_group_abandon(place->group);
        place->group = NULL;
    }
    if (scope && (vote.no || !known)) {
        scope_release(scope);
        scope = NULL;
    }
    if (!vote.no && !known && vote.full) {
        if (place->rank == 0)
            say("leaves %d ranks to the MPI library: too many sets of processes have met since MPI_Init", place->size);
    } else if (!vote.no && !known) {
        scope = scope_create(comm);
        if (scope) {
            scope_add(scope);
            scope_members(scope, group, place->size, members);
        }
    }
    place->hosts = scope ? scope_hosts(scope, members, place->size, &fullest) : 0;
    if (place->hosts == 1) {
        place->why = ONE_HOST;
        scope_release(scope);
        scope = NULL;
    }
    place->scope = scope;
    if (scope && !place->group)
        create(comm, place, claim(comm, vote.next + numbers_from(vote.next)));
    if (scope && !place->group) {
        scope_release(scope);
        place->scope = NULL;
    }
    PMPI_Group_free(&group);
}

/* Into the list. */
static void enter(struct place *place) {
    pthread_mutex_lock(&shim.lock);
    place->next_place = shim.places;
    place->before = &shim.places;
    if (place->next_place)
        place->next_place->before = &place->next_place;
    shim.places = place;
    pthread_mutex_unlock(&shim.lock);
}

static struct place *place_new(void) {
    struct place *place = calloc(1, sizeof *place);
    if (!place) {
        /* Alone in not taking part, this rank would leave the others waiting. */
        say("no memory for a communicator");
        PMPI_Abort(MPI_COMM_WORLD, 1);
    }
    return place;
}

static void name(struct place *place, MPI_Comm comm) {
    char name[MPI_MAX_OBJECT_NAME];
    int len = 0;
    place->comm = comm;
    PMPI_Comm_get_name(comm, name, &len);
    snprintf(place->name, sizeof place->name, "%.31s", len ? name : "(unnamed)");
}

static struct place *place_create(MPI_Comm comm) {
    struct place *place = place_new();
    int inter;
    PMPI_Comm_test_inter(comm, &inter);
    PMPI_Comm_size(comm, &place->size);
    PMPI_Comm_rank(comm, &place->rank);
    place->why = inter ? INTER : NO_GROUP;
    name(place, comm);
    inside++;
    if (!inter && place->size > 1)
        settle(comm, place);
    inside--;
    if (place->group) {
        place->why = SERVED;
        tune_choose(place);
    }
    enter(place);
    PMPI_Comm_set_attr(comm, shim.keyval, place);
    return place;
}

__thread int creates_group;

int place_copy(MPI_Comm comm, int keyval, void *extra, void *value, void *copy, int *copied) {
    (void)comm, (void)keyval, (void)extra;
    struct place *old = value, *place;
    *copied = 0;
    if (!shim.on || creates_group || (old->group && old->next == old->end))
        return MPI_SUCCESS; /* it is found out at its first use */
    place = place_new();
    place->comm = MPI_COMM_NULL;
    place->why = old->why;
    place->rank = old->rank;
    place->size = old->size;
    place->hosts = old->hosts;
    if (old->group) {
        uint64_t left = old->end - old->next, part = left / DUPLICATES_PART;
        part = part ? part : 1;
        old->end -= part;
        own(place, (struct numbers){old->end, part});
        size_t bytes = sizeof *place->members * (size_t)place->size;
        place->members = malloc(bytes);
        if (!place->members) {
            say("no memory for a communicator");
            PMPI_Abort(MPI_COMM_WORLD, 1);
        }
        memcpy(place->members, old->members, bytes);
        scope_hold(place->scope = old->scope);
        if (fabricast_group_create(place->scope->context, (uint32_t)old->end, place->members, (size_t)place->size,
                                   &place->group) == FABRICAST_OK)
            tune_choose(place);
    }
    enter(place);
    *(void **)copy = place;
    *copied = 1;
    return MPI_SUCCESS;
}

void place_part(MPI_Comm comm, MPI_Comm made) {
    struct place *whole;
    int found;
    if (!shim.on || inside)
        return;
    if (PMPI_Comm_get_attr(comm, shim.keyval, &whole, &found) != MPI_SUCCESS || !found)
        return;
    /* All ranks take numbers for all parts that there can be, so that they all take the same. */
    uint64_t size = (uint64_t)whole->size, left = whole->parts_end - whole->parts;
    if (!whole->group || left < size)
        return;
    struct numbers each = {whole->parts, left / PARTS_PART / size};
    each.count = each.count ? each.count : 1;
    whole->parts += each.count * size;
    struct numbers *proposal = made == MPI_COMM_NULL ? NULL : malloc(sizeof *proposal);
    if (!proposal)
        return;
    /* No two parts have the same first member. */
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

int place_forget(MPI_Comm comm, int keyval, void *proposal, void *extra) {
    (void)comm, (void)keyval, (void)extra;
    free(proposal);
    return MPI_SUCCESS;
}

struct place *place_of(MPI_Comm comm) {
    struct place *place;
    int found;
    if (PMPI_Comm_get_attr(comm, shim.keyval, &place, &found) != MPI_SUCCESS)
        return NULL;
    if (found && place->name[0] == '\0')
        name(place, comm);
    return found ? place : place_create(comm);
}

/* Out of the list, and out of its group. With the lock. */
static void leave(struct place *place) {
    tally_place(place);
    *place->before = place->next_place;
    if (place->next_place)
        place->next_place->before = place->before;
    place->before = NULL;
    /* A duplicate that this rank has not used nobody has. */
    if (place->comm == MPI_COMM_NULL)
        fabricast_group_abandon(place->group);
    else
        fabricast_group_destroy(place->group);
    place->group = NULL;
}

int place_delete(MPI_Comm comm, int keyval, void *value, void *extra) {
    (void)comm, (void)keyval, (void)extra;
    struct place *place = value;
    if (shim.on) {
        pthread_mutex_lock(&shim.lock);
        leave(place);
        pthread_mutex_unlock(&shim.lock);
        if (place->scope)
            scope_release(place->scope);
        scopes_sweep();
    }
    free(place->members);
    free(place);
    return MPI_SUCCESS;
}

void places_leave(void) {
    pthread_mutex_lock(&shim.lock);
    while (shim.places)
        leave(shim.places);
    pthread_mutex_unlock(&shim.lock);
}
