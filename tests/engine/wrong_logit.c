/* Which part of a model computes something else than its definition: every sublayer of the CPU's code and, built with nvcc, of a GPU's
   step, over the same rows as the definition (diagnose/sublayers.c). A line for each, with the largest difference relative to what
   the sublayer adds to a row; of one layer the values of its stages, too. Exit code 1: a difference is too large.

   Usage: wrong_logit [--device NAME] [--rows N] [--layer N] [--numbers N] MODEL [ID...]
     MODEL            a checkpoint folder, or, without a slash, a name of mote_open_synthetic
     ID...            tokens; a few by default. A definition is slow
     --device cpu     without the GPU
     --rows N         so many tokens at a time, default 4: more are read as a prompt, on the CPU alone
     --layer N        whose stages are shown: their first numbers, and the one that is furthest off; of an MTP layer the number of layers
     --numbers N      how many, default 4 */

#define MOTE_DEFINITIONS
#include "../../engine.cu"

#include "api.h"
#include "../model/walk.h"

#define CPU_MOST 1e-4            /* too much for rounding */
#define GPU_LOGITS_MOST 2e-2     /* of all layers; keys and values are BF16 */

enum { ON_CPU, ON_GPU, COMPARED };

typedef struct printing { int numbers, wrong; const char *names[COMPARED]; } printing;

static double most_of(const sublayer_report *r, int which) {
    if (which == ON_CPU) return CPU_MOST;
    return strcmp(r->kind, "logits") ? walk_allowed(r->kind, MOTE_KV_BF16) : GPU_LOGITS_MOST;
}

static void print_number(const printing *p, const stage_value *v, int row, int i) {
    size_t at = (size_t)row * (size_t)v->n + (size_t)i;
    printf("      %8d %16.8g", i, v->want[at]);
    for (int d = 0; d < COMPARED; d++)
        if (p->names[d]) printf(" %16.8g", (double)v->got[d][at]);
    printf("\n");
}

/* Of the row where it is furthest off. */
static void print_value(const printing *p, const stage_value *v) {
    const difference *worst = &v->off[p->names[1] && (!p->names[0] || v->off[1].by > v->off[0].by)];
    printf("    %s, %s [%d], token %d:", v->stage, v->name, v->n, worst->row);
    for (int d = 0; d < COMPARED; d++)
        if (p->names[d]) printf("  %s off by %.1e at %d", p->names[d], v->off[d].by, v->off[d].at);
    printf("\n      %8s %16s", "", "definition");
    for (int d = 0; d < COMPARED; d++)
        if (p->names[d]) printf(" %16s", p->names[d]);
    printf("\n");
    for (int i = 0; i < v->n && i < p->numbers; i++) print_number(p, v, worst->row, i);
    if (worst->at >= p->numbers) print_number(p, v, worst->row, worst->at);
}

static void print_report(void *user, const sublayer_report *r) {
    printing *p = (printing *)user;
    int wrong = 0;
    if (r->layer >= 0) printf("%5d", r->layer);
    else printf("%5s", "");
    printf(" %-10s", r->kind);
    for (int d = 0; d < COMPARED; d++) {
        if (!p->names[d]) continue;
        printf("  %s %.1e (token %d, %d)", p->names[d], r->off[d].by, r->off[d].row, r->off[d].at);
        wrong |= !(r->off[d].by <= most_of(r, d));
    }
    printf("%s\n", wrong ? "  <-- wrong" : "");
    p->wrong += wrong;
    for (int i = 0; i < r->count; i++) print_value(p, &r->value[i]);
}

static mote_model *open_model(const char *name, const char *device) {
    mote_options o;
    mote_model *m = NULL;
    memset(&o, 0, sizeof o);
    o.size = sizeof o;
    o.parts = MOTE_WEIGHTS_ONLY;
    o.device = device;
    int code = strchr(name, '/') ? mote_open(name, &o, &m, &failure) : mote_open_synthetic(name, &o, &m, &failure);
    if (code) fprintf(stderr, "%s\n", failure.message);
    return m;
}

static mote_session *open_session(const mote_model *m, int T, int rows) {
    mote_session_options o;
    memset(&o, 0, sizeof o);
    o.size = sizeof o;
    o.context = T + 1;
    o.chunk = m->device.gpu >= 0 ? 0 : rows;
    o.mtp = m->has_mtp ? 1 : 0;
    return session_with(m, &o);
}

int main(int argc, char **argv) {
    static const char usage[] = "usage: wrong_logit [--device cpu] [--rows N] [--layer N] [--numbers N] MODEL [ID...]";
    int32_t ids[64] = {1, 7, 3, 30, 22, 7};
    const char *device = NULL;
    printing p;
    walk w;
    int i = 1, rows = STEP_ROWS;
    memset(&p, 0, sizeof p);
    memset(&w, 0, sizeof w);
    p.numbers = 4;
    w.look = LOOK_NOWHERE;
    w.err = &failure;
    for (; i + 1 < argc && !strncmp(argv[i], "--", 2); i += 2) {
        if (!strcmp(argv[i], "--device")) device = argv[i + 1];
        else if (!strcmp(argv[i], "--rows")) rows = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--layer")) w.look = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--numbers")) p.numbers = atoi(argv[i + 1]);
        else break;
    }
    if (i >= argc || argv[i][0] == '-' || rows < 1 || argc - i - 1 > 64) return fprintf(stderr, "%s\n", usage), 2;
    const char *name = argv[i++];
    w.T = argc > i ? argc - i : 6;
    for (int t = 0; i + t < argc; t++) ids[t] = atoi(argv[i + t]);

    mote_model *m = open_model(name, "cpu"), *on_gpu = NULL;
    if (!m) return 2;
    for (int t = 0; t < w.T; t++)
        if (ids[t] < 0 || ids[t] >= m->c.vocab) return fprintf(stderr, "token %d is not in the vocabulary of %d\n", ids[t], m->c.vocab), 2;
    w.m = m;
    w.ids = ids;
    w.tell = print_report;
    w.user = &p;
    walk_add(&w, open_session(m, w.T, rows), rows);
    p.names[ON_CPU] = "CPU";
#ifdef __CUDACC__
    if (rows <= STEP_ROWS && (!device || strcmp(device, "cpu"))) on_gpu = open_model(name, device ? device : "cuda");
    if (on_gpu) walk_add(&w, open_session(on_gpu, w.T, rows), rows), p.names[ON_GPU] = "GPU";
#else
    if (device && strcmp(device, "cpu")) return fprintf(stderr, "this build is without CUDA\n"), 2;
#endif
    printf("%s, %d tokens, %d at a time: off the definition by\n", name, w.T, rows);
    walk_whole(&w);
    for (int d = 0; d < w.count; d++) mote_session_close(w.cases[d].s);
    mote_close(m);
    mote_close(on_gpu);
    if (test_failed) return 2;
    printf(p.wrong ? "%d are wrong\n" : "all is as defined\n", p.wrong);
    return p.wrong > 0;
}
