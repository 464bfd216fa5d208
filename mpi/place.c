/* What is known of a communicator is found out at its first use, when all its ranks are there to agree: on a group
 * of ours, or that there is none. From then on it depends on nothing else which of the two serves it.
 */
#include "shim.h"

#include <stdio.h>
#include <stdlib.h>

/* Numbers that all ranks give; the largest of each comes back. */
struct vote {
    uint64_t no;               /* counted from the last rank where the first who says no is to be known */
    uint64_t scope, not_scope; /* equal numbers are told by the largest of both */
    uint64_t next, full;
};

static void agree(MPI_Comm comm, struct vote *vote) {
    PMPI_Allreduce(MPI_IN_PLACE, vote, sizeof *vote / sizeof(uint64_t), MPI_UINT64_T, MPI_MAX, comm);
}

/* A number that all have claimed: another thread may be about to take one. */
static uint32_t claim(MPI_Comm comm, uint64_t next) {
    struct vote vote = {.next = next};
    uint64_t id;
    do {
        id = vote.next;
        pthread_mutex_lock(&shim.lock);
        int free = id >= shim.next;
        if (free)
            shim.next = (uint32_t)id + 1;
        vote = (struct vote){.no = !free, .next = shim.next};
        pthread_mutex_unlock(&shim.lock);
        agree(comm, &vote);
    } while (vote.no);
    return (uint32_t)id;
}

/* The group, on all ranks or on none. */
static void create(MPI_Comm comm, struct place *place, const int *members, uint32_t id) {
    int failed = fabricast_group_create(place->scope->context, id, (const uint32_t *)members, (size_t)place->size,
                                        &place->group) != FABRICAST_OK;
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
    struct scope *scope = members ? scope_find(group, place->size, members) : NULL;
    struct vote vote = {.no = !members, .scope = scope ? scope->name : 0, .not_scope = scope ? ~scope->name : ~0ull,
                        .full = !scope_room()};
    pthread_mutex_lock(&shim.lock);
    vote.next = shim.next;
    pthread_mutex_unlock(&shim.lock);
    agree(comm, &vote);
    int known = vote.scope && vote.scope == ~vote.not_scope;
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
    int fullest;
    place->hosts = scope ? scope_hosts(scope, members, place->size, &fullest) : 0;
    if (place->hosts == 1) {
        place->why = ONE_HOST;
        scope_release(scope);
        scope = NULL;
    }
    place->scope = scope;
    if (scope)
        create(comm, place, members, claim(comm, vote.next));
    if (scope && !place->group) {
        scope_release(scope);
        place->scope = NULL;
    }
    free(members);
    PMPI_Group_free(&group);
}

static struct place *place_create(MPI_Comm comm) {
    struct place *place = calloc(1, sizeof *place);
    if (!place) {
        /* Alone in not taking part, this rank would leave the others waiting. */
        say("no memory for a communicator");
        PMPI_Abort(MPI_COMM_WORLD, 1);
    }
    int inter;
    place->comm = comm;
    PMPI_Comm_test_inter(comm, &inter);
    PMPI_Comm_size(comm, &place->size);
    PMPI_Comm_rank(comm, &place->rank);
    place->why = inter ? INTER : NO_GROUP;
    char name[MPI_MAX_OBJECT_NAME];
    int len = 0;
    PMPI_Comm_get_name(comm, name, &len);
    snprintf(place->name, sizeof place->name, "%.31s", len ? name : "(unnamed)");
    inside++;
    if (!inter && place->size > 1)
        settle(comm, place);
    inside--;
    if (place->group) {
        place->why = SERVED;
        tune_choose(place);
    }
    pthread_mutex_lock(&shim.lock);
    place->next = shim.places;
    place->before = &shim.places;
    if (place->next)
        place->next->before = &place->next;
    shim.places = place;
    pthread_mutex_unlock(&shim.lock);
    PMPI_Comm_set_attr(comm, shim.keyval, place);
    return place;
}

struct place *place_of(MPI_Comm comm) {
    struct place *place;
    int found;
    if (PMPI_Comm_get_attr(comm, shim.keyval, &place, &found) != MPI_SUCCESS)
        return NULL;
    return found ? place : place_create(comm);
}

/* Out of the list, and out of its group. With the lock. */
static void leave(struct place *place) {
    tally_place(place);
    *place->before = place->next;
    if (place->next)
        place->next->before = place->before;
    place->before = NULL;
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
    free(place);
    return MPI_SUCCESS;
}

void places_leave(void) {
    pthread_mutex_lock(&shim.lock);
    while (shim.places)
        leave(shim.places);
    pthread_mutex_unlock(&shim.lock);
}
