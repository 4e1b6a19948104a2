#!/usr/bin/env python3
"""Screenshots of the page of mote serve, with the bundled model, for docs/.

    tools/draw_page.py ./mote FOLDER

Needs what tools/test_page.py needs.
"""
import os
import sys

from playwright.sync_api import expect, sync_playwright

from serving import serve
from test_page import answered, ask, open_page

# An answer that has much of what can be drawn.
SAMPLE = """## Reading a file in C

`fopen` gives a *stream*; **always** look at what comes back, as [the standard](https://example.org) asks.

1. Open it
   - in binary mode
   - with `"rbe"`, if children must not have it:

     ```c
     FILE *in = fopen(path, "rbe");       /* e: close on exec */
     if (!in) return -1;
     ```
2. Read until `n == 0`

- [x] errors are looked at
- [ ] nothing leaks

| mode | reads | if it is missing |
|:-----|:-----:|-----------------:|
| `r`  | yes   |         an error |
| `w`  |       |        made anew |

$$
\\sum_{i=1}^n x_i^2 = \\|x\\|^2
$$
"""


def screenshots(browser, url, folder):
    for name, scheme, width, height in (("serve", "light", 1000, 720), ("serve-dark", "dark", 1000, 860),
                                        ("serve-phone", "light", 390, 760), ("serve-phone-dark", "dark", 390, 760)):
        phone = width < 500
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, has_touch=phone, is_mobile=phone)
        page = open_page(context, url, [])
        shows = scheme == "dark"                       # SAMPLE instead of the model's own words
        for question in ("What is speculative decoding?", "Show what you can draw" if shows else "What is FP8?"):
            if phone:
                page.get_by_role("button", name="Conversations").click()
            page.get_by_role("button", name="New chat").click()
            expect(page.locator("article")).to_have_count(0)
            ask(page, question)
            answered(page)
        if name == "serve":
            page.get_by_role("button", name="Regenerate").click()
            answered(page)
            ask(page, "What is a mixture of experts?")
            answered(page)
        elif name == "serve-phone":
            page.get_by_role("button", name="Conversations").click()
            page.wait_for_timeout(300)
        elif shows:
            page.evaluate("""content => {
                Object.assign(turns.get(talk.leaf), {content, thinking: "", stats: null});
                show();
                $("scroll").scrollTop = 1e6;
            }""", SAMPLE)
        page.screenshot(path=os.path.join(folder, name + ".png"))
        context.close()


def main():
    process, url = serve(sys.argv[1])
    try:
        with sync_playwright() as p:
            browser = p.chromium.launch(executable_path=os.environ.get("CHROMIUM"), args=["--no-sandbox"])
            screenshots(browser, url, sys.argv[2])
            browser.close()
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
