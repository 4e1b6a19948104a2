#!/usr/bin/env python3
"""The page of mote serve in a headless Chromium, used as its users do, at a name that browsers trust as little as any on a LAN.

    tools/test_page.py ./mote

Needs playwright (pip) and a Chromium: CHROMIUM=/usr/bin/chromium, or one that playwright has installed.
"""
import base64
import json
import os
import re
import signal
import sys
import threading
import time

from playwright.sync_api import expect, sync_playwright

from serving import serve

HOSTILE = os.path.join(os.path.dirname(__file__), "..", "tests", "serve", "page.js")

# Shows an answer alone.
SHOW = """content => {
    talk = {...newTalk({}), leaf: "1"};
    turns = new Map([["1", {id: "1", parent: "", role: "assistant", content, thinking: "", state: "", time: 1}]]);
    show();
}"""

# Draws each of the answers as the page would, laid out, up to three times; what always took longer than so many milliseconds.
DRAW = """limit => hostile(20000).map(content => {
    let best = Infinity;
    for (let i = 0; i < 3 && best > limit; i++) {
        const began = performance.now();
        showOnly(content);
        $("scroll").scrollHeight;
        best = Math.min(best, performance.now() - began);
    }
    return [content.slice(0, 20), Math.round(best)];
}).filter(one => one[1] > limit)"""

# An answer of n tokens, as the server sends them: the time that drawing took, and all of it.
STREAM = """async n => {
    const send = window.fetch, encoder = new TextEncoder(), draw = showLast;
    const event = content => encoder.encode(
        ": waiting\\n\\ndata: " + JSON.stringify({choices: [{delta: {content}, finish_reason: null}]}) + "\\n\\n");
    let drawing = 0, sent = 0;
    showLast = () => { const began = performance.now(); draw(); drawing += performance.now() - began; };
    window.fetch = async () => new Response(new ReadableStream({
        async pull(c) {
            if (sent++ === n) c.close();
            else c.enqueue(event("| a **b** `c`\\n| - |\\n".repeat(20)));
            await new Promise(then => setTimeout(then));
        }
    }));
    talk = {...newTalk({}), id: randomId()};
    turns = new Map();
    const began = performance.now();
    await answer(addTurn("user", "", "x").id);
    showLast = draw;
    window.fetch = send;
    return [drawing, performance.now() - began];
}"""

# How well the link can be read on what is behind it: WCAG's contrast.
CONTRAST = """() => {
    const light = color => {
        const [r, g, b] = color.match(/\\d+/g).map(v => (v /= 255, v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const of = (place, what) => light(getComputedStyle(document.querySelector(place))[what]);
    const [a, b] = [of(".body a", "color"), of("body", "backgroundColor")].sort((a, b) => b - a);
    return (a + 0.05) / (b + 0.05);
}"""

DRAWN = """# Head

text **bold** `code` <img src=x onerror=alert(1)> [link](https://example.org)

- a
  1. b

     ```c
     int x;
     ```
- [x] c

|a|b|
|-|-:|
|1|2|

$$
x_1
$$"""


def message(page):
    return page.get_by_label("Message", exact=True)


def ask(page, text):
    message(page).fill(text)
    page.get_by_role("button", name="Send").click()


def answered(page):
    expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=60000)


def last(page):
    return page.locator("article.assistant").last


def open_page(context, url, errors):
    page = context.new_page()
    page.on("pageerror", lambda e: errors.append(str(e)))
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" and "Failed to load resource" not in m.text else None)
    page.on("dialog", lambda d: d.accept())
    page.goto(url)
    expect(page.locator("#name")).to_have_text("demo")
    return page


def configure(page, **values):
    page.get_by_role("button", name="Settings").click()
    for label, value in values.items():
        page.get_by_label(label.replace("_", " ")).fill(value)
    page.get_by_role("button", name="Done").click()


class Brake(threading.Thread):
    """While it is on, a process has a fifth of its time: a quick machine fills a context of 4,096 tokens before a browser has drawn three answers."""

    def __init__(self, process):
        super().__init__(daemon=True)
        self.process, self.on, self.over = process, False, False

    def run(self):
        while not self.over:
            if self.on:
                self.process.send_signal(signal.SIGSTOP)
                time.sleep(0.02)
                self.process.send_signal(signal.SIGCONT)
            time.sleep(0.005)

    def release(self):
        self.over = True
        self.join()


brake = None


def endless(page):
    """What is asked from here on ends when it is stopped; until `ending`."""
    brake.on = True
    page.route("**/v1/chat/completions", lambda route: route.continue_(
        post_data=route.request.post_data.replace('"stream":true', '"stream":true,"ignore_eos":true')))


def ending(page):
    brake.on = False
    page.unroute("**/v1/chat/completions")


def test_first(context, url, errors):
    """What is seen before anything is said: what there is, and three things to ask. Then how much of the context is used."""
    page = open_page(context, url, errors)
    expect(page.locator(".first p")).to_have_text(
        "demo: a context of 4,096 tokens, 2 answers at a time, thinking, tool calls, answers by JSON schema.")
    questions = page.locator(".first button")
    expect(questions).to_have_count(3)
    expect(page.locator("#gauge")).to_be_hidden()
    message(page).fill("a draft")
    with page.expect_request("**/v1/chat/completions") as request:
        questions.nth(2).click()
    assert request.value.post_data_json["max_tokens"] == 4096, "an answer without a limit"
    answered(page)
    expect(questions).to_have_count(0)
    expect(message(page)).to_have_value("a draft")
    stats = page.evaluate("turns.get(talk.leaf).stats")
    used = stats["prompt"] + stats["tokens"]
    expect(page.locator("#used")).to_have_text("%d of 4,096 tokens of context used, %s left" % (used, format(4096 - used, ",")))
    assert page.locator("#meter").evaluate("e => [e.value, e.max]") == [used, 4096]
    with page.expect_request("**/v1/chat/completions") as request:
        ask(page, "What is FP8?")
    assert request.value.post_data_json["messages"][1]["reasoning_content"], "thinking is the template's to leave out"
    answered(page)
    page.get_by_role("button", name="Settings").click()
    expect(page.locator("#thinking")).to_be_visible()
    page.locator("#thinking").select_option("off")
    page.get_by_role("button", name="Done").click()
    page.route("**/v1/models", lambda route: route.fulfill(json={"data": [{
        "id": "demo", "max_model_len": 8192, "parallel": 1, "capabilities": {"chat": True, "enable_thinking": False, "tools": False}}]}))
    page.reload()
    expect(page.locator("#used")).to_contain_text("of 8,192 tokens")
    page.get_by_role("button", name="Settings").click()
    expect(page.locator("#temperature")).to_be_visible()
    expect(page.locator("#thinking")).to_be_hidden()   # the model cannot choose
    page.get_by_role("button", name="Done").click()
    with page.expect_request("**/v1/chat/completions") as request:
        page.get_by_role("button", name="Regenerate").click()
    assert "chat_template_kwargs" not in request.value.post_data_json
    answered(page)
    page.get_by_role("button", name="New chat").click()
    expect(page.locator(".first p")).to_have_text("demo: a context of 8,192 tokens, one answer at a time, answers by JSON schema.")
    page.close()


def test_talk(page):
    configure(page, Temperature="0")
    ask(page, "What is FP8?")
    answered(page)
    expect(last(page).locator(".body")).to_contain_text("FP8 is a floating point number in 8 bits")
    expect(last(page).locator(".note")).to_have_text(re.compile(r"^66 tokens, [\d,]+ tokens/s · .*prompt: 18, [\d,]+ tokens/s$"))
    expect(last(page).locator("summary")).to_have_text("Thought")
    assert not last(page).locator("details").evaluate("e => e.open"), "thinking is not folded"
    last(page).locator("summary").click()
    expect(last(page).locator("details")).to_contain_text("eight bits")
    ask(page, "What is a mixture of experts?")
    answered(page)
    expect(page.locator("article")).to_have_count(4)
    page.reload()
    expect(page.locator("article")).to_have_count(4)


def test_branches(page):
    page.get_by_role("button", name="Edit").last.click()
    expect(message(page)).to_have_value("What is a mixture of experts?")
    page.get_by_role("button", name="Cancel").click()
    expect(message(page)).to_have_value("")
    page.get_by_role("button", name="Edit").last.click()
    ask(page, "What is BF16?")
    answered(page)
    expect(page.locator("article")).to_have_count(4)
    expect(last(page).locator(".body")).to_contain_text("BF16")
    page.get_by_role("button", name="Earlier version").click()
    expect(last(page).locator(".body")).to_contain_text("experts")
    page.reload()
    expect(last(page).locator(".body")).to_contain_text("experts")
    page.get_by_role("button", name="Later version").click()
    before = last(page).locator(".body").inner_text()
    page.get_by_role("button", name="Regenerate").click()
    answered(page)
    expect(last(page).locator(".tools")).to_contain_text("2/2")
    assert last(page).locator(".body").inner_text() == before, "greedy, and another answer"


def test_stopping(page):
    endless(page)
    ask(page, "Tell me a story")
    expect(last(page)).to_contain_text("Once upon a time", timeout=20000)
    page.keyboard.press("Escape")
    answered(page)
    expect(last(page).locator(".tools")).to_contain_text("stopped")
    ask(page, "Tell me a story")
    expect(last(page)).to_contain_text("Once upon a time", timeout=20000)
    page.reload()                                      # in mid-answer
    expect(page.locator("article.user").last).to_contain_text("Tell me a story")
    expect(last(page)).to_contain_text("Once upon a time")
    expect(last(page).locator(".tools")).to_contain_text("unfinished")
    ending(page)
    before = last(page).locator(".body").inner_text()
    with page.expect_request("**/v1/chat/completions") as request:
        page.get_by_role("button", name="Continue").click()
    assert request.value.post_data_json["continue_final_message"] is True
    answered(page)
    assert last(page).locator(".body").inner_text().startswith(before.rstrip()), "it does not go on from what there was"


def test_list(page):
    items = page.locator("#list li")
    expect(items).to_have_count(1)
    page.get_by_role("button", name="New chat").click()
    expect(page.locator("article")).to_have_count(0)
    expect(items).to_have_count(1)
    configure(page, System_message="You are brief.", Top_k="7")
    with page.expect_request("**/v1/chat/completions") as request:
        ask(page, "What is NVFP4?")
    body = request.value.post_data_json
    assert body["messages"][0] == {"role": "system", "content": "You are brief."} and body["top_k"] == 7 and body["temperature"] == 0, body
    answered(page)
    expect(items).to_have_count(2)
    expect(items.first).to_have_text(re.compile("What is NVFP4"))
    page.get_by_role("link", name="What is FP8?").click()
    expect(page.locator("article.user").first).to_contain_text("What is FP8?")
    expect(page.get_by_label("Top k")).to_have_value("")
    page.go_back()
    expect(page.locator("article.user").first).to_contain_text("What is NVFP4?")
    expect(page.get_by_label("Top k")).to_have_value("7")
    page.get_by_role("link", name="What is NVFP4?").hover()
    page.get_by_role("button", name="Delete What is NVFP4?").click()
    expect(items).to_have_count(1)
    expect(page.locator("article")).to_have_count(0)
    configure(page, System_message="", Top_k="")
    page.get_by_role("link", name="What is FP8?").click()


def test_files(page):
    page.get_by_role("button", name="New chat").click()
    page.locator("#pick_text").set_input_files([
        {"name": "a.c", "mimeType": "text/plain", "buffer": b"int a; /* ``` */\n"},
        {"name": "w.txt", "mimeType": "text/plain", "buffer": "wide".encode("utf-16")},
        {"name": "b.png", "mimeType": "image/png", "buffer": b"\x89PNG\0\xff"}])
    expect(page.locator("#notice")).to_have_text("b.png is no text")
    page.get_by_role("button", name="Remove w.txt").click()
    message(page).evaluate("""e => {
        const data = new DataTransfer();
        data.items.add(new File(["pasted"], "p.txt", {type: "text/plain"}));
        e.dispatchEvent(new ClipboardEvent("paste", {clipboardData: data, cancelable: true, bubbles: true}));
    }""")
    expect(page.locator("#files button")).to_have_count(2)
    page.reload()                                      # what is not sent yet is not lost either
    expect(page.locator("#files button")).to_have_count(2)
    with page.expect_request("**/v1/chat/completions") as request:
        ask(page, "What is FP8?")
    content = request.value.post_data_json["messages"][0]["content"]
    assert content == "a.c:\n````\nint a; /* ``` */\n````\n\np.txt:\n```\npasted\n```\n\nWhat is FP8?", content
    answered(page)
    expect(page.locator("article.user details summary")).to_have_text(["a.c, 17 characters", "p.txt, 6 characters"])
    page.reload()
    expect(page.locator("article.user details summary")).to_have_count(2)
    expect(page.locator("#files button")).to_have_count(0)


PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC")
GIF = base64.b64decode("R0lGODlhAQABAIAAAP8AAAAAACH5BAAAAAAALAAAAAABAAEAAAICRAEAOw==")


# Of a model that reads images, as the page believes: what it asks is looked at, and answered here.
def test_images(context, url, errors):
    page = open_page(context, url, errors)
    asked = []

    def reply(route):
        asked.append(route.request.post_data_json["messages"])
        event = {"choices": [{"index": 0, "delta": {"content": "Red."}, "finish_reason": "stop"}]}
        route.fulfill(body="data: %s\n\ndata: [DONE]\n\n" % json.dumps(event), content_type="text/event-stream")

    page.route("**/v1/models", lambda route: route.fulfill(json={"data": [{
        "id": "demo", "max_model_len": 8192, "parallel": 1, "capabilities": {"chat": True, "images": True}}]}))
    page.route("**/v1/chat/completions", reply)
    page.reload()
    page.get_by_role("button", name="New chat").click()
    expect(page.locator(".first p")).to_contain_text("images")
    page.locator("#pick_text").set_input_files([
        {"name": "red.png", "mimeType": "image/png", "buffer": PNG}, {"name": "a.txt", "mimeType": "text/plain", "buffer": b"text"},
        {"name": "old.gif", "mimeType": "image/gif", "buffer": GIF}, {"name": "bad.webp", "mimeType": "image/webp", "buffer": b"\0\xff"}])
    expect(page.locator("#notice")).to_have_text("bad.webp is no text and no image")
    message(page).evaluate("""(e, bytes) => {
        const data = new DataTransfer();
        data.items.add(new File([new Uint8Array(bytes)], "pasted.png", {type: "image/png"}));
        e.dispatchEvent(new ClipboardEvent("paste", {clipboardData: data, cancelable: true, bubbles: true}));
    }""", list(PNG))
    expect(page.locator("#files button")).to_have_count(4)
    page.evaluate("""bytes => {
        const data = new DataTransfer();
        data.items.add(new File([new Uint8Array(bytes)], "dropped.png", {type: "image/png"}));
        document.dispatchEvent(new DragEvent("drop", {dataTransfer: data, cancelable: true, bubbles: true}));
    }""", list(PNG))
    expect(page.locator("#files button")).to_have_count(5)
    page.get_by_role("button", name="Remove dropped.png").click()
    ask(page, "Which colour?")
    answered(page)
    parts = asked[0][-1]["content"]
    plain = "data:image/png;base64," + base64.b64encode(PNG).decode()
    assert [p["type"] for p in parts] == ["image_url"] * 3 + ["text"], parts
    assert parts[0]["image_url"]["url"] == parts[2]["image_url"]["url"] == plain, parts
    assert parts[1]["image_url"]["url"].startswith("data:image/png;base64,"), "a GIF is not sent as a PNG"
    assert parts[3]["text"] == "a.txt:\n```\ntext\n```\n\nWhich colour?", parts
    expect(page.locator("article.user img")).to_have_count(3)
    page.reload()                                      # they are kept, shown, and sent again
    expect(page.locator("article.user img")).to_have_count(3)
    assert page.locator("article.user img").first.evaluate("e => e.complete && e.naturalWidth") == 1, "the page may not show its image"
    ask(page, "Sure?")
    answered(page)
    assert asked[1][0]["content"] == parts, "the history has lost its images"
    with page.expect_download() as download:
        page.get_by_role("button", name="Export Which colour?").click()
    with open(download.value.path()) as file:
        talk = file.read()
    give(page, "bad.json", talk.replace("data:image/png;base64,", "data:image/svg+xml;base64,").replace('"id": "', '"id": "x'))
    expect(page.locator("#notice")).to_contain_text(".image is no PNG or JPEG")
    page.get_by_role("link", name="Which colour?").hover()
    page.get_by_role("button", name="Delete Which colour?").click()
    page.close()


def test_progress(page):
    page.get_by_role("button", name="New chat").click()
    page.locator("#pick_text").set_input_files([
        {"name": "long.txt", "mimeType": "text/plain", "buffer": " ".join("%d experts" % i for i in range(780)).encode()}])
    ask(page, "What is FP8?")
    expect(page.locator("progress")).to_be_visible()
    expect(last(page).locator(".note")).to_have_text(re.compile(r"[1-9][\d,]* of [\d,]+ tokens read, [\d,]+ tokens/s, \d+ s left"))
    page.get_by_role("button", name="Stop").click()
    answered(page)
    page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body="".join(
        "data: %s\n\n" % json.dumps(event) for event in [
            {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "length"}]},
            {"choices": [], "usage": {"prompt_tokens": 2000, "completion_tokens": 1}, "timings": {
                "cache_n": 1500, "prompt_per_second": 900.4, "predicted_per_second": 12.6, "draft_n": 30, "draft_n_accepted": 21}}])))
    page.get_by_role("button", name="Regenerate").click()
    expect(last(page).locator(".note")).to_have_text(
        "1 token, 13 tokens/s · 21 of 30 drafts accepted · prompt: 2,000, 1,500 of them known, 900 tokens/s · cut short")
    page.unroute("**/v1/chat/completions")


def test_background(page):
    """Answers go on while another conversation is shown; a third one waits for the server's two sessions."""
    endless(page)
    live = page.locator("#list li.live")
    for story in range(3):
        page.get_by_role("button", name="New chat").click()
        ask(page, "Tell me a story, number %d" % story)
        expect(live).to_have_count(story + 1)
    expect(last(page).locator(".note")).to_have_text("Waiting until another answer ends")
    page.get_by_role("link", name="number 0").click()
    before = last(page).locator(".body").inner_text()
    expect(last(page).locator(".body")).not_to_have_text(before)
    page.get_by_role("link", name="number 2").click()
    expect(last(page)).to_contain_text("Waiting")
    page.get_by_role("link", name="number 1").hover()
    page.get_by_role("button", name="Delete Tell me a story, number 1").click()
    expect(last(page)).to_contain_text("Once upon a time", timeout=20000)
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("link", name="number 0").click()
    page.get_by_role("button", name="Stop").click()
    expect(live).to_have_count(0)
    expect(last(page).locator(".note")).to_contain_text("stopped")
    ending(page)
    page.reload()
    expect(page.get_by_role("link", name="number 1")).to_have_count(0)
    page.get_by_role("button", name="New chat").click()
    page.locator("#pick_text").set_input_files([{"name": "l.txt", "mimeType": "text/plain", "buffer": b"1 expert " * 9000}])
    ask(page, "What is FP8?")                          # more than the context: the server's words
    expect(page.locator(".failed")).to_contain_text("maximum context length")


def test_copy(page, trusted):
    page.evaluate("() => { window.showOnly = %s; }" % SHOW)
    page.evaluate("text => showOnly(text)", DRAWN)
    assert page.evaluate("isSecureContext") == trusted
    for place, text in ((".code", "int x;"), (".tools", DRAWN)):
        button = page.locator("article " + place).get_by_role("button", name="Copy")
        button.click()
        expect(page.locator("article " + place).get_by_role("button", name="Copied")).to_be_visible()
        expect(button).to_be_visible(timeout=3000)
        message(page).fill("")
        message(page).press("Control+V")
        expect(message(page)).to_have_value(text)
        message(page).fill("")


def test_drawing(page):
    body = page.locator("article .body")
    for part, text in (("h3", "Head"), ("strong", "bold"), ("p code >> nth=0", "code"), ("ul ol pre code", "int x;"),
                       (".code .bar span", "c"), (".keyword", "int"), ("td.right", "2"), ("pre.math", "x_1")):
        expect(body.locator(part)).to_have_text(text)
    expect(body.locator("li")).to_have_count(3)
    expect(body.get_by_role("checkbox")).to_be_checked()
    assert body.locator("img").count() == 0, "text became HTML"
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate(CONTRAST) >= 4.5, "links are hard to read: " + scheme
    page.emulate_media(color_scheme="light")
    page.evaluate(open(HOSTILE).read() + "; window.hostile = hostile;")
    slow = page.evaluate(DRAW, 200)
    assert not slow, "drawn slowly: %s" % slow
    drawing, all_of_it = page.evaluate(STREAM, 400)
    assert drawing > 0 and drawing < all_of_it / 4, "%.0f of %.0f ms went into drawing" % (drawing, all_of_it)
    page.reload()


def give(page, name, text):
    page.locator("#pick_talks").set_input_files([{"name": name, "mimeType": "application/json", "buffer": text.encode()}])


def test_export(browser, page, url, errors):
    expect(page.locator("#list li")).not_to_have_count(0)
    with page.expect_download() as download:
        page.get_by_role("button", name="Export all").click()
    with open(download.value.path()) as file:
        text = file.read()
    talks = json.loads(text)["conversations"]
    context = browser.new_context()
    other = open_page(context, url, errors)
    told = other.locator("#notice")
    loop = json.loads(text)
    loop["conversations"][0]["turns"][0]["parent"] = loop["conversations"][0]["turns"][-1]["id"]
    wrong = json.loads(text)
    wrong["conversations"][-1]["turns"][0]["content"] = {"a": 1}
    for name, bad, says in (("a.json", text[:-9], "a.json: .*JSON"), ("b.json", "[]", "b.json: these are no conversations of mote"),
                            ("c.json", json.dumps(loop), r"c.json: conversations\[0\].turns\[0\].parent is no turn before it"),
                            ("d.json", json.dumps(wrong), r"d.json: conversations\[\d+\].turns\[0\].content is no string")):
        give(other, name, bad)
        expect(told).to_have_text(re.compile(says))
        expect(other.locator("#list li")).to_have_count(0)
    for times in range(2):                             # the second time it is there already
        give(other, "e.json", text)
        expect(told).to_have_text("%d conversations imported" % len(talks))
        expect(other.locator("#list li")).to_have_count(len(talks))
    other.get_by_role("link", name="What is FP8?").last.click()
    other.get_by_role("button", name="Earlier version").first.click()
    other.reload()
    expect(other.locator("article.assistant").nth(1)).to_contain_text("experts")
    with other.expect_download() as again:
        other.get_by_role("button", name="Export all").click()
    with open(again.value.path()) as file:
        assert sorted(len(t["turns"]) for t in json.load(file)["conversations"]) == sorted(len(t["turns"]) for t in talks)
    question = json.loads(text)
    del question["conversations"][1:]
    talk = question["conversations"][0]
    talk.update(id="question", title="A question alone", turns=[{**talk["turns"][0], "content": "What is BF16?"}], leaf=talk["turns"][0]["id"])
    give(other, "f.json", json.dumps(question))
    other.get_by_role("link", name="A question alone").click()
    other.get_by_role("button", name="Answer").click()
    answered(other)
    expect(last(other)).to_contain_text("BF16")
    context.close()


def test_tabs(context, page, url, errors):
    page.get_by_role("button", name="New chat").click()
    ask(page, "What is FP8?")
    answered(page)
    other = open_page(context, page.url, errors)
    expect(other.locator("article")).to_have_count(2)
    ask(other, "What is BF16?")                        # the first tab follows
    answered(other)
    expect(page.locator("article")).to_have_count(4)
    expect(last(page)).to_contain_text("BF16")
    page.get_by_role("button", name="Regenerate").click()
    ask(other, "What is NVFP4?")                       # both go on, each in its own way
    answered(page)
    answered(other)
    configure(page, Top_k="9")                         # of a conversation that this tab knows from the other one
    other.reload()
    expect(other.get_by_label("Top k")).to_have_value("9")
    turns = page.evaluate("async id => (await storedTurns(id)).size", page.url.split("#")[1])
    assert turns == 7, "%d turns are left of 7" % turns
    other.locator("#list li.open").get_by_role("button", name="Delete").click()
    expect(page.locator("article")).to_have_count(0)
    other.close()
    configure(page, Top_k="")


def test_storage(browser, url, errors):
    blocked = browser.new_context()
    blocked.add_init_script("""Object.defineProperty(window, "indexedDB", {get() { throw new DOMException("no", "SecurityError"); }});
        Object.defineProperty(window, "sessionStorage", {get() { throw new DOMException("no", "SecurityError"); }});""")
    page = open_page(blocked, url, errors)
    expect(page.locator("#notice")).to_contain_text("stores nothing")
    ask(page, "What is FP8?")
    answered(page)
    page.get_by_role("button", name="New chat").click()
    expect(page.locator("article")).to_have_count(0)
    page.get_by_role("link", name="What is FP8?").click()
    expect(page.locator("article")).to_have_count(2)
    blocked.close()
    full = browser.new_context()
    page = open_page(full, url, errors)
    page.evaluate("""() => { window.storing = IDBObjectStore.prototype.put;
        IDBObjectStore.prototype.put = () => { throw new DOMException("no", "QuotaExceededError"); }; }""")
    ask(page, "What is FP8?")
    answered(page)
    expect(page.locator("#notice")).to_contain_text("no space left")
    page.evaluate("() => { IDBObjectStore.prototype.put = window.storing; }")
    ask(page, "What is BF16?")                         # there is space again: all of it is stored
    answered(page)
    expect(page.locator("#notice")).to_be_hidden()
    page.reload()
    expect(page.locator("article")).to_have_count(4)
    full.close()


def test_key(browser, program):
    process, url = serve(program, "--api-key", "open sesame")
    page = browser.new_page()
    page.goto(url)
    expect(page.locator("#name")).to_contain_text("API key needed")
    ask(page, "What is FP8?")
    expect(page.locator(".failed")).to_be_visible()
    page.get_by_label("API key").fill("open sesame")   # the settings have opened
    page.get_by_role("button", name="Done").click()
    expect(page.locator("#name")).to_have_text("demo")
    page.reload()
    page.get_by_role("button", name="Regenerate").click()
    answered(page)
    expect(last(page)).to_contain_text("8 bits")
    process.terminate()                                # the server is gone
    process.wait()
    ask(page, "Hello")
    expect(page.locator(".failed")).to_contain_text("cannot be reached")
    page.close()


def test_phone(browser, url, errors):
    context = browser.new_context(viewport={"width": 360, "height": 700}, has_touch=True, is_mobile=True, color_scheme="dark")
    page = open_page(context, url, errors)
    ask(page, "What is FP8?")
    answered(page)
    message(page).fill("a")
    message(page).press("Enter")                       # a line: a phone's keyboard has no Shift+Enter
    expect(message(page)).to_have_value("a\n")
    assert not page.get_by_role("button", name="New chat").is_visible()
    page.get_by_role("button", name="Conversations").click()
    page.get_by_role("button", name="New chat").click()
    expect(page.locator("article")).to_have_count(0)
    expect(page.get_by_role("button", name="New chat")).to_be_hidden()
    page.get_by_role("button", name="Conversations").click()
    page.get_by_role("link", name="What is FP8?").click()
    expect(page.locator("article")).to_have_count(2)
    page.get_by_role("button", name="Settings").click()
    page.get_by_role("button", name="Done").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360, "wider than a phone"
    context.close()


def test(browser, program, url):
    errors = []
    context = browser.new_context(viewport={"width": 1000, "height": 720})
    lan = url.replace("127.0.0.1", "mote.lan")
    other = browser.new_context()
    test_first(other, lan, errors)
    other.close()
    page = open_page(context, lan, errors)
    test_talk(page)
    test_branches(page)
    test_stopping(page)
    test_list(page)
    test_files(page)
    test_images(context, lan, errors)
    test_progress(page)
    test_background(page)
    test_copy(page, False)
    test_drawing(page)
    test_export(browser, page, lan, errors)
    test_tabs(context, page, lan, errors)
    test_storage(browser, lan, errors)
    test_key(browser, program)
    test_phone(browser, lan, errors)
    secure = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    test_copy(open_page(secure, url, errors), True)
    assert not errors, errors


def main():
    global brake
    process, url = serve(sys.argv[1], "--allow-host", "mote.lan", "--threads", "1")   # so that a long prompt takes two seconds
    brake = Brake(process)
    brake.start()
    try:
        with sync_playwright() as p:
            browser = p.chromium.launch(executable_path=os.environ.get("CHROMIUM"),
                                        args=["--no-sandbox", "--host-resolver-rules=MAP mote.lan 127.0.0.1"])
            test(browser, sys.argv[1], url)
            browser.close()
    finally:
        brake.release()
        process.terminate()
        process.wait()
    print("page: passed")


if __name__ == "__main__":
    main()
