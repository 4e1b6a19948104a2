/* serve/llamacpp.c: GET /props and /slots, as clients of llama.cpp's server read them: the sessions and their context, and how answers
   are sampled unless a request says otherwise. */

static void put_default_sampling(buf *out, const server *s) {
    mote_sampling d;
    mote_sampling_defaults(s->model, &d);
    putf(out, "{\"n_predict\": -1, \"max_tokens\": -1, \"seed\": -1, \"temperature\": %.6g, \"top_k\": %d, \"top_p\": %.6g, \"min_p\": %.6g, ", d.temperature,
         d.top_k, d.top_p, d.min_p);
    putf(out, "\"repeat_penalty\": %.6g, \"presence_penalty\": %.6g, \"frequency_penalty\": %.6g, \"stop\": [], \"ignore_eos\": false, \"stream\": false}",
         d.repetition_penalty > 0 ? d.repetition_penalty : 1, d.presence_penalty, d.frequency_penalty);
}

static void put_slot(buf *out, const server *s, int number, int busy) {
    putf(out, "{\"id\": %d, \"n_ctx\": %d, \"device\": ", number, s->context);
    put_text(out, replica_device(s->slots[number].of));
    putf(out, ", \"is_processing\": %s, \"params\": ", busy ? "true" : "false");
    put_default_sampling(out, s);
    buf_text(out, "}");
}

static void serve_props(server *s, connection *c, const json *j) {
    buf out = {NULL, 0, 0, 0};
    (void)j;
    buf_text(&out, "{\"default_generation_settings\": ");
    put_slot(&out, s, 0, 0);
    putf(&out, ", \"total_slots\": %d, \"model_alias\": ", s->slot_count);
    put_text(&out, s->name);
    buf_text(&out, ", \"model_path\": ");
    put_text(&out, s->name);               /* where the checkpoint lies is nobody's business */
    for (int i = 0; i < s->replica_count; i++) {
        buf_text(&out, i ? ", " : ", \"devices\": [");
        put_text(&out, replica_device(&s->replicas[i]));
    }
    putf(&out, "], \"chat_template\": \"\", \"modalities\": {\"vision\": false, \"audio\": false}, \"build_info\": \"mote %s\"}", mote_version());
    connection_reply(c, 200, "application/json", out.data, out.failed ? 0 : out.size);
    buf_free(&out);
}

static void serve_slots(server *s, connection *c, const json *j) {
    buf out = {NULL, 0, 0, 0};
    int busy[PARALLEL_MOST];
    (void)j;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->slot_count; i++) busy[i] = s->slots[i].busy;
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < s->slot_count; i++) {
        buf_text(&out, i ? ", " : "[");
        put_slot(&out, s, i, busy[i]);
    }
    buf_text(&out, "]");
    connection_reply(c, 200, "application/json", out.data, out.failed ? 0 : out.size);
    buf_free(&out);
}
