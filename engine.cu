/* engine.cu: the spine of the library. Checkpoint folder -> weights; sessions; the walk through the layers; the API.

   Read from top to bottom: what is included stands where it is needed first. Only the spines (this file, kernels.cu and
   tokenizer.c) include rooms.

     tokenizer.c, text/    text <-> token ids, chats -> prompts
     kernels.cu            numbers (formats/), the CPU's tools (cpu/), the stages as C and as CUDA (layers/), what kernels
                           share (cuda/)
     checkpoint/           from untrusted files to named tensors in memory
     model/                a model: its struct, opening it, its weights, what mote_info says of it
     families/             what config.json says, which layers there are, what their tensors are called
     session/              memory of a timeline, snapshots, files
     generate/             sampling, speculation, generating text, turns of a conversation
     diagnose/             measuring and testing the user's machine, synthetic models

   All is one translation unit: C11 and C++17 for the CPU, with nvcc for the CPU and GPUs. Compile it with optimisation (-O3):
   the loops of cpu/ count on it. */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE                            /* pread, sched_getaffinity, CLOCK_MONOTONIC under -std=c11 */
#endif

#include "engine.h"
#include "tokenizer.c"
#include "kernels.cu"

#ifdef __CUDACC__
#include <cuda.h>
#include <cxxabi.h>
#endif
#include <dirent.h>
#include <float.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>

static int cancelled(const mote_callbacks *c) {
    return c->cancel && c->cancel(c->user);
}

static void report(const mote_callbacks *c, const char *what, double fraction) {
    if (c->progress) c->progress(c->user, what, fraction);
}

__attribute__((format(printf, 2, 3))) static void notice(const mote_callbacks *c, const char *format, ...) {
    char line[512];
    va_list args;
    if (!c->log) return;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    c->log(c->user, line);
}

/* Where a struct that ends with this field ends. */
#define END_OF(type, field) (offsetof(type, field) + sizeof(((type *)0)->field))

/* The structs of options of version 0.3. What grows them later keeps these, and leaves no padding at the end: a program could
   have anything in it, and a newer library would read that as its next field. */
enum {
    OPTIONS_0_3 = END_OF(mote_options, quantize),
    SESSION_OPTIONS_0_3 = END_OF(mote_session_options, sms),
    GENERATION_0_3 = END_OF(mote_generation, thinking_budget)
};
static_assert(sizeof(mote_options) == END_OF(mote_options, quantize), "mote_options has padding at its end");
static_assert(sizeof(mote_session_options) == END_OF(mote_session_options, sms), "mote_session_options has padding at its end");
static_assert(sizeof(mote_generation) == END_OF(mote_generation, thinking_budget), "mote_generation has padding at its end");

/* The door for structs of options: copies one into one of `known` bytes, as its `size` says. first: what a size of 0 means.
   given NULL: the defaults. */
static int take_options(void *to, size_t known, size_t first, const void *given, const char *name, mote_error *err) {
    enum { SIZE_MOST = 1 << 16 };              /* more is no struct of any version */
    size_t size = first;
    memset(to, 0, known);
    if (given) memcpy(&size, given, sizeof size);
    if (!size) size = first;
    if (size < sizeof size || size > SIZE_MOST || size % sizeof(void *))       /* structs with pointers end at whole ones */
        return fail(err, MOTE_EINVAL, "%s.size is %zu, expected sizeof(%s) or 0", name, size, name);
    for (size_t i = known; given && i < size; i++)
        if (((const char *)given)[i])
            return fail(err, MOTE_EINVAL, "%s: byte %zu is not 0: version " MOTE_VERSION " does not have what it asks for", name, i);
    if (given) memcpy(to, given, size < known ? size : known);
    memcpy(to, &known, sizeof known);
    return MOTE_OK;
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- 1. From a checkpoint folder to weights ---------------------------------------------------------------------- */

#include "checkpoint/safetensors.c"
#include "checkpoint/folder.c"
#include "checkpoint/config.c"
#include "model/model.c"
#include "model/quantization_mix.c"
#include "checkpoint/estimate.c"
#include "checkpoint/quantization_check.c"
#include "checkpoint/items.c"
#include "checkpoint/find.c"
#include "checkpoint/memory.c"
#include "checkpoint/bind.c"
#include "checkpoint/load.c"
#include "checkpoint/memory_cpu.c"
#ifdef __CUDACC__
#include "checkpoint/device_cuda.cu"
#include "checkpoint/load_cuda.cu"
#include "checkpoint/memory_cuda.cu"
#endif
#include "checkpoint/device.c"

/* ---- 2. Models --------------------------------------------------------------------------------------------------- */

#include "families/common.c"
#include "families/qwen3_5_moe.c"
#include "families/qwen3_moe.c"
#include "families/families.c"
#include "families/config.c"
#include "model/info.c"
#include "model/weights.c"
#include "checkpoint/generation.c"
#include "model/open.c"
#include "diagnose/synthetic.c"
#include "text/calls.c"

/* ---- 3. Sessions -------------------------------------------------------------------------------------------------- */

#include "session/memory.c"

static int session_open_cpu(mote_session *s, mote_error *err) {
    size_t bytes = parts_bytes(&s->parts) + CACHE_LINE;
    uint64_t available = memory_available();
    if (!available || bytes <= available) s->memory = (float *)calloc(1, bytes);
    if (!s->memory)
        return fail(err, MOTE_ENOMEM, "a session of %d tokens needs %.2f GB, %.2f GB of memory are free", s->o.context,
                    (double)bytes * 1e-9, (double)available * 1e-9);
    s->threads = pool_open(s->o.threads);
    if (!s->threads) return fail(err, MOTE_ENOMEM, "the system gives no %d threads", s->o.threads);
    layout_session(s->m, &s->o, layout_base(s->memory), NULL, s);
    return MOTE_OK;
}

static void speculation_start(mote_session *s);
#ifdef __CUDACC__
static int gpu_session_open(mote_session *s, mote_error *err);
static void gpu_session_close(mote_session *s);
#endif

int mote_session_open(const mote_model *model, const mote_session_options *options, mote_session **session,
                      mote_error *error) {
    mote_session_options given, o;
    if (!model || !session)
        return fail(error, MOTE_EINVAL, "mote_session_open: needs a model and a place for the session");
    if (!model->arena) return fail(error, MOTE_EUNSUPPORTED, "the model was opened without weights");
    int code = take_options(&given, sizeof given, SESSION_OPTIONS_0_3, options, "mote_session_options", error);
    if (!code) code = session_options(model, &given, &o, error);
    if (code) return code;
    mote_session *s = session_shell(model);
    if (!s) return fail_memory(error);
    s->o = o;
    s->kv_type = kv_type_of(o.kv);
    speculation_start(s);
    s->parts = fit_chunk(model, &given, &s->o, device_available(model), s);
#ifdef __CUDACC__
    if (s->gpu) code = gpu_session_open(s, error);
#endif
    if (!s->gpu) code = session_open_cpu(s, error);
    if (code) {
        mote_session_close(s);
        return code;
    }
    *session = s;
    return MOTE_OK;
}

/* Whether the call that made the session busy may still run. It does not when this thread's stack ends above where that of the
   call was: an exception or a longjmp out of a callback left it. */
static int session_runs(const mote_session *s, uintptr_t frame) {
    if (!__atomic_load_n(&s->busy, __ATOMIC_ACQUIRE)) return 0;
    int of_this_thread = __atomic_load_n(&s->thread, __ATOMIC_RELAXED) == (uintptr_t)pthread_self();
    return !of_this_thread || frame <= __atomic_load_n(&s->frame, __ATOMIC_RELAXED);
}

void mote_session_close(mote_session *session) {
    if (!session) return;
    const mote_model *m = session->m;
    int mine = session->owner == getpid();
    if (mine && session_runs(session, (uintptr_t)__builtin_frame_address(0))) {
        notice(&session->o.callbacks, "mote_session_close: ignored: a call on the session has not returned");
        return;
    }
#ifdef __CUDACC__
    gpu_session_close(session);
#endif
    if (mine) pool_close(session->threads);
    else pool_abandon(session->threads);
    mote_checkpoint_free(session->before_answer);
    free(session->memory);
    free(session->state);
    free(session);
    mote_close((mote_model *)m);
}

static int session_is_busy(const char *needs, mote_error *err) {
    return fail(err, MOTE_EINVAL, "%.*s: the session is busy: a call on it has not returned, its callbacks must not use it",
                (int)strcspn(needs, ":"), needs);
}

/* The door of every call on a session but those that say so. needs: what the call is and must be given, "mote_step: needs a
   session"; given: whether it was. */
static int session_enter(const mote_session *s, int given, const char *needs, mote_error *err) {
    int name = (int)strcspn(needs, ":");
    if (!s || !given) return fail(err, MOTE_EINVAL, "%s", needs);
    if (s->owner != getpid())
        return fail(err, MOTE_EINVAL, "%.*s: the session is of the process that opened it, a forked child can only close it",
                    name, needs);
    return __atomic_load_n(&s->busy, __ATOMIC_ACQUIRE) ? session_is_busy(needs, err) : MOTE_OK;
}

/* After session_enter, in calls that may call the application back: until session_leave all others are refused, as what they
   would see or change of the session is half a step. call: "mote_ask: ". Its own frame is below that of the call, and above those
   of the callbacks. */
__attribute__((noinline)) static int session_begin(mote_session *s, const char *call, mote_error *err) {
    if (__atomic_exchange_n(&s->busy, 1, __ATOMIC_ACQ_REL)) return session_is_busy(call, err);
    __atomic_store_n(&s->thread, (uintptr_t)pthread_self(), __ATOMIC_RELAXED);
    __atomic_store_n(&s->frame, (uintptr_t)__builtin_frame_address(0), __ATOMIC_RELAXED);
    return MOTE_OK;
}

static void session_leave(mote_session *s) {
    __atomic_store_n(&s->busy, 0, __ATOMIC_RELEASE);
}

/* ---- 4. The forward pass -----------------------------------------------------------------------------------------
   T token rows through all layers: every layer adds a mixer and an FFN to the residual x. A block of up to BLOCK rows can be kept in part afterwards: see session_keep. */

/* T rows of w->x at `position` through a layer. state_only: of the MTP layer, whose KV rows are all that is wanted. */
static void run_layer(mote_session *s, const layer *l, const layer_state *state, int position, int T, int state_only) {
    token_rows rows;
    rows.threads = s->threads;
    rows.T = T;
    rows.position = position;
    rows.replay = s->accepted;
    rows.state_only = state_only;
    rows.x = s->s.x;
    rows.u = s->s.u;
    layer_forward(&rows, l, &s->s.jobs, state);
}

/* in = a row of the MTP layer's input: a token, and the final row of the token before it. */
static void mtp_input(mote_session *s, int32_t id, const float *final_row, float *in) {
    const mote_model *m = s->m;
    int hidden = m->c.hidden;
    embed(&m->embed_tokens, &id, 1, s->s.u);
    rms_norm(in, s->s.u, m->mtp_norm_embedding, 1, hidden, m->c.eps);
    rms_norm(in + hidden, final_row, m->mtp_norm_hidden, 1, hidden, m->c.eps);
}

/* The MTP layer for T tokens just computed: the row of position p takes the token after it and the hidden row of p, and
   predicts the token after that. So the rows are those of positions first-1 .. first+T-2, without -1. Its KV rows are
   kept for drafting; logits, when wanted, get one row for each. */
static void run_mtp(mote_session *s, const int32_t *ids, int first, int T, float *logits) {
    const mote_model *m = s->m;
    scratch *w = &s->s;
    int skip = first == 0, rows = T - skip;
    size_t hidden = (size_t)m->c.hidden;
    if (rows <= 0) return;
    for (int t = skip; t < T; t++)
        mtp_input(s, ids[t], t ? w->hidden + (size_t)(t - 1) * hidden : s->last_hidden,
                  w->mtp_in + (size_t)(t - skip) * 2 * hidden);
    linear(s->threads, &m->mtp_fc, w->mtp_in, w->x, rows, 0, w->digits);
    run_layer(s, &m->mtp, &s->state[m->c.layers], first + skip - 1, rows, logits == NULL);
    if (!logits) return;
    rms_norm(w->u, w->x, m->mtp_norm, rows, m->c.hidden, m->c.eps);
    stage_head(s->threads, &m->lm_head, w->u, rows, logits, w->digits);
}

/* drafts[0..k-1]: what may follow the timeline and `id`. Each draft is the MTP layer's favourite, and its input for the
   next one, with its own final row in place of the model's. The KV rows it writes on the way, behind the first, are of
   guesses: the block that runs next writes them anew. */
static void draft_cpu(mote_session *s, int32_t id, int k, int32_t *drafts) {
    const mote_model *m = s->m;
    scratch *w = &s->s;
    const float *final_row = s->last_hidden;
    for (int i = 0; i < k; i++) {
        mtp_input(s, id, final_row, w->mtp_in);
        linear(s->threads, &m->mtp_fc, w->mtp_in, w->x, 1, 0, w->digits);
        run_layer(s, &m->mtp, &s->state[m->c.layers], s->count - 1 + i, 1, 0);
        rms_norm(w->hidden, w->x, m->mtp_norm, 1, m->c.hidden, m->c.eps);
        stage_head(s->threads, &m->draft_head, w->hidden, 1, w->sorted, w->digits);
        id = 0;
        for (int j = 1; j < m->draft_head.rows; j++)
            if (w->sorted[j] > w->sorted[id]) id = j;
        drafts[i] = id;
        final_row = w->hidden;
    }
}

/* Computes T <= chunk rows behind the timeline. logits: [T][vocab], or NULL for only those after the last row, into the
   session. The rows are not part of the timeline until session_keep. */
static void forward_cpu(mote_session *s, const int32_t *ids, int T, float *logits, float *mtp_logits) {
    const mote_model *m = s->m;
    scratch *w = &s->s;
    size_t last = (size_t)(T - 1);
    embed(&m->embed_tokens, ids, T, w->x);
    for (int i = 0; i < m->c.layers; i++) run_layer(s, &m->layers[i], &s->state[i], s->count, T, 0);
    rms_norm(w->hidden, w->x, m->norm, T, m->c.hidden, m->c.eps);
    if (logits) {
        stage_head(s->threads, &m->lm_head, w->hidden, T, logits, w->digits);
        if (logits != w->block_logits)
            memcpy(s->logits, logits + last * (size_t)m->c.vocab, (size_t)m->c.vocab * sizeof(float));
    } else {
        stage_head(s->threads, &m->lm_head, w->hidden + last * (size_t)m->c.hidden, 1, s->logits, w->digits);
    }
    if (s->has_mtp) run_mtp(s, ids, s->count, T, mtp_logits);
}

/* Ids a sampler may choose: those the tokenizer knows. Above them the table is padding. */
static int sample_vocab(const mote_session *s) {
    int known = s->m->text ? tokenizer_vocab(s->m->text) : s->m->c.vocab;
    return known < s->m->c.vocab ? known : s->m->c.vocab;
}

/* T rows behind the timeline are being computed, and not yet part of it. */
static void session_computed(mote_session *s, int T) {
    s->block_at = s->count;
    s->pending = T <= BLOCK ? T : 0;
    s->accepted = 0;
    s->logits_in_block = 0;
}

/* Takes none of the block's rows. What the timeline has is then all in S: nothing is left to repeat. */
static void session_drop(mote_session *s) {
    s->count = s->valid = s->block_at;
    s->pending = s->accepted = 0;
}

#include "generate/logprobs.c"
#ifdef __CUDACC__
#include "cuda/step.cu"
static int session_fold(mote_session *s, mote_error *err);
static int session_finish(mote_session *s, mote_error *err);
static void report_prompt(const mote_session *s, double done, size_t count, double start);
#include "cuda/prefill_step.cu"
#endif

/* ---- 5. The session on either device ------------------------------------------------------------------------------ */

/* Copies between the session's memory, which may be on a GPU, and memory here. */
static int session_read(const mote_session *s, void *to, const void *from, size_t n, mote_error *err) {
    if (!n) return MOTE_OK;
#ifdef __CUDACC__
    if (s->gpu) {
        mote_session *of = (mote_session *)s;
        int code = gpu_enter(of, err);
        if (code) return code;
        gpu_check(&of->gpu->q, cudaMemcpyAsync(to, from, n, cudaMemcpyDefault, of->gpu->stream), "reading a session");
        return gpu_finish(of, err);
    }
#endif
    (void)s;
    (void)err;
    memcpy(to, from, n);
    return MOTE_OK;
}

static int session_write(mote_session *s, void *to, const void *from, size_t n, mote_error *err) {
    return session_read(s, to, from, n, err);               /* the direction is in the addresses */
}

/* Where the final row of the last token is. On a GPU it moves to last_hidden when the next block begins. */
static float *session_last_hidden(const mote_session *s) {
#ifdef __CUDACC__
    if (s->gpu && s->accepted) return s->gpu->hidden + (size_t)(s->accepted - 1) * (size_t)s->m->c.hidden;
#endif
    return s->last_hidden;
}

/* Waits for all that the device was asked to do. */
static int session_finish(mote_session *s, mote_error *err) {
#ifdef __CUDACC__
    if (s->gpu) return gpu_finish(s, err);
#endif
    (void)s;
    (void)err;
    return MOTE_OK;
}

/* s->logits holds the last token's logits. */
static int session_logits(const mote_session *s, mote_error *err) {
#ifdef __CUDACC__
    if (s->gpu && s->count) return gpu_fetch_logits((mote_session *)s, err);
#endif
    (void)s;
    (void)err;
    return MOTE_OK;
}

/* s->logits has been written from outside: it is what counts. */
static int session_set_logits(mote_session *s, mote_error *err) {
#ifdef __CUDACC__
    if (s->gpu) {
        s->gpu->head_done = s->gpu->logits_on_host = 1;
        s->gpu->logits_row = s->gpu->all_logits = 0;
        return session_write(s, s->gpu->logits, s->logits, (size_t)s->m->c.vocab * sizeof(float), err);
    }
#endif
    (void)s;
    (void)err;
    return MOTE_OK;
}

/* Computes T <= chunk rows behind the timeline. logits: [T][vocab], or NULL for only those after the last row, and these
   need be there only if it is the `last` block of several. The rows are not part of the timeline until session_keep. */
static int forward(mote_session *s, const int32_t *ids, int T, int last, float *logits, float *mtp_logits,
                   mote_error *err) {
    int code = MOTE_OK;
#ifdef __CUDACC__
    if (s->gpu) code = gpu_forward(s, ids, T, last, logits, mtp_logits, err);
#endif
    if (!s->gpu) forward_cpu(s, ids, T, logits, mtp_logits);
    (void)last;
    (void)err;
    memcpy(s->tokens + s->count, ids, (size_t)T * sizeof *ids);
    session_computed(s, T);
    s->logits_in_block = logits && logits == s->s.block_logits;
    return code;
}

/* Makes the first `rows` of the block just computed part of the timeline. All of them, or, of a block of at most BLOCK
   rows, fewer, and then fewer or more again: KV rows behind the end are overwritten later, and DeltaNet repeats the kept
   rows from its log when the next block runs. */
static void session_keep(mote_session *s, int rows) {
    size_t hidden = (size_t)s->m->c.hidden, vocab = (size_t)s->m->c.vocab;
    if (!s->gpu) memcpy(s->last_hidden, s->s.hidden + (size_t)(rows - 1) * hidden, hidden * sizeof(float));
    s->count = s->valid = s->block_at + rows;
    s->accepted = s->pending ? rows : 0;
    if (s->logits_in_block)
        memcpy(s->logits, s->s.block_logits + (size_t)(rows - 1) * vocab, vocab * sizeof(float));
#ifdef __CUDACC__
    if (s->gpu && s->gpu->all_logits) {
        s->gpu->logits_row = rows - 1;
        s->gpu->logits_on_host = s->logits_in_block;
    }
#endif
}

static int session_clear_state(mote_session *s, mote_error *err) {
    size_t bytes = s->parts.state * sizeof(float);
#ifdef __CUDACC__
    if (s->gpu) {
        int code = gpu_enter(s, err);
        if (!code) gpu_check(&s->gpu->q, cudaMemsetAsync(s->recurrent, 0, bytes, s->gpu->stream), "clearing");
        return code ? code : gpu_session_failed(s, err);
    }
#endif
    (void)err;
    memset(s->recurrent, 0, bytes);
    return MOTE_OK;
}

static int session_reset(mote_session *s, mote_error *err) {
    s->count = s->valid = s->generated_from = s->pending = s->accepted = 0;
    return session_clear_state(s, err);
}

int mote_reset(mote_session *session, mote_error *error) {
    int code = session_enter(session, 1, "mote_reset: needs a session", error);
    return code ? code : session_reset(session, error);
}

/* ---- 6. Feeding tokens -------------------------------------------------------------------------------------------- */

/* n tokens fit behind the timeline, and are tokens. */
static int check_ids(const mote_session *s, const int32_t *ids, size_t n, mote_error *err) {
    size_t room = s->count < s->o.context ? (size_t)(s->o.context - s->count) : 0;
    if (n > room)
        return fail(err, MOTE_ECONTEXT, "%zu tokens do not fit: the session holds %d of %d", n, s->count, s->o.context);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= s->m->c.vocab)
            return fail(err, MOTE_EINVAL, "token %zu: id %d is not in the vocabulary of %d", i, ids[i], s->m->c.vocab);
    return MOTE_OK;
}

/* Rows that forward() computes at a time. */
static int session_chunk(const mote_session *s) {
    return s->gpu ? BLOCK : s->o.chunk;
}

/* How far a prompt of `count` tokens has been read, and how quickly since `start`. */
static void report_prompt(const mote_session *s, double done, size_t count, double start) {
    const mote_callbacks *c = &s->o.callbacks;
    char what[96];
    double passed = seconds() - start, all = done + (double)s->read_before;
    count += s->read_before + s->read_behind;
    if (c->prompt) c->prompt(c->user, (int)all, (int)count);
    if (!c->progress || count <= (size_t)session_chunk(s)) return;
    snprintf(what, sizeof what, "reading the prompt: %.0f of %zu tokens, %.0f tok/s", all, count,
             passed > 0 ? done / passed : 0);
    report(c, what, all / (double)count);
}

static void forget_answer(mote_session *s);

/* mote_feed_logits or mote_feed_logprobs behind the door; scores: NULL, or in place of logits. Only the callbacks and a GPU can
   make it fail once the ids are checked. */
static int feed(mote_session *s, const int32_t *ids, size_t count, float *logits, float *mtp_logits, prompt_scores *scores,
                mote_error *err) {
    size_t vocab = (size_t)s->m->c.vocab, chunk = (size_t)session_chunk(s);
    double start = seconds();
    int code = check_ids(s, ids, count, err);
    if (code) return code;
    if (scores && chunk > SCORED_ROWS) chunk = SCORED_ROWS;
#ifdef __CUDACC__
    if (session_prefills(s, count)) return feed_prefill(s, ids, count, logits, mtp_logits, scores, err);
#endif
    for (size_t done = 0; done < count;) {
        int T = (int)(count - done < chunk ? count - done : chunk), first = s->count;
        if (cancelled(&s->o.callbacks))
            return fail(err, MOTE_ECANCELLED, "cancelled after %zu of %zu tokens", done, count);
        float *rows = scores ? scores->rows : logits ? logits + done * vocab : NULL;
        code = forward(s, ids + done, T, done + (size_t)T == count, rows, mtp_logits, err);
        if (code) return code;
        if (scores) score_rows(scores, s->m->c.vocab, done, T);
        session_keep(s, T);
        done += (size_t)T;
        if (mtp_logits) mtp_logits += (size_t)(T - (first == 0)) * vocab;
        report_prompt(s, (double)done, count, start);
        s->generated_from = s->count;
    }
    return session_finish(s, err);
}

int mote_feed_logits(mote_session *session, const int32_t *ids, size_t count, float *logits, float *mtp_logits,
                     mote_error *error) {
    mote_session *s = session;
    int code = session_enter(s, ids || !count, "mote_feed: needs a session and its tokens", error);
    if (!code && mtp_logits && !s->has_mtp)
        code = fail(error, MOTE_EUNSUPPORTED, "%s", s->m->has_mtp ? "the session was opened without the MTP layer"
                                                                  : "the checkpoint has no MTP layer");
    if (!code) code = session_begin(s, "mote_feed", error);
    if (code) return code;
    const int before = s->count;
    code = feed(s, ids, count, logits, mtp_logits, NULL, error);
    if (s->count > before) forget_answer(s);
    session_leave(s);
    return code;
}

int mote_feed_logprobs(mote_session *session, const int32_t *ids, size_t count, int top, mote_logprob *tokens,
                       mote_logprob *alternatives, mote_error *error) {
    mote_session *s = session;
    prompt_scores scores;
    int code = session_enter(s, (ids && tokens && (alternatives || !top)) || !count,
                             "mote_feed_logprobs: needs a session, tokens, and room for the results", error);
    if (!code && (top < 0 || top > s->m->c.vocab))
        code = fail(error, MOTE_EINVAL, "%d alternatives asked for, expected 0 to %d", top, s->m->c.vocab);
    if (!code) code = check_ids(s, ids, count, error);
    if (code || !count) return code;
    code = session_begin(s, "mote_feed_logprobs", error);
    if (code) return code;
    const int before = s->count;
    code = scores_open(&scores, s, ids, count, top, error);
    scores.tokens = tokens;
    scores.alternatives = alternatives;
    if (!code) code = session_logits(s, error);
    if (!code) score_token(&scores, s->count ? s->logits : NULL, s->m->c.vocab, 0);
    if (!code) code = feed(s, ids, count, NULL, NULL, &scores, error);
    if (s->count > before) forget_answer(s);
    scores_close(&scores);
    session_leave(s);
    return code;
}

int mote_feed(mote_session *session, const int32_t *ids, size_t count, mote_error *error) {
    return mote_feed_logits(session, ids, count, NULL, NULL, error);
}

const int32_t *mote_tokens(const mote_session *session, size_t *count) {
    if (count) *count = session ? (size_t)session->count : 0;
    return session ? session->tokens : NULL;
}

int mote_context(const mote_session *session) {
    return session ? session->o.context : 0;
}

const float *mote_logits(const mote_session *session) {
    if (session_enter(session, 1, "mote_logits: needs a session", NULL)) return NULL;
    return session->count && !session_logits(session, NULL) ? session->logits : NULL;
}

/* ---- 7. Sampling, speculation, text, snapshots -------------------------------------------------------------------- */

#include "generate/vocabulary.c"
#include "generate/decimal.c"
#include "generate/pattern.c"
#include "generate/automaton.c"
#include "generate/schema.c"
#include "generate/schema_values.c"
#include "generate/compile.c"
#include "generate/schema_kinds.c"
#include "generate/follow.c"
#include "generate/follow_values.c"
#include "generate/call.c"
#include "generate/mask.c"
#include "generate/constraint.c"
#include "generate/sampling.c"
#include "generate/speculation.c"
#include "generate/verify.c"
#include "session/snapshot.c"
#include "session/files.c"
#include "generate/thinking.c"
#include "generate/stops.c"
#include "generate/writer.c"
#include "generate/generate.c"
#include "generate/ask.c"
#include "generate/restore.c"

/* ---- 8. Measuring and testing the machine -------------------------------------------------------------------------- */

#ifdef __CUDACC__
#include "diagnose/measure.cu"
#include "diagnose/measure_prefill.cu"
#include "diagnose/selftest.cu"
#include "diagnose/selftest_formats.cu"
#include "diagnose/selftest_prefill.cu"
#endif

#include "diagnose/measure.c"
#include "diagnose/diagnose.c"
