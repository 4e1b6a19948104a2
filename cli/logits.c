/* cli/logits.c: the command logits: token ids from a file, with images, the logits of each, and those of the MTP layer, to files. It
   knows nothing of text.

   Rows are fed in pieces of whole chunks, so that memory stays bounded whatever the number of tokens (a row of a large
   vocabulary takes a megabyte). The MTP row of a position comes with the token after it: the first piece has one less. */

static int write_logits(mote_session *session, const int32_t *ids, size_t count, const mote_images *images, size_t piece, size_t vocab,
                        FILE *out, FILE *mtp) {
    float *rows = malloc(piece * vocab * sizeof *rows), *mtp_rows = NULL;
    mote_error error = {0, ""};
    int code = 0;
    if (mtp) mtp_rows = malloc(piece * vocab * sizeof *mtp_rows);
    if (!rows || (mtp && !mtp_rows)) code = complain(EXIT_FAILURE, "out of memory for %zu rows of logits", piece);
    for (size_t at = 0, n; at < count && !code; at += n) {
        n = count - at < piece ? count - at : piece;
        if (images ? mote_feed_images(session, ids + at, n, images, rows, mtp_rows, &error)
                   : mote_feed_logits(session, ids + at, n, rows, mtp_rows, &error)) {
            code = report(&error);
        } else {
            fwrite(rows, vocab * sizeof *rows, n, out);
            if (mtp && n - !at) fwrite(mtp_rows, vocab * sizeof *rows, n - !at, mtp);
            if (ferror(out) || (mtp && ferror(mtp))) break;      /* close_outputs says so */
        }
    }
    free(rows);
    free(mtp_rows);
    return code;
}

static int logits_to_files(mote_session *session, const options *o, const bytes *tokens, const mote_images *images, size_t vocab,
                           output outputs[2]) {
    const size_t chunk = o->chunk ? (size_t)o->chunk : 64, budget = (size_t)16 << 20;    /* floats in one piece */
    size_t count = tokens->size / sizeof(int32_t), piece = chunk;
    if (budget / vocab > chunk) piece = budget / vocab / chunk * chunk;
    if (piece > count) piece = count;
    int code = begin_outputs(outputs, 2);
    if (code) return code;
    return write_logits(session, (const int32_t *)(const void *)tokens->data, count, images, piece, vocab, outputs[0].file,
                        outputs[1].file);
}

static int open_logits(const options *o, output outputs[2]) {
    int code = open_output(&outputs[0], o->output);
    if (!code && o->mtp_output) code = open_output(&outputs[1], o->mtp_output);
    if (!code && o->mtp_output && same_file(&outputs[0].status, &outputs[1].status))
        code = complain(EXIT_USAGE, "logits: -o %s and --mtp %s are the same file", o->output, o->mtp_output);
    return code;
}

static int command_logits(options *o) {
    bytes tokens = {NULL, 0, 0};
    mote_model *model = NULL;
    mote_session *session = NULL;
    mote_images *opened = NULL;
    pictures images = {.count = 0};
    mote_error error = {0, ""};
    output outputs[2];
    size_t count = 0;
    memset(outputs, 0, sizeof outputs);
    if (!o->tokens || !o->output) return complain(EXIT_USAGE, "logits: --tokens FILE.i32 and -o OUT.f32 are needed");
    catch_interrupt(1);
    signal(SIGPIPE, SIG_IGN);              /* a reader that goes away is a failed write, after which files are discarded */
    int code = open_logits(o, outputs);
    if (!code) code = open_model(o, MOTE_WEIGHTS_ONLY, &model);
    const mote_info *info = code ? NULL : mote_model_info(model);
    if (!code && o->mtp_output && !info->mtp_layers)
        code = complain(EXIT_FAILURE, "%s: the model has no MTP layer", o->model);
    if (!code) code = read_tokens(o->tokens, info, 0, &tokens, &count);
    if (!code) code = read_pictures(model, o, &images);
    if (!code && place_pictures(model, &images, &tokens, &count, &opened, &error)) code = report(&error);
    if (!code) {
        o->context = (int)count;
        code = open_session(model, o, &session);
    }
    if (!code) code = logits_to_files(session, o, &tokens, opened, (size_t)info->vocab_size, outputs);
    code = close_outputs(outputs, 2, code);
    free(tokens.data);
    free_pictures(&images);
    mote_images_close(opened);
    mote_session_close(session);
    mote_close(model);
    return code;
}
