// view.js: the conversation that is shown, its branches, and copying. What a button does is in page.js.
"use strict";
const $ = id => document.getElementById(id);
let talk = null, turns = new Map();                    // shown: see store.js
let served = null;                                     // what the server has: its entry of /v1/models; null: not known
const lives = new Map();                               // answers under way: the talk's id -> what fetchAnswer fills, with {stopper, turn}
const unfolded = new Set();                            // ids of turns whose thinking is open

function say(text) { $("status").textContent = text; }

// ---- Branches: turns with the same parent are versions of each other -----------------------------------------------------------

function pathTo(leaf) {
  const path = [];
  for (let t = turns.get(leaf); t; t = turns.get(t.parent)) path.push(t);
  return path.reverse();
}

function childrenOf() {
  const children = new Map();
  for (const t of turns.values()) children.set(t.parent, [...(children.get(t.parent) || []), t]);
  return children;
}

// The end of the newest way on from a turn.
function newestLeaf(turn, children) {
  for (let next; (next = children.get(turn.id)); ) turn = next[next.length - 1];
  return turn.id;
}

// ---- Copying -------------------------------------------------------------------------------------------------------------------

// The old way, which works without HTTPS, too.
function copySelected(text) {
  const area = element("textarea"), focused = document.activeElement;
  area.value = text;
  area.readOnly = true;
  document.body.append(classed(area, "unseen"));
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  if (focused) focused.focus();
  return copied;
}

// Browsers have the clipboard for pages from this machine or by HTTPS, not for those from a server on a LAN.
async function copyText(text, button) {
  const name = button.textContent;
  let copied = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch (e) { copied = copySelected(text); }
  button.textContent = copied ? "Copied" : "Not allowed: select it and press Ctrl+C";
  say(button.textContent);
  setTimeout(() => { button.textContent = name; }, copied ? 1500 : 5000);
}

// ---- Turns ---------------------------------------------------------------------------------------------------------------------

// A button that changes the conversation waits for the answer under way.
function tool(name, what, label) {
  const b = button(name, what, label);
  b.disabled = lives.has(talk.id);
  return b;
}

function folded(title, text) {
  return element("details", "", element("summary", title), text);
}

function fileSize(file) {
  if (file.image) return count(file.image.length * 3 / 4000) + " kB";
  const text = file.text;
  return text.length < 1000 ? count(text.length) + " characters" : count(text.length / 1000) + " thousand characters";
}

function picture(file) {
  const image = classed(element("img"), "picture");
  image.src = file.image;
  image.alt = image.title = file.name;
  return image;
}

function thinkingOf(turn) {
  const d = folded(turn.content ? "Thought" : "Thinking ...", turn.thinking.trim());
  d.open = unfolded.has(turn.id);
  d.ontoggle = () => { d.open ? unfolded.add(turn.id) : unfolded.delete(turn.id); };
  return d;
}

const STATES = {cut: "cut short", stopped: "stopped", writing: "unfinished", failed: ""};

function noteOf(turn, live) {
  if (live && live.reading) {
    const bar = element("progress");
    if (live.reading.part !== undefined) bar.value = live.reading.part;
    bar.ariaLabel = "Prompt";
    return classed(element("span", "", bar, " " + live.reading.text), "note");
  }
  const parts = [turn.stats ? statsText(turn.stats) : "", live ? "" : STATES[turn.state] || ""];
  return classed(element("span", parts.filter(p => p).join(" · ")), "note");
}

function toolsOf(turn, children, isLast, live) {
  const tools = classed(element("div"), "tools"), versions = children.get(turn.parent), at = versions.indexOf(turn);
  const go = k => goTo(newestLeaf(versions[k], children));
  if (versions.length > 1) {
    const earlier = tool("‹", () => go(at - 1), "Earlier version"), later = tool("›", () => go(at + 1), "Later version");
    earlier.disabled = earlier.disabled || at === 0;
    later.disabled = later.disabled || at === versions.length - 1;
    tools.append(earlier, element("span", at + 1 + "/" + versions.length), later);
  }
  if (turn.content && !live) tools.append(button("Copy", b => copyText(turn.content, b)));
  if (turn.role === "user") {
    tools.append(tool("Edit", () => edit(turn)));
    if (isLast) tools.append(tool("Answer", () => answer(turn.id)));
  } else if (isLast && !live) {
    tools.append(tool("Regenerate", () => answer(turn.parent)));
    if (turn.state && turn.content) tools.append(tool("Continue", () => answer(turn.parent, turn)));
  }
  tools.append(noteOf(turn, live));
  return tools;
}

function article(turn, children, isLast) {
  const box = classed(element("article", "", element("h2", turn.role === "user" ? "You" : "Answer")), turn.role);
  const live = lives.has(talk.id) && lives.get(talk.id).turn === turn ? lives.get(talk.id) : null, body = classed(element("div"), "body");
  for (const f of turn.files || []) box.append(f.image ? picture(f) : classed(folded(f.name + ", " + fileSize(f), f.text), "file"));
  if (turn.thinking) box.append(thinkingOf(turn));
  if (turn.role === "user") body.textContent = turn.content;
  else body.append(...markdown(turn.content));
  box.append(body);
  if (turn.failure) {
    const p = classed(element("p", turn.failure), "failed");
    p.role = "alert";
    box.append(p);
  }
  box.append(toolsOf(turn, children, isLast, live));
  return box;
}

// ---- What the server has ------------------------------------------------------------------------------------------------------------

function has(what) {
  return Boolean(served && served.capabilities && served.capabilities[what]);
}

function servedText() {
  const can = [[has("enable_thinking"), "thinking"], [has("tools"), "tool calls"], [has("images"), "images"], [true, "answers by JSON schema"]].filter(c => c[0]).map(c => c[1]);
  return served.id + ": a context of " + count(served.max_model_len) + " tokens, " +
         (served.parallel === 1 ? "one answer" : served.parallel + " answers") + " at a time, " + can.join(", ") + ".";
}

const QUESTIONS = ["What can you do?", "What is a mixture of experts?", "What is speculative decoding?"];

// Before anything was said.
function firstScreen() {
  const box = classed(element("section"), "first");
  if (served) box.append(element("p", servedText()));
  box.append(...QUESTIONS.map(q => button(q, () => sendText(q, []))));
  return box;
}

// Tokens of the context that a conversation takes: those of its last answer, and of what was read for it.
function usedTokens(path) {
  const last = path.filter(t => t.stats && t.stats.tokens).pop();
  return last ? last.stats.tokens + (last.stats.prompt || 0) : 0;
}

function showGauge(path) {
  const used = usedTokens(path), all = served ? served.max_model_len : 0;
  $("gauge").hidden = !used || !all;
  if (!used || !all) return;
  Object.assign($("meter"), {max: all, high: 0.9 * all, optimum: 0, value: used});
  $("used").textContent = count(used) + " of " + count(all) + " tokens of context used, " + count(Math.max(0, all - used)) + " left";
}

// ---- The page ------------------------------------------------------------------------------------------------------------------

// Draws, and stays at the end if that is what was seen.
function following(draw) {
  const main = $("scroll"), follows = main.scrollHeight - main.scrollTop - main.clientHeight < 80;
  draw();
  const height = main.scrollHeight;                    // laid out now, so that the time it takes is counted
  if (follows) main.scrollTop = height;
}

function show() {
  const path = pathTo(talk.leaf), children = childrenOf();
  following(() => {
    $("talk").replaceChildren(...path.map((t, i) => article(t, children, i === path.length - 1)));
    if (!path.length) $("talk").append(firstScreen());
    if (talk.settings.system) $("talk").prepend(folded("System message", talk.settings.system));
  });
  showGauge(path);
  $("send").textContent = lives.has(talk.id) ? "Stop" : "Send";
  document.title = talk.title ? talk.title + " - mote" : "mote";
}

// What is as it was stays, with its selection and how far it is scrolled.
function patch(old, fresh) {
  const before = [...old.childNodes], after = [...fresh.childNodes];
  after.forEach((node, i) => {
    if (!before[i]) old.append(node);
    else if (before[i].className === "body" && node.className === "body") patch(before[i], node);
    else if (!before[i].isEqualNode(node)) before[i].replaceWith(node);
  });
  for (const node of before.slice(after.length)) node.remove();
}

// The answer under way has grown.
function showLast() {
  const turn = turns.get(talk.leaf);
  following(() => patch($("talk").lastElementChild, article(turn, childrenOf(), true)));
  showGauge(pathTo(talk.leaf));
}

// One line of the list.
function entry(t) {
  const a = element("a", t.title || "Untitled"), li = element("li", "", a);
  a.href = "#" + t.id;
  if (t.id === talk.id) a.ariaCurrent = "true";
  li.append(button("⤓", () => exportTalks([t]), "Export " + t.title), button("×", () => removeTalk(t), "Delete " + t.title));
  return classed(li, (t.id === talk.id ? "open " : "") + (lives.has(t.id) ? "live" : ""));
}

async function showList() {
  const talks = await storedTalks();
  $("list").replaceChildren(...talks.map(entry));
}

const FAILURES = {
  forbidden: "This browser stores nothing for this page: conversations end with this tab. Export keeps them.",
  full: "This browser has no space left: what was said last is in this tab alone. Export it, or delete conversations.",
  failed: "This browser could not store what was said last: it is in this tab alone. Export it."
};

// A storage failure is told as soon as something would be lost.
function notice(text) {
  const failure = store.failure && (store.unsaved.size || store.failure === "forbidden") ? FAILURES[store.failure] : "";
  $("notice").textContent = [text, failure].filter(t => t).join("\n");
  $("notice").hidden = !$("notice").textContent;
}
