/* What runs in a guest and knows what it wrote:
 *
 *   helper files make|check DIR COUNT   files of 100 to 20000 octets, their content made of their
 *                                       number; each hundred is on the disk before it is told
 *   helper touch MB ROUNDS              memory that is written, and in each round compared and written anew
 *   helper crypt DEVICE SECTORS         an encrypted device above it (dm-crypt): the first of the device mapper
 *   helper uncrypt                      that is taken away
 *
 * Exits 1 with a line that says what is wrong. */
#include <fcntl.h>
#include <linux/dm-ioctl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static void fill(uint64_t *words, size_t count, uint64_t seed) {
    for (size_t i = 0; i < count; i++) words[i] = mix(seed + i);
}

static int fail(const char *what, long number) {
    fprintf(stderr, "helper: %s %ld: ", what, number);
    perror("");
    return 1;
}

static int files(int make, const char *dir, long count) {
    static uint64_t want[2560], have[2560];
    for (long n = 0; n < count; n++) {
        char path[512];
        size_t octets = 100 + mix(n) % 19900;
        snprintf(path, sizeof path, "%s/f%ld", dir, n);
        fill(want, 2560, (uint64_t)n << 32);
        int file = open(path, make ? O_WRONLY | O_CREAT | O_EXCL : O_RDONLY, 0644);
        if (file < 0) return fail("cannot open file", n);
        if (make) {
            if (write(file, want, octets) != (ssize_t)octets) return fail("cannot write file", n);
        } else {
            if (read(file, have, sizeof have) != (ssize_t)octets) return fail("wrong length of file", n);
            if (memcmp(want, have, octets)) { fprintf(stderr, "helper: wrong content of file %ld\n", n); return 1; }
        }
        if (close(file)) return fail("cannot close file", n);
        if (n % 100 == 99) { if (make) sync(); printf("helper: %ld files\n", n + 1); fflush(stdout); }
    }
    return 0;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static int touch(size_t mb, int rounds) {
    size_t pages = mb << 8, words = 4096 / 8;
    uint64_t *memory = mmap(0, pages << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    static uint64_t want[4096 / 8];
    double start = now();
    if (memory == MAP_FAILED) return fail("no memory, MB", mb);
    for (size_t page = 0; page < pages; page++) {
        fill(memory + page * words, words, page << 16);
        if (page % 4096 == 4095) { printf("helper: %zu MB so far\n", (page + 1) >> 8); fflush(stdout); }
    }
    printf("helper: %zu MB written after %.1f s\n", mb, now() - start);
    fflush(stdout);
    for (int round = 1; round <= rounds; round++) {
        for (size_t page = 0; page < pages; page++) {
            fill(want, words, (page << 16) + ((uint64_t)(round - 1) << 48));
            if (memcmp(memory + page * words, want, 4096)) {
                fprintf(stderr, "helper: wrong content of page %zu in round %d\n", page, round);
                return 1;
            }
            fill(memory + page * words, words, (page << 16) + ((uint64_t)round << 48));
        }
        printf("helper: round %d after %.1f s\n", round, now() - start);
        fflush(stdout);
    }
    return 0;
}

/* One request to the device mapper, with a table of one line or none. */
static int mapper(unsigned long request, const char *device, long sectors) {
    static struct { struct dm_ioctl head; struct dm_target_spec spec; char line[512]; } ask;
    int control = open("/dev/mapper/control", O_RDWR);
    if (control < 0) return fail("no device mapper", 0);
    memset(&ask, 0, sizeof ask);
    ask.head.version[0] = DM_VERSION_MAJOR;
    ask.head.data_size = sizeof ask;
    ask.head.data_start = sizeof ask.head;
    strcpy(ask.head.name, "plain");
    if (device) {
        ask.head.target_count = 1;
        ask.spec.length = sectors;
        strcpy(ask.spec.target_type, "crypt");
        int n = snprintf(ask.line, sizeof ask.line, "aes-xts-plain64 ");
        for (int i = 0; i < 64; i++) n += snprintf(ask.line + n, sizeof ask.line - n, "%02x", (int)(mix(i) & 255));
        snprintf(ask.line + n, sizeof ask.line - n, " 0 %s 0", device);
    }
    if (ioctl(control, request, &ask)) return fail("the device mapper refuses", (long)(request & 255));
    return close(control);
}

static int encrypt_it(const char *device, long sectors) {
    return mapper(DM_DEV_CREATE, 0, 0) || mapper(DM_TABLE_LOAD, device, sectors) || mapper(DM_DEV_SUSPEND, 0, 0);
}

int main(int argc, char **argv) {
    if (argc == 5 && !strcmp(argv[1], "files")) return files(!strcmp(argv[2], "make"), argv[3], atol(argv[4]));
    if (argc == 4 && !strcmp(argv[1], "touch")) return touch(atol(argv[2]), atoi(argv[3]));
    if (argc == 4 && !strcmp(argv[1], "crypt")) return encrypt_it(argv[2], atol(argv[3]));
    if (argc == 2 && !strcmp(argv[1], "uncrypt")) return mapper(DM_DEV_REMOVE, 0, 0);
    fprintf(stderr, "usage: helper files make|check DIR COUNT | touch MB ROUNDS | crypt DEVICE SECTORS | uncrypt\n");
    return 2;
}
