// code.js: code with its comments, strings, numbers and keywords set off. It knows families of languages, no grammar.
// Every alternative of a pattern takes what it has looked at, so that reading is linear.
"use strict";
const CODE_SPANS = 3000;                               // elements for the code of an answer; what follows them is plain
const KEYWORDS = new Set(("abstract and as assert async await begin bool break case catch char class const constexpr continue def default " +
  "defer del delete do double elif else elseif end enum export extends extern false final finally float fn for foreach from func function " +
  "global go goto if impl implements import in inline instanceof int interface is lambda let local long loop match mod module mut namespace " +
  "new nil none nonlocal not null nullptr or package pass private protected pub public raise repeat return self short signed sizeof " +
  "static string struct super switch template then this throw trait true try type typedef typename typeof undefined union unless unsafe " +
  "unsigned until use using var virtual void volatile when where while with yield " +
  "alter by create distinct drop exists fi group having index insert into join left limit on order outer primary select set table update " +
  "values done esac echo").split(" "));
const FAMILIES = [
  [/^(python|py|sh|bash|shell|zsh|console|fish|ya?ml|toml|ruby|rb|perl|r|make|makefile|dockerfile|cmake|ini|conf|nix|julia|elixir)$/, "#.*"],
  [/^(sql|lua|haskell|hs|ada|vhdl|elm)$/, "--.*"],
  [/^(html|xml|svg|vue)$/, "<!--(?:[^]*?-->|[^]*)"],
  [/^(lisp|clojure|scheme|asm|nasm)$/, ";.*"],
  [/^(c|h|cc|cpp|cxx|hpp|c\+\+|cu|cuda|cs|csharp|java|js|javascript|mjs|jsx|ts|typescript|tsx|go|golang|rust|rs|swift|kotlin|kt|scala|php|css|scss|json|json5|jsonc|dart|zig|glsl|hlsl|wgsl|proto|groovy|d|objc)$/,
   "\\/\\/.*|\\/\\*(?:[^]*?\\*\\/|[^]*)"]];
let codeSpans = 0;                                     // of the answer that is drawn

function codePattern(language) {
  const family = FAMILIES.find(f => f[0].test(language));
  if (!family) return null;
  const quoted = /^(rust|rs)$/.test(language) ? "'(?:\\\\.|[^'\\\\\\n])'" : "'(?:\\\\.|[^'\\\\\\n])*'?";
  return new RegExp(`(?<comment>${family[1]})|(?<string>"""(?:[^]*?"""|[^]*)|"(?:\\\\.|[^"\\\\\\n])*"?|${quoted}|\`(?:\\\\[^]|[^\`\\\\])*\`?)|` +
                    "(?<word>[A-Za-z_$][\\w$]*)|(?<number>\\d[\\w.]*)", "g");
}

function codeNodes(text, language) {
  const pattern = codePattern(language.toLowerCase()), out = [];
  let at = 0;
  for (let m; pattern && codeSpans < CODE_SPANS && (m = pattern.exec(text));) {
    const g = m.groups, kind = g.comment ? "comment" : g.string ? "string" : g.number ? "number" : KEYWORDS.has(g.word.toLowerCase()) ? "keyword" : "";
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
