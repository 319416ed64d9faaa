/* Counts what torch's allocator for the CPU holds: blocks that libc10 asks for. Loaded before libc.
 *
 * It is no part of torch, so that it reads every step alike, also one during which a profiler of torch runs. Scratch
 * space of oneDNN, which torch's own statistics leave out too, is not counted. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 64 /* c10::gAlignment */
#define SLOTS (1u << 22)

static struct { void *address; size_t bytes; } table[SLOTS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static size_t level, peak;
static int (*memalign_of_libc)(void **, size_t, size_t);
static void (*free_of_libc)(void *);
static void *caller_in_torch; /* it calls from one place */

/* Linear probing; the address is a multiple of the alignment. */
static size_t place(void *address) { return ((size_t)address / ALIGNMENT * 0x9E3779B97F4A7C15ull >> 20) % SLOTS; }

static void added(void *address, size_t bytes) {
    size_t i = place(address);
    while (table[i].address) i = (i + 1) % SLOTS;
    table[i].address = address;
    table[i].bytes = bytes;
    level += bytes;
    if (level > peak) peak = level;
}

static void gone(void *address) {
    size_t i = place(address);
    while (table[i].address != address) {
        if (!table[i].address) return;
        i = (i + 1) % SLOTS;
    }
    level -= table[i].bytes;
    /* Close the gap: whatever was pushed past this slot moves up. */
    for (size_t j = (i + 1) % SLOTS; table[j].address; j = (j + 1) % SLOTS)
        if ((j - place(table[j].address)) % SLOTS >= (j - i) % SLOTS) {
            table[i] = table[j];
            i = j;
        }
    table[i].address = NULL;
}

static int is_torch(void *caller) {
    Dl_info where;
    if (!caller_in_torch && dladdr(caller, &where) && where.dli_fname && strstr(where.dli_fname, "libc10.so"))
        caller_in_torch = caller;
    return caller == caller_in_torch;
}

int posix_memalign(void **address, size_t alignment, size_t bytes) {
    if (!memalign_of_libc) *(void **)&memalign_of_libc = dlsym(RTLD_NEXT, "posix_memalign");
    int error = memalign_of_libc(address, alignment, bytes);
    if (!error && alignment == ALIGNMENT && is_torch(__builtin_return_address(0))) {
        pthread_mutex_lock(&lock);
        added(*address, bytes);
        pthread_mutex_unlock(&lock);
    }
    return error;
}

void free(void *address) {
    if (!free_of_libc) *(void **)&free_of_libc = dlsym(RTLD_NEXT, "free");
    if (address && (size_t)address % ALIGNMENT == 0) {
        pthread_mutex_lock(&lock);
        gone(address);
        pthread_mutex_unlock(&lock);
    }
    free_of_libc(address);
}

size_t allocator_level(void) { return level; }
size_t allocator_peak(void) { return peak; }
void allocator_begin(void) { peak = level; }
