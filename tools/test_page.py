#!/usr/bin/env python3
"""The page of mote serve in a headless Chromium: a conversation, stop, edit, reload.

    tools/test_page.py ./mote [SCREENSHOT.png]

Needs playwright (pip) and a Chromium: CHROMIUM=/usr/bin/chromium, or one that playwright has installed.
"""
import os
import sys

from playwright.sync_api import expect, sync_playwright

from serving import serve


def ask(page, text):
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def answered(page):
    expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=60000)


HOSTILE = os.path.join(os.path.dirname(__file__), "..", "tests", "serve", "page.js")

# Draws each of the answers as the page would, laid out, up to three times; what always took longer than so many milliseconds.
DRAW = """limit => hostile(20000).map(content => {
    talk = [{role: "assistant", thinking: "", note: "", content}];
    let best = Infinity;
    for (let i = 0; i < 3 && best > limit; i++) {
        const began = performance.now();
        show();
        $("scroll").scrollHeight;
        best = Math.min(best, performance.now() - began);
    }
    return [content.slice(0, 20), Math.round(best)];
}).filter(one => one[1] > limit)"""

# An answer of n tokens, as the server sends them: the time that drawing took, and all of it.
STREAM = """async n => {
    const send = window.fetch, encoder = new TextEncoder(), draw = showLast;
    const event = content => encoder.encode(": waiting\\n\\ndata: " + JSON.stringify({choices: [{delta: {content}, finish_reason: null}]}) + "\\n\\n");
    let drawing = 0, sent = 0;
    showLast = () => { const began = performance.now(); draw(); drawing += performance.now() - began; };
    window.fetch = async () => new Response(new ReadableStream({
        async pull(c) {
            if (sent++ === n) c.close();
            else c.enqueue(event("| a **b** `c`\\n| - |\\n".repeat(20)));
            await new Promise(then => setTimeout(then));
        }
    }));
    talk = [{role: "user", content: "x"}];
    const began = performance.now();
    await answer();
    showLast = draw;
    window.fetch = send;
    return [drawing, performance.now() - began];
}"""


def test_hostile(page):
    page.evaluate(open(HOSTILE).read() + "; window.hostile = hostile;")
    slow = page.evaluate(DRAW, 200)
    assert not slow, "drawn slowly: %s" % slow
    drawing, all_of_it = page.evaluate(STREAM, 400)
    assert drawing > 0 and drawing < all_of_it / 4, "%.0f of %.0f ms went into drawing" % (drawing, all_of_it)


def test(page, url, screenshot):
    errors = []
    page.on("pageerror", lambda e: errors.append(str(e)))
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    page.goto(url)
    expect(page.locator("#name")).to_have_text("demo")
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Temperature").press("Tab")
    page.get_by_role("button", name="Settings").click()

    ask(page, "What is FP8?")
    answered(page)
    last = page.locator("article.assistant").last
    expect(last.locator(".body")).to_contain_text("FP8 is a floating point number in 8 bits")
    expect(last.locator(".tools")).to_contain_text("tokens/s")
    expect(last.locator("summary")).to_have_text("Thought")
    assert not last.locator("details").evaluate("e => e.open"), "thinking is not folded"
    last.locator("summary").click()
    expect(last.locator("details")).to_contain_text("eight bits")

    ask(page, "What is a mixture of experts?")
    answered(page)
    expect(page.locator("article")).to_have_count(4)
    if screenshot:
        page.screenshot(path=screenshot)

    page.reload()                                      # the conversation is still there
    expect(page.locator("article")).to_have_count(4)

    page.get_by_role("button", name="Edit").last.click()
    expect(page.locator("article")).to_have_count(2)
    expect(page.get_by_label("Message", exact=True)).to_have_value("What is a mixture of experts?")
    ask(page, "What is BF16?")
    answered(page)
    expect(page.locator("article.assistant").last.locator(".body")).to_contain_text("BF16")
    before = page.locator("article.assistant").last.locator(".body").inner_text()
    page.get_by_role("button", name="Regenerate").click()
    answered(page)
    assert page.locator("article.assistant").last.locator(".body").inner_text() == before, "greedy, and another answer"

    page.route("**/v1/chat/completions", lambda route: route.continue_(
        post_data=route.request.post_data.replace('"stream":true', '"stream":true,"ignore_eos":true')))
    ask(page, "Tell me a story")
    expect(page.locator("article.assistant").last).to_contain_text("Once upon a time", timeout=20000)
    page.keyboard.press("Escape")
    answered(page)
    expect(page.locator("article.assistant").last.locator(".tools")).to_contain_text("stopped")
    page.unroute("**/v1/chat/completions")

    page.evaluate("""() => { talk = [{role: "assistant", thinking: "", note: "", content:
        "# Head\\n\\ntext **bold** `code` <img src=x onerror=alert(1)>\\n\\n- a\\n- b\\n\\n```c\\nint x;\\n```\\n\\n|a|b|\\n|-|-|\\n|1|2|"}]; show(); }""")
    body = page.locator("article .body")
    for part, text in (("h3", "Head"), ("strong", "bold"), ("p code", "code"), ("pre code", "int x;"), ("td >> nth=1", "2")):
        expect(body.locator(part)).to_have_text(text)
    expect(body.locator("li")).to_have_count(2)
    assert body.locator("img").count() == 0, "text became HTML"

    test_hostile(page)

    page.set_viewport_size({"width": 360, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360, "wider than a phone"
    assert not errors, errors


def main():
    process, url = serve(sys.argv[1])
    try:
        with sync_playwright() as p:
            browser = p.chromium.launch(executable_path=os.environ.get("CHROMIUM"), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1000, "height": 720})
            test(page, url, sys.argv[2] if len(sys.argv) > 2 else None)
            browser.close()
    finally:
        process.terminate()
        process.wait()
    print("page: passed")


if __name__ == "__main__":
    main()
