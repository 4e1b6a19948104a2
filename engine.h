/* mote: a Mixture-of-Experts inference engine for applications, in two files: this header and engine.c,
   or engine.cu for GPUs too. diagnose/diagnose.h is a second header, for measuring and testing the machine.

   Contents   1. Versions, errors, callbacks     2. Models        3. Text and chat
              4. Sessions                        5. Sampling      6. Generating text
              7. Checkpoints, copies and files

   A model (mote_model) is immutable once open: any number of threads and sessions may share it. A session (mote_session)
   is one timeline of tokens: use it from one thread at a time; different sessions run on different threads, and those that share a
   runner (mote_runner) are computed together. While a call
   on a session runs, which is where its callbacks are called, every other call on it is refused with MOTE_EINVAL, except
   that its callbacks may call mote_tokens, mote_context and mote_speculation_of. A forked child may close the sessions and models it
   inherited, and open its own.

   Rules that hold everywhere
   - A call that can fail returns MOTE_OK (0) or a positive MOTE_E... code, and then fills *error (which may be NULL) with
     one line that names the file, the tensor or the argument and what was expected. Nothing is half done: on failure
     outputs stay untouched and the session stays as it was before the call, except where a function says otherwise. After
     MOTE_EDEVICE a session can only be closed.
   - An argument that must not be NULL and is, is MOTE_EINVAL; calls without a code then return NULL or 0, or do nothing.
   - The library never prints and never exits. What it has to say goes to the log callback; without one it is silent. Its
     threads block all signals.
   - Structs of options may be zero-initialised: zero always means the default. A pointer to options may be NULL.
   - Structs of options (mote_options, mote_session_options, mote_generation, mote_embedding) begin with `size`: sizeof the struct as the
     application was compiled, or 0, which stands for the struct of version 0.3. Of fields that a smaller size leaves out the
     library takes the defaults; fields that it does not know yet must be zero, else the call is MOTE_EINVAL. So a program
     runs with a newer library, and with an older one as long as it asks for nothing new.
   - The shared library's soname is libmote.so.0. While it stays, structs of options grow at their end only, and so does mote_info, which the
     library alone makes; every other struct and every function's parameters stay as they are, and no value of a constant changes.
   - A call that a cancel callback stops returns MOTE_ECANCELLED, whether it loads, reads or generates; what is done by then is
     said at the call. A non-zero return of on_text, on_token, on_call or on_logits is the application's own way to end an
     answer, and no error: MOTE_OK, and MOTE_STOP_CALLBACK in the result.
   - Texts are UTF-8. Ill-formed input is read as if each maximal ill-formed part were U+FFFD; output is always well formed.
   - Sizes are in bytes, times in seconds, token ids are int32_t. */
#ifndef MOTE_ENGINE_H
#define MOTE_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- 1. Versions, errors, callbacks ------------------------------------------------------------------------------ */

#define MOTE_VERSION "0.3.0"

const char *mote_version(void);            /* the version of the library linked in: MOTE_VERSION of its build */

enum {                                     /* return codes */
    MOTE_OK = 0,
    MOTE_EINVAL = 1,                       /* a bad argument or request */
    MOTE_EIO = 2,                          /* a file is missing or cannot be read or written */
    MOTE_EFORMAT = 3,                      /* a file does not hold what its format says: truncated, malformed, mis-shaped */
    MOTE_EUNSUPPORTED = 4,                 /* well formed, but nothing mote can run: architecture, quantisation, template */
    MOTE_ENOMEM = 5,
    MOTE_ECONTEXT = 6,                     /* the tokens do not fit into the session's context */
    MOTE_ECANCELLED = 7,                   /* a cancel callback asked to stop */
    MOTE_EDEVICE = 8,                      /* the GPU: none there, driver too old, an operation on it failed, or it is lost; or a worker is lost */
    MOTE_EMISMATCH = 9                     /* mote_generation.verify found speculation to differ from plain decoding */
};

typedef struct mote_error {
    int code;                              /* one of the codes above */
    char message[512];                     /* one line, without a line feed */
} mote_error;

/* None of them may call the session that calls it, except mote_tokens, mote_context and mote_speculation_of. All callbacks, those of
   mote_generation too, have to return: after an exception or a longjmp out of one the memory of the call is lost, and a session stays
   busy. mote_session_close then works in the thread of that call, in the function that made it and in those that called that one. */
typedef struct mote_callbacks {
    void (*log)(void *user, const char *line);                             /* notices, one line each, without a line feed */
    void (*progress)(void *user, const char *what, double fraction);       /* 0..1, during loading and long prompts */
    int (*cancel)(void *user);                                             /* polled while tokens are read and answers generated;
                                                                              non-zero stops the call. A single step is not stopped */
    void (*prompt)(void *user, int done, int count);                       /* while `count` tokens are read: so many are, by the
                                                                              work done; the last call has done == count */
    void *user;                                                            /* handed to each of them */
} mote_callbacks;

/* ---- 2. Models --------------------------------------------------------------------------------------------------- */

enum { MOTE_ROWS_MAX = 8 };                /* token rows of a forward pass of which a part may be kept: a token and its drafts */

typedef struct mote_model mote_model;
typedef struct mote_runner mote_runner;
typedef struct mote_session mote_session;

enum {                                     /* which parts of a checkpoint folder to open */
    MOTE_EVERYTHING = 0,                   /* weights, and tokenizer and chat template where the folder has them */
    MOTE_TEXT_ONLY = 1,                    /* tokenizer and chat template; no sessions */
    MOTE_WEIGHTS_ONLY = 2,                 /* no tokenizer: token ids in, token ids and logits out */
    MOTE_DESCRIPTION = 3                   /* everything but the values of the weights: for mote_model_info; no sessions */
};

enum {                                     /* what weights become when they are loaded */
    MOTE_QUANTIZE_OFF = 0,                 /* nothing: they are what the checkpoint has */
    MOTE_QUANTIZE_FP8 = 1,                 /* BF16 matrices become FP8 in blocks of 128 x 128, half the bytes, lm_head too unless it is
                                              the embedding table; not embeddings, routers and other small ones */
    MOTE_QUANTIZE_HEAD_FP8 = 2             /* a BF16 lm_head alone becomes FP8. One that is the embedding table becomes a copy in FP8 beside it:
                                              half as many bytes more in memory, half as many read for a token */
};

enum {                                     /* how several devices share a model */
    MOTE_SPLIT_AUTO = 0,                   /* as MOTE_SPLIT_PIPELINE */
    MOTE_SPLIT_PIPELINE = 1,               /* each has some of the layers, one after the other: the bits of one device */
    MOTE_SPLIT_TENSOR = 2                  /* each has a share of every layer: sums are added in the devices' order, so that bits depend on
                                              how many there are */
};

enum {                                     /* where a GPU's routed experts lie */
    MOTE_EXPERTS_AUTO = 0,                 /* in its memory, if all weights fit there and leave a thirty-second of it; else in the host's */
    MOTE_EXPERTS_DEVICE = 1,               /* in its memory */
    MOTE_EXPERTS_HOST = 2                  /* in pinned host memory, which the GPU reads: the same bits, at the speed of the link where they
                                              are not in slots of its own memory, too. See docs/experts-in-host-memory.md */
};

typedef struct mote_options {
    size_t size;                           /* of this struct: see the rules above */
    int parts;                             /* MOTE_EVERYTHING, ... */
    mote_callbacks callbacks;              /* used during mote_open only */
    const char *device;                    /* "cpu", "cuda", "cuda:1"; NULL: the first GPU, or the CPU where there is none */
    int draft_rows;                        /* drafts come from the first so many tokens of the vocabulary; default 65,536 */
    int quantize;                          /* MOTE_QUANTIZE_... */
    const char *devices;                   /* "cuda:0,cuda:1", or "0,1", or "cpu,cpu": up to 16 that hold the model together, each its
                                              part of it, in their order; the CPU may stand there several times. GPUs, or CPUs: each of these is
                                              some of the threads. Of one, it is `device`. NULL: `device` alone. Not beside device */
    int split;                             /* MOTE_SPLIT_..., of devices */
    const char *layers;                    /* "20,28": so many layers for each of the devices of a pipeline, all of the model's; NULL: by
                                              the bytes of the layers and what is free on each device. Not beside MOTE_SPLIT_TENSOR */
    const char *workers;                   /* "10.0.0.2:7000,10.0.0.3:7000": other hosts, on which `mote worker` runs, that have the model's first
                                              layers, in their order; this host has the last ones. On GPUs or CPUs, all of
                                              them; not beside devices */
    const char *secret;                    /* of the workers: 16 bytes or more */
    uint64_t gpu_memory;                   /* bytes of each GPU's memory that the model, its runners and sessions may take, of what is free when
                                              it is opened; 0: all of that */
    int experts;                           /* MOTE_EXPERTS_..., on a GPU. Host memory is of this process alone: another one that opens the same
                                              folder has its own. Both are of this host's GPUs: of workers each finds out by itself */
    int images;                            /* 0: load the vision tower, if the checkpoint has one that mote reads; -1: leave it out */
    const char *drafter;                   /* folder of a block drafter that was trained for this checkpoint (DFlash), which drafts beside
                                              the MTP layer: answers stay the same. On the CPU or one GPU, and as stored, whatever
                                              quantize says. NULL: none. See docs/speculation.md */
} mote_options;

/* Opens a Hugging Face checkpoint folder (config.json, *.safetensors, tokenizer.json, ...) as it is. Every tensor is checked
   before any memory is allocated for it. On success *model is the caller's, to be closed with mote_close. */
int mote_open(const char *dir, const mote_options *options, mote_model **model, mote_error *error);

/* Frees a model, as soon as its last session is closed. NULL is allowed. */
void mote_close(mote_model *model);

/* After a worker of mote_options.workers was lost: connects again to all that are lost, and has each open its part anew, which must be of the same
   folder; this host keeps its own. MOTE_OK: none is lost, then or now; the same for a model without workers. Runners and sessions that there were
   stay lost: close them, and open others. Not while another thread opens a runner of the model. One that cannot be reached is MOTE_EIO or MOTE_EDEVICE,
   one that refuses MOTE_EINVAL or whatever it says; the message names it, and the call may be made again.
   callbacks: cancel is asked every two seconds while a worker reads its weights, which ends the call with MOTE_ECANCELLED. NULL: nothing is. */
int mote_reconnect(const mote_model *model, const mote_callbacks *callbacks, mote_error *error);

/* After a call has returned MOTE_EDEVICE: whether this host's own devices of the model still compute. MOTE_OK: they do, what was lost is a worker or a
   runner; MOTE_EDEVICE: one does not, and nothing but a new process will mend that: close what there is. Waits for what a device still does. */
int mote_check_device(const mote_model *model, mote_error *error);

typedef struct mote_worker_options {
    size_t size;                           /* of this struct: see the rules above */
    const char *listen;                    /* where leaders connect: "10.0.0.2:7000"; port 0: one that is free */
    const char *secret;                    /* 16 bytes or more, which leaders know, too (mote_options.workers) */
    const char *device;                    /* that computes, as mote_options.device */
    int threads;                           /* that compute, on the CPU; 0: as many as there are processors */
    int (*running)(void *user, const char *address);       /* told the address once it listens, and each second; non-zero ends the call. NULL:
                                                              it does not end */
    void *user;
    mote_callbacks callbacks;              /* log: leaders that come and go */
} mote_worker_options;

/* Has this host compute some of the layers of the model in a folder, for one leader at a time on another host, whose folder must be the same.
   Connections are neither enciphered nor, after the secret has been shown, signed: for one machine, or a network that nobody else is on. */
int mote_worker_run(const char *dir, const mote_worker_options *options, mote_error *error);

typedef struct mote_module {               /* the tensors of one kind, summed over the layers */
    const char *name;                      /* "experts", "attention", "deltanet", "embed_tokens", "drafter", ... */
    const char *dtype;                     /* as stored: "BF16", "FP8 128x128", "NVFP4", "GPTQ INT4 g128", ..., or several
                                              joined by "+" */
    uint64_t parameters;
    uint64_t bytes;                        /* as held in memory, scales included */
    uint64_t bytes_per_token;              /* of these, read to decode one token (top-k of the experts, one embedding row); 0 of a
                                              block drafter, of which each block of drafts reads all, and of
                                              lm_head draft_rows */
} mote_module;

typedef struct mote_size { const char *name; int value; } mote_size;       /* "heads", 16 */

typedef struct mote_layers {               /* the layers of one kind; "vision": the blocks of the vision tower */
    const char *name;                      /* "attention", "deltanet", "moe", ... */
    int count;                             /* layers of the model that have one, the MTP layer not counted */
    const mote_size *sizes;                /* its shape, size_count numbers */
    int size_count;
} mote_layers;

typedef struct mote_device {               /* a device that has some of a model, or all of it */
    const char *name;                      /* "cpu", or "cuda:0 NVIDIA GB10 (sm_121)" */
    int first_layer, layer_count;          /* the layers that it has */
    int rank, ranks;                       /* of MOTE_SPLIT_TENSOR: which of so many shares of each of these layers, from 0; else 0 of 1 */
    uint64_t weight_bytes;                 /* held in its memory, or for it in the host's: together more than the model's, as some have the
                                              same */
} mote_device;

typedef struct mote_info {
    const char *architecture;              /* "qwen3_5_moe" */
    const char *chat_template;             /* "Qwen3.5", "Qwen3", changed ones included, or NULL when there is none or it is not known */
    int layers, mtp_layers;
    int hidden_size, vocab_size, context_max;
    const mote_layers *kinds;              /* what a layer consists of: kind_count kinds, those that the model has */
    int kind_count;
    const char *const *stages;             /* what a step consists of, in order: stage_count names, for diagnose.h */
    int stage_count;
    const char *device;                    /* what holds the weights: "cpu", or "cuda:0 NVIDIA GB10 (sm_121)", or of several
                                              "cuda:0+cuda:1 NVIDIA GB10 (sm_121): 20+20 layers" */
    int tied_embeddings;                   /* 1 when the checkpoint's lm_head is the embedding table */
    int quantize;                          /* as in mote_options: not 0, these are not the checkpoint's own weights */
    uint64_t parameters, active_parameters;/* in all, and used for one token; the MTP layer is not in the second */
    uint64_t weight_bytes;                 /* held in memory */
    uint64_t weight_bytes_per_token;       /* read to decode one token */
    uint64_t kv_bytes_per_token;           /* KV cache of the device's default type, for one token of context; read to decode
                                              one more. Without layers that have a window */
    uint64_t state_bytes;                  /* recurrent state, read and written to decode one token */
    int prefill_from;                      /* calls that feed so many tokens or more are read by prefill, on tensor cores, with
                                              its own rounding; others as they are decoded. 0: all of them */
    const mote_module *modules;            /* by kind, module_count of them */
    int module_count;
    int estimated;                         /* 1: MOTE_DESCRIPTION of a folder without weights, with config.json and at most the
                                              headers of the safetensors files: sizes are what a published checkpoint has */
    int32_t begin_token;                   /* token that tokenizer.json puts at the beginning of a text, and that a prompt which is
                                              no chat begins with; mote_tokenize leaves it out. -1: none */
    int32_t end_token;                     /* the same at the end of a text, which is for mote_embed alone: embedding models have one */
    int pooling;                           /* how the checkpoint was trained to embed texts: MOTE_POOLING_LAST or _MEAN, as modules.json and
                                              what it names say; MOTE_POOLING_DEFAULT: it was not, or mote cannot: see mote_embed */
    uint64_t window_bytes_per_token;       /* kv_bytes_per_token of layers with a window: no more than `window` tokens are read, few more are
                                              kept (mote_memory.kv) */
    int window;                            /* tokens that a layer with a window sees; where they differ, the most. 0: none has one */
    const mote_device *devices;            /* device_count of them, in the order of mote_options.devices */
    int device_count;
    uint64_t host_bytes;                   /* of the weights, in pinned host memory: those of routed experts. 0: all are on the device */
    uint64_t expert_bytes;                 /* on a GPU: one routed expert of each layer whose experts are in host memory, all together: what one
                                              more slot in each of these layers takes on the device */
    int expert_layers;                     /* layers whose routed experts are in host memory, the MTP layer counted */
    int experts_shared;                    /* 1: the device's memory is the host's, so that experts are used where they lie and slots gain
                                              nothing */
    int images;                            /* 1: it has a vision tower, which reads images; 0: it reads text alone */
    int image_tokens;                      /* tokens that one image may take by the checkpoint; 0: it reads text alone. By default an image takes
                                              4,096 at most: what is larger is reduced, where transformers would not. See mote_image.tokens */
} mote_info;

/* What the model is. The result and all it points to stay valid until the model is freed. Sizes are 0 with MOTE_TEXT_ONLY. */
const mote_info *mote_model_info(const mote_model *model);

enum {                                     /* how many tokens are drafted for a forward pass to verify; or 1 to MOTE_ROWS_MAX - 1 */
    MOTE_MTP_AUTO = 0,                     /* as many as pay, by what passes take and how many are accepted; also none. Those of the MTP
                                              layer, if there is one, of a block drafter, and copies of what stands in the timeline already */
    MOTE_MTP_OFF = -1                      /* none: no copies, and neither the MTP layer nor a block drafter has KV rows, so there are no
                                              MTP logits either */
};

enum {                                     /* how keys and values of attention layers, or their latents, are kept */
    MOTE_KV_DEFAULT = 0,                   /* F32 on the CPU, BF16 on a GPU */
    MOTE_KV_F32 = 1,                       /* CPU only */
    MOTE_KV_BF16 = 2,
    MOTE_KV_FP8 = 3                        /* E4M3; in units of the layer's k_scale and v_scale where the
                                              checkpoint has them. Beyond 448 units it is 448 */
};

typedef struct mote_session_options {
    size_t size;                           /* of this struct: see the rules above */
    int context;                           /* tokens the session can hold; default: the model's maximum, at most 8192 */
    int chunk;                             /* rows computed at a time while reading a prompt: 1 to 8192. Default: 256; on a
                                              GPU 8192, on several 4096, or fewer where memory is short, and rounded up to whole 64 */
    int threads;                           /* default: one for each processor this process may use; a GPU needs none */
    int kv;                                /* MOTE_KV_... */
    mote_callbacks callbacks;              /* used by every call on the session */
    int mtp;                               /* MOTE_MTP_..., or 1 to MOTE_ROWS_MAX - 1: so many drafts of the MTP layer a pass, or copies,
                                              at most as many, where these promise more. Without an MTP layer there are copies alone */
    int sms;                               /* GPU: use at most so many SMs (streaming multiprocessors); 0: all */
    mote_runner *runner;                   /* whose working memory the session shares; NULL: it has one of its own */
    size_t sessions;                       /* GPU, with experts in host memory: the device's memory that so many sessions like this one do not
                                              need holds slots of experts (of the runner that is opened); default: 1 */
    int image_tokens;                      /* of one image at most, for which memory is planned. Default: 4,096, or what the checkpoint allows
                                              (mote_info.image_tokens), which is the most. Sessions of a runner have that of the runner */
    int reserved;                          /* 0 */
} mote_session_options;

typedef struct mote_memory {
    uint64_t weights;                      /* one model, with its drafter: what it takes of the device's memory */
    uint64_t kv, state, scratch;           /* one session: KV cache, of a layer with a window as much as the largest window and `chunk` rows,
                                              on a GPU at most 1,024, take, rounded up to whole 256, or the context if that is less;
                                              recurrent state with its log; everything else */
    uint64_t total;                        /* one model with one session */
    uint64_t available;                    /* free on the device now; 0 = unknown */
    uint64_t runner;                       /* what sessions of one runner share */
    int sessions;                          /* sessions like this one that fit into what is available, sharing a runner; 0: not even one;
                                              -1: unknown. With experts in host memory half of what is left counts: the rest is for slots */
    int context;                           /* tokens this plan is for */
    int chunk;                             /* rows of a prompt computed at a time */
    int context_fits;                      /* the longest context that would fit into what is available, at most the model's
                                              maximum; 0: not even one token; -1: unknown. Half of it counts, likewise */
    int estimated;                         /* as in mote_info */
} mote_memory;

/* Plans the memory for a checkpoint folder and one session, or as many as fit, without allocating it: reads only config.json and the headers
   of the safetensors files, and fails where mote_open would fail on those. With mote_options.workers, which are not asked, it plans for this host alone: the
   last layers, as opening would divide them. Workers look at their own memory when they open their part, and a runner. */
int mote_plan(const char *dir, const mote_options *model, const mote_session_options *session, mote_memory *plan,
              mote_error *error);

/* The same for one of the devices of a model that was opened with MOTE_DESCRIPTION, `device` of mote_info.devices: what it holds of weights and
   of a session. mote_plan has the sums of all. sessions and available are the device's, and of one on another host unknown; context, chunk and context_fits are of all. Parts on
   the same device share what is available. */
int mote_plan_device(const mote_model *model, int device, const mote_session_options *session, mote_memory *plan, mote_error *error);

/* ---- 3. Text and chat -------------------------------------------------------------------------------------------- */

/* Control tokens are those that tokenizer.json adds to the vocabulary: "<|im_end|>", and no less "</tool_response>" or
   "<think>", which it does not call special. Text from outside, which one does not trust, must not become one of them.

   The first four write at most `capacity` elements and always set *count: to the number needed, to 0 after any other
   failure. When the number is larger than capacity they return MOTE_EINVAL, so that a caller may ask for the size first
   with capacity 0 (and NULL for the place): that counts tokens without computing anything, also with MOTE_TEXT_ONLY. No
   terminating zero is written. Without a tokenizer, or for the two that render without a chat template that mote knows, they
   fail with MOTE_EUNSUPPORTED. */

/* Text to token ids. special: 1 = the text of a control token becomes that token; 0 = all is plain text, for text one does
   not trust. */
int mote_tokenize(const mote_model *model, const char *text, size_t size, int special, int32_t *ids, size_t capacity,
                  size_t *count, mote_error *error);

/* Token ids to text, that of control tokens included. An id outside the vocabulary is an error. */
int mote_detokenize(const mote_model *model, const int32_t *ids, size_t id_count, char *text, size_t capacity,
                    size_t *count, mote_error *error);

/* A chat request to the prompt text, as the checkpoint's own template renders it. request is the JSON object
   {"messages":[...], "tools":[...], "enable_thinking":bool, "reasoning_effort":text, "preserve_thinking":bool, "clear_thinking":bool,
   "add_generation_prompt":bool, "continue_final_message":bool}; all but messages are optional, and
   add_generation_prompt is true by default. "date_string" is the date, where a template tells it; without it that is today's. gpt-oss's
   template also reads "model_identity" and "builtin_tools" (of "browser" and "python", whose calls the application answers). A call's
   "arguments" are an object, or a text that holds one. Where the template refuses, leaves out or does not know what applications send, it
   is rendered so:
   - "developer" is "system". A system message in the middle is a system turn in its place, if the family's template has that,
     else a user's turn that begins with "System message:"; those at the beginning are one system turn then. Nothing before it
     changes, and it is no question: thinking since the user's last one stays.
   - A history without a question of a user is all of the last round, so that its thinking stays, unless the template says otherwise.
   - Results of tools are put in the order of the calls they answer, by "tool_call_id" and the call's "id". One without an id, or
     with that of no call, is of the first call that has none; of several of one id the first counts. The others follow.
   - A tool's result before all else begins a user's turn, as any other does.
   - Where turns have to alternate (Mistral), neighbouring messages of a user, or texts of an assistant, are one turn, with a blank line
     between them; all else follows in its order.
   - Calls that a turn has no place for (two of Llama 3.1's, or one beside a text; any, where a template has no calls) are text of that
     turn, each as JSON, with "; " between them; Gemma 4's template has a text before its calls. A result without a place (Gemma 4's: one
     that answers no call of the turn before it) is a user's text that begins with "Tool result:". A call's
     arguments that were cut off stand as they were written.
   - gpt-oss's calls, one to a message, are messages of their own, each with its result after it; a result without a call is a user's
     text. Thinking is "thinking" or "reasoning_content"; a system message in the middle is a developer's turn.
   - Mistral's templates without a place for a system message have it in front of the first question, those of 7B v0.3 and Nemo of the
     last; ids of calls that are not nine characters long, which they refuse, become such. Llama 3.1's tools are in a question that comes
     first. A history without such a question gets an empty one.
   - Contents may be lists of texts, or null.
   - "continue_final_message": the last message, the assistant's, is an answer that the model goes on with: its turn is not ended,
     and no other begun, as transformers does it. It has no calls, and add_generation_prompt is not true: else MOTE_EINVAL.
   A template that is one of these families' but for changes (comments, a default system message, instructions, errors not
   raised) is used as the family's, which the log callback of mote_open is told. One that says something else outside of its
   messages, under no condition, is unknown; ChatML's may begin with bos_token there.
   mote_tokenize with special = 1 would trust the whole of this text, messages and all: see mote_render_tokens. */
int mote_render(const mote_model *model, const char *request, size_t size, char *text, size_t capacity, size_t *count,
                mote_error *error);

/* Which of these forms mote_render gives a request that the template cannot say as it is, as words with ", " between them: "joined"
   (neighbours), "calls", "results", "system" (text in a user's turn), "question" (an empty one), "turns" (which do not alternate), and
   "tools", for which the template has no place at all. An empty text: none. What the template writes, and ids, order and lists, are not told. */
int mote_render_changes(const mote_model *model, const char *request, size_t size, char *text, size_t capacity, size_t *count,
                        mote_error *error);

/* mote_render to token ids. Only the template's own words hold control tokens: whatever comes out of the request (contents of
   any role, thoughts, names, arguments, tool definitions) is plain text. Where it names no control token, the ids are those
   of the rendered text. */
int mote_render_tokens(const mote_model *model, const char *request, size_t size, int32_t *ids, size_t capacity,
                       size_t *count, mote_error *error);

/* Images. Models with a vision tower (mote_info.images) read pictures, each as a number of tokens: one for 32 x 32 pixels of Qwen3.5's. A content of a
   request may have parts {"type": "image"}, which may hold anything else (image_url, ...) that is not looked at, but see mote_render_images: in its place mote_render_tokens writes
   one pad between the marks of an image. The pictures themselves come beside it, in the order of the pads. Text from outside is never a pad. */
typedef struct mote_image {                /* a picture: a PNG or JPEG file, or RGB. The caller's, read during the call only */
    const void *data;
    size_t size;                           /* at most 64 MiB of a file */
    int width, height;                     /* 0: data is a file; else `height` rows of `width` pixels, three bytes each: size is 3 * width * height */
    int tokens;                            /* that it may take at most: what would take more is reduced, but not below what the checkpoint enlarges
                                              small ones to. Default: that of the session for mote_ask, else 4,096; never more than the checkpoint allows */
    int reserved;                          /* 0 */
} mote_image;

/* Its size, upright as EXIF has it, and the tokens that it takes; any of the three may be NULL. Of a file only the header is read. MOTE_EFORMAT, and
   MOTE_EUNSUPPORTED for other formats than PNG and JPEG, for more than 2^26 pixels, 32,768 a side or sides in a ratio of more than 200, and for a model
   that reads no images. */
int mote_image_size(const mote_model *model, const mote_image *image, int *width, int *height, int *tokens, mote_error *error);

/* Images as the model sees them: decoded, upright, over white, resized. Immutable: for any number of threads and sessions of the model. Errors say which
   image it is: "image 2: WebP is not read, PNG and JPEG are". */
typedef struct mote_images mote_images;

int mote_images_open(const mote_model *model, const mote_image *images, int count, mote_images **opened, mote_error *error);
void mote_images_close(mote_images *images);               /* NULL is allowed */

/* ids in which pads stand for these images, all of them in their order, as they stand in a timeline: a run of pads, one or as many as the image has
   tokens, becomes as many keys. Keys are negative, and made of what the picture shows: SHA-256 of its size and pixels as the model sees them. So
   timelines are the same as far as these numbers are, which cannot be said of ids. Negative ids are keys already, and stay. placed, capacity and
   count: as for the first four of this section. */
int mote_images_place(const mote_images *images, const int32_t *ids, size_t id_count, int32_t *placed, size_t capacity, size_t *count,
                      mote_error *error);

/* Which image stands in each place that mote_render_tokens has for one, in the order of the prompt: the number that its part of a content gives as
   "image", as in {"type": "image", "image": 0}, or else how many places are before it. Images in results of tools may come in another order than
   in the request. capacity, count: as for mote_tokenize. */
int mote_render_images(const mote_model *model, const char *request, size_t size, int *numbers, size_t capacity, size_t *count,
                       mote_error *error);

/* The bytes of one token (not always whole characters), *size of them; NULL when the id has no text. Owned by the model. */
const char *mote_token_bytes(const mote_model *model, int32_t id, size_t *size);

/* 1 when the token ends an answer: see mote_generate. */
int mote_is_end(const mote_model *model, int32_t id);

/* ---- 4. Sessions ------------------------------------------------------------------------------------------------- */

/* Starts an empty timeline on a model, with all the memory it will ever need. */
int mote_session_open(const mote_model *model, const mote_session_options *options, mote_session **session,
                      mote_error *error);

/* A runner is what a device works with and sessions can share: threads or a stream, scratch, on a GPU captured graphs. A session of
   mote_session_options.runner takes of its own only what it remembers; without one it opens a runner that is its own.

   Sessions of a runner may be used by several threads at the same time. Steps of those that come together (mote_step, mote_generate,
   mote_ask) are computed as one pass, which reads most weights once for all of them; all else takes turns, in the order in which it was
   called. Between two layers of a long prompt the others get a pass in. A session's tokens, logits and state are those that it has
   alone, bit for bit, whoever it meets. Each call's callbacks are called in its own thread, and hold up nobody but that session: after a
   twentieth of a pass's time the others go on without it. They may use other sessions of the runner, but not between the layers of a
   prompt of more than MOTE_ROWS_MAX tokens: there all wait for them, and that is MOTE_EINVAL, and changes nothing. Closing a session
   waits for the pass that is being computed. What fails on a session is that session's alone, but for a GPU that is lost.
   For several sessions by one thread: mote_step_many.

   options: context is the longest that a session of the runner may have; chunk, threads, kv, sms and image_tokens are those of all of them: a
   session asks for the same or leaves them 0. NULL, and its zeros: as for a session. */
int mote_runner_open(const mote_model *model, const mote_session_options *options, mote_runner **runner, mote_error *error);

typedef struct mote_seen {                 /* what a runner has computed since it was opened */
    uint64_t passes, rows, sessions;       /* passes of steps and of verified drafts; the token rows in them; the sessions, each counted
                                              in every pass: sessions / passes is the average batch */
    uint64_t prompt_tokens;                /* read in blocks of more than MOTE_ROWS_MAX tokens, which are no passes */
    double pass_seconds, prompt_seconds;   /* that these and those have taken, without what came between */
    double since;                          /* seconds since something last began or ended to be computed: a pass, a copy, a block of a
                                              prompt, on a GPU each of its layers */
    int busy;                              /* 1: something is being computed, or waits for it. With a long `since` it is stuck */
} mote_seen;

/* From any thread, at any time: it waits for nothing that is computed. */
int mote_runner_seen(mote_runner *runner, mote_seen *seen, mote_error *error);

typedef struct mote_experts_seen {         /* of experts in host memory, since a runner was opened; 0, where there are none */
    uint64_t hits, misses;                 /* experts that passes found in slots of the GPU's memory, and that they did not: of each layer the
                                              different ones that a pass reads */
    uint64_t passes;                       /* those, and drafts: as many as a layer has computed */
    uint64_t bytes;                        /* that crossed the link: of misses, and copies for prompts */
    int slots;                             /* of each such layer. One that has a slot for each expert counts nothing: all are there */
} mote_experts_seen;

/* As mote_runner_seen; also of the runner of a session, which may be its own. They are counted on the GPU: MOTE_EDEVICE if that is lost. */
int mote_runner_experts(mote_runner *runner, mote_experts_seen *seen, mote_error *error);
int mote_session_experts(const mote_session *session, mote_experts_seen *seen, mote_error *error);

typedef struct mote_tables_seen {          /* of tables that stay in the checkpoint's files, since a model was opened; 0, where there are none */
    uint64_t bytes;                        /* of them in the files */
    uint64_t cached, read;                 /* rows that were found in memory, and that were read from the files */
    uint64_t cache_bytes;                  /* of memory that keeps rows which were wanted lately */
} mote_tables_seen;

/* From any thread, at any time. */
int mote_model_tables(const mote_model *model, mote_tables_seen *seen, mote_error *error);

/* NULL is allowed. The runner lives on until the last of its sessions is closed. */
void mote_runner_close(mote_runner *runner);

/* Frees a session and its threads. NULL is allowed. While a call on the session runs, a callback or another thread cannot close
   it: that is logged, and nothing else happens. */
void mote_session_close(mote_session *session);

/* Appends tokens to the timeline and computes the model over them, in chunks. When cancelled, the chunks already done stay
   appended (see mote_tokens) and MOTE_ECANCELLED is returned. */
int mote_feed(mote_session *session, const int32_t *ids, size_t count, mote_error *error);

/* The same, and writes logits [count, vocab_size] of every appended token, and mtp_logits, the MTP layer's. Either may be NULL;
   with both NULL it is mote_feed. The MTP row of a position needs the token after it, so the rows are those of the positions
   from the one before the first appended token to the one before the last: count rows, or count-1 when the timeline was
   empty. */
int mote_feed_logits(mote_session *session, const int32_t *ids, size_t count, float *logits, float *mtp_logits,
                     mote_error *error);

/* mote_feed_logits of ids and images, as mote_images_place takes and writes them. What of the beginning is in the timeline already may be left out: images
   that are not met do not matter. Where a call ends within an image, or was cancelled there, the next one goes on with the next key. Images are computed first: when that fails or is cancelled, the timeline is as before. A runner remembers what it has made of
   images lately, in 256 MiB at most of the host's memory. */
int mote_feed_images(mote_session *session, const int32_t *ids, size_t count, const mote_images *images, float *logits, float *mtp_logits,
                     mote_error *error);

typedef struct mote_logprob {
    int32_t id;
    float logprob;                         /* natural logarithm of its probability, in the model's own distribution over the
                                              whole vocabulary: without temperature, penalties, bias or masks */
} mote_logprob;

/* mote_feed, and writes how probable each appended token was after those before it: tokens [count]; and (top > 0) the `top`
   most probable ones in its place, best first: alternatives [count][top], NULL with top 0. The first token of an empty
   timeline has nothing before it: its logprob is 0, and its alternatives have id -1. Takes the memory of 32 rows of logits,
   however many tokens there are; each row goes over the host, a millisecond for a vocabulary of 250,000. After a failure what
   was written is of no meaning; the tokens of chunks already done stay appended. */
int mote_feed_logprobs(mote_session *session, const int32_t *ids, size_t count, int top, mote_logprob *tokens,
                       mote_logprob *alternatives, mote_error *error);

enum {                                     /* which of a text's final rows (after the final norm, before lm_head) its embedding is */
    MOTE_POOLING_DEFAULT = 0,              /* as the checkpoint was trained, else MOTE_POOLING_LAST */
    MOTE_POOLING_LAST = 1,                 /* its last token's */
    MOTE_POOLING_MEAN = 2                  /* the mean of all its tokens', added first to last */
};

typedef struct mote_embedding {
    size_t size;                           /* of this struct: see the rules above */
    int pooling;                           /* MOTE_POOLING_... */
    int dimensions;                        /* the first so many numbers, for checkpoints that were trained to be cut (Matryoshka). Default:
                                              hidden_size, which is the most */
} mote_embedding;

/* The embedding of a text of `count` tokens, at least one: embedding [dimensions], of length 1, so that the dot product of two is
   their cosine. It is written only if all went well. The timeline is emptied first, and holds the text afterwards, or what of it was
   read when the call was cancelled or failed; arguments that are refused, and want of memory, leave it as it was. Bits are as mote_feed's:
   the same text has the same embedding, whatever the chunk, in company or alone. The mean takes the memory of 1,024 rows of hidden_size.

   The tokens: mote_info.begin_token, if there is one, those of mote_tokenize, mote_info.end_token, if there is one. Models that were trained
   for it want an instruction before a query, which their card tells: "Instruct: ...\nQuery:..." for Qwen3-Embedding, none before documents.
   Any model has embeddings. Those of one that was not trained for it (mote_info.pooling is MOTE_POOLING_DEFAULT) find related texts
   poorly. Where modules.json asks for what mote does not have, MOTE_POOLING_DEFAULT is refused, and the message names it. Nothing is drafted
   here: MOTE_MTP_OFF saves an MTP layer's work. */
int mote_embed(mote_session *session, const int32_t *ids, size_t count, const mote_embedding *options, float *embedding,
               mote_error *error);

/* The token history, *count ids. Owned by the session, valid until its next call. */
const int32_t *mote_tokens(const mote_session *session, size_t *count);

/* The same with keys where images are: see mote_images_place. What is to know whether a timeline begins as another one does compares these. */
const int32_t *mote_timeline(const mote_session *session, size_t *count);

/* The capacity of the session in tokens. */
int mote_context(const mote_session *session);

/* The logits [vocab_size] that predict the next token. Owned by the session, valid until its next call; NULL when the
   timeline is empty. */
const float *mote_logits(const mote_session *session);

/* The n most probable next tokens, best first, with natural-log probabilities, as in mote_logprob. */
int mote_top_logprobs(const mote_session *session, int n, int32_t *ids, float *logprobs, mote_error *error);

/* Empties the timeline. */
int mote_reset(mote_session *session, mote_error *error);

/* ---- 5. Sampling ------------------------------------------------------------------------------------------------- */

typedef struct mote_bias { int32_t id; float bias; } mote_bias;           /* -INFINITY: the token is never chosen */

/* Zero-initialised: greedy, no penalties. The random number for a position depends on seed and position alone, so that the
   same seed on the same timeline gives the same text, however it was computed. */
typedef struct mote_sampling {
    float temperature;                     /* 0: greedy, the most probable token (lowest id on a tie) */
    int top_k;                             /* keep the k most probable; 0: all */
    float top_p;                           /* keep the most probable until their sum reaches p; 0 or 1: all */
    float min_p;                           /* drop what is less probable than min_p times the best */
    float repetition_penalty;              /* divides positive, multiplies negative logits of tokens seen; 0 or 1: none */
    float presence_penalty;                /* subtracted once from logits of tokens generated */
    float frequency_penalty;               /* subtracted for each time a token was generated */
    uint64_t seed;
    const mote_bias *bias;                 /* added to the logits of these tokens, bias_count of them; the caller's */
    int bias_count;
} mote_sampling;

/* The checkpoint's own defaults (generation_config.json) and a fresh random seed. */
void mote_sampling_defaults(const mote_model *model, mote_sampling *sampling);

/* Chooses the next token from the current logits; the timeline stays as it is. Order: bias, penalties, (on_logits of
   mote_generation,) temperature, top-k, top-p, min-p. A GPU samples by itself without bias and penalties; with them each row
   of logits comes to the host (1 MB for a vocabulary of 250,000, and a millisecond or two). Repetition counts the whole
   history, presence and frequency what came after the last mote_feed or mote_ask. */
int mote_sample(const mote_session *session, const mote_sampling *sampling, int32_t *id, mote_error *error);

/* One decode step: mote_sample, then the token is appended and the next logits are computed. */
int mote_step(mote_session *session, const mote_sampling *sampling, int32_t *id, mote_error *error);

typedef struct mote_turn {
    mote_session *session;                 /* each in one turn */
    const mote_sampling *sampling;         /* NULL: greedy */
    int32_t id;                            /* out: the token appended */
    mote_error error;                      /* out: of this turn; its code is MOTE_OK where all went well */
} mote_turn;

/* mote_step of each of `count` sessions, with the same tokens and bits as one after the other. Those that share a runner are computed
   together, which reads most weights once: 64 of them in a pass. A turn that fails (a full context, a logit that is not a number, ...)
   leaves its session as it was and does not keep the others from theirs. Returns MOTE_OK, or the code and error of the first turn that
   failed. */
int mote_step_many(mote_turn *turns, int count, mote_error *error);

/* ---- 6. Generating text ------------------------------------------------------------------------------------------ */

enum { MOTE_ANSWER = 0, MOTE_THINKING = 1, MOTE_TOOL_CALL = 2 };           /* channels of an answer */

enum { MOTE_THINK_DEFAULT = 0, MOTE_THINK_ON = 1, MOTE_THINK_OFF = 2 };

typedef struct mote_generation {
    size_t size;                           /* of this struct: see the rules above */
    const mote_sampling *sampling;         /* NULL: mote_sampling_defaults */
    int max_tokens;                        /* 0: until the context is full */
    const char *const *stop;               /* texts that end the answer and are not part of it, stop_count of them. They are looked
                                              for in the answer: not in thinking, nor in calls (with raw, all is answer), nor in
                                              what is left of a required call that was cut off. The first to be complete counts,
                                              of those that end together the longest */
    int stop_count;
    const char *system;                    /* mote_ask: system message, used only while the timeline is empty */
    const char *tools;                     /* a JSON list of tools, as the chat template takes them. mote_ask puts them beside
                                              the system message; with on_call they say what can be called, and the types
                                              of its arguments */
    const char *role;                      /* mote_ask: "user" (default) or "tool": only after an answer with an open call */
    const char *const *results;            /* mote_ask with "tool": the message is the result of the answer's first call, */
    int result_count;                      /* these are those of its further calls, in order */
    int think;                             /* mote_ask: MOTE_THINK_... */
    int keep_thinking;                     /* mote_ask: 1 = a new user turn leaves the thinking before it where it is */
    int raw;                               /* 1 = no channels and no calls, all text as MOTE_ANSWER */
    int verify;                            /* 1: decode plainly beside it, in a second session, and compare each token and the
                                              whole state after each pass; the first difference is MOTE_EMISMATCH. Not with
                                              on_logits, which would be called twice */
    /* Called with whole characters as they arrive; text is not zero-terminated. Each tool call comes as a whole: what its tags
       enclose, or the name and the arguments where a header has the name, then an empty text. Headers of messages, thinking's own tags,
       those of calls and the line feeds next to them come on no channel; all else that the model wrote comes as it was written, and a
       blank line between two of an answer's messages. What may become a call is held back until that is decided, so on_text
       can come late, but not for longer than the answer lasts. Non-zero stops the answer. Neither may call the session, except
       mote_tokens, mote_context and mote_speculation_of. */
    int (*on_text)(void *user, int channel, const char *text, size_t size);
    /* Called with every token generated, the last one (end of text) included; non-zero stops the answer. */
    int (*on_token)(void *user, int32_t id);
    /* Called with every tool call, after its text: a JSON object {"name": "...", "arguments": {...}} of `size` bytes, zero-
       terminated, too. With it and with `tools`, calls are expected; else their tags are text. A call is one if the tools have
       its name and all of it can be read: as JSON or as <function=...> tags, several in one, with end tags or brackets missing
       where only one thing can have been meant. What stands around it is text; JSON without tags (Llama 3) is a call if it holds
       nothing else and lies in no other JSON. Any other is text in the channel it stood in, byte for byte, tags and all: one
       that the answer's end cuts short, a function that does not exist, tags that the answer only talks about. A call in the
       thinking ends it. Arguments have the types of the tool's schema: its type, const, enum, nullable, anyOf, oneOf, allOf and
       $ref within it; where a string may stand, the text is the string. Given twice, the last one counts; an empty text for a
       number, boolean, list or object is left out. Non-zero stops the answer. */
    int (*on_call)(void *user, const char *call, size_t size);
    /* Called once for each token, before it is chosen, in order, on the timeline as it will stay: mote_tokens holds all tokens
       before it, and on_token was called with those of this answer. So it may keep state. logits [vocab_size], of the ids that
       may be chosen, with bias and penalties: to be changed in place. A token at -INFINITY is never chosen, by no draft either;
       when none is left that is MOTE_EINVAL. Non-zero stops the answer. Drafts are made without it, so a strict mask has few
       accepted. On a GPU each row comes to the host, verified drafts' rows as well: 1 MB for a vocabulary of 250,000. */
    int (*on_logits)(void *user, float *logits, int vocab_size);
    /* Called with every token generated, after on_token: its logprob, and the top_logprobs most probable ones in its place,
       best first. The logits come to the host, as for on_logits. */
    void (*on_logprobs)(void *user, const mote_logprob *token, const mote_logprob *alternatives, int count);
    int top_logprobs;
    void *user;
    /* A JSON schema, as text, that the answer follows: {"type": "object"} for any object. Thinking comes before it and is free, but
       does not end the answer; with raw there is none. What of JSON Schema is honoured is in docs/server.md; any other keyword that
       bears on the value is MOTE_EINVAL, by its name. Bias and penalties come before the mask, on_logits after it. Drafts are made
       without it and logits come to the host, as with on_logits; so with tool_choice and thinking_budget. Not beside verify. */
    const char *schema;
    int tool_choice;                       /* MOTE_TOOLS_..., of `tools`; the call follows its tool's schema. Not beside schema */
    const char *tool;                      /* with MOTE_TOOLS_REQUIRED: the tool to call; NULL: any */
    int one_call;                          /* 1: the answer ends after its first call, and no more is told: MOTE_STOP_CALL */
    int thinking_budget;                   /* tokens of thinking, after which it is closed with a short sentence of some 30 more, which
                                              count as thinking; 0: no limit */
    const char *effort;                    /* mote_ask: how hard to think, used only while the timeline is empty: "none", "minimal",
                                              "low", "medium", "high", "xhigh" or "max"; NULL: as the template has it. "none" is
                                              no thinking; else only a template that knows efforts does something: Qwen3.8's has
                                              low, medium and xhigh, the sentence for which comes before the system message, gpt-oss's
                                              low, medium (its own) and high, and "none" is low, since it always thinks */
    const char *date;                      /* mote_ask: the date that the template tells, used only while the timeline is empty, as
                                              gpt-oss's "2026-11-28"; NULL: today's, or what the template has */
    const mote_image *images;              /* mote_ask: image_count pictures, which stand before the message; with "tool" they are in the first result */
    int image_count;
    int reserved;                          /* 0 */
} mote_generation;

enum {                                     /* whether an answer calls a tool */
    MOTE_TOOLS_AUTO = 0,                   /* as the model likes */
    MOTE_TOOLS_REQUIRED = 1                /* it is a call, and nothing but it, after thinking if there is any */
};

enum {                                     /* why an answer ended */
    MOTE_STOP_EOS = 0, MOTE_STOP_TEXT = 1, MOTE_STOP_LENGTH = 2, MOTE_STOP_CONTEXT = 3, MOTE_STOP_CALLBACK = 4,
    MOTE_STOP_CALL = 5
};

typedef struct mote_result {
    int stop;                              /* MOTE_STOP_...; MOTE_STOP_CALLBACK with MOTE_ECANCELLED; -1 after another error */
    int prompt_tokens, generated_tokens;   /* of mote_ask: read, the turn, and what was read again of the answers before it, 0
                                              if the turn is not in the timeline; generated */
    int stop_text;                         /* with MOTE_STOP_TEXT: which of the stop texts, from 0 */
    int thinking_tokens;                   /* of those generated, its end tag included; a call in the thinking is none of it */
    int calls, broken_calls;               /* tool calls that on_call got, and what began like one and came as text */
    double prompt_seconds, generate_seconds;
    uint64_t seed;                         /* the one used */
} mote_result;

/* Continues the timeline until an end-of-text token of the checkpoint (those of generation_config.json, or else of
   config.json, and always the end of a turn of the chat template), a stop text, max_tokens, a full context or a callback ends
   it. result may be NULL; it is filled on every return, after an error, too, with what was done until then: every token
   counted in it is in the timeline. When it is cancelled the tokens generated until then stay, and all their text has been
   passed on. Without a tokenizer only on_token is called. All memory is taken before the first token, so that
   MOTE_ENOMEM leaves the timeline as it was; only what may be a tool call, where calls are expected, takes more while it comes:
   its text, its JSON and a list of its parameters. When a later pass fails (for want of that, MOTE_EDEVICE, MOTE_EMISMATCH,
   MOTE_EINVAL by on_logits, or MOTE_EFORMAT for a logit that is not a number), the tokens generated until then stay in it. */
int mote_generate(mote_session *session, const mote_generation *generation, mote_result *result, mote_error *error);

/* What mote_generate would refuse of a generation, MOTE_EINVAL or MOTE_EUNSUPPORTED, without a session: its schema and tools above all. */
int mote_generation_check(const mote_model *model, const mote_generation *generation, mote_error *error);

/* One turn of a conversation: renders the message after what is already there, then mote_generate. The turn before it is
   closed first if it is not: an answer that was interrupted. It is closed after <|im_end|>, with or without line ends. A
   turn of role "tool" needs a call in the last answer, whole or broken, that has no result yet: else MOTE_EINVAL.

   Text from outside never becomes a control token, in any role: in system, message and tool result alike the text of such a
   token ("<|im_end|>", "</tool_response>", "<think>") is plain text, so that none of them can end its own turn.

   History is never rendered again, but for thinking: a user turn first does what mote_drop_thinking does (unless the template keeps
   all thinking, as Qwen3.8's), so that the timeline is what the chat template renders of the conversation, token for token. Between the
   tool calls of a turn thinking stays, as it does there, with gpt-oss's until a final answer, also if the user speaks before that. For
   this a session holds a checkpoint before its last answer, in the host's memory.

   Images are decoded and computed before anything else changes: if one cannot be, the timeline is as before. Those of tools' results are kept, 3 KiB a
   token, until the next user turn, in case they have to be read again then.

   When it runs out of memory the timeline is as before, when it is cancelled while it reads the turn, too, but for dropped
   thinking (a session with a cancel callback holds a checkpoint meanwhile); when it is cancelled or fails later, the turn is in
   it, and what mote_generate says: result->prompt_tokens tells one from the other. */
int mote_ask(mote_session *session, const char *message, const mote_generation *generation, mote_result *result,
             mote_error *error);

/* A stored conversation into the timeline, in place of what is there, ready for the next mote_ask:

       mote_chat_restore(session, request, strlen(request), NULL, &error);
       mote_ask(session, "And then?", &generation, &result, &error);

   request as for mote_render; add_generation_prompt means nothing here. The timeline is then what mote_ask would have made of
   the same messages, and goes on like it: the thinking since the last user turn (reasoning_content) stays until the next one.
   What the timeline already has of it is not read again, as far as the session can go back: to its end, or to where mote_ask or
   this call remembered it, before the last answer to a user's turn. *read (may be NULL): tokens read. When it fails or is
   cancelled the timeline is as before (a session with a cancel callback holds a copy meanwhile of what it gives up). */
int mote_chat_restore(mote_session *session, const char *request, size_t size, size_t *read, mote_error *error);

/* The same of a request whose contents have images, in their order; without enough of them, or with too many, MOTE_EINVAL. */
int mote_chat_restore_images(mote_session *session, const char *request, size_t size, const mote_image *images, int image_count, size_t *read,
                             mote_error *error);

/* Drops the thinking of the answers since the last user turn of mote_ask: goes back to before them and reads them
   again without it, which no callback can cancel. Does nothing where there is none, after keep_thinking, mote_feed or
   mote_load, or when it was done. mote_ask does it by itself; call it before mote_checkpoint_take if the checkpoint is to hold
   beyond the next user turn. *read (may be NULL): tokens read again. */
int mote_drop_thinking(mote_session *session, size_t *read, mote_error *error);

/* What mote_ask would do with the context, without computing anything. *read: tokens that it would read; *total: tokens of the
   timeline then, before the answer. Either may be NULL. */
int mote_ask_count(const mote_session *session, const char *message, const mote_generation *generation, size_t *read,
                   size_t *total, mote_error *error);

enum {                                     /* who makes drafts */
    MOTE_DRAFT_MTP = 0,                    /* the MTP layer */
    MOTE_DRAFT_COPY = 1,                   /* the timeline: its last tokens stand earlier in it, and what followed them is the draft */
    MOTE_DRAFT_SOURCES = 2,                /* those of which mote_speculation counts the drafts */
    MOTE_DRAFT_BLOCK = 2                   /* the block drafter of mote_options.drafter: mote_drafter_of */
};

/* What speculation did on a session since it was opened. mote_generate and mote_ask draft, mote_step never does. The text is
   the same with and without: a draft is kept only if it is what the model itself would have chosen there. */
typedef struct mote_speculation {
    int depth;                             /* drafts that the MTP layer is asked for next */
    uint64_t passes[MOTE_ROWS_MAX];        /* forward passes that verified so many drafts */
    uint64_t drafted[MOTE_DRAFT_SOURCES][MOTE_ROWS_MAX - 1], accepted[MOTE_DRAFT_SOURCES][MOTE_ROWS_MAX - 1];   /* of each source the
                                              first, second, .. drafts of a pass: that followed accepted ones only, and accepted too */
    uint64_t tokens;                       /* generated: one a pass and the accepted drafts, less those of passes in whose
                                              middle an answer ended */
    double draft_seconds, pass_seconds;    /* in answers: that the MTP layer or a block drafter drafted, which a GPU does within passes;
                                              that passes took */
    double cost[MOTE_ROWS_MAX], draft;     /* seconds, as seen lately on the session's runner: of a pass of one session that verifies so
                                              many drafts, on a GPU with the making of as many; of a draft. 0: not seen */
    char recent[65];                       /* drafts verified by the last 64 passes, oldest first; ends with 0. The MTP layer's are
                                              digits, copies letters: a is one; a block drafter's capital letters */
} mote_speculation;

/* In a callback: up to the pass before. */
int mote_speculation_of(const mote_session *session, mote_speculation *speculation, mote_error *error);

/* What the block drafter of mote_options.drafter did on a session since it was opened. Its passes, and its time in answers, are part of
   mote_speculation's. */
typedef struct mote_drafter_use {
    int rows;                              /* of a block, of which all but the first are drafts; a pass verifies at most MOTE_ROWS_MAX - 1.
                                              0: the session has no drafter */
    uint64_t passes;                       /* forward passes that verified drafts of its */
    uint64_t drafted[MOTE_ROWS_MAX - 1], accepted[MOTE_ROWS_MAX - 1];      /* by place, as mote_speculation has them */
    double cost;                           /* seconds of a block, as seen lately on the session's runner; 0: not seen */
} mote_drafter_use;

/* In a callback: up to the pass before. */
int mote_drafter_of(const mote_session *session, mote_drafter_use *use, mote_error *error);

/* ---- 7. Checkpoints, copies and files ---------------------------------------------------------------------------- */

/* Recurrent state cannot be cut back to an earlier token, so a session is rewound to points that were remembered. Neither can keys and values
   of a layer with a window in a context that is longer than what it keeps (mote_memory.kv): a checkpoint then has those of one window, which
   is its size mostly. */
typedef struct mote_checkpoint mote_checkpoint;

/* Remembers the present position. The checkpoint is the caller's, to be freed with mote_checkpoint_free; it may outlive the
   session and the model, and may be used any number of times on the session, and on another with the same options that has its
   timeline from it, by mote_load or mote_clone; after thinking only until that is dropped, see mote_drop_thinking. */
int mote_checkpoint_take(const mote_session *session, mote_checkpoint **checkpoint, mote_error *error);

/* Back to the checkpoint. MOTE_EINVAL when it is of another model (see mote_save for what is compared) or KV type, when the
   session's tokens up to there are no longer those of the checkpoint, or when it is of a session with other options and has none of the
   windows that this one would need. */
int mote_rewind(mote_session *session, const mote_checkpoint *checkpoint, mote_error *error);

void mote_checkpoint_free(mote_checkpoint *checkpoint);    /* NULL is allowed */

/* Bytes of memory that a checkpoint of the present position takes. 0: there is no session, or it is busy. */
size_t mote_checkpoint_bytes(const mote_session *session);

/* A second session, in the same state, with the same options. */
int mote_clone(const mote_session *session, mote_session **clone, mote_error *error);

/* The whole state as bytes, for a session of the same checkpoint, of any context length that fits, and on any device; of a session that keeps
   but windows of some layers those are saved, and what loads them keeps no more. mote_save follows the
   capacity rule of section 3; mote_load replaces the session's state. A session of another checkpoint is refused: all numbers
   of config.json must be the same, and a sample of the weights: of each matrix, vector and scale that is loaded (of each
   expert's alone) all bytes up to 4 KiB, of a larger one the first 64 bytes of each 64th part. Of a synthetic model, the numbers
   and the name of its formats, which its weights are made of. A session of a model with a block drafter is one of another checkpoint
   for the model without it, or with another one. A session that was opened with MOTE_MTP_OFF saves no state of the MTP layer and the drafter:
   one that has them refuses it.
   mote_save_file writes the file whole or not at all, also beside others that write or read it: under another name in the
   same folder, synced, then renamed. A new file is for its owner alone (0600), an old one keeps its permissions; a symbolic
   link is followed; what is no regular file is refused. */
int mote_save(const mote_session *session, void *bytes, size_t capacity, size_t *count, mote_error *error);
int mote_load(mote_session *session, const void *bytes, size_t size, mote_error *error);
int mote_save_file(const mote_session *session, const char *path, mote_error *error);
int mote_load_file(mote_session *session, const char *path, mote_error *error);

#ifdef __cplusplus
}
#endif
#endif
