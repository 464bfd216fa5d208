/*
 * ../tuning_table.c without MPI: what a table keeps, and which choices follow. Works in the
 * directory that is its argument.
 */
#define _GNU_SOURCE
#include "../tuning_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf("FAIL %s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                    \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static const char shape[] =
    "MPICH 4.0.2, 8 ranks on 8 hosts, 1 on the fullest, eth0 of MTU 1500 and 10000 Mbit/s";
static char path[4096];

static struct tuning_table some(uint64_t ns) {
    struct tuning_table v = {.count = 9,
                             .rows = {{8, 0, "release(32)", 41000, 90000},
                                      {8, 0, "dissemination(3)", 40000, 90000},
                                      {8, 0, "dissemination(1)", 95000, 90000},
                                      {8, 4, "", 30 * ns, 20 * ns},
                                      {8, 1024, "", 22 * ns, 20 * ns},
                                      {8, 8192, "", 23 * ns, 20 * ns},
                                      {8, 65536, "", ns, 20 * ns},
                                      {2, 4, "", ns, 20 * ns},
                                      {2, 0, "release(32)", 111, 100}}};
    return v;
}

static void write_text(const char *text, size_t len) {
    FILE *file = fopen(path, "w");
    CHECK(file && fwrite(text, 1, len, file) == len && fclose(file) == 0);
}

static char *read_text(void) {
    static char text[1 << 14];
    FILE *file = fopen(path, "r");
    CHECK(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return text;
}

/* Checks that the text with one part replaced is refused, for a reason that contains these
 * words. */
static void refused(const char *good, const char *part, const char *other, const char *words) {
    char text[1 << 14];
    const char *at = strstr(good, part);
    CHECK(at);
    int len =
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good), good, other, at + strlen(part));
    write_text(text, (size_t)len);
    struct tuning_table v;
    const char *why = tuning_table_load(path, shape, &v);
    CHECK(why && strstr(why, words) && v.count == 0);
}

/* The linker calls these in place of the C library's (--wrap). */
int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
static int is_on_disk;

int __wrap_fsync(int fd) {
    is_on_disk = 1;
    return __real_fsync(fd);
}

int __wrap_rename(const char *from, const char *to) {
    CHECK(is_on_disk);
    is_on_disk = 0;
    return __real_rename(from, to);
}

static void files(void) {
    struct tuning_table saved = some(1000), loaded;
    CHECK(strstr(tuning_table_load(path, shape, &loaded), "No such file"));
    CHECK(tuning_table_save(path, shape, &saved) == NULL);
    CHECK(tuning_table_load(path, shape, &loaded) == NULL &&
          memcmp(&saved, &loaded, sizeof saved) == 0);
    CHECK(strstr(tuning_table_load(path, "MPICH 4.0.2, 9 ranks", &loaded), "another shape") &&
          loaded.count == 0);
    char *good = strdup(read_text());
    for (size_t len = 0; len < strlen(good); len++) {
        write_text(good, len);
        CHECK(strstr(tuning_table_load(path, shape, &loaded), "damaged") && loaded.count == 0);
    }
    refused(good, "verdict 1", "verdict 2", "damaged");
    refused(good, "shape ", "form ", "damaged");
    refused(good, "bcast 8 4 ", "bcast 8 0 ", "damaged");
    refused(good, "bcast 8 4 ", "bcast 1 4 ", "damaged");
    refused(good, "bcast 8 4 ", "bcast 8 4 7 ", "damaged");
    refused(good, "bcast 8 4 ", "bcast 8 4000000000000 ", "damaged");
    refused(good, "bcast 8 4 ", "reduce 8 4 ", "damaged");
    refused(good, "bcast 8 4 30000", "bcast 8 4 0", "damaged");
    refused(good, "bcast 8 4 30000", "bcast 8 4 -30000", "damaged");
    refused(good, "dissemination(3)", "a-barrier-with-far-too-long-a-name", "damaged");
    refused(good, "end\n", "end\nbcast 8 4 1 1\n", "damaged");
    char *many = malloc(1 << 14);
    *many = '\0';
    for (int i = 0; i <= ROWS_MAX; i++)
        strcat(many, "bcast 8 4 1 1\n");
    refused(good, "end\n", strcat(many, "end\n"), "damaged");
    free(many);
    /* A file that a power failure may leave. */
    char zeros[100] = {0};
    for (size_t len = 1; len <= sizeof zeros; len++) {
        zeros[len - 1] = '\n';
        write_text(zeros, len);
        CHECK(strstr(tuning_table_load(path, shape, &loaded), "damaged") && loaded.count == 0);
        zeros[len - 1] = '\0';
    }
    refused(good, "shape ", "\n", "damaged");
    free(good);
    printf("ok table: files\n");
}

/* Two jobs save at the same time: a third job finds the complete table of one of them. */
static void writers(void) {
    struct tuning_table loaded, wrote[2] = {some(1000), some(2000)};
    CHECK(tuning_table_save(path, shape, &wrote[0]) == NULL);
    fflush(stdout);
    for (int c = 0; c < 2; c++)
        if (fork() == 0) {
            int good = 1;
            for (int i = 0; i < 100; i++)
                good &= tuning_table_save(path, shape, &wrote[c]) == NULL;
            _exit(!good);
        }
    int running = 2, status;
    while (running > 0) {
        CHECK(tuning_table_load(path, shape, &loaded) == NULL);
        int which = memcmp(&loaded, &wrote[0], sizeof loaded) != 0;
        CHECK(memcmp(&loaded, &wrote[which], sizeof loaded) == 0);
        if (waitpid(-1, &status, WNOHANG) > 0) {
            CHECK(status == 0);
            running--;
        }
    }
    printf("ok table: several writers\n");
}

static int bcast_is_lost(const struct tuning_table *v, uint32_t ranks, uint64_t bytes) {
    struct choice choice;
    tuning_table_choose(v, ranks, &choice);
    const struct measured *by = choice_bcast(&choice, bytes);
    return by && tuning_table_is_lost(by);
}

static void choices(void) {
    struct tuning_table v = some(1000), nothing = {0};
    struct choice choice;
    tuning_table_choose(&nothing, 8, &choice);
    CHECK(!choice_bcast(&choice, 4) && !choice.barrier);
    /* 10 % is noise, 15 % is not. */
    CHECK(bcast_is_lost(&v, 8, 4) && !bcast_is_lost(&v, 8, 1024) && bcast_is_lost(&v, 8, 8192) &&
          !bcast_is_lost(&v, 8, 65536));
    /* 64 is the border between 4 and 1024; the root of their product, 2896, between 1024 and
     * 8192. */
    CHECK(bcast_is_lost(&v, 8, 1) && bcast_is_lost(&v, 8, 63) && !bcast_is_lost(&v, 8, 64));
    CHECK(!bcast_is_lost(&v, 8, 2896) && bcast_is_lost(&v, 8, 2897));
    CHECK(bcast_is_lost(&v, 8, 23170) && !bcast_is_lost(&v, 8, 23171) &&
          !bcast_is_lost(&v, 8, 1ull << 40));
    /* Numbers of ranks likewise: 4 is the border between 2 and 8. */
    CHECK(bcast_is_lost(&v, 1000, 4) && bcast_is_lost(&v, 5, 4) && bcast_is_lost(&v, 4, 4) &&
          !bcast_is_lost(&v, 3, 4));
    /* Fabricast's fastest barrier is compared with the library's. */
    tuning_table_choose(&v, 9, &choice);
    CHECK(strcmp(choice.barrier->schedule, "dissemination(3)") == 0 &&
          !tuning_table_is_lost(choice.barrier));
    tuning_table_choose(&v, 2, &choice);
    CHECK(strcmp(choice.barrier->schedule, "release(32)") == 0 &&
          tuning_table_is_lost(choice.barrier));
    /* Rows may come in any order and any number. */
    struct tuning_table other = {.count = ROWS_MAX};
    for (uint32_t i = 0; i < ROWS_MAX; i++)
        other.rows[i] = (struct measured){8, ROWS_MAX - i, "", 1000, 1000};
    tuning_table_choose(&other, 8, &choice);
    CHECK(choice.points == POINTS_MAX);
    for (int i = 1; i < POINTS_MAX; i++)
        CHECK(choice.of[i - 1].by->bytes < choice.of[i].by->bytes &&
              choice.of[i - 1].up_to <= choice.of[i].up_to);
    printf("ok table: choices\n");
}

static void places(void) {
    char at[256];
    unsetenv("FABRICAST_CACHE"), unsetenv("XDG_CACHE_HOME"), unsetenv("HOME");
    CHECK(!tuning_table_path("a, b/c", at, sizeof at));
    setenv("HOME", "/home/me", 1);
    CHECK(tuning_table_path("a, b/c", at, sizeof at) &&
          strcmp(at, "/home/me/.cache/fabricast/a--b-c") == 0);
    setenv("XDG_CACHE_HOME", "/var/cache", 1);
    CHECK(tuning_table_path("4.0.2", at, sizeof at) &&
          strcmp(at, "/var/cache/fabricast/4.0.2") == 0);
    setenv("FABRICAST_CACHE", "here", 1);
    CHECK(tuning_table_path("a", at, sizeof at) && strcmp(at, "here/a") == 0);
    CHECK(!tuning_table_path("abc", at, 8) && tuning_table_path("ab", at, 8));
    setenv("FABRICAST_CACHE", "off", 1);
    CHECK(!tuning_table_path("a", at, sizeof at));
    printf("ok table: places\n");
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    /* `tuning_table_save` creates missing directories. */
    snprintf(path, sizeof path, "%s/a/b/table", argv[1]);
    files();
    writers();
    choices();
    places();
    return 0;
}
