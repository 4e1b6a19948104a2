/* diagnose/diagnose.h: measuring and testing the machine: made-up models, steps timed stage by stage, kernels as they were launched,
   how fast memory is read, every kernel against plain C; what a model computes inside. For `mote bench`, `mote selftest`, `mote trace`
   and tests; an application needs none of it.

   The calls are part of the library and keep the rules of engine.h: codes and errors, ownership, units, and what stays while the
   shared library's soname does. It lies beside engine.h where that is installed; in mote's own sources, include engine.h first. */
#ifndef MOTE_DIAGNOSE_H
#define MOTE_DIAGNOSE_H

#ifndef MOTE_ENGINE_H
#include "engine.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* A model of random weights with the shapes of a known one: for measuring without a checkpoint. name is MODEL, MODEL:FORMAT,
   MODEL:LAYERS or MODEL:FORMAT:LAYERS; an unknown one is refused with the list of known ones. Formats: "fp8" (as published:
   experts and projections in FP8 blocks, the rest BF16; default), "bf16", "nvfp4", "int4", "mxfp4" and others, which a wrong one is refused
   with. LAYERS: only so many, the first ones. With options->images of 1 it has a vision tower of the published sizes, where these are known.
   With options->drafter "synthetic" it has a block drafter of the shape that is published for Qwen3.5-27B, in BF16, and no MTP layer.
   After the name may stand @FOLDER, whose checkpoint has the tables of n-grams (...ple.ple_embedding.ngram_embedding.shard_0.weight, ...): they
   stay in its files; without, rows are made up when they are wanted. There is no tokenizer. */
int mote_open_synthetic(const char *name, const mote_options *options, mote_model **model, mote_error *error);

/* As mote_worker_run, of such a model: for leaders who open the same name. */
int mote_worker_synthetic(const char *name, const mote_worker_options *options, mote_error *error);

/* The memory that such a model and a session of it would take: as mote_plan tells it of a folder. Nothing is allocated. */
int mote_plan_synthetic(const char *name, const mote_options *options, const mote_session_options *session, mote_memory *plan,
                        mote_error *error);

typedef struct mote_measurement {
    int rows;                              /* in: token rows of a step, up to MOTE_ROWS_MAX; more: of a prompt, all layers of it,
                                              at most a chunk, where the GPU has prefill for the model */
    int depth;                             /* in: tokens before them, pretended: their KV rows hold whatever is there */
    int steps;                             /* in: steps to time, at most 1000 */
    const char *const *stages;             /* in: the stages to run, stage_count names of mote_info.stages; what is left out
                                              keeps its old results */
    int stage_count;                       /* in: 0: all stages */
    double median, fastest, slowest;       /* out: seconds of a step, on the GPU's own clock */
    double wall;                           /* out: seconds of a step as the caller sees it, steps asked for one by one; of more than
                                              four rows without logits */
    uint64_t bytes;                        /* out: read by a step: weights (of the experts really chosen), state, KV */
    double operations;                     /* out: of a prompt: floating-point operations of its products */
    int launches;                          /* out: kernels in a step */
    int drafts;                            /* in: 1 to MOTE_ROWS_MAX - 1: a step is a cycle of rows = drafts + 1: verify, accept, draft again */
    double accept[MOTE_ROWS_MAX - 1];      /* in: with drafts, the rates at which first, second, third ones are accepted:
                                              simulated */
    double overlap;                        /* in: with drafts, the share of its experts that each row has in common with the
                                              first: simulated; 0: as the router says */
    double tokens;                         /* out: that a step generates on average; 1 without drafts */
    double verify, choose, draft;          /* out: with drafts, what the median consists of: verifying and drafting measured
                                              alone, choosing and accepting is the rest */
} mote_measurement;

/* Times steps on random tokens. Empties the timeline, before and after. A single GPU only: else MOTE_EUNSUPPORTED. */
int mote_measure(mote_session *session, mote_measurement *measurement, mote_error *error);

typedef struct mote_image_times {
    int width, height;                     /* in: of a picture of random pixels */
    int tokens;                            /* out: that it takes */
    double open;                           /* out: seconds that mote_images_open takes for its pixels */
    double features;                       /* out: from mote_feed_images, with little text around the picture, until the vision tower is done */
    double first_token;                    /* out: the same until mote_step has the token after it */
} mote_image_times;

/* Times one picture, for which the context and mote_session_options.image_tokens must suffice. Empties the timeline before, and what the runner remembers of pictures.
   Nobody else may use the runner meanwhile. Errors: as mote_image_size and mote_feed_images. */
int mote_measure_image(mote_session *session, mote_image_times *times, mote_error *error);

/* Bytes per second that the model's device reads at best: the weights, streamed by a kernel or, on the CPU, by a loop that does
   nothing else. threads: of the CPU, 0 to 256; 0: one for each processor this process may use. Of a model on several devices: all weights by the
   seconds that these need, ranges of layers one after the other. */
int mote_read_speed(const mote_model *model, int threads, double *bytes_per_second, mote_error *error);

/* Bytes per second that come from pinned host memory to the model's GPU by its copy engine (link), and that its own memory reads and writes while
   it copies there (memory); the weights need not be loaded. A single GPU only: else MOTE_EUNSUPPORTED. */
int mote_link_speed(const mote_model *model, double *link, double *memory, mote_error *error);

typedef struct mote_launch {               /* one kernel as it was launched, read back from the driver */
    const char *stage, *kernel, *format;   /* "norm_in_proj", the kernel's name, "FP8+BF16" */
    int rows, layer;                       /* layer: -1 outside of layers */
    int arch;                              /* the machine code that runs: 90 for sm_90 */
    int grid[3], block, registers, shared_bytes, stack_bytes;
} mote_launch;

/* The launches of one step of `rows` rows, *count of them; of 5 to 64 rows, of a block of them; of more, up to a chunk, of all layers over
   a prompt, where the GPU has prefill for the model. Nothing is computed. Owned by the session, valid until its next call. A single GPU only: else
   MOTE_EUNSUPPORTED. */
int mote_launches(mote_session *session, int rows, const mote_launch **launches, size_t *count, mote_error *error);

/* The different experts that the runner's last step or pass has read in a layer with experts, on average, the shared one not counted: *experts; 0: in
   none. MOTE_EUNSUPPORTED: layers are on other hosts. */
int mote_distinct_experts(mote_runner *runner, double *experts, mote_error *error);

/* For measurements: tokens that the runner's GPU chooses from now on are random, and its drafts are accepted at these rates,
   [MOTE_ROWS_MAX - 1], whatever they are. accept NULL: no longer. GPU only: else MOTE_EUNSUPPORTED. */
int mote_simulate(mote_runner *runner, const double *accept, mote_error *error);

/* For measurements and tests: runners that are opened from now on have at most so many slots of experts in a layer whose experts are in host
   memory. -1: as many as fit, as before. */
int mote_limit_expert_slots(mote_model *model, int slots, mote_error *error);

/* For measurements: with the probability `locality` an expert of a row is one of the last 2 top_k that its layer has used, else any, from now on,
   in all steps of the session's runner: what they compute is of no use. -1: as the router says, again. Only with slots of experts on a single GPU,
   and where these are not chosen by groups: else MOTE_EUNSUPPORTED. */
int mote_simulate_experts(mote_session *session, double locality, mote_error *error);

/* Tests the machine: sublayers and whole models on the GPU against their definitions in double precision, stages against the CPU code
   on random data, repetition, and that a row's result does not depend on the rows beside it. row is called with each result: what was
   tested, the largest difference, the one allowed (0: must be equal bit for bit), and whether it held. *failed: how many
   did not. Needs no checkpoint. device as in mote_options, sms as in mote_session_options; MOTE_EDEVICE where there is no
   GPU. */
int mote_selftest(const char *device, int sms,
                  void (*row)(void *user, const char *what, double difference, double allowed, int ok), void *user,
                  int *failed, mote_error *error);

/* Opens the model in a folder in parts, for tests, in ways that mote_options.devices does not have: its layers are cut into `ranges`, one after
   the other, and each of these into `ranks`, which have a share of every matrix. On the CPU: each part is loaded by itself, and computed by a
   thread of its own. Sessions are opened and used as those of any model; with one rank they have the same bits, with several the same for
   the same number of ranks. After a part has failed, all calls that compute return its error, MOTE_EDEVICE if it cannot reach the others.
   Errors: as mote_open; MOTE_EUNSUPPORTED if something cannot be divided by so many, or on a GPU; MOTE_EINVAL for fewer than 1 or more than
   64 parts, and without weights. */
int mote_open_parts(const char *dir, const mote_options *options, int ranges, int ranks, mote_model **model, mote_error *error);

enum { MOTE_TRACE_TOKENS = 1024 };         /* the most of a trace */

/* A value on a token's way through the model, in double precision.

     kind         name                 values
     any          "x"                  [hidden] the residual stream before it; [streams][hidden] where there are several
                  "share"              [streams] what each of several gets of what is added; not of "head" and "ngrams"
                  "added"              [hidden] what is added to it, before some models scale it; not of "head"; of "ngrams" [streams][hidden]
     "deltanet"   "decay"              [value_heads] 0..1: what is left of S, exp(g)
                  "beta"               [value_heads] 0..1: how strongly the token is written
                  "S"                  [value_heads][value_dim][key_dim] after the token
     "attention"  "attention"          [heads][token + 1] how much of each token's value a head takes; each row sums to 1
                  "gate"               [heads][head_dim] 0..1: what is left of the head's output; only where there are gates. Those of a
                                       g_proj are softplus, 0 or more
                  "index"              [groups] scores of the groups of tokens so far; only where there is an index
     "ngrams"     "e"                  [ngram rows][row_size] the rows of the table that the token has
     "mamba"      "dt", "decay"        [heads] the token's step; 0..1: what is left of S
                  "S", "y"             [heads][head_dim][state_dim] after the token; [heads][head_dim] what out_proj is given
     "mla"        "attention"          [heads][token + 1] as of "attention"
                  "latent"             [kv_lora_rank] what keys and values of the token are made of
     "moe"        "router"             [experts] the router's scores
                  "experts"            [experts] the weights of the chosen ones, 0 for the others
                  "shared_expert_gate" [1] before the sigmoid; only where there is a shared expert with a gate
     "head"       "logits"             [vocab]

   There are more, which the definitions of layers name: their projections, "q_proj" and so on. */
typedef struct mote_traced {
    int layer;                             /* from 0; mote_info.layers: the MTP layer with its head; -1: the model's head */
    const char *kind;                      /* as in mote_info.kinds, or "head" */
    int token;                             /* from 0; the MTP layer at a token also knows the one after it */
    const char *name;
    int count;
    const double *values;                  /* [count], valid during the call, as is all of this */
} mote_traced;

/* Computes the model over ids [count], 1 to MOTE_TRACE_TOKENS, by the definitions of its layers: naive, on one thread, slow. told is
   called with each value: for one token after the other those of each layer, mixer before FFN, the head's, and, but for the last
   token, those of the MTP layer, whose logits are of the token after the next one. callbacks: cancel, heeded
   before the next layer, and progress; may be NULL. The model must be on the CPU and have its weights: else MOTE_EUNSUPPORTED. */
int mote_trace(const mote_model *model, const int32_t *ids, size_t count, const mote_callbacks *callbacks,
               void (*told)(void *user, const mote_traced *value), void *user, mote_error *error);

typedef struct mote_traced_pass {
    int32_t ids[MOTE_ROWS_MAX];            /* the token that the pass begins with, then its drafts */
    int drafts;                            /* of these: verified by the pass */
    int taken;                             /* the first so many were what the model chooses itself */
    int source;                            /* MOTE_DRAFT_...: who made them */
} mote_traced_pass;

/* Continues the timeline by at most `tokens` greedy tokens, as mote_generate does, until an end-of-text token or a full context, and
   tells of each pass. */
int mote_trace_passes(mote_session *session, int tokens, void (*told)(void *user, const mote_traced_pass *pass), void *user,
                      mote_error *error);

#ifdef __cplusplus
}
#endif
#endif
