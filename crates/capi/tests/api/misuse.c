/* Wrong arguments, older and newer programs, and ranks that disagree. */
#include "api.h"

static int refuses(void *user, const void *mine, void *all, size_t bytes) {
    (void)user, (void)mine, (void)all, (void)bytes;
    return 5;
}

void misuse(void) {
    fabricast_context *context = NULL;
    fabricast_group *group = NULL, *none = NULL;
    fabricast_request *request = NULL;
    int done;
    enum { WRONG = FABRICAST_ERR_ARGUMENT };
    /* These calls create no context and do not involve the other processes. */
    fabricast_options o = options();
    FAILS(WRONG, "options", fabricast_context_create(NULL, &context));
    FAILS(WRONG, "null", fabricast_context_create(&o, NULL));
    o.rank = PROCESSES;
    FAILS(WRONG, "rank", fabricast_context_create(&o, &context));
    o = options();
    o.allgather = NULL;
    FAILS(WRONG, "allgather", fabricast_context_create(&o, &context));
    o = options();
    o.allgather = refuses;
    FAILS(FABRICAST_ERR_REFUSED, "allgather failed (5)", fabricast_context_create(&o, &context));
    CHECK(context == NULL);
    /* All processes learn what one of them cannot do. */
    o = options();
    if (rank == 2)
        o.interface = "nowhere0";
    FAILS(FABRICAST_ERR_REFUSED, "rank 2 cannot take part", fabricast_context_create(&o, &context));
    CHECK(strstr(fabricast_last_error(), "nowhere0") != NULL && context == NULL);
    o = options();
    if (rank == 1)
        o.scheme = "\xff";
    FAILS(FABRICAST_ERR_REFUSED, "UTF-8", fabricast_context_create(&o, &context));
    o = options();
    if (rank == 3)
        o.broadcast = "star";
    FAILS(FABRICAST_ERR_REFUSED, "broadcast, FABRICAST_BROADCAST: unknown",
          fabricast_context_create(&o, &context));
    o = options();
    if (rank == 1)
        o.groups = "pond(3)";
    FAILS(FABRICAST_ERR_REFUSED, "pond", fabricast_context_create(&o, &context));
    o = options();
    if (rank == 0)
        o.inject_delay = 500;
    FAILS(FABRICAST_ERR_REFUSED, "inject_delay", fabricast_context_create(&o, &context));
    o = options();
    if (rank == 1)
        o.inject_loss = 0.95;
    FAILS(FABRICAST_ERR_REFUSED, "inject_loss", fabricast_context_create(&o, &context));
    o = options();
    o.scheme = "no-such-scheme";
    CHECK(fabricast_context_create(&o, &context) == FABRICAST_ERR_REFUSED && context == NULL);

    context = context_of(options());
    static const uint32_t twice[] = {0, 1, 2, 3, 3}, outsiders[] = {0, 1, 2, 3, 4},
                          others[2][2] = {{0, 1}, {2, 3}};
    FAILS(WRONG, "null", fabricast_group_create(NULL, 1, twice, 4, &group));
    FAILS(WRONG, "null", fabricast_group_create(context, 1, twice, 4, NULL));
    FAILS(WRONG, "members", fabricast_group_create(context, 1, NULL, 4, &group));
    FAILS(WRONG, "members", fabricast_group_create(context, 1, twice, 0, &group));
    FAILS(WRONG, "different processes", fabricast_group_create(context, 1, twice, 5, &group));
    FAILS(WRONG, "different processes", fabricast_group_create(context, 1, outsiders, 5, &group));
    FAILS(WRONG, "this one", fabricast_group_create(context, 1, others[rank < 2], 2, &group));
    CHECK(group == NULL);
    group = group_of(context, 1);
    CHECK(fabricast_group_create(context, 1, twice, 4, &none) == WRONG && none == NULL);

    unsigned char buffer[8];
    FAILS(WRONG, "null", fabricast_bcast(NULL, buffer, 8, 0));
    FAILS(WRONG, "buffer", fabricast_bcast(group, NULL, 8, 0));
    FAILS(WRONG, "4", fabricast_bcast(group, buffer, 8, PROCESSES));
    FAILS(WRONG, "null", fabricast_ibcast(NULL, buffer, 8, 0, &request));
    FAILS(WRONG, "null", fabricast_ibcast(group, buffer, 8, 0, NULL));
    FAILS(WRONG, "buffer", fabricast_ibcast(group, NULL, 8, 0, &request));
    FAILS(WRONG, "4", fabricast_ibcast(group, buffer, 8, PROCESSES, &request));
    FAILS(WRONG, "null", fabricast_barrier(NULL));
    FAILS(WRONG, "null", fabricast_ibarrier(NULL, &request));
    FAILS(WRONG, "null", fabricast_ibarrier(group, NULL));
    CHECK(request == NULL);
    FAILS(WRONG, "null", fabricast_test(NULL, &done));
    FAILS(WRONG, "null", fabricast_test(&request, NULL));
    FAILS(WRONG, "null", fabricast_wait(NULL));
    FAILS(WRONG, "null", fabricast_flush(NULL));
    FAILS(WRONG, "null", fabricast_context_statistics(NULL, NULL));
    FAILS(WRONG, "null", fabricast_context_statistics(context, NULL));
    CHECK(fabricast_lost(NULL) == -1);
    OK(fabricast_context_destroy(NULL));
    OK(fabricast_group_destroy(NULL));
    /* None of these calls has done any harm. */
    OK(fabricast_barrier(group));
    end(context);
    OK(fabricast_group_destroy(group));
}

void sizes(void) {
    fabricast_options o = options();
    fabricast_context *context = NULL;
    o.struct_size = 0;
    FAILS(FABRICAST_ERR_ARGUMENT, "struct_size", fabricast_context_create(&o, &context));
    o.struct_size = offsetof(fabricast_options, progress) - 1;
    FAILS(FABRICAST_ERR_ARGUMENT, "struct_size", fabricast_context_create(&o, &context));
    /* An older program: fields that it does not have keep their defaults, whatever lies behind
     * them. */
    o = options();
    o.struct_size = offsetof(fabricast_options, inject_loss);
    o.inject_loss = 55;
    context = context_of(o);
    end(context);
    /* A newer program: the library ignores fields that it does not know. */
    struct newer {
        fabricast_options known;
        char more[64];
    } newer;
    memset(&newer, 0xaa, sizeof newer);
    newer.known = options();
    newer.known.struct_size = sizeof newer;
    context = context_of(newer.known);

    struct {
        fabricast_statistics known;
        unsigned char more[16];
    } s;
    memset(&s, 0xaa, sizeof s);
    s.known.struct_size = 0;
    FAILS(FABRICAST_ERR_ARGUMENT, "struct_size", fabricast_context_statistics(context, &s.known));
    s.known.struct_size = offsetof(fabricast_statistics, barriers);
    OK(fabricast_context_statistics(context, &s.known));
    CHECK(s.known.struct_size == offsetof(fabricast_statistics, barriers));
    CHECK(s.known.sent == 0 && s.known.received_bytes == 0 &&
          s.known.barriers == 0xaaaaaaaaaaaaaaaa);
    s.known.struct_size = sizeof s; /* a newer program's */
    OK(fabricast_context_statistics(context, &s.known));
    CHECK(s.known.barriers == 0 && s.known.groups == 0 && s.more[0] == 0xaa && s.more[15] == 0xaa);
    end(context);
}

void mismatch(void) {
    fabricast_context *context = context_of(options());
    fabricast_group *group = group_of(context, 1);
    /* Other members may end a group before a late process has created it. */
    meet();
    static unsigned char buffer[3000];
    if (rank == 0) {
        OK(fabricast_bcast(group, buffer, 3000, 0));
    } else {
        /* A process on another leader's host may hear from the others that lengths differ, before
         * it finds that its own length does. */
        CHECK(fabricast_bcast(group, buffer, 2999, 0) == FABRICAST_ERR_ARGUMENT);
        const char *why = fabricast_last_error();
        CHECK(strstr(why, "another number of bytes") || strstr(why, "of one length"));
        FAILS(FABRICAST_ERR_ARGUMENT, "the group has ended", fabricast_barrier(group));
        /* Other groups continue. */
    }
    fabricast_group *other = group_of(context, 2);
    OK(fabricast_barrier(other));
    meet();
    OK(fabricast_context_destroy(context));
    OK(fabricast_group_destroy(other));
    OK(fabricast_group_destroy(group));
}
