#!/usr/bin/env python3
"""The page of mote trace in a headless Chromium: that it draws all there is, says what is under the pointer, loads nothing, and takes no
token for HTML.

    tools/test_trace_page.py ./mote [PICTURE.png]

PICTURE.png: where to write the screenshot for docs/. Needs what tools/test_page.py needs.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

from playwright.sync_api import sync_playwright

HOSTILE = "</script><img src=x onerror=document.title='taken'> <b>\u202e\u0007 &lt;"

# How many colours a canvas has: one that was not drawn has one.
DRAWN = """() => [...document.querySelectorAll("canvas")].map(c => {
    const data = c.getContext("2d").getImageData(0, 0, c.width, c.height).data, colors = new Set();
    for (let i = 0; i < data.length; i += 4) colors.add(data[i] + "," + data[i + 1] + "," + data[i + 2] + "," + data[i + 3]);
    return colors.size;
})"""


def traced(mote, folder, *arguments):
    path = os.path.join(folder, "trace.html")
    subprocess.run([mote, "trace", *arguments, "--html", path], check=True, stdout=subprocess.DEVNULL)
    return path


def opened(browser, path, scheme="light", width=1200, height=900):
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    page.wrong = []
    page.on("console", lambda message: page.wrong.append(message.text))
    page.on("pageerror", lambda error: page.wrong.append(str(error)))
    page.on("request", lambda request: request.url == "file://" + path or page.wrong.append(request.url))
    page.goto("file://" + path)
    return page


def data_of(page):
    return json.loads(page.locator("#trace").text_content())


def check_question(browser, path):
    page = opened(browser, path)
    trace = data_of(page)
    count = len(trace["tokens"])
    assert page.locator("#tokens button").count() == count == page.locator("#next tbody tr").count()
    assert page.locator("#layers details").count() == len(trace["layers"]) == page.locator("#layers details[open]").count()
    delta = [layer for layer in trace["layers"] if layer["mixer"]["kind"] == "deltanet"]
    heads = sum(layer["mixer"]["heads"] for layer in trace["layers"])
    # Of a layer: S or attention of each head, three maps or the gate, router and shared expert; of all: three of lengths, the experts.
    assert page.locator("canvas").count() == heads + 3 * len(delta) + (len(trace["layers"]) - len(delta)) + 2 * len(trace["layers"]) + 4
    few = [n for n in page.evaluate(DRAWN) if n < 3]
    assert not few, few
    taken = sum(p["taken"] for p in trace["passes"])
    assert page.locator("#passes .taken").count() == taken > 0
    assert page.locator("#passes .refused").count() == sum(len(p["tokens"]) - 1 for p in trace["passes"]) - taken
    assert not page.wrong, page.wrong
    page.close()


def check_pointing(browser, path):
    page = opened(browser, path)
    trace = data_of(page)
    attention = next(i for i, layer in enumerate(trace["layers"]) if layer["mixer"]["kind"] == "attention")
    head = page.locator("#layers details").nth(attention).locator("canvas").first
    head.scroll_into_view_if_needed()
    box = head.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 4, box["y"] + box["height"] - 4)      # the last token at itself
    last = len(trace["tokens"]) - 1
    share = trace["layers"][attention]["mixer"]["weights"][0][last][last]
    said = page.locator("#under").text_content()
    assert said.startswith(f"layer {attention}, head 0: token {last} ") and said.split(": ")[-1].startswith(f"{100 * share:.0f}"[:1]), said
    before = head.evaluate("c => c.toDataURL()")
    page.locator("#tokens button").nth(2).click()
    assert head.evaluate("c => c.toDataURL()") != before
    assert page.locator("#next tr.chosen").count() == 1 == page.locator("#tokens [aria-pressed=true]").count()
    page.locator("#tokens button").nth(2).click()
    assert head.evaluate("c => c.toDataURL()") == before
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("([canvas, before]) => canvas.toDataURL() !== before", arg=[head.element_handle(), before], timeout=5000)
    assert not page.wrong, page.wrong
    page.close()


def check_hostile(browser, mote, folder):
    page = opened(browser, traced(mote, folder, "--raw", HOSTILE))
    assert page.title() == "mote trace" and page.locator("img, b").count() == 0
    text = "".join(token["text"] for token in data_of(page)["tokens"])             # tokens can be parts of a character: <0xE2>
    assert re.sub("(<0x[0-9A-F]{2}>)+", lambda m: bytes.fromhex(m[0].replace("<0x", "").replace(">", "")).decode(), text) == HOSTILE, text
    assert not page.wrong, page.wrong
    page.close()


def check_phone(browser, path):
    page = opened(browser, path, "dark", 390, 760)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert not page.wrong, page.wrong
    page.close()


# The experts, and the first DeltaNet and attention layers, as docs/ shows them.
def draw(browser, path, picture):
    page = opened(browser, path, "light", 1180, 1240)
    page.add_style_tag(content="#under { display: none; } body { padding: 0; }")
    page.evaluate("() => document.querySelectorAll('details').forEach((one, i) => one.hidden = i !== 2 && i !== 3)")
    page.locator("#experts").evaluate("e => e.scrollIntoView()")
    page.screenshot(path=picture)
    page.close()


def main():
    mote = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as p:
        browser = p.chromium.launch(executable_path=os.environ.get("CHROMIUM"), args=["--no-sandbox"])
        path = traced(mote, folder, "What is FP8?")
        check_question(browser, path)
        check_pointing(browser, path)
        check_phone(browser, path)
        if len(sys.argv) > 2:
            draw(browser, path, sys.argv[2])
        check_hostile(browser, mote, folder)
        browser.close()
    print("trace: the page draws, answers and loads nothing")


if __name__ == "__main__":
    main()
