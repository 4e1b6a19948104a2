// page.js: what the user does: asking, editing, settings, files, going from one conversation to another.
"use strict";
const SAVE_EVERY = 500, FILE_MOST = 4 << 20, IMAGE_MOST = 32 << 20;     // milliseconds while an answer comes; bytes
const touches = matchMedia("(pointer: coarse)").matches;
let attached = [], editing = null, opening = 0;        // files of the message; the turn it replaces; number of the last openTalk

function session(name, value) {                        // what lasts as long as the tab; read without a value
  try {
    if (value === undefined) return sessionStorage.getItem(name) || "";
    sessionStorage.setItem(name, value);
  } catch (e) { /* forbidden or full: it lasts as long as the page */ }
  return "";
}

// ---- Asking --------------------------------------------------------------------------------------------------------------------

function addTurn(role, parent, content) {
  const before = turns.get(parent), time = Math.max(Date.now(), before ? before.time + 1 : 0);
  const turn = {talk: talk.id, id: randomId(), parent, role, content, thinking: "", state: "", time};
  turns.set(turn.id, turn);
  talk.leaf = turn.id;
  talk.changed = Date.now();
  return turn;
}

// Stores a talk as it is now: it may have changed since an answer to it began.
async function save(head, ...changed) {
  await storeSave(talk.id === head.id ? talk : store.talks.get(head.id) || head, ...changed);
  notice("");
}

// Calls draw and keep now and then while an answer grows. An answer is drawn whole: a tenth of the time at most goes into that.
function pacer(draw, keep) {
  let due = 0, pause = 0, kept = performance.now();
  const tick = () => {
    const began = performance.now();
    draw();
    pause = 10 * (performance.now() - began);
    due = 0;
  };
  return {
    changed() {
      if (!due) due = setTimeout(() => requestAnimationFrame(tick), pause);
      if (performance.now() - kept > SAVE_EVERY) kept = performance.now(), keep();
    },
    stop() { clearTimeout(due); due = -1; }
  };
}

// Asks for the answer to a turn; `from` is an answer to go on with. Either is a new version beside those that there are.
async function answer(parent, from) {
  const turn = addTurn("assistant", parent, from ? from.content : ""), head = talk, path = pathTo(turn.id);
  const live = {turn, head, stopper: new AbortController(), tokens: 0, first: 0, prompt: 0, reading: null, ended: "", status: 0, leaves: false};
  const shown = () => talk.id === head.id && talk.leaf === turn.id && lives.get(head.id) === live;
  const pace = pacer(() => { if (shown()) showLast(); }, () => save(head, turn));
  turn.thinking = from ? from.thinking : "";
  turn.state = "writing";
  lives.set(head.id, live);
  store.talks.set(head.id, head);
  save(head, ...path.slice(-2)).then(showList);
  show();
  say("Answering");
  await fetchAnswer(turn, live, requestOf(head.settings, path, has("enable_thinking")), $("key").value, pace.changed);
  pace.stop();
  lives.delete(head.id);
  await save(head, turn);
  showList();
  if (talk.id !== head.id) return;
  show();
  say(turn.failure || (turn.state === "stopped" ? "Stopped" : "Answered"));
  if (live.status === 401) openSettings(), $("key").focus();
}

// Asks this. What is in the field for a message stays there.
function sendText(text, files) {
  if (!talk.id) {
    const title = Array.from(text.split("\n")[0] || files[0].name).slice(0, 60).join("");
    Object.assign(talk, {id: randomId(), title, created: Date.now()});
    history.replaceState(null, "", "#" + talk.id);
  }
  const question = addTurn("user", editing ? editing.parent : talk.leaf, text);
  if (files.length) question.files = files;
  $("scroll").scrollTop = $("scroll").scrollHeight;
  answer(question.id);
}

function send() {
  const text = $("message").value.trim(), files = attached;
  if (lives.has(talk.id)) {
    lives.get(talk.id).stopper.abort();
    return;
  }
  if (!text && !files.length) return;
  sendText(text, files);
  compose("", [], null);
}

// ---- The message ---------------------------------------------------------------------------------------------------------------

function size() {
  const m = $("message");
  m.style.height = "auto";
  m.style.height = m.scrollHeight + 2 + "px";
}

function keepDraft() {
  session("draft", JSON.stringify({text: $("message").value, files: attached}));
}

function showFiles() {
  const remove = f => { attached = attached.filter(a => a !== f); showFiles(); keepDraft(); };
  $("files").replaceChildren(...attached.map(f => button(f.name + ", " + fileSize(f) + " ×", () => remove(f), "Remove " + f.name)));
}

function compose(text, files, turn) {
  $("message").value = text;
  attached = files;
  editing = turn;
  $("editing").hidden = !turn;
  showFiles();
  size();
  keepDraft();
}

function edit(turn) {
  compose(turn.content, turn.files || [], turn);
  $("message").focus();
}

// A file's text: UTF-8, or UTF-16 as Windows writes it; null: it is none.
async function textOf(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  try {
    const text = new TextDecoder(bytes[0] === 0xff && bytes[1] === 0xfe ? "utf-16le" : "utf-8", {fatal: true}).decode(bytes);
    return text.includes("\0") ? null : text;
  } catch (e) { return null; }
}

function dataOf(file) {
  const reader = new FileReader();
  reader.readAsDataURL(file);
  return new Promise(done => { reader.onloadend = () => done(reader.result); });
}

// A data: address of a PNG or JPEG as it is; what else the browser knows as an image becomes a PNG. null: it is none.
async function imageOf(file) {
  if (!has("images") || !file.type.startsWith("image/")) return null;
  if (file.type === "image/png" || file.type === "image/jpeg") return dataOf(file);
  try {
    const bitmap = await createImageBitmap(file), canvas = element("canvas");
    Object.assign(canvas, {width: bitmap.width, height: bitmap.height});
    canvas.getContext("2d").drawImage(bitmap, 0, 0);
    return canvas.toDataURL("image/png");
  } catch (e) { return null; }
}

async function attach(files) {
  const problems = [];
  for (const f of files) {
    const isImage = f.type.startsWith("image/") && has("images"), most = isImage ? IMAGE_MOST : FILE_MOST;
    const image = f.size > most ? null : await imageOf(f), text = image || f.size > most ? null : await textOf(f);
    if (image) attached = [...attached, {name: f.name, image}];
    else if (text !== null) attached = [...attached, {name: f.name, text}];
    else problems.push(f.name + (f.size > most ? " has more than " + most / (1 << 20) + " MB" : has("images") ? " is no text and no image" : " is no text"));
  }
  showFiles();
  keepDraft();
  notice(problems.join(", "));
  $("message").focus();
}

// ---- Conversations -------------------------------------------------------------------------------------------------------------

function newTalk(settings) {
  return {id: "", title: "", created: 0, changed: 0, leaf: "", settings: {...settings}};
}

function showSettings() {
  for (const s of SETTINGS) $(s).value = talk.settings[s] || "";
}

function showMenu(open) {
  document.body.classList.toggle("menu", open);
  $("menu").ariaExpanded = String(open);
}

async function openTalk(id) {
  const number = ++opening, head = (await storedTalks()).find(t => t.id === id), found = head ? await storedTurns(id) : new Map();
  if (number !== opening) return;
  talk = head || newTalk(talk ? talk.settings : {});
  turns = found;
  if (editing) compose("", [], null);
  showMenu(false);
  showSettings();
  show();
  showList();
  notice("");
  $("scroll").scrollTop = $("scroll").scrollHeight;
  if (!touches) $("message").focus();
}

function goTo(leaf) {
  talk.leaf = leaf;
  show();
  save(talk);
}

async function removeTalk(t) {
  if (!confirm("Delete the conversation \"" + t.title + "\"?")) return;
  if (lives.has(t.id)) lives.get(t.id).stopper.abort();
  await storeRemove(t.id);
  if (t.id === talk.id) leave();
  else showList();
}

// To a new conversation.
function leave() {
  history.replaceState(null, "", location.pathname);
  openTalk("");
}

// Another tab has written something.
async function follow(what, id) {
  if (what === "removed") {
    if (lives.has(id)) lives.get(id).stopper.abort();
    forgetTalk(id);
    if (id === talk.id) leave();
  } else if (id === talk.id && !lives.has(id)) {
    const number = opening, head = (await storedTalks()).find(t => t.id === id), found = await storedTurns(id), leaf = talk.leaf;
    if (number !== opening || lives.has(id) || !head) return;
    turns = found;
    talk = pathTo(head.leaf).some(t => t.id === leaf) ? head : {...head, leaf};      // another branch is not followed
    if (!$("settings").open) showSettings();
    show();
  }
  showList();
}

async function exportTalks(talks) {
  const a = element("a"), name = talks.length === 1 ? talks[0].title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40) : "conversations";
  a.href = URL.createObjectURL(new Blob([await exported(talks)], {type: "application/json"}));
  a.download = "mote-" + name + ".json";
  a.click();
  setTimeout(() => URL.revokeObjectURL(a.href), 60000);
}

async function importTalks(file) {
  let told = "";
  try {
    const n = await storeImport(await file.text());
    told = n + (n === 1 ? " conversation" : " conversations") + " imported";
  } catch (e) { told = file.name + ": " + e.message; }
  showList();
  notice(told);
}

// ---- Settings ------------------------------------------------------------------------------------------------------------------

function openSettings() {
  showMenu(false);
  $("settings").showModal();
}

function keepSettings() {
  for (const s of SETTINGS) talk.settings[s] = $(s).value;
  show();
  if (talk.id) talk.changed = Date.now(), save(talk);
}

async function showModel() {
  const headers = $("key").value ? {Authorization: "Bearer " + $("key").value} : {};
  served = null;
  try {
    const response = await fetch("/v1/models", {headers});
    if (response.status !== 401) served = (await response.json()).data[0];
    $("name").textContent = served ? served.id : "API key needed: see Settings";
  } catch (e) { $("name").textContent = "The server cannot be reached"; }
  $("thinking_label").hidden = !has("enable_thinking");
  if (!lives.has(talk.id)) show();
}

// ---- Events --------------------------------------------------------------------------------------------------------------------

function listen() {
  $("form").onsubmit = e => { e.preventDefault(); send(); };
  $("message").oninput = () => { size(); keepDraft(); };
  $("message").onkeydown = e => {
    if (e.key === "Enter" && !e.shiftKey && !e.isComposing && !touches && !lives.has(talk.id)) { e.preventDefault(); send(); }
  };
  $("message").onpaste = e => {
    if (e.clipboardData.files.length) e.preventDefault(), attach([...e.clipboardData.files]);
  };
  $("attach").onclick = () => $("pick_text").click();
  $("import").onclick = () => $("pick_talks").click();
  $("pick_text").onchange = e => { attach([...e.target.files]); e.target.value = ""; };
  $("pick_talks").onchange = e => { importTalks(e.target.files[0]); e.target.value = ""; };
  $("export").onclick = async () => exportTalks(await storedTalks());
  $("keep").onclick = () => compose("", [], null);
  $("new").onclick = leave;
  $("menu").onclick = e => { e.stopPropagation(); showMenu(!document.body.classList.contains("menu")); };
  $("page").onclick = () => showMenu(false);
  $("more").onclick = openSettings;
  $("done").onclick = () => $("settings").close();
  for (const s of SETTINGS) $(s).onchange = keepSettings;
  $("key").onchange = () => { session("key", $("key").value); showModel(); };
  document.onkeydown = e => {
    if (e.key !== "Escape" || $("settings").open) return;
    if (document.body.classList.contains("menu")) showMenu(false);
    else if (lives.has(talk.id)) lives.get(talk.id).stopper.abort();
  };
  document.ondragover = e => e.preventDefault();
  document.ondrop = e => { e.preventDefault(); attach([...e.dataTransfer.files]); };
  onhashchange = () => openTalk(location.hash.slice(1));
  onpagehide = document.onvisibilitychange = e => {
    for (const live of lives.values()) {
      live.leaves = e.type === "pagehide";
      save(live.head, live.turn);
    }
  };
  onbeforeunload = e => { if (store.unsaved.size && store.failure) e.preventDefault(); };
  if (store.channel) store.channel.onmessage = e => follow(...e.data);
}

async function begin() {
  const draft = JSON.parse(session("draft") || "{}");
  if (!touches) $("message").placeholder = "Message (Enter sends, Shift+Enter breaks the line)";
  $("key").value = session("key");
  await storeOpen();
  await openTalk(location.hash.slice(1));
  compose(draft.text || "", draft.files || [], null);
  listen();
  showModel();
}
begin();
