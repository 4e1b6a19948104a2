// code.js: code with its comments, strings, numbers and keywords set off. It knows families of languages, no grammar.
// Every alternative of a pattern takes what it has looked at, so that reading is linear.
"use strict";
const EVERYWHERE = "if else for while do return break continue case switch default import class true false null new try catch finally throw " +
  "async await yield static";
const SCRIPTS = " def elif lambda in is not and or none del pass raise except nonlocal global from as with assert then fi done esac function " +
  "local export echo end begin elsif unless until module require self nil match";
const C_LIKE = " const let var void int char short long float double bool unsigned signed struct union enum typedef extern inline volatile " +
  "goto sizeof auto register constexpr template typename namespace using operator virtual override public private protected final abstract " +
  "interface implements extends instanceof typeof delete function export this fn mut impl trait pub mod match where func package defer go " +
  "nullptr super self unsafe static_assert __global__ __device__ __shared__";
const QUERIES = " select from where insert into update set create alter drop table view index join left right inner outer on group by order " +
  "having limit union all distinct values primary key not and or is as exists between like then when end begin local function module let " +
  "type data instance of";
// Names of languages, a pattern of their comments, their keywords
const FAMILIES = [
  [/^(python|py|sh|bash|shell|zsh|console|fish|ya?ml|toml|ruby|rb|perl|r|make|makefile|dockerfile|cmake|ini|conf|nix|julia|elixir)$/,
   "#.*", SCRIPTS],
  [/^(sql|lua|haskell|hs|ada|vhdl|elm)$/, "--.*", QUERIES],
  [/^(html|xml|svg|vue)$/, "<!--(?:[^]*?-->|[^]*)", ""],
  [/^(lisp|clojure|scheme|asm|nasm)$/, ";.*", ""],
  [/^(c|h|cc|cpp|cxx|hpp|c\+\+|cu|cuda|cs|csharp|java|js|javascript|mjs|jsx|ts|typescript|tsx|go|golang|rust|rs|swift|kotlin|kt|php)$/,
   "\\/\\/.*|\\/\\*(?:[^]*?\\*\\/|[^]*)", C_LIKE],
  [/^(scala|css|scss|json|json5|jsonc|dart|zig|glsl|hlsl|wgsl|proto|groovy|d|objc)$/, "\\/\\/.*|\\/\\*(?:[^]*?\\*\\/|[^]*)", C_LIKE]
].map(([names, comment, words]) => ({names, comment, keywords: new Set((EVERYWHERE + words).split(" "))}));
let codeSpans = 0;                                     // of the answer that is drawn, maxElements at most; the rest is plain

function codePattern(family, language) {
  const characters = /^(rust|rs|html|xml|svg|vue|lisp|clojure|scheme)$/.test(language);          // ' has other uses, too
  const quoted = characters ? "'(?:\\\\.|[^'\\\\\\n])'" : "'(?:\\\\.|[^'\\\\\\n])*'?";
  const string = `"""(?:[^]*?"""|[^]*)|"(?:\\\\.|[^"\\\\\\n])*"?|${quoted}|\`(?:\\\\[^]|[^\`\\\\])*\`?`;
  return new RegExp(`(?<comment>${family.comment})|(?<string>${string})|` +
                    "(?<word>[A-Za-z_$][\\w$]*)|(?<number>\\d[\\w.]*)", "g");
}

function codeNodes(text, language) {
  const name = language.toLowerCase(), family = FAMILIES.find(f => f.names.test(name)), out = [];
  const pattern = family && codePattern(family, name);
  let at = 0;
  for (let m; pattern && codeSpans < maxElements && (m = pattern.exec(text));) {
    const g = m.groups, word = name === "sql" || /^(True|False|None)$/.test(g.word) ? (g.word || "").toLowerCase() : g.word;
    const kind = g.comment ? "comment" : g.string ? "string" : g.number ? "number" : family.keywords.has(word) ? "keyword" : "";
    if (!kind) continue;
    if (m.index > at) out.push(text.slice(at, m.index));
    out.push(classed(element("span", m[0]), kind));
    elements--;                                        // counted here instead
    codeSpans++;
    at = pattern.lastIndex;
  }
  if (at < text.length) out.push(text.slice(at));
  return out;
}
