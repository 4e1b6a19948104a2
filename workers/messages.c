/* workers/messages.c: what a leader and its workers say to each other: a worker is a host that computes a range of a model's layers, the leader the
   one that has the last range, the sessions and their tokens. Each connection begins with one of the first three messages; whatever is asked
   is answered. Knows the layout of messages alone.

     leader -> worker    MODEL      one for each leader: the worker opens its part of the model, and keeps it until the connection ends
     leader -> worker    RUNNER     for each runner, then JOIN ... COPY_FROM on the same connection
     next range -> worker    LINK   rows of a runner shall come over this connection (exchange/sockets.c) */

enum {
    MESSAGE_MODEL = MESSAGE_ROWS + 1, MESSAGE_RUNNER, MESSAGE_LINK,
    MESSAGE_JOIN, MESSAGE_MEET, MESSAGE_SLOT_OPEN, MESSAGE_SLOT_CLOSE, MESSAGE_CLEAR, MESSAGE_PASS, MESSAGE_PROMPT, MESSAGE_COPY_TO,
    MESSAGE_COPY_FROM, MESSAGE_ANSWER
};

enum { BF16_MOST = 0x7fff };     /* bits of a magnitude */
enum { TICKET_SIZE = 16, REMOTE_COPY = 1 << 20, REMOTE_SLOTS = 256 };

/* Of a MODEL; in its answer message_opened follows. */
typedef struct message_model {
    unsigned char ticket[TICKET_SIZE];                      /* chosen by the leader: what later connections belong to */
    unsigned char digest[SHA256_SIZE];                      /* of the folder: checkpoint/digest.c */
    int32_t range, ranges, first, end, draft_rows, quantize;
    int32_t on_gpu;              /* the leader computes on a GPU, and all workers do, or none */
} message_model;

typedef struct message_opened {
    uint64_t fingerprint;        /* of the part */
    uint32_t bf16_largest, reserved;                        /* as mote_model has it, of the part */
} message_opened;

/* Of a RUNNER; its answer's number is the runner's, and message_limits follows. */
typedef struct message_runner {
    unsigned char ticket[TICKET_SIZE];
    int32_t context, chunk, kv, layers, window, ring_rows, one_slot;
    uint32_t bf16_largest;       /* of all parts */
} message_runner;

/* What the runner can do: as mote_runner has them. */
typedef struct message_limits { int32_t rows, pass_rows, company_rows, logs, prompt_from, nccl; } message_limits;

/* Of a JOIN: where rows come from, which the worker connects to. */
typedef struct message_join {
    unsigned char ticket[TICKET_SIZE];
    int32_t runner;
    char address[ADDRESS_SIZE];
} message_join;

/* Of a MEET: executor.meet and met; leaves: id is NULL. */
typedef struct message_meet {
    int32_t leaves;
    group_id id;
} message_meet;

typedef struct message_link { unsigned char ticket[TICKET_SIZE]; int32_t runner; } message_link;

/* Of what is about a slot: its number, which the leader chooses. */
typedef struct message_slot {
    int32_t slot, context;       /* context: of SLOT_OPEN */
    uint64_t at, bytes;          /* of COPY: bytes of the slot's memory; SLOT_OPEN: bytes of it */
} message_slot;

/* Of a PASS, and of a PROMPT, which is one block for executor.prompt: a number, as many of these, then their rows, for each block the one
   before it and its own, then the embeddings of those that have one. */
typedef struct message_request { int32_t slot, T, replay, last; } message_request;
typedef struct message_row { int32_t index, position[ROW_AXES], id, embedded; } message_row;

/* Of an ANSWER; what follows of what is asked for it stands there; of COPY_FROM the bytes. */
typedef struct message_answer {
    uint64_t number;
    int32_t code;
    char text[sizeof ((mote_error *)0)->message];
} message_answer;

/* What another host answers is one line, and a code of engine.h. */
static void answer_settle(message_answer *a) {
    a->text[sizeof a->text - 1] = 0;
    for (char *c = a->text; *c; c++)
        if ((unsigned char)*c < ' ') *c = ' ';
    if (a->code < MOTE_OK || a->code > MOTE_EMISMATCH) a->code = MOTE_EDEVICE;
}

/* The most bytes of a PASS of so many rows. */
static size_t message_pass_most(int rows, int hidden) {
    return PASS_ROWS_MAX * (sizeof(message_request) + sizeof(message_row)) + (size_t)rows * (sizeof(message_row) + (size_t)hidden * sizeof(float));
}
