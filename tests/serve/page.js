// Answers that a page must draw in linear time: hostile(n), of n characters each. In a browser that is all; with node,
// `node tests/serve/page.js serve/page N MILLISECONDS` draws them with the page's own renderer on elements that only remember, and
// prints a line for what took longer, failed, or is not drawn as it should be.
"use strict";

function hostile(n) {
  const fill = s => s.repeat(Math.ceil(n / s.length)).slice(0, n);
  const tower = (c, between) => { let s = ""; for (let k = 1; s.length < n; k++) s += c.repeat(k) + between; return s.slice(0, n); };
  const stairs = mark => { let s = ""; for (let k = 0; s.length < n; k++) s += " ".repeat(2 * (k % 60)) + mark + "\n"; return s.slice(0, n); };
  const parts = ["*", "*a", "* ", "**a", "**\n", "***a ", "_", "_a", "_a_ *b* ", "**a*", "~~", "~~a", "`", "`a", "`\n", "``a`", "[", "[a](", "[a](http://b",
                 "][", "[a](http://b)", "![", "![a](http://b) ", "[*a](http://b)*", "((", "[a](((", "[a](<", "[a](http://b(", "<http:", "<http://a>", "http://",
                 "http://)", "http://a ", "\\", "\\(", "\\[", "\\[\n", "\\(a\\)", "$", "$a", "$a$", "$$", "$$a", "$$\n", "$$a\n", "$$a$$ b\n", "&lt;",
                 "|\n", ">", "> ", ">\n", "> > a\n", ">- *a\n", "> 1. ", "```\n", "```a\n", "~~~\n", "~~~~\n~~~\n", "- a\n", "- ", "1. a\n", "- [ ] a\n",
                 "- a\n\n", "- > ", " ", "\n", "\t\n", "1", "# a\n", "#", "# #", "#\n", "*`[**]`a* ", "*a*", "**a**", "`a`", "<b>", "a\n", "a", "|a",
                 "\u202e", "\u0301", "---\n", "a\n---\n", "- - -\n", "    a\n", "a\n===\n", "\\|", "\u6587**\u3002", "\ud83d\ude00*", "\r", "\r\n"];
  const code = ["\"", "'", "`", "\\'", "'\\", "/*", "//\n", "#", "a ", "1.", "\"\"\"", "if(1)'a'", "<!--", "--\n"];
  const head = "|a|\n|-|\n";
  return [...parts.map(fill), ...code.flatMap(c => ["c", "python", "rust", "html", "sql"].map(l => "```" + l + "\n" + fill(c))), tower("`", " "),
          tower(">", "\n"), tower("*", " a"), tower("*", "a"), tower("[", "]"), tower(" ", "a\n"), stairs("- a"), stairs("1. a"), stairs("> a"), stairs("```"),
          fill("|") + "\n|-|", head + fill("|"), head + fill("|\n"), fill("|") + "\n" + fill("-|"), fill("a|").slice(0, n / 2) + "\n" +
          fill("-|").slice(0, n / 2) + "\n" + fill("|a\n"), "|\n" + fill("-") + "x", "|\n" + fill(" ") + "x", "```\n" + fill("a\n"),
          fill("`") + "\n" + fill("`"), fill("- ") + "x", fill("\\[ a\n") + "b \\] c", fill("$$ a\n") + "b $$ c", fill("*a _b ") + "*"];
}

// What is drawn for a text: tags without attributes, but for these.
const EXAMPLES = [
  ["**b** `c` *i* <img src=x> [x](javascript:1) 2 * 3", "<p><strong>b</strong> <code>c</code> <em>i</em> <img src=x> [x](javascript:1) 2 * 3</p>"],
  ["a\n> b\n> > c\n\n1. *d*\n", "<p>a</p><blockquote><p>b</p><blockquote><p>c</p></blockquote></blockquote><ol tight><li><p><em>d</em></p></li></ol>"],
  ["[a](https://b/c)**", "<p><a https://b/c>a</a>**</p>"],
  // emphasis
  ["a _b_ c_d_e __f__ ***g*** **h *i* j** *k **l** m*", "<p>a <em>b</em> c_d_e <strong>f</strong> <em><strong>g</strong></em> <strong>h <em>i</em> j</strong> " +
   "<em>k <strong>l</strong> m</em></p>"],
  ["snake_case_name and 2*3*4 and ** and *a", "<p>snake_case_name and 2<em>3</em>4 and ** and *a</p>"],
  ["**a\nb** \\*c\\* ~~d~~ ~e~ &lt;b&gt;", "<p><strong>a\nb</strong> *c* <del>d</del> ~e~ <b></p>"],
  ["\u8fd9\u662f**\u91cd\u70b9\u3002**\u4ed6", "<p>\u8fd9\u662f<strong>\u91cd\u70b9\u3002</strong>\u4ed6</p>"],
  ["`` a`b `` `*c*` `d", "<p><code>a`b</code> <code>*c*</code> `d</p>"],
  // links
  ["[a *b* `c`](http://d/e_(f)) ![g](https://h) <https://i> https://j/k_l_m. (http://n)", "<p><a http://d/e_(f)>a <em>b</em> <code>c</code></a> " +
   "<a https://h>g</a> <a https://i>https://i</a> <a https://j/k_l_m>https://j/k_l_m</a>. (<a http://n>http://n</a>)</p>"],
  ["[1] *[b*] [https://c](https://c \"t\") [d](#e) *[f*](http://g)", "<p>[1] <em>[b</em>] <a https://c>https://c</a> [d](#e) *<a http://g>f*</a></p>"],
  // lists
  ["- a\n  - b\n    - c\n- d", "<ul tight><li><p>a</p><ul tight><li><p>b</p><ul tight><li><p>c</p></li></ul></li></ul></li><li><p>d</p></li></ul>"],
  ["1. a\n\n   ```c\n   int x;\n   ```\n2. b", "<ol tight><li><p>a</p><div code><div bar><span>c</span><button>Copy</button></div><pre><code><span " +
   "keyword>int</span> x;</code></pre></div></li><li><p>b</p></li></ol>"],
  ["1. a\n  - b\n2. c\nd\n\ne", "<ol tight><li><p>a</p><ul tight><li><p>b</p></li></ul></li><li><p>c\nd</p></li></ol><p>e</p>"],
  ["- [ ] a\n- [x] b\n* c", "<ul tight><li task><input><p>a</p></li><li task><input><p>b</p></li></ul><ul tight><li><p>c</p></li></ul>"],
  ["- a\n\n- b\n\n  c", "<ul><li><p>a</p></li><li><p>b</p><p>c</p></li></ul>"],
  ["In\n1986. a\n2. b\n- c", "<p>In\n1986. a\n2. b</p><ul tight><li><p>c</p></li></ul>"],
  // tables
  ["t\n|a|b|c|\n|-|:-:|-:|\n|`d`|e\\|f|\n|g|h|i|j|\n\nk", "<p>t</p><table><tr><th>a</th><th center>b</th><th right>c</th></tr><tr><td><code>d</code></td>" +
   "<td center>e|f</td><td right></td></tr><tr><td>g</td><td center>h</td><td right>i</td></tr></table><p>k</p>"],
  ["a | b\n- | -\nc | d", "<table><tr><th>a</th><th>b</th></tr><tr><td>c</td><td>d</td></tr></table>"],
  ["|a|b|\n|-|\n", "<p>|a|b|\n|-|</p>"],
  // headings, rules, code
  ["# a #\n### b#\nc\n===\n***\n- - -\n#d", "<h3>a</h3><h5>b#</h5><h3>c</h3><hr><hr><p>#d</p>"],
  ["```\n<b>\n", "<div code><div bar><span>code</span><button>Copy</button></div><pre><code><b>\n</code></pre></div>"],
  ["~~~~py\n~~~\n# a\n~~~~\nb\n\n    c\n\td", "<div code><div bar><span>py</span><button>Copy</button></div><pre><code>~~~\n<span comment># a</span></code></pre></div>" +
   "<p>b</p><div code><div bar><span>code</span><button>Copy</button></div><pre><code>c\nd</code></pre></div>"],
  ["```rust\nfn f<'a>(x: &'a str) { 'b' } // \"c\"\n```", "<div code><div bar><span>rust</span><button>Copy</button></div><pre><code><span keyword>fn</span> f<'a>(x: " +
   "&'a str) { <span string>'b'</span> } <span comment>// \"c\"</span></code></pre></div>"],
  // formulas
  ["a\n$$\nx_1 = y_2\n- z\n$$\nb \\(c_1\\) and $d_1 * e$, $5 and $6", "<p>a</p><pre math>x_1 = y_2\n- z</pre><p>b <code math inside>c_1</code> and " +
   "<code math inside>d_1 * e</code>, $5 and $6</p>"],
  ["\\[ a \\]\n$$b$$ c\n$$ d", "<pre math>a</pre><p><code math inside>b</code> c</p><p>$$ d</p>"]];

function drawn(node) {
  if (typeof node === "string") return node;
  const marks = [node.className, node.name === "a" ? node.href : ""].filter(m => m).map(m => " " + m).join("");
  const inside = node.inside.map(drawn).join("");
  return "<" + node.name + marks + ">" + (["hr", "input"].includes(node.name) ? "" : inside + "</" + node.name + ">");
}

function depthOf(node) {
  return typeof node === "string" ? 0 : 1 + Math.max(0, ...node.inside.map(depthOf));
}

function main(folder, n, limit) {
  class Element {
    constructor(name) { this.name = name; this.inside = []; }
    append(...nodes) { for (const one of nodes) this.inside.push(one); }
    set textContent(text) { this.inside = [text]; }
  }
  const scripts = ["elements.js", "spans.js", "code.js", "markdown.js"].map(f => require("fs").readFileSync(folder + "/" + f, "utf8")).join("\n");
  const render = new Function("document", scripts + "; return markdown;")({createElement: name => new Element(name)});
  for (const [text, wanted] of EXAMPLES) {
    const got = render(text).map(drawn).join("");
    if (got !== wanted) console.log(JSON.stringify(text) + " is drawn as\n  " + got + "\nnot\n  " + wanted);
  }
  for (const text of hostile(n)) {
    const began = performance.now(), what = JSON.stringify(text.slice(0, 20));
    try {
      const nodes = render(text), took = performance.now() - began, size = nodes.map(drawn).join("").replace(/<\/?[^<>]*>|Copy|code/g, "").length;
      if (took > limit) console.log(what + ": " + took.toFixed(0) + " ms");
      if (size > 2 * text.length) console.log(what + " grows");
      if (Math.max(0, ...nodes.map(depthOf)) > 50) console.log(what + " nests deeper than 50");
    } catch (e) { console.log(what + ": " + e.stack); }
  }
}

if (typeof process !== "undefined") main(process.argv[2], Number(process.argv[3]), Number(process.argv[4]));
