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
