/* workers/refusals.c: whom a worker's log names of those that it refuses: the first refusal of an address is said at once, how many more there were
   once a minute, so that nobody fills the log. Knows addresses and time. */

enum { REFUSALS_ADDRESSES = 16, REFUSALS_SECONDS = 60 };

typedef struct refused_address {
    char address[ADDRESS_SIZE];  /* without its port; "": the place is free */
    unsigned more;               /* refusals since something was said of it, */
    double said;                 /* at this time: seconds() */
} refused_address;

typedef struct refusals {
    pthread_mutex_t lock;
    refused_address of[REFUSALS_ADDRESSES];                 /* the last place is for all that have none of their own */
} refusals;

/* The address's place, which is one that is free if it has none yet. */
static refused_address *refused_place(refusals *r, const char *address) {
    refused_address *last = &r->of[REFUSALS_ADDRESSES - 1], *place = last;
    for (refused_address *at = r->of; at < last; at++) {
        if (!strcmp(at->address, address)) return at;
        if (!*at->address && place == last) place = at;
    }
    if (!*place->address) snprintf(place->address, sizeof place->address, "%s", place == last ? "other addresses" : address);
    return place;
}

/* Counts a refusal of a peer, "10.0.0.5:4711". Whether it is to be said. */
static int refusals_count(refusals *r, const char *peer) {
    char address[ADDRESS_SIZE];
    snprintf(address, sizeof address, "%.*s", (int)(strrchr(peer, ':') - peer), peer);
    pthread_mutex_lock(&r->lock);
    refused_address *at = refused_place(r, address);
    const int first = !(at->said > 0);
    if (first) at->said = seconds();
    else at->more++;
    pthread_mutex_unlock(&r->lock);
    return first;
}

/* Says how many more there were, and forgets the addresses of which there were none. */
static void refusals_tell(refusals *r, const mote_callbacks *callbacks) {
    const double now = seconds();
    pthread_mutex_lock(&r->lock);
    for (refused_address *at = r->of; at < r->of + REFUSALS_ADDRESSES; at++) {
        if (!*at->address || now < at->said + REFUSALS_SECONDS) continue;
        if (at->more) notice(callbacks, "%s: refused %u more times within %.0f s", at->address, at->more, now - at->said);
        if (at->more) at->more = 0, at->said = now;
        else memset(at, 0, sizeof *at);
    }
    pthread_mutex_unlock(&r->lock);
}
