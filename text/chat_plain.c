/* text/chat_plain.c: formats of turns alone: ChatML, with SmolLM2's system turn, and Zephyr's. */

/* A message as a turn of its role. */
static int plain_message(chat *c, uint32_t i) {
    const int zephyr = c->family & CHAT_ZEPHYR;
    slice text;
    int code = chat_content(c, i, CONTENT_MESSAGE, &text);
    put_words(c->out, c->marks->turn);
    if (chat_is_system(c, i)) put_words(c->out, "system");
    else if (!code) code = put_member_text(c, c->out, chat_message(c, i), "role");
    put_words(c->out, zephyr ? "|>\n" : "\n");
    put_marked(c->out, &c->content, text);
    if (i + 1 < c->n || !c->continued) close_turn(c->marks, c->out);
    return code;
}

/* The system turn that SmolLM2 begins with, unless there is another. */
static void smol_system(const chat *c) {
    if (!(c->family & CHAT_SMOL)) return;
    open_turn(c->marks, "system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face", c->out);
    close_turn(c->marks, c->out);
}

static int plain_conversation(chat *c) {
    int code = MOTE_OK;
    if (!chat_is_system(c, 0)) smol_system(c);
    for (uint32_t i = 0; !code && i < c->n; i++) {
        const int known = chat_is_system(c, i) || chat_role(c, i, "user") || chat_role(c, i, "assistant");
        if (known || c->family & CHAT_CHATML) code = plain_message(c, i);      /* Zephyr passes over other roles */
    }
    return code;
}
