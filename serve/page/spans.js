// spans.js: a paragraph of Markdown as DOM nodes: code, emphasis, links, formulas.
// Any text is read in linear time: marks come from left to right, each search for an end goes on where the last one stopped, and how far
// back a mark looks for its partner is bounded. After maxElements elements the rest is plain text.
"use strict";
const DEPTH = 8, LOOK_BACK = 16, ADDRESS = 2000;

// Where `mark` comes next at `from` or later, -1: nowhere. Asked with growing `from`.
function finder(text, mark) {
  let at = text.indexOf(mark);
  return from => {
    if (at >= 0 && at < from) at = text.indexOf(mark, from);
    return at;
  };
}

// Where a run of exactly as many backticks as asked for comes next; the same.
function tickFinder(text) {
  const runs = new Map();
  for (const m of text.matchAll(/`+/g)) {
    if (!runs.has(m[0].length)) runs.set(m[0].length, {places: [], next: 0});
    runs.get(m[0].length).places.push(m.index);
  }
  return (length, from) => {
    const r = runs.get(length);
    while (r && r.next < r.places.length && r.places[r.next] < from) r.next++;
    return r && r.next < r.places.length ? r.places[r.next] : -1;
  };
}

const formula = text => classed(element("code", text), "math inside");

// ---- Marks: strings, {text, make} for what is whole, {run} for emphasis, {open} and {close} for the text of a link --------------

const WIDE = /[\p{sc=Han}\p{sc=Hiragana}\p{sc=Katakana}\p{sc=Hangul}]/u, PUNCTUATION = /[\p{P}\p{S}]/u;
const ENTITIES = {"&lt;": "<", "&gt;": ">", "&amp;": "&", "&quot;": "\"", "&nbsp;": "\u00a0"};

// May a run of * or _ begin or end emphasis? CommonMark's rules; Chinese, Japanese and Korean, which have no spaces, count as one.
function emphasisRun(text, from, end) {
  const before = text[from - 1] || " ", after = text[end] || " ";
  const punctuated = PUNCTUATION.test(before), punctuates = PUNCTUATION.test(after);
  const left = !/\s/.test(after) && (!punctuates || punctuated || /\s/.test(before) || WIDE.test(before));
  const right = !/\s/.test(before) && (!punctuated || punctuates || /\s/.test(after) || WIDE.test(after));
  const inWord = text[from] === "_" && left && right;
  return {run: text[from], count: end - from, length: end - from, inside: [], height: 0,
          opens: left && (!inWord || punctuated), closes: right && (!inWord || punctuates)};
}

// The address in the parentheses after a link's text: [the address, where it ends], or null.
function addressAt(text, at) {
  const m = /^\(\s*(?:<([^<>\n]*)>|((?:[^\s()<]|\([^\s()]*\))+))(?:\s+(?:"[^"\n]*"|'[^'\n]*'))?\s*\)/.exec(text.slice(at, at + ADDRESS));
  const address = m && (m[1] || m[2]);
  return address && /^(https?:\/\/|mailto:)./i.test(address) ? [address, at + m[0].length] : null;
}

// A bare address, without the punctuation that ends its sentence.
function bareAddress(text, at) {
  let address = /^[^\s<>"`|\u3000-\u303f\uff00-\uffef]*/.exec(text.slice(at, at + ADDRESS))[0].split("](")[0];
  const opened = address.includes("(");
  while (/[.,;:!?'*_~\]]$/.test(address) || (address.endsWith(")") && !opened)) address = address.slice(0, -1);
  return /^https?:\/\/[^/]/.test(address) ? address : "";
}

// What is whole, from `from` to `end`: `make` gives its node, unless there are too many already.
function whole(r, from, end, make) {
  r.out.push({text: r.text.slice(from, end), make});
  return end;
}

// A formula up to the mark that `find` looks for.
function formulaTo(r, find, from, inside) {
  const end = find(inside);
  return end > inside ? whole(r, from, end + inside - from, () => formula(r.text.slice(inside, end).trim())) : 0;
}

function readDollar(r, from, inside) {
  const next = r.text[inside] || " ", end = r.dollar(inside);
  const money = /[\s\d]/.test(next) || end < 0 || /\s/.test(r.text[end - 1]) || /\d/.test(r.text[end + 1] || "");
  return money ? 0 : formulaTo(r, r.dollar, from, inside);
}

function readCode(r, from, inside) {
  const end = r.ticks(inside - from, inside);
  if (end < 0) return 0;
  const code = r.text.slice(inside, end).replace(/\n/g, " "), padded = code[0] === " " && code.endsWith(" ") && code.trim();
  return whole(r, from, end + inside - from, () => element("code", padded ? code.slice(1, -1) : code));
}

function readClose(r, from, inside) {
  const open = r.brackets.pop(), address = open && r.text[inside] === "(" ? addressAt(r.text, inside) : null;
  if (!address) return 0;
  open.address = address[0];
  r.brackets.length = 0;                               // no links in links
  r.out.push({close: open});
  return address[1];
}

function readOpen(r, from, inside) {
  const open = {open: r.text.slice(from, inside), address: "", inside: [], height: 0};
  r.brackets.push(open);
  r.out.push(open);
  return inside;
}

function readAngle(r, from, inside) {
  const end = r.angle(inside), name = r.text.slice(inside, Math.min(end, from + ADDRESS));
  return end < 0 || end > from + ADDRESS || /\s/.test(name) ? 0 : whole(r, inside, end, () => link(name, name)) + 1;
}

function readAddress(r, from) {
  const name = bareAddress(r.text, from);
  return name && whole(r, from, from + name.length, () => link(name, name));
}

function readRun(r, from, inside) {
  r.out.push(emphasisRun(r.text, from, inside));
  return inside;
}

function readEscape(r, from, inside) {
  const mark = r.text[from + 1], close = mark === "(" ? r.round : mark === "[" ? r.square : null;
  const end = close ? formulaTo(r, close, from, inside) : 0;
  if (!end) r.out.push(mark);
  return end || inside;
}

function readEntity(r, from, inside) {
  r.out.push(ENTITIES[r.text.slice(from, inside)]);
  return inside;
}

// Each reads one mark from `from` to `inside`, and what belongs to it. Returns where that ends, or 0: the mark is text.
const READERS = {"\\": readEscape, "`": readCode, "$": readDollar, "*": readRun, "_": readRun, "~": readRun, "[": readOpen, "!": readOpen,
                 "]": readClose, "<": readAngle, "h": readAddress, "&": readEntity,
                 "$$": (r, from, inside) => formulaTo(r, r.dollars, from, inside)};

function marksOf(text) {
  const pattern = /\\[\n!-\/:-@[-`{-~]|`+|\$\$?|\*+|_+|~~|!?\[|\]|<(?=https?:|mailto:)|https?:\/\/|&(?:lt|gt|amp|quot|nbsp);/g;
  const r = {text, out: [], brackets: [], ticks: tickFinder(text), dollar: finder(text, "$"), dollars: finder(text, "$$"),
             round: finder(text, "\\)"), square: finder(text, "\\]"), angle: finder(text, ">")};
  let at = 0;
  for (let m; (m = pattern.exec(text));) {
    const from = m.index, kept = r.out.length;
    if (from > at) r.out.push(text.slice(at, from));
    const end = (READERS[m[0]] || READERS[m[0][0]])(r, from, from + m[0].length);
    if (end) at = pattern.lastIndex = end;
    else r.out.length = kept;
  }
  if (at < text.length) r.out.push(text.slice(at));
  return r.out;
}

// ---- Nodes: frames are marks that wait for their partners, in the order in which they came, with the nodes after each ------------

function put(frame, piece) {
  const last = frame.inside.length - 1;
  if (typeof piece === "string" && typeof frame.inside[last] === "string") frame.inside[last] += piece;
  else frame.inside.push(piece);
}

// Frames after number `k` had no partner: their marks are text in it.
function settle(frames, k) {
  const into = frames[k];
  for (const f of frames.splice(k + 1)) {
    put(into, f.open || f.run.repeat(f.count));
    for (const piece of f.inside) put(into, piece);
    into.height = Math.max(into.height, f.height);
  }
}

// The last frame that the run may close; 0: none.
function partner(frames, run) {
  for (let k = frames.length - 1; k > 0 && k > frames.length - LOOK_BACK && !frames[k].open; k--) {
    const f = frames[k], thirds = (f.closes || run.opens) && (f.length + run.length) % 3 === 0 && (f.length % 3 || run.length % 3);
    if (f.run === run.run && !thirds) return f.height < DEPTH && elements < maxElements ? k : 0;
  }
  return 0;
}

// The innermost frame becomes an element in the one around it, but for marks that it has left.
function wrap(frames, e, left) {
  const f = frames[frames.length - 1], into = left ? f : frames[frames.length - 2];
  e.append(...f.inside);
  if (left) f.inside = [e], f.height++;
  else {
    frames.pop();
    put(into, e);
    into.height = Math.max(into.height, f.height + 1);
  }
}

function closeRun(frames, run) {
  for (let k; run.count && (k = partner(frames, run));) {
    const f = frames[k], size = f.count > 1 && run.count > 1 ? 2 : 1;
    settle(frames, k);
    f.count -= size;
    run.count -= size;
    wrap(frames, element(run.run === "~" ? "del" : size === 2 ? "strong" : "em"), f.count);
  }
}

function closeLink(frames, open) {
  let k = frames.length - 1;
  while (k > 0 && frames[k] !== open) k--;
  if (!k) return;
  settle(frames, k);
  const f = frames[k], image = open.open === "![";
  if (image && !f.inside.length) put(f, "image");
  wrap(frames, link(open.address, ""), 0);
}

function spans(text) {
  const frames = [{inside: [], height: 0}];
  let linked = 0;                                      // in the text of a link
  for (const mark of marksOf(text)) {
    const top = frames[frames.length - 1], full = elements >= maxElements;
    if (typeof mark === "string") put(top, mark);
    else if (mark.make) put(top, full || (linked && /^(https?|mailto):/.test(mark.text)) ? mark.text : mark.make());
    else if (mark.open) {
      if (!mark.address || full) put(top, mark.open);
      else frames.push(mark), linked++;
    } else if (mark.close) {
      if (linked) closeLink(frames, mark.close), linked--;
      else put(top, "](" + mark.close.address + ")");
    } else if (full) put(top, mark.run.repeat(mark.count));
    else {
      if (mark.closes) closeRun(frames, mark);
      if (mark.count && mark.opens) frames.push(mark);
      else if (mark.count) put(frames[frames.length - 1], mark.run.repeat(mark.count));
    }
  }
  settle(frames, 0);
  return frames[0].inside;
}
