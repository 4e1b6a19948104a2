// markdown.js: an answer in Markdown as DOM nodes: CommonMark's everyday part, tables, task lists, formulas as they are written.
// Where models and CommonMark differ, models win: lines stay lines, and what is indented by two belongs to the item above.
// Read in linear time: each line is looked at a bounded number of times on each level, and quotes and lists nest DEPTH deep. After 2,000
// elements, or one for every ten characters and 20,000 at most, the rest is plain text.
"use strict";

const isBlank = line => !/\S/.test(line);
const isThematic = line => /^\s{0,3}[-*_]/.test(line) && /^(-{3,}|\*{3,}|_{3,})$/.test(line.replace(/\s+/g, ""));
const isHeading = line => /^ {0,3}#{1,6}(\s|$)/.test(line);
const isQuote = line => /^ {0,3}>/.test(line);
const fenceOf = line => /^\s*(`{3,}(?=[^`]*$)|~{3,})/.exec(line);
const mathOf = line => /^\s*(\$\$|\\\[)/.exec(line);

// Columns of white space before the text; a tab goes to the next multiple of four.
function indent(line) {
  let columns = 0;
  for (let i = 0; line[i] === " " || line[i] === "\t"; i++) columns += line[i] === "\t" ? 4 - columns % 4 : 1;
  return columns;
}

// The line without `most` columns of white space, or as many as it has.
function strip(line, most) {
  let columns = 0, i = 0;
  for (; columns < most && (line[i] === " " || line[i] === "\t"); i++) columns += line[i] === "\t" ? 4 - columns % 4 : 1;
  return " ".repeat(Math.max(0, columns - most)) + line.slice(i);
}

// The item that begins in a line: its mark, and the columns of the mark and of the text after it.
function itemOf(line) {
  const m = /^(\s*)([-*+]|\d{1,9}[.)])(\s+|$)/.exec(line);
  if (!m || isThematic(line)) return null;
  const at = indent(line), after = m[3].length >= 1 && m[3].length <= 4 ? m[3].length : 1;
  return {kind: m[2].slice(-1), number: parseInt(m[2], 10), at, content: at + m[2].length + after, empty: m[0].length === line.length,
          text: strip(line.slice(m[1].length + m[2].length), after)};
}

// Does something other than the text of a paragraph begin in this line?
function interrupts(line, depth) {
  if (fenceOf(line) || mathOf(line) || isHeading(line) || isThematic(line)) return true;
  const item = depth < DEPTH ? itemOf(line) : null;
  return (depth < DEPTH && isQuote(line)) || !!(item && !item.empty && (isNaN(item.number) || item.number === 1));
}

// ---- Kinds of blocks: each reads one that begins in line i. Returns the line after it, or 0: it is none --------------------------

function plainBlock(text) {
  return classed(element("p", text), "plain");
}

function codeBlock(text, language) {
  const copy = button("Copy", b => copyText(text, b)), code = element("code", "", ...codeNodes(text, language));
  const bar = classed(element("div", "", element("span", language || "code"), copy), "bar");
  return classed(element("div", "", bar, element("pre", "", code)), "code");
}

function readFence(lines, i, depth, out) {
  const fence = fenceOf(lines[i]);
  if (!fence) return 0;
  const code = [], columns = indent(lines[i]), mark = fence[1], language = lines[i].slice(fence[0].length).trim().split(/[\s{]/)[0];
  const ends = text => text[0] === mark[0] && text.length >= mark.length && text === mark[0].repeat(text.length);
  for (i++; i < lines.length && !ends(lines[i].trim()); i++) code.push(strip(lines[i], columns));
  out.push(codeBlock(code.join("\n"), language));
  return i + 1;
}

function readIndented(lines, i, depth, out) {
  if (indent(lines[i]) < 4) return 0;
  const code = [];
  for (; i < lines.length && (isBlank(lines[i]) || indent(lines[i]) >= 4); i++) code.push(strip(lines[i], 4));
  out.push(codeBlock(code.join("\n").trimEnd(), ""));
  return i;
}

// A formula on lines of its own. One without an end is looked for once: `unclosed` remembers it for the lines after.
function readMath(lines, i, depth, out, unclosed) {
  const open = mathOf(lines[i]);
  if (!open) return 0;
  const close = open[1] === "$$" ? "$$" : "\\]", text = [];
  let line = lines[i].slice(open[0].length), end = line.indexOf(close);
  if ((end >= 0 && /[^\s.,;:]/.test(line.slice(end + 2))) || unclosed.has(close)) return 0;
  for (; end < 0; end = line.indexOf(close)) {
    text.push(line);
    if (++i === lines.length) {
      unclosed.add(close);
      return 0;
    }
    line = lines[i];
  }
  text.push(line.slice(0, end));
  out.push(classed(element("pre", text.join("\n").trim()), "math"));
  if (/[^\s.,;:]/.test(lines[i] = line.slice(end + 2))) return i;      // what follows in the same line
  return i + 1;
}

function readHeading(lines, i, depth, out) {
  if (!isHeading(lines[i])) return 0;
  const line = lines[i].trim(), level = /^#+/.exec(line)[0].length;
  let text = line.slice(level).trim();
  const bare = text.replace(/#+$/, "");
  if (!bare || /\s$/.test(bare)) text = bare.trim();
  out.push(element("h" + Math.min(level + 2, 6), "", ...spans(text)));
  return i + 1;
}

function readRule(lines, i, depth, out) {
  if (!isThematic(lines[i])) return 0;
  out.push(element("hr"));
  return i + 1;
}

function readQuote(lines, i, depth, out) {
  const quote = [];
  if (depth >= DEPTH) return 0;
  for (; i < lines.length && isQuote(lines[i]); i++) quote.push(lines[i].replace(/^ {0,3}> ?/, ""));
  if (!quote.length) return 0;
  out.push(element("blockquote", "", ...blocks(quote, depth + 1)));
  return i;
}

// The lines of an item without its indentation. A line that goes on a paragraph may be indented less.
function itemLines(lines, i, item, depth) {
  const inside = [item.text];
  for (i++; i < lines.length; i++) {
    const line = lines[i], belongs = indent(line) >= Math.min(item.content, item.at + 2);
    if (isBlank(line)) inside.push("");
    else if (belongs) inside.push(strip(line, item.content));
    else if (inside[inside.length - 1] && !interrupts(line, depth) && !itemOf(line)) inside.push(line.trim());
    else break;
  }
  while (inside.length > 1 && !inside[inside.length - 1]) inside.pop(), i--;
  return [inside, i];
}

function listItem(inside, depth) {
  const task = /^\[([ xX])\]\s+/.exec(inside[0]), li = element("li");
  if (task) {
    const box = element("input");
    box.type = "checkbox";
    box.disabled = true;
    box.checked = task[1] !== " ";
    inside[0] = inside[0].slice(task[0].length);
    classed(li, "task").append(box);
  }
  li.append(...blocks(inside, depth + 1));
  return li;
}

function readList(lines, i, depth, out) {
  const first = depth < DEPTH ? itemOf(lines[i]) : null;
  if (!first || first.at > 3) return 0;
  const list = element(isNaN(first.number) ? "ul" : "ol");
  let loose = false;
  if (first.number !== 1 && !isNaN(first.number)) list.start = first.number;
  for (let item = first; item && item.kind === first.kind && elements < maxElements;) {
    const [inside, end] = itemLines(lines, i, item, depth);
    list.append(listItem(inside, depth));
    for (i = end; i < lines.length && isBlank(lines[i]);) i++;
    item = i < lines.length ? itemOf(lines[i]) : null;
    loose = loose || (i > end && item && item.kind === first.kind);
  }
  out.push(loose ? list : classed(list, "tight"));
  return i;
}

// Cells between bars; \| is a bar in a cell.
function cellsOf(line) {
  const cells = [""];
  for (const [part] of line.trim().replace(/^\|/, "").matchAll(/\\\||\||[^|\\]+|\\/g))
    if (part === "|") cells.push("");
    else cells[cells.length - 1] += part === "\\|" ? "|" : part;
  if (cells.length > 1 && !cells[cells.length - 1].trim()) cells.pop();
  return cells.map(c => c.trim());
}

// A table's head is followed by a line of dashes and colons, with as many cells.
function tableAt(lines, i) {
  const dashes = lines[i + 1] || "";
  if (!lines[i].includes("|") || !/^[\s|:-]+$/.test(dashes) || !dashes.includes("-")) return null;
  const head = cellsOf(lines[i]), ways = cellsOf(dashes);
  return head.length === ways.length && ways.every(w => /^:?-+:?$/.test(w)) ? {head, ways} : null;
}

function readTable(lines, i, depth, out) {
  const t = tableAt(lines, i);
  if (!t || elements + t.head.length >= maxElements) return 0;
  const align = t.ways.map(w => w[0] === ":" && w.endsWith(":") ? "center" : w.endsWith(":") ? "right" : "");
  const row = (name, cells) => element("tr", "", ...align.map((a, k) => classed(element(name, "", ...spans(cells[k] || "")), a)));
  const table = element("table", "", row("th", t.head));
  for (i += 2; i < lines.length && lines[i].includes("|") && elements + align.length < maxElements; i++)
    table.append(row("td", cellsOf(lines[i])));
  out.push(table);
  return i;
}

function readParagraph(lines, i, depth, out) {
  const words = [lines[i++].trim()];
  for (; i < lines.length && !isBlank(lines[i]); i++) {
    const under = /^ {0,3}(=+|-{3,})\s*$/.exec(lines[i]);
    if (under) {
      out.push(element(under[1][0] === "=" ? "h3" : "h4", "", ...spans(words.join("\n"))));
      return i + 1;
    }
    if (interrupts(lines[i], depth) || tableAt(lines, i)) break;
    words.push(lines[i].trim());
  }
  out.push(element("p", "", ...spans(words.join("\n"))));
  return i;
}

const KINDS = [readFence, readMath, readIndented, readHeading, readRule, readQuote, readList, readTable, readParagraph];

function blocks(lines, depth) {
  const out = [], unclosed = new Set();
  for (let i = 0; i < lines.length;) {
    if (elements >= maxElements) {
      out.push(plainBlock(lines.slice(i).join("\n")));
      break;
    }
    if (isBlank(lines[i])) i++;
    else for (const kind of KINDS) {
      const next = kind(lines, i, depth, out, unclosed);
      if (next) {
        i = next;
        break;
      }
    }
  }
  return out;
}

function markdown(text) {
  elements = codeSpans = 0;
  maxElements = Math.min(20000, Math.max(2000, text.length / 10));
  return blocks(text.split(/\r?\n/), 0);
}
