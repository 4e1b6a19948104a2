// Answers that a page must draw in linear time: hostile(n), of n characters each. In a browser that is all; with node,
// `node tests/serve/page.js serve/page.html N MILLISECONDS` draws them with the page's own renderer on elements that only remember, and
// prints a line for what took longer, failed, or is not drawn as it should be.
"use strict";

function hostile(n) {
  const fill = s => s.repeat(Math.ceil(n / s.length)).slice(0, n);
  const tower = (c, between) => { let s = ""; for (let k = 1; s.length < n; k++) s += c.repeat(k) + between; return s.slice(0, n); };
  const parts = ["*", "*a", "* ", "**a", "**\n", "***a ", "_", "`", "`a", "`\n", "``a`", "[", "[a](", "[a](http://b", "][", "[a](http://b)",
                 "|\n", ">", "> ", ">\n", "> > a\n", ">- *a\n", "```\n", "```a\n", "~~~\n", "- a\n", "- ", "1. a\n", " ", "\n", "\t\n", "1",
                 "# a\n", "#", "*`[**]`a* ", "*a*", "**a**", "`a`", "<b>", "a\n", "a", "|a", "\u202e", "\u0301"];
  return [...parts.map(fill), tower("`", " "), tower(">", "\n"), tower("*", " a"), fill("|") + "\n|-|", "|a|\n|-|\n" + fill("|"),
          "|a|\n|-|\n" + fill("|\n"), "|\n" + fill("-") + "x", "|\n" + fill(" ") + "x", "```\n" + fill("a\n"), fill("`") + "\n" + fill("`")];
}

function drawn(node) {
  return typeof node === "string" ? node : "<" + node.name + ">" + node.inside.map(drawn).join("") + "</" + node.name + ">";
}

function main(path, n, limit) {
  class Element {
    constructor(name) { this.name = name; this.inside = []; }
    append(...nodes) { for (const one of nodes) this.inside.push(one); }
    set textContent(text) { this.inside = [text]; }
  }
  const page = require("fs").readFileSync(path, "utf8"), from = page.indexOf("// ---- Markdown"), to = page.indexOf("// ---- The conversation");
  const render = new Function("document", page.slice(from, to) + "; return markdown;")({createElement: name => new Element(name)});
  const examples = [
    ["**b** `c` *i* <img src=x> [x](javascript:1) 2 * 3", "<p><strong>b</strong> <code>c</code> <em>i</em> <img src=x> [x](javascript:1) 2 * 3</p>"],
    ["a\n> b\n> > c\n\n1. *d*\n", "<p>a</p><blockquote><p>b</p><blockquote><p>c</p></blockquote></blockquote><ol><li><em>d</em></li></ol>"],
    ["|a|\n|-|\n|`b`|\n", "<table><tr><th>a</th></tr><tr><td><code>b</code></td></tr></table>"],
    ["[a](https://b/c)**", "<p><a>a</a>**</p>"],
    ["```\n<b>\n", "<div><pre><code><b>\n</code></pre><button>Copy</button></div>"]];
  for (const [text, wanted] of examples)
    if (render(text).map(drawn).join("") !== wanted) console.log("drawn as " + render(text).map(drawn).join("") + ", not " + wanted);
  for (const text of hostile(n)) {
    const began = performance.now(), what = JSON.stringify(text.slice(0, 20));
    try {
      if (render(text).map(drawn).join("").replace(/<\/?\w+>|Copy/g, "").length > 2 * text.length) console.log(what + " grows");
    } catch (e) { console.log(what + ": " + e); }
    const took = performance.now() - began;
    if (took > limit) console.log(what + ": " + took.toFixed(0) + " ms");
  }
}

if (typeof process !== "undefined") main(process.argv[2], Number(process.argv[3]), Number(process.argv[4]));
