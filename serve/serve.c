/* serve/serve.c: the command serve: one request, starting, and the end.

   The first Ctrl-C or SIGTERM stops taking requests and lets answers finish, a second one ends the program the hard way. SIGHUP
   reads the key file again; where there is none, it is a SIGTERM. */

enum { WAITING_DEFAULT = 64 };

/* ---- One request -------------------------------------------------------------------------------------------------- */

/* A page's browser asks whether it may ask. */
static void serve_preflight(connection *c) {
    connection_head(c, 204, "text/plain");
    connection_format(c, "Access-Control-Allow-Methods: GET, POST\r\nAccess-Control-Allow-Headers: *, Authorization\r\n"
                         "Access-Control-Max-Age: 600\r\n\r\n");
    connection_flush(c, 1);
}

/* A body is read where it means something alone, and there a key is asked for. */
static int takes_body(const route *r) {
    return r && !strcmp(r->method, "POST");
}

/* Judges a request by its head. NULL: f says why it is refused, or it is a preflight. */
static const route *judge_head(server *s, connection *c, failure *f) {
    failure missing = {0};
    const route *r = find_route(&c->in.request, &c->allow, &missing);
    check_access(s->access, c, r && r->is_open, f);
    if (!f->status && !r && !is_preflight(s->access, &c->in.request)) *f = missing;
    return f->status ? NULL : r;
}

/* The most that a request's tree may come to, an array that has grown by doubling, whose nodes all follow one of these marks. */
static size_t tree_cost(const buf *body) {
    size_t nodes = 256;
    for (size_t i = 0; i < body->size; i++) {
        char c = body->data[i];
        nodes += c == ',' || c == ':' || c == '[' || c == '{';
    }
    return 2 * nodes * sizeof(json_node);
}

/* Reads the JSON of a body, with the memory that the whole answer to it will need: of all but images that of texts. */
static void read_request(const server *s, connection *c, const route *r, json *j, failure *f) {
    const buf *body = &c->in.request.body;
    const size_t read = body->cap + tree_cost(body);
    int status = connection_take(c, read + (r->shows ? 0 : REQUEST_TEXTS * body->size));
    if (!status && read_body(body, j, f)) return;
    if (!status && r->shows) {
        if (s->reads_images) c->images = image_text_bytes(j, json_get(j, 0, r->shows));
        status = connection_take(c, read + REQUEST_TEXTS * (body->size - c->images));
    }
    if (status) refuse(f, status, NULL, "%s", c->in.problem);
}

static void serve_request(server *s, connection *c, const route *r, failure *f) {
    json j;
    memset(&j, 0, sizeof j);
    if (!f->status && takes_body(r)) read_request(s, c, r, &j, f);
    if (f->status) reply_failure(c, f);
    else if (r) r->function(s, c, &j);
    else serve_preflight(c);
    json_free(&j);
    pthread_mutex_lock(&s->lock);
    s->counted.requests++;
    s->counted.refused += f->status != 0;
    pthread_mutex_unlock(&s->lock);
}

static void serve_requests(server *s, connection *c) {
    for (;;) {
        failure f = {0};
        const route *r = NULL;
        int code = connection_next(c);
        double began = clock_seconds();
        reply_name(c->id, sizeof c->id, "req-");
        if (code == HTTP_HEAD_DONE) {
            r = judge_head(s, c, &f);
            if (!f.status && takes_body(r)) code = connection_body(c);
        }
        if (code == HTTP_MORE) return;
        if (code > HTTP_HEAD_DONE) refuse(&f, code, NULL, "%s", c->in.problem);
        if (c->in.stage != HTTP_COMPLETE) c->in.request.closes = 1;    /* a body that nobody will read */
        serve_request(s, c, r, &f);
        log_request(s->log, c, clock_seconds() - began);
        if (c->gone || c->in.request.closes || serve_stops) return;
        connection_again(c);
    }
}

static void serve_connection(void *user, int fd) {
    server *s = (server *)user;
    connection c;
    connection_open(&c, fd, &s->budget, s->access->allows_origins ? "Access-Control-Allow-Origin: *\r\n" : "");
    serve_requests(s, &c);
    connection_close(&c);
}

/* What the end waits for. */
static void tell_stop(void *user) {
    server *s = (server *)user;
    int answers = 0;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->slot_count; i++) answers += s->slots[i].busy;
    pthread_mutex_unlock(&s->lock);
    if (answers && !s->device_lost)
        fprintf(stderr, "mote: %d answer%s to finish; another Ctrl-C or SIGTERM ends at once\n", answers,
                answers == 1 ? " is" : "s are");
}

/* Whichever of Ctrl-C and SIGTERM comes next ends the program. A closed terminal may send SIGHUP more than once. */
static void on_stop(int number) {
    serve_stops = 1;
    if (number == SIGINT) interrupted = 1;
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
}

static void catch_signal(int number, void (*handler)(int number)) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    sigaction(number, &action, NULL);
}

static _Atomic int serve_rereads;          /* set by SIGHUP: read the key file again */

static void on_hangup(int number) {
    (void)number;
    serve_rereads = 1;
}

static void reread_keys(void *user) {
    if (atomic_exchange(&serve_rereads, 0)) access_reread(((server *)user)->access);
}

/* The first signal stops the server, a second one the program. SIGHUP does so where there is no key file, unless the program was
   started by nohup. */
static void catch_stop(const access_rules *a) {
    struct sigaction hangup;
    catch_signal(SIGINT, on_stop);
    catch_signal(SIGTERM, on_stop);
    if (!a->key_file && !sigaction(SIGHUP, NULL, &hangup) && hangup.sa_handler != SIG_IGN) catch_signal(SIGHUP, on_stop);
    signal(SIGPIPE, SIG_IGN);              /* whoever reads what is said here may end before */
}

/* ---- Starting ----------------------------------------------------------------------------------------------------- */

/* The model's name for clients: --name, else what -m says, or the last part of its path. */
static void name_model(server *s, const options *o, const char *asked) {
    const char *folder = o->model;
    if (o->name) {
        utf8_fit(s->name, sizeof s->name, o->name, strlen(o->name));
        return;
    }
    const char *name = asked ? asked : folder;
    size_t n = strlen(name);
    while (n > 1 && name[n - 1] == '/') n--;
    if (!asked || access(asked, F_OK) == 0)
        for (size_t i = 0; i < n - 1; i++)
            if (folder == name || name[i] == '/') {
                const char *slash = (const char *)memrchr(name, '/', n - 1);
                if (slash) n -= (size_t)(slash + 1 - name), name = slash + 1;
                break;
            }
    utf8_fit(s->name, sizeof s->name, name, n);
}

/* Bytes of memory that the system could still give; 0: unknown. */
static uint64_t free_memory(void) {
    unsigned long long kilobytes = 0;
    char line[128];
    FILE *in = fopen("/proc/meminfo", "re");
    while (in && fgets(line, sizeof line, in) && sscanf(line, "MemAvailable: %llu kB", &kilobytes) != 1) {}
    if (in) fclose(in);
    return (uint64_t)kilobytes * 1024;
}

/* Plans the runner of a replica and its sessions. Returns how many of these fit into seven eighths of what is free; 0: none, or unknown. */
static int sessions_that_fit(const options *o, const replicas *r, int i, const mote_info *info, mote_memory *plan) {
    mote_session_options how = session_options(o);
    how.context = chosen_context(o, info);
    memset(plan, 0, sizeof *plan);
    if (plan_replica(o, r, i, &how, plan) || plan->sessions < 1) return 0;
    uint64_t sessions = (plan->available - plan->weights - plan->runner) / 8 * 7 / session_bytes(plan);
    if (sessions > (uint64_t)plan->sessions) sessions = (uint64_t)plan->sessions;      /* slots of experts take some, too */
    return sessions < SLOTS_MOST ? (int)sessions : (int)SLOTS_MOST;
}

/* As many as fit in every replica. */
static int sessions_that_fit_all(const options *o, const replicas *r, const mote_info *info, mote_memory plans[REPLICAS_MOST]) {
    int fit = SLOTS_MOST;
    for (int i = 0; i < r->count; i++) {
        const int n = sessions_that_fit(o, r, i, info, &plans[i]);
        if (n < fit) fit = n;
    }
    return fit;
}

/* Sessions are dealt out one by one: of so many, replica i of `count` has this many. */
static int sessions_of(int sessions, int count, int i) {
    return (sessions - i + count - 1) / count;
}

/* More sessions than fit are refused before any is opened: a system may give memory that it has not got, until it is used. */
static int check_sessions(int parallel, const replicas *r, int i, const mote_memory *plan) {
    const int sessions = sessions_of(parallel, r->count, i);
    char where[DEVICE_NAME + 32] = "";
    if (!plan->available || sessions <= plan->sessions) return 0;
    if (r->count > 1) snprintf(where, sizeof where, ", %d of them on %s", sessions, r->device[i]);
    return complain(EXIT_FAILURE, "--parallel %d%s, with %d tokens of context each: %.1f GB beside %.1f GB of weights, and %.1f GB are free: "
                    "%d would fit", parallel, where, plan->context, 1e-9 * (double)(plan->runner + (uint64_t)sessions * session_bytes(plan)),
                    1e-9 * (double)plan->weights, 1e-9 * (double)plan->available, plan->sessions);
}

/* Each replica has a session at least, and what its runner can compute together at most. */
static int check_parallel(const options *o, const replicas *r) {
    if (!o->parallel || (o->parallel >= r->count && o->parallel <= SLOTS_MOST * r->count)) return 0;
    if (r->count == 1) return complain(EXIT_USAGE, "serve: --parallel: at most %d on one device", SLOTS_MOST);
    return complain(EXIT_USAGE, "serve: --parallel: %d replicas take %d to %d", r->count, r->count,
                    SLOTS_MOST * r->count < PARALLEL_MOST ? SLOTS_MOST * r->count : (int)PARALLEL_MOST);
}

/* What every replica has place for. */
static void plan_contexts(options *o, const replicas *r) {
    for (int i = 0; i < r->count; i++) {
        options one = options_of(o, r, i);
        one.fits = 0;
        plan_context(&one);
        if (one.fits && (!o->fits || one.fits < o->fits)) o->fits = one.fits;
    }
}

typedef struct session_plan {
    int sessions;                          /* of all replicas together */
    uint64_t unused;                       /* bytes of them that the system counts as free until they are used */
} session_plan;

/* The number of answers at a time: as many as are asked for, on a GPU with a context that leaves space for them, or else as many as
   fit, at most CHOSEN_MOST a replica. To be asked before the weights are in memory, after plan_contexts. Returns the exit code. */
static int plan_sessions(options *o, const replicas *r, session_plan *p) {
    enum { CHOSEN_MOST = 16, CONTEXT_LEAST = 1024 };
    const options first = options_of(o, r, 0);
    mote_options where = model_options(&first, MOTE_DESCRIPTION);
    mote_memory plans[REPLICAS_MOST];
    mote_model *model = NULL;
    int code = check_parallel(o, r);
    p->sessions = o->parallel ? o->parallel : r->count;
    p->unused = 0;
    if (code || mote_open(o->model, &where, &model, NULL)) return code;        /* opening its weights will tell why */
    const mote_info *info = mote_model_info(model);
    int fit = sessions_that_fit_all(o, r, info, plans);
    if (!o->parallel && fit > 1) p->sessions = r->count * (fit > CHOSEN_MOST ? (int)CHOSEN_MOST : fit);
    if (p->sessions > PARALLEL_MOST) p->sessions = PARALLEL_MOST;
    while (on_gpu(info) && !o->context && fit < sessions_of(p->sessions, r->count, 0) && o->fits > CONTEXT_LEAST) {
        o->fits -= o->fits / 8;
        fit = sessions_that_fit_all(o, r, info, plans);
    }
    for (int i = 0; i < r->count && !code; i++) {
        if (!on_gpu(info)) p->unused += plans[i].runner + (uint64_t)sessions_of(p->sessions, r->count, i) * session_bytes(&plans[i]);
        code = check_sessions(p->sessions, r, i, &plans[i]);
    }
    mote_close(model);
    return code;
}

/* The replicas' runners. */
static int open_runners(server *s) {
    mote_error error = {0, ""};
    for (int i = 0; i < s->replica_count; i++) {
        replica *r = &s->replicas[i];
        r->sessions = sessions_of(s->slot_count, s->replica_count, i);
        if (mote_runner_open(r->model, &s->runner_options, &r->runner, &error)) return report(&error);
    }
    return 0;
}

/* The runners and their sessions, with all memory that they will ever need. */
static int open_sessions(server *s, const options *o, uint64_t unused) {
    mote_session_options how = session_options(o);
    mote_error error = {0, ""};
    how.context = chosen_context(o, mote_model_info(s->model));
    how.sessions = (size_t)sessions_of(s->slot_count, s->replica_count, 0);
    s->runner_options = how;
    s->session_options = (mote_session_options){.size = sizeof how, .context = how.context, .callbacks = how.callbacks, .mtp = how.mtp};
    const int code = open_runners(s);
    if (code) return code;
    for (int i = 0; i < s->slot_count; i++) {
        s->slots[i].server = s;
        s->slots[i].of = &s->replicas[i % s->replica_count];
        if (server_slot_open(&s->slots[i], &s->session_options, &error)) return report(&error);
    }
    const uint64_t available = free_memory();
    s->context = mote_context(s->slots[0].session);
    s->snapshot_bytes = mote_checkpoint_bytes(s->slots[0].session);
    s->disk = o->cache_dir;
    s->disk_most = (size_t)((o->cache_disk >= 0 ? o->cache_disk : 10) * 1e9);
    s->cache_most = o->cache_memory >= 0 ? (size_t)(o->cache_memory * 1e9) : (size_t)(available > unused ? (available - unused) / 4 : 0);
    return disk_open(s);
}

static void server_open(server *s, const replicas *r, const options *o, int sessions) {
    const mote_model *model = r->model[0];
    const chat_marks *marks = marks_of(model);
    memset(s, 0, sizeof *s);
    s->model = model;
    s->replica_count = r->count;
    for (int i = 0; i < r->count; i++) s->replicas[i].model = r->model[i];
    s->budget.most = (size_t)((o->request_memory >= 0 ? o->request_memory : 2) * 1e9);
    s->log = o->log_json ? LOG_JSON : o->verbose ? LOG_TEXT : LOG_NOTHING;
    s->reaches = o->workers != NULL;
    s->reads_alike = !on_gpu(mote_model_info(model));
    s->turn_begins = token_of(model, marks->turn);
    s->tool_responds = token_of(model, marks->result);
    s->asks = marks->family & CHAT_ANSWER_TURNS ? token_of(model, marks->user) : -1;
    s->user = token_of(model, "user");
    s->image_tokens = o->image_tokens;
    s->image_pad = token_of(model, "<|image_pad|>");
    s->reads_images = mote_model_info(model)->images && *marks->image && s->image_pad >= 0;
    s->has_efforts = (marks->family & CHAT_EFFORTS) != 0;
    find_capabilities(s);
    s->slot_count = sessions;
    s->slots = (server_slot *)calloc((size_t)sessions, sizeof *s->slots);
    s->waiting_most = o->queue >= 0 ? o->queue : WAITING_DEFAULT;
    s->since = time(NULL);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->freed, NULL);
    listener_init(&s->listener, serve_connection, s);
}

static void server_close(server *s) {
    cache_close(s);
    for (int i = 0; i < s->slot_count; i++) mote_session_close(s->slots[i].session);
    for (int i = 0; i < s->replica_count; i++) mote_runner_close(s->replicas[i].runner);
    free(s->slots);
}

/* A line for each replica. */
static void show_replicas(const server *s) {
    for (const replica *r = s->replicas; r < s->replicas + s->replica_count && s->replica_count > 1; r++)
        show_format(stderr, "mote: replica %d of %d, on %s: %.1f GB of weights%s, %d answer%s at a time\n", (int)(r - s->replicas) + 1,
                    s->replica_count, replica_device(r), 1e-9 * (double)mote_model_info(r->model)->weight_bytes,
                    s->reads_alike ? " of its own in memory" : "", r->sessions, r->sessions == 1 ? "" : "s");
}

/* Takes connections until a signal comes. Returns the exit code. */
static int serve_clients(server *s, const char *host, int port) {
    int others = 0, code = listener_open(&s->listener, host, &port, &others);
    if (code) return code;
    catch_stop(s->access);                          /* before anyone learns that it is there */
    if (others && !s->access->asks_key)
        on_log(NULL, "other machines can reach it, and no key is asked for: see --api-key-file and --allow-host");
    show_replicas(s);
    show_format(stderr, "mote: a context of %d tokens, %d answer%s at a time, %.1f GB for what was read before\n",
                s->context, s->slot_count, s->slot_count == 1 ? "" : "s", 1e-9 * (double)s->cache_most);
    show_format(stderr, "mote: %s on ", s->name);
    fprintf(stderr, strchr(host, ':') ? "http://[%s]:%d\n" : "http://%s:%d\n", host, port);
    code = s->reaches ? reach_start(s) : 0;
    if (code) return code;
    listener_run(&s->listener, reread_keys, tell_stop);
    reach_stop(s);
    return s->device_lost && (!s->reaches || s->own_lost) ? complain(EXIT_FAILURE, "the device is lost") : interrupted ? EXIT_INTERRUPTED : 0;
}

static int serve_model(const replicas *r, const char *asked, const options *o, const session_plan *plan, access_rules *rules) {
    server s;
    server_open(&s, r, o, plan->sessions);
    s.access = rules;
    name_model(&s, o, asked);
    int code = s.slots ? open_sessions(&s, o, plan->unused) : complain(EXIT_FAILURE, "out of memory");
    if (!code) code = serve_clients(&s, o->host ? o->host : "127.0.0.1", o->port >= 0 ? o->port : 8080);
    server_close(&s);
    return code;
}

static int command_serve(options *o) {
    replicas r = {.count = 1};
    access_rules rules;
    const char *asked = o->model;
    session_plan plan = {0, 0};
    int code = o->name && !*o->name ? complain(EXIT_USAGE, "serve: --name is empty") : 0;
    if (code) return code;
    code = access_open(&rules, o);
    if (!code && rules.key_file) catch_signal(SIGHUP, on_hangup);      /* it may come while the model is read */
    if (!code) code = find_model(o, MOTE_EVERYTHING);
    if (!code) code = find_replicas(o, 1, &r);
    if (!code) plan_contexts(o, &r);
    if (!code) code = plan_sessions(o, &r, &plan);
    catch_interrupt(1);
    if (!code) code = open_replicas(o, MOTE_EVERYTHING, &r);
    if (!code && !mote_model_info(r.model[0])->chat_template)
        on_log(NULL, "no chat template that mote knows: chats will be refused, but not /v1/completions, /v1/embeddings and /v1/rerank");
    if (!code) code = serve_model(&r, asked, o, &plan, &rules);
    close_replicas(&r);
    access_close(&rules);
    return code;
}
