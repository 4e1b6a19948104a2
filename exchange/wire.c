/* exchange/wire.c: messages between hosts: a TCP connection on which any bytes may arrive, how two hosts show each other that they know the same
   secret, and how long one waits for the other. Knows bytes, addresses and time; must not know what messages are about.

   A message is a head, {type, bytes}, and so many bytes. Numbers are little-endian, as on every processor that this runs on. Whoever is
   waited for sends a beat every WIRE_BEAT seconds while it computes; who gets nothing for WIRE_SILENCE seconds gives up. A leader sends beats as
   long as it is there; a worker that gets none for WIRE_ABSENCE seconds does without it.

   The handshake
     both     a hello: magic, what follows it, mote's version, 32 random bytes
     leader   HMAC(secret, "leader", both hellos): so the worker answers none who does not know the secret
     worker   HMAC(secret, "worker", both hellos)
   After it nothing is enciphered or signed: connections are for one machine, or for a network that nobody else is on. */

enum {
    WIRE_VERSION = 2,
    WIRE_BEAT = 2, WIRE_SILENCE = 10, WIRE_ABSENCE = 20,    /* seconds */
    WIRE_HANDSHAKE = 5,          /* seconds that all of it may take */
    SECRET_LEAST = 16            /* bytes */
};

enum { MESSAGE_BEAT = 0, MESSAGE_FIRST = 1 };               /* types; those from MESSAGE_FIRST on are their users' */

typedef struct wire_head { uint32_t type, bytes; } wire_head;

/* A connection; fd -1: there is none. One thread reads at a time. */
typedef struct wire {
    int fd;
    pthread_mutex_t writes;      /* who holds it writes a message */
    const mote_callbacks *asks;  /* whether to go on, between beats that are waited for; NULL: nobody is asked */
} wire;

/* Why a call on a wire has failed: the result of those that return int, 0: it has not. */
enum wire_failure { WIRE_FINE, WIRE_CLOSED, WIRE_SILENT, WIRE_STRANGE, WIRE_CANCELLED };

/* The failure of a call on the wire to `peer`, for which was waited so many seconds, as an error: its code. */
static int wire_fail(mote_error *err, int code, const char *peer, int failure, int waited) {
    if (failure == WIRE_CANCELLED) return fail(err, MOTE_ECANCELLED, "cancelled");
    if (failure == WIRE_SILENT) return fail(err, code, "%s has not been heard of for %d s", peer, waited);
    return fail(err, code, "%s %s", peer, failure == WIRE_CLOSED ? "has closed the connection" : "sends what is no message of mote's");
}

static void wire_open(wire *w, int fd) {
    w->fd = fd;
    w->asks = NULL;
    pthread_mutex_init(&w->writes, NULL);
}

static void wire_close(wire *w) {
    if (w->fd >= 0) close(w->fd);
    w->fd = -1;
    pthread_mutex_destroy(&w->writes);
}

/* Calls on it return, in other threads, too. */
static void wire_end(const wire *w) {
    if (w->fd >= 0) shutdown(w->fd, SHUT_RDWR);
}

/* Whether the other side has closed the connection, or cannot be reached. */
static int wire_is_lost(const wire *w) {
    struct pollfd p = {w->fd, POLLRDHUP, 0};
    return w->fd >= 0 && poll(&p, 1, 0) > 0 && p.revents & (POLLRDHUP | POLLHUP | POLLERR);
}

/* Waits until the connection can be read or written; `until`: seconds(), 0: as long as it takes. */
static int wire_wait(int fd, short events, double until) {
    for (;;) {
        const double left = until > 0 ? until - seconds() : 1;
        struct pollfd p = {fd, events, 0};
        if (fd < 0) return WIRE_CLOSED;
        if (left <= 0) return WIRE_SILENT;
        const int ready = poll(&p, 1, (int)(left * 1e3) + 1);
        if (ready > 0) return WIRE_FINE;
        if (ready < 0 && errno != EINTR) return WIRE_CLOSED;
    }
}

/* All n bytes, by then; 0: whenever they come. silence: seconds in which nothing may arrive; 0: as many as it takes. */
static int wire_read_by(int fd, void *to, size_t n, double silence, double by) {
    char *at = (char *)to;
    while (n) {
        const int code = wire_wait(fd, POLLIN, silence > 0 ? seconds() + silence : by);
        if (code) return code;
        const ssize_t got = recv(fd, at, n, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return WIRE_CLOSED;
        if (got > 0) at += got, n -= (size_t)got;
    }
    return WIRE_FINE;
}

static int wire_read(int fd, void *to, size_t n, double silence) {
    return wire_read_by(fd, to, n, silence, 0);
}

static int wire_write(int fd, const void *from, size_t n, double silence) {
    const char *at = (const char *)from;
    while (n) {
        const int code = wire_wait(fd, POLLOUT, silence > 0 ? seconds() + silence : 0);
        if (code) return code;
        const ssize_t sent = send(fd, at, n, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN && errno != EINTR) return WIRE_CLOSED;
        if (sent > 0) at += sent, n -= (size_t)sent;
    }
    return WIRE_FINE;
}

/* A part of a message's bytes. */
typedef struct wire_part { const void *bytes; size_t size; } wire_part;

static int wire_send(wire *w, uint32_t type, const wire_part *parts, int count, double silence) {
    wire_head h = {type, 0};
    for (int i = 0; i < count; i++) h.bytes += (uint32_t)parts[i].size;
    pthread_mutex_lock(&w->writes);
    int code = wire_write(w->fd, &h, sizeof h, silence);
    for (int i = 0; i < count && !code; i++) code = wire_write(w->fd, parts[i].bytes, parts[i].size, silence);
    pthread_mutex_unlock(&w->writes);
    return code;
}

/* Tells that this host lives; unless it writes at this moment, which tells it, too. */
static void wire_beat(wire *w) {
    const wire_head h = {MESSAGE_BEAT, 0};
    if (pthread_mutex_trylock(&w->writes)) return;
    (void)wire_write(w->fd, &h, sizeof h, 1);
    pthread_mutex_unlock(&w->writes);
}

/* The head of the next message that is no beat, of at most `most` bytes. */
static int wire_next(const wire *w, wire_head *h, size_t most, double silence) {
    do {
        if (w->asks && w->asks->cancel && w->asks->cancel(w->asks->user)) return WIRE_CANCELLED;
        const int code = wire_read(w->fd, h, sizeof *h, silence);
        if (code) return code;
    } while (h->type == MESSAGE_BEAT && !h->bytes);
    return h->type >= MESSAGE_FIRST && h->bytes <= most ? WIRE_FINE : WIRE_STRANGE;
}

/* ---- Addresses ----------------------------------------------------------------------------------------------------------- */

enum { ADDRESS_SIZE = 64 };      /* of its text: "10.0.0.2:7000", "[fe80::1]:7000" */

/* 0: it is none. */
static socklen_t address_read(const char *text, struct sockaddr_storage *at) {
    struct sockaddr_in *four = (struct sockaddr_in *)at;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)at;
    char host[ADDRESS_SIZE], *end;
    const char *colon = strrchr(text, ':');
    const long port = colon && colon[1] >= '0' && colon[1] <= '9' ? strtol(colon + 1, &end, 10) : -1;
    if (port < 0 || port > 65535 || *end || colon - text >= ADDRESS_SIZE) return 0;
    snprintf(host, sizeof host, "%.*s", (int)(colon - text), text);
    memset(at, 0, sizeof *at);
    if (inet_pton(AF_INET, host, &four->sin_addr) == 1) {
        four->sin_family = AF_INET;
        four->sin_port = htons((uint16_t)port);
        return sizeof *four;
    }
    const size_t n = strlen(host);
    if (n < 3 || host[0] != '[' || host[n - 1] != ']') return 0;
    host[n - 1] = 0;
    if (inet_pton(AF_INET6, host + 1, &six->sin6_addr) != 1) return 0;
    six->sin6_family = AF_INET6;
    six->sin6_port = htons((uint16_t)port);
    return sizeof *six;
}

static void address_write(const struct sockaddr_storage *at, char to[ADDRESS_SIZE]) {
    const int six = at->ss_family == AF_INET6;
    const struct sockaddr_in *four = (const struct sockaddr_in *)at;
    const struct sockaddr_in6 *long_one = (const struct sockaddr_in6 *)at;
    char host[INET6_ADDRSTRLEN] = "";
    (void)inet_ntop(at->ss_family, six ? (const void *)&long_one->sin6_addr : (const void *)&four->sin_addr, host, sizeof host);
    snprintf(to, ADDRESS_SIZE, six ? "[%s]:%d" : "%s:%d", host, ntohs(six ? long_one->sin6_port : four->sin_port));
}

/* A host that is gone is noticed, also by who waits for nothing but the end of the connection. */
static void wire_settle(int fd) {
    const int on = 1, idle = WIRE_BEAT, times = 3, most = WIRE_SILENCE * 1000;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle, sizeof idle);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof times);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &most, sizeof most);
}

/* Connects; -1: it cannot, errno says why. */
static int wire_connect(const char *address) {
    struct sockaddr_storage at;
    const socklen_t size = address_read(address, &at);
    int failed = EINVAL;
    socklen_t n = sizeof failed;
    const int fd = size ? socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0) : -1;
    if (fd < 0) return -1;
    if (!connect(fd, (struct sockaddr *)&at, size)) failed = 0;
    else if (errno != EINPROGRESS) failed = errno;
    else if (wire_wait(fd, POLLOUT, seconds() + WIRE_HANDSHAKE)) failed = ETIMEDOUT;
    else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &n)) failed = errno;
    wire_settle(fd);
    if (!failed) return fd;
    close(fd);
    errno = failed;
    return -1;
}

/* ---- The handshake ------------------------------------------------------------------------------------------------------- */

typedef struct wire_hello {
    char magic[8];
    uint32_t version, reserved;
    char engine[32];             /* MOTE_VERSION */
    unsigned char random[32];
} wire_hello;

/* What both have said, and who says that it knows the secret. */
typedef struct wire_proof { char who[8]; wire_hello leader, worker; } wire_proof;

static int hello_is(wire_hello *h) {
    memset(h, 0, sizeof *h);
    memcpy(h->magic, "mote\r\n\x1a", 8);
    h->version = WIRE_VERSION;
    snprintf(h->engine, sizeof h->engine, "%s", MOTE_VERSION);
    return getentropy(h->random, sizeof h->random);
}

static void proof_of(const char *secret, const char *who, const wire_hello *leader, const wire_hello *worker, unsigned char to[SHA256_SIZE]) {
    wire_proof text = {.who = "", .leader = *leader, .worker = *worker};
    snprintf(text.who, sizeof text.who, "%s", who);
    hmac_sha256(secret, strlen(secret), &text, sizeof text, to);
}

/* In a time that does not depend on where they differ. */
static int proof_equal(const unsigned char *a, const unsigned char *b) {
    int differ = 0;
    for (int i = 0; i < SHA256_SIZE; i++) differ |= a[i] ^ b[i];
    return !differ;
}

/* After a connection has come to be, from either side. peer: who it is, for messages. */
static int wire_shake(int fd, const char *secret, int leads, const char *peer, mote_error *err) {
    wire_hello own, other;
    unsigned char wanted[SHA256_SIZE], got[SHA256_SIZE];
    const double until = seconds() + WIRE_HANDSHAKE;
    int code = hello_is(&own) ? WIRE_CLOSED : wire_write(fd, &own, sizeof own, WIRE_HANDSHAKE);
    const wire_hello *leader = leads ? &own : &other, *worker = leads ? &other : &own;
    if (!code) code = wire_read_by(fd, &other, sizeof other, 0, until);
    if (!code && memcmp(own.magic, other.magic, sizeof own.magic)) code = WIRE_STRANGE;
    if (code) return wire_fail(err, MOTE_EIO, peer, code, WIRE_HANDSHAKE);
    for (size_t i = 0; i < sizeof other.engine; i++)
        if (other.engine[i] && (other.engine[i] < ' ' || other.engine[i] > '~')) other.engine[i] = '?';
    other.engine[sizeof other.engine - 1] = 0;
    if (own.version != other.version || memcmp(own.engine, other.engine, sizeof own.engine))
        return fail(err, MOTE_EUNSUPPORTED, "%s is mote %s, protocol %u; this is mote %s, protocol %u", peer, other.engine, other.version,
                    own.engine, own.version);
    proof_of(secret, leads ? "worker" : "leader", leader, worker, wanted);
    for (int turn = 0; turn < 2 && !code; turn++) {
        if (turn == leads) {
            code = wire_read_by(fd, got, sizeof got, 0, until);
            if (!code && !proof_equal(wanted, got)) return fail(err, MOTE_EINVAL, "%s has another secret", peer);
        } else {
            proof_of(secret, leads ? "leader" : "worker", leader, worker, got);
            code = wire_write(fd, got, sizeof got, WIRE_HANDSHAKE);
        }
    }
    if (code == WIRE_CLOSED && leads) return fail(err, MOTE_EINVAL, "%s has closed the connection: it has another secret", peer);
    return code ? wire_fail(err, MOTE_EIO, peer, code, WIRE_HANDSHAKE) : MOTE_OK;
}
