/* model/parts.c: a model in parts: which device has which layers, and the opening of each part on its device. What a session sees is the front:
   a model without weights, whose members have them. Knows what layers weigh; must not know where weights come from, nor how parts exchange
   anything. */

/* ---- Which layers -------------------------------------------------------------------------------------------------------- */

enum { PARTS_CONTEXT = 8192 };   /* tokens: their keys and values are to fit beside the weights, where that can be had */

typedef struct layer_cut {
    const mote_model *m;         /* described, as a whole */
    int ranges;
    int spare;                   /* devices keep memory free: a sixteenth, and that for a context */
    uint64_t free[DEVICES_MAX];  /* bytes, of each device */
} layer_cut;

/* What a session remembers of a layer. */
static uint64_t layer_keeps(const mote_model *m, int i, int context) {
    layer_state none;
    state_piece piece[STATE_PIECES];
    capacity r;
    uint64_t bytes = 0;
    memset(&none, 0, sizeof none);
    memset(&r, 0, sizeof r);
    r.kv = m->memory->kv;
    r.context = context;
    for (int k = layer_pieces(model_layer(m, i), &r, &none, piece); k--;)
        bytes += piece[k].size * (uint64_t)(!piece[k].rows ? 1 : piece[k].window ? min_int(piece[k].window, context) : context);
    return bytes;
}

/* Bytes that layer i takes; of number c.layers, what comes after the layers. */
static uint64_t cut_layer(const layer_cut *c, int i) {
    const mote_model *m = c->m;
    const int keeps = c->spare && (i < m->c.layers || m->has_mtp);
    return m->layer_bytes[i + 1] + (keeps ? layer_keeps(m, i, min_int(m->c.context_max, PARTS_CONTEXT)) : 0);
}

/* Bytes that a range takes beside its layers. */
static uint64_t cut_ends(const layer_cut *c, int range) {
    const mote_model *m = c->m;
    const int last = range + 1 == c->ranges, embeds = !range || (last && (embedding_is_head(m) || m->has_mtp));
    return (embeds ? m->layer_bytes[0] : 0) + (last ? cut_layer(c, m->c.layers) : 0);
}

static uint64_t cut_free(const layer_cut *c, int range) {
    return c->spare ? c->free[range] - c->free[range] / 16 : c->free[range];
}

/* A way to give the first layers to the first ranges: the heaviest range, and where the last of them begins. */
typedef struct cut_way { uint64_t heaviest; int first; } cut_way;

/* Layers [.., at) for ranges [0, d]: the best of all ways to give range d the last of them, while before [.., first) are those of the ranges
   before it. bytes, weight: [layers + 1] of all layers before one. The MTP layer weighs as much as the layer before it. */
static cut_way cut_at(const layer_cut *c, int d, int at, const uint64_t *bytes, const uint64_t *weight, const cut_way *before) {
    const int last = d + 1 == c->ranges, count = c->m->c.layers;
    const uint64_t beside = cut_ends(c, d), mtp = last && c->m->has_mtp ? weight[count] - weight[count - 1] : 0;
    cut_way best = {UINT64_MAX, 0};
    for (int first = d ? at - 1 : min_int(0, at - 1); first >= d; first--) {
        const uint64_t own = weight[at] - weight[first] + mtp, most = d && before[first].heaviest > own ? before[first].heaviest : own;
        if (own >= best.heaviest || bytes[at] - bytes[first] + beside > cut_free(c, d)) break;
        if (most < best.heaviest) best.heaviest = most, best.first = first;
    }
    return best;
}

/* Divides the layers so that the heaviest range is as light as can be: each reads its own for every token, and computes them for every prompt,
   while the others compute theirs. *fits: there is a way to. */
static int cut_evenly(const layer_cut *c, int *layers, int *fits, mote_error *err) {
    const int count = c->m->c.layers;
    const size_t row = (size_t)count + 1;
    uint64_t *bytes = (uint64_t *)calloc(2 * row, sizeof *bytes), *weight = bytes + row;
    cut_way *way = (cut_way *)calloc((size_t)c->ranges * row, sizeof *way);    /* [ranges][layers + 1] */
    for (int i = 0; i < count && bytes; i++) {
        bytes[i + 1] = bytes[i] + cut_layer(c, i);
        weight[i + 1] = weight[i] + c->m->layer_bytes[i + 1];
    }
    for (int d = 0; d < c->ranges && bytes && way; d++)
        for (int at = 0; at <= count; at++) way[(size_t)d * row + (size_t)at] = cut_at(c, d, at, bytes, weight, d ? &way[(size_t)(d - 1) * row] : NULL);
    *fits = way && way[(size_t)c->ranges * row - 1].heaviest < UINT64_MAX;
    for (int d = c->ranges - 1, at = count; d >= 0 && *fits; d--) {
        const int first = way[(size_t)d * row + (size_t)at].first;
        layers[d] = at - first;
        at = first;
    }
    const int code = bytes && way ? MOTE_OK : fail_memory(err);
    free(bytes);
    free(way);
    return code;
}

/* ", cuda:0 has 78.1 GB free, cuda:1 78.1 GB": what of `size` bytes at `to` it takes, it has not more. */
static void free_text(const layer_cut *c, const device_list *l, char *to, size_t size) {
    size_t n = 0;
    *to = 0;
    for (int d = 0; d < c->ranges && n < size; d++)
        n += (size_t)snprintf(to + n, size - n, d ? ", %s %.1f GB" : "%s has %.1f GB free", l->name[d], (double)c->free[d] * 1e-9);
}

/* The layers that were asked for. */
static int cut_as_asked(const layer_cut *c, const device_list *l, const char *name, mote_error *err) {
    int count = 0, at = 0;
    for (int d = 0; d < c->ranges; d++) count += l->layers[d];
    if (count != c->m->c.layers)
        return fail(err, MOTE_EINVAL, "%s: the layers asked for are %d in all, the model has %d", name, count, c->m->c.layers);
    for (int d = 0; d < c->ranges; d++) {
        uint64_t held = cut_ends(c, d);
        for (int end = at + l->layers[d]; at < end; at++) held += cut_layer(c, at);
        if (held > c->free[d])
            return fail(err, MOTE_ENOMEM, "%s: with %d layers %s needs %.1f GB for the weights, and has %.1f GB free", name, l->layers[d],
                        l->name[d], (double)held * 1e-9, (double)c->free[d] * 1e-9);
    }
    return MOTE_OK;
}

/* The layers of each range, into l->layers unless they are there. */
static int cut_layers(layer_cut *c, device_list *l, const char *name, mote_error *err) {
    const mote_model *m = c->m;
    char free_there[256];
    uint64_t all = 0;
    if (c->ranges > m->c.layers)
        return fail(err, MOTE_EUNSUPPORTED, "%s: %d layers cannot be divided into %d ranges", name, m->c.layers, c->ranges);
    if (l->layers[0]) return cut_as_asked(c, l, name, err);
    int fits, code = cut_evenly(c, l->layers, &fits, err);
    if (!code && !fits) c->spare = 0, code = cut_evenly(c, l->layers, &fits, err);
    if (code || fits) return code;
    for (int d = 0; d < c->ranges; d++) all += cut_ends(c, d);
    for (int i = 0; i < m->c.layers; i++) all += cut_layer(c, i);
    free_text(c, l, free_there, sizeof free_there);
    return fail(err, MOTE_ENOMEM, "%s: in %d parts the weights need %.1f GB: %s", name, c->ranges, (double)all * 1e-9, free_there);
}

/* What is free on each device, to be shared by those parts that are on the same one. Of several hosts each is taken to have what this one has; where
   it was said which layers they have, nothing is taken for granted of the others. */
static int devices_free(const device_list *l, uint64_t *free, mote_error *err) {
    mote_callbacks silent;
    memset(&silent, 0, sizeof silent);
    for (int d = 0; d < l->count; d++) {
        mote_model on;
        uint64_t parts = 0;
        memset(&on, 0, sizeof on);
        const int code = device_choose(&on, l->name[d], 0, &silent, err);
        if (code) return code;
        if (on.device.gpu >= 0) device_keep(&on, l->memory);
        const int unknown = l->apart && l->layers[0] && d + 1 < l->count;
        for (int other = 0; other < l->count; other++) parts += other == d || (!l->apart && !strcmp(l->name[other], l->name[d]));
        free[d] = device_available(&on) && !unknown ? device_available(&on) / parts : UINT64_MAX;
    }
    return MOTE_OK;
}

/* Divides the layers of m, which is described, among the ranges. Of ranks, each finds out by itself whether its share fits. load: they must fit;
   else they are cut as if they did, where they do not. */
static int parts_cut(const mote_model *m, device_list *l, const char *name, int load, mote_error *err) {
    layer_cut c;
    memset(&c, 0, sizeof c);
    c.m = m;
    c.ranges = l->ranges;
    int code = devices_free(l, c.free, err);
    if (code) return code;
    for (int d = 0; d < l->ranges && l->ranks > 1; d++) c.free[d] = UINT64_MAX;
    c.spare = l->layers[0] == 0;
    code = cut_layers(&c, l, name, err);
    if (code != MOTE_ENOMEM || load) return code;
    for (int d = 0; d < l->ranges; d++) c.free[d] = UINT64_MAX;
    return cut_layers(&c, l, name, err);
}

/* ---- Opening ------------------------------------------------------------------------------------------------------------- */

/* Opens a part of the model of a name: a folder's (model_open), or a synthetic one. load: with its weights; else it is only described. */
typedef int part_opener(const char *name, const mote_options *o, const model_part *part, int load, mote_model **model, mote_error *err);

/* A member that is being opened, by a thread of its own: ranks of a range read the same files at the same time, and each device gets its
   weights while the others get theirs. The application's callbacks are called by its own thread alone. */
typedef struct part_opening {
    struct parts_opening *of;
    model_part part;
    const char *device;
    mote_model **model;
    pthread_t thread;
    int started, done, code;
    double fraction;             /* of what there is to load */
    char line[512];              /* a notice, or "" */
    mote_error error;
} part_opening;

typedef struct parts_opening {
    part_opener *open;
    const char *name;
    const mote_options *o;
    int load, count;
    part_opening *part;          /* [count] */
    pthread_mutex_t lock;        /* of what follows, and of done and fraction */
    const char *what;            /* is being done; NULL: nothing yet */
    int stop;                    /* all shall end: one has failed, or it was cancelled */
} parts_opening;

static void part_log(void *user, const char *line) {
    part_opening *p = (part_opening *)user;
    snprintf(p->line, sizeof p->line, "%s", line);
}

static void part_progress(void *user, const char *what, double fraction) {
    part_opening *p = (part_opening *)user;
    pthread_mutex_lock(&p->of->lock);
    p->of->what = what;
    p->fraction = fraction;
    pthread_mutex_unlock(&p->of->lock);
}

static int part_cancel(void *user) {
    const part_opening *p = (const part_opening *)user;
    pthread_mutex_lock(&p->of->lock);
    const int stop = p->of->stop;
    pthread_mutex_unlock(&p->of->lock);
    return stop;
}

static void *part_open(void *argument) {
    part_opening *p = (part_opening *)argument;
    mote_options o = *p->of->o;
    memset(&o.callbacks, 0, sizeof o.callbacks);
    o.parts = MOTE_WEIGHTS_ONLY;
    o.device = p->device;
    o.callbacks.user = p;
    o.callbacks.progress = part_progress;
    o.callbacks.cancel = part_cancel;
    if (!p->part.rank) o.callbacks.log = part_log;          /* other ranks have the same to say */
    p->code = p->of->open(p->of->name, &o, &p->part, p->of->load, p->model, &p->error);
    pthread_mutex_lock(&p->of->lock);
    p->done = 1;
    p->of->stop |= p->code != MOTE_OK;
    pthread_mutex_unlock(&p->of->lock);
    return NULL;
}

/* The caller's part: it tells the application how far all are, and asks whether to go on. */
static void parts_wait(parts_opening *all) {
    const struct timespec pause = {.tv_sec = 0, .tv_nsec = 1000000};
    const mote_callbacks *c = &all->o->callbacks;
    for (int done = 0; done < all->count; nanosleep(&pause, NULL)) {
        const int stop = cancelled(c);
        double sum = 0;
        pthread_mutex_lock(&all->lock);
        all->stop |= stop;
        done = 0;
        for (int i = 0; i < all->count; i++) {
            done += all->part[i].done;
            sum += all->part[i].fraction;
        }
        const char *what = all->what;
        pthread_mutex_unlock(&all->lock);
        if (what) report(c, what, sum / all->count);
    }
}

/* Opens all of them. What went wrong is the first failure of one that was not told to stop. */
static int parts_run(parts_opening *all, mote_error *err) {
    const part_opening *wrong = NULL;
    all->stop = cancelled(&all->o->callbacks);
    for (int i = 0; i < all->count; i++) {
        part_opening *p = &all->part[i];
        p->started = all->load && !thread_start(&p->thread, part_open, p);
        if (!p->started) (void)part_open(p);
    }
    parts_wait(all);
    for (int i = 0; i < all->count; i++) {
        const part_opening *p = &all->part[i];
        if (p->started) pthread_join(p->thread, NULL);
        if (*p->line) notice(&all->o->callbacks, "%s", p->line);
        if (p->code && (!wrong || wrong->code == MOTE_ECANCELLED)) wrong = p;
    }
    if (wrong) *err = wrong->error;
    return wrong ? wrong->code : MOTE_OK;
}

/* Opens the members of m. */
static int parts_members(mote_model *m, part_opener *open, const char *name, const mote_options *o, const device_list *l, int load, mote_error *err) {
    parts_opening all = {.open = open, .name = name, .o = o, .load = load, .count = l->count};
    int first = 0;
    m->members = (mote_model **)calloc((size_t)l->count, sizeof *m->members);
    all.part = m->members ? (part_opening *)calloc((size_t)l->count, sizeof *all.part) : NULL;
    if (!all.part) return fail_memory(err);
    m->member_count = l->count;
    for (int i = 0; i < l->count; i++) {
        part_opening *p = &all.part[i];
        p->of = &all;
        p->device = l->name[i];
        p->model = &m->members[i];
        p->part = part_of(i / l->ranks, l->ranges, i % l->ranks, l->ranks);
        p->part.first = first;
        p->part.end = first + l->layers[p->part.range];
        p->part.apart = l->apart;
        if (p->part.rank + 1 == l->ranks) first = p->part.end;
    }
    pthread_mutex_init(&all.lock, NULL);
    const int code = parts_run(&all, err);
    pthread_mutex_destroy(&all.lock);
    free(all.part);
    return code;
}

/* "cuda:0+cuda:1 NVIDIA H100 (sm_90): 20+20 layers" */
static void parts_name(mote_model *m, const device_list *l) {
    char *to = m->device.name;
    const char *about = m->members[0]->device.name + strcspn(m->members[0]->device.name, " ");
    size_t n = 0, size = sizeof m->device.name;
    int alike = 1;
    for (int i = 1; i < l->count; i++) alike &= !strcmp(about, m->members[i]->device.name + strcspn(m->members[i]->device.name, " "));
    for (int i = 0; i < l->count && n < size; i++)
        n += (size_t)snprintf(to + n, size - n, "%s%s", i ? "+" : "", alike ? l->name[i] : m->members[i]->device.name);
    if (n < size) n += (size_t)snprintf(to + n, size - n, "%s: ", alike ? about : "");
    for (int i = 0; i < l->ranges && n < size; i++) n += (size_t)snprintf(to + n, size - n, "%s%d", i ? "+" : "", l->layers[i]);
    if (n < size) n += (size_t)snprintf(to + n, size - n, " layers");
    if (n < size && l->ranks > 1) snprintf(to + n, size - n, " on %d ranks", l->ranks);
}

/* What the front has of its members. A member without the MTP layer, where another has it, is one of other ranges; if the last range leaves it
   out, so does the model. */
static void parts_front(mote_model *m, const device_list *l) {
    const uint64_t config = m->fingerprint;
    unsigned largest = 0;
    uint64_t host = 0, one = 0;
    for (int i = 0; i < l->count; i++) {
        const mote_model *member = m->members[i];
        m->fingerprint += member->fingerprint - config;
        if (member->bf16_largest > largest) largest = member->bf16_largest;
        host += model_host_bytes(member, 0);
        one += model_host_bytes(member, 1);
        if (member->part.range + 1 == l->ranges) m->has_mtp &= member->has_mtp;
        m->report.devices[i] = model_on_device(member);
    }
    m->report.info.device_count = l->count;
    m->report.info.host_bytes = host;
    m->report.info.expert_bytes = one;
    if (l->ranks > 1) m->fingerprint = fnv1a(m->fingerprint, &l->ranks, sizeof l->ranks);
    for (int i = 0; i < l->count; i++) m->members[i]->bf16_largest = largest;      /* as if all weights were one model's */
    m->report.info.mtp_layers = m->has_mtp;
    m->report.info.images = m->has_vision = m->members[0]->has_vision && !m->members[0]->remote;
    m->pictures = m->members[0]->pictures;
    m->report.info.image_tokens = model_image_tokens(m);
    m->norm = m->members[l->count - 1]->norm;
    m->part = part_of(-1, l->ranges, 0, 1);                 /* it has no layers itself, */
    m->device.gpu = -1;                                     /* nor a device */
    parts_name(m, l);
}

/* Opens the model of a name on the devices, in parts if they are several. */
static int parts_open(part_opener *open, const char *name, const mote_options *options, device_list *l, int load, mote_model **model,
                      mote_error *err) {
    const model_part whole = part_of(0, 1, 0, 1);
    mote_options o = *options;
    mote_model *m = NULL;
    if (l->count) o.device = l->name[0];
    if (l->count < 2 || o.parts == MOTE_TEXT_ONLY) return open(name, &o, &whole, load, model, err);
    const int moves = (l->gpus || l->apart) && o.experts == MOTE_EXPERTS_AUTO;
    if (moves) o.experts = MOTE_EXPERTS_DEVICE;
    int code = open(name, &o, &whole, 0, &m, err);
    if (!code) code = parts_cut(m, l, name, load || moves, err);
    if (code == MOTE_ENOMEM && m && moves) {                /* the layers weigh less without experts */
        mote_close(m);
        m = NULL;
        o.experts = MOTE_EXPERTS_HOST;
        o.callbacks.log = NULL;                             /* it has been said */
        code = open(name, &o, &whole, 0, &m, err);
        o.callbacks.log = options->callbacks.log;
        if (!code) code = parts_cut(m, l, name, load, err);
    }
    if (l->ranks > 1) o.experts = options->experts;         /* of ranks each finds out by itself */
    if (!code) code = parts_members(m, open, name, &o, l, load, err);
    if (!code) parts_front(m, l);
    if (code) mote_close(m);
    else *model = m;
    return code;
}
