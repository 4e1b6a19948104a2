/* tests/simulator/memory.h: memory of devices: a range of addresses for each. Poisoned with NaNs; each piece ends where nothing can be read. */

namespace sim {

static const size_t SPACE = (size_t)1 << 38;                /* bytes of addresses of a device */

static char *spaces;             /* [DEVICES][SPACE]; NULL: nothing has been allocated */

/* Of a device. */
struct device_memory {
    std::map<char *, size_t> taken;                         /* pieces with the page before each: freed addresses are used again late */
    char *next;                  /* where to look for the next piece first */
    size_t used;                 /* bytes */
};
static device_memory memories[DEVICES];
static std::map<void *, size_t> registered;                 /* host memory: cudaHostRegister */
static std::mutex memory_lock;   /* of these */

/* Whose memory this is; -1: no device's. */
static inline int owner(const void *at) {
    const size_t offset = (size_t)((const char *)at - spaces);
    return spaces && offset < DEVICES * SPACE ? (int)(offset / SPACE) : -1;
}

/* A kernel uses this address. */
static inline void reach(const void *at) {
    const size_t offset = (size_t)((const char *)at - spaces);
    if (offset >= DEVICES * SPACE || !spaces) return;
    const int of = (int)(offset / SPACE);
    if (of != current && !devices[current].reaches[of]) fault("%p is memory of device %d, to which device %d has no peer access", at, of, current);
}

/* Addresses for so many bytes; NULL: there are none. */
static char *find_addresses(device_memory *m, char *first, size_t bytes) {
    if (!m->next) m->next = first;
    for (int tries = 0; tries < 2; tries++, m->next = first) {
        char *at = m->next;
        for (auto i = m->taken.lower_bound(at); i != m->taken.end() && (size_t)(i->first - at) < bytes; i++) at = i->first + i->second;
        if ((size_t)(first + SPACE - at) >= bytes + PAGE) return m->next = at + bytes, at;
    }
    return NULL;
}

static void *allocate(int device, size_t bytes) {
    const size_t size = (bytes + 255) / 256 * 256, pages = (size + PAGE - 1) / PAGE * PAGE;
    std::lock_guard<std::mutex> one(memory_lock);
    device_memory *m = &memories[device];
    if (!spaces) {
        void *at = mmap(NULL, DEVICES * SPACE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) fault("no addresses for the memory of %d devices", DEVICES);
        spaces = (char *)at;
    }
    char *at = find_addresses(m, spaces + (size_t)device * SPACE, pages + PAGE);
    if (!at || mprotect(at + PAGE, pages, PROT_READ | PROT_WRITE)) return NULL;
    memset(at + PAGE, 0xff, pages);
    m->taken[at] = pages + PAGE;
    m->used += pages;
    return at + PAGE + pages - size;
}

static void release(void *pointer) {
    std::lock_guard<std::mutex> one(memory_lock);
    const int device = owner(pointer);
    char *at = (char *)((uintptr_t)pointer / PAGE * PAGE) - PAGE;
    if (device < 0 || !memories[device].taken.count(at)) fault("cudaFree(%p), which was not allocated", pointer);
    device_memory *m = &memories[device];
    const size_t bytes = m->taken[at];
    mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    m->taken.erase(at);
    m->used -= bytes - PAGE;
}

}
