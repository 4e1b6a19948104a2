// store.js: conversations, in IndexedDB on the user's machine. It knows what they consist of, and nothing of the page or the server.
//
// A talk is {id, title, created, changed, settings, leaf}; its turns are a tree, {talk, id, parent, role, content, ...}, of which the
// page shows the way to `leaf`. A turn is a record of its own, and only the tab that asked for it writes it, so that two tabs lose
// nothing of each other's. What cannot be stored stays in this tab, and each later attempt to store anything tries it again.
"use strict";
const store = {
  database: null,                                      // null: this browser has none for the page
  talks: new Map(), turns: new Map(),                  // of this tab: what it has written, by talkKey and turnKey
  unsaved: new Map(),                                  // what it could not write: key -> [the kind of record, the record]
  removed: new Set(),                                  // ids of talks, which an answer under way must not bring back
  failure: "",                                         // why; "": it could
  channel: typeof BroadcastChannel === "function" ? new BroadcastChannel("mote") : null
};
const turnKey = t => t.talk + "/" + t.id;
const turnsOf = id => IDBKeyRange.bound([id], [id, []]);

function randomId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), b => b.toString(16).padStart(2, "0")).join("");
}

const result = request => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

async function storeOpen() {
  try {
    const opening = indexedDB.open("mote", 1);
    opening.onupgradeneeded = () => {
      opening.result.createObjectStore("talks", {keyPath: "id"});
      opening.result.createObjectStore("turns", {keyPath: ["talk", "id"]});
    };
    store.database = await result(opening);
    store.database.onversionchange = () => store.database.close();
  } catch (e) { store.failure = "forbidden"; }
}

async function stored(kind, range) {
  try {
    return store.database ? await result(store.database.transaction(kind).objectStore(kind).getAll(range)) : [];
  } catch (e) {                                        // the browser has closed it: its user has deleted this site's data, say
    store.failure = "failed";
    return [];
  }
}

// All talks, the last changed one first.
async function storedTalks() {
  const talks = new Map((await stored("talks")).map(t => [t.id, t]));
  for (const t of store.talks.values())
    if (!talks.has(t.id) || talks.get(t.id).changed <= t.changed) talks.set(t.id, t);
  return [...talks.values()].sort((a, b) => b.changed - a.changed);
}

// The turns of a talk: id -> turn, in the order in which they were asked for.
async function storedTurns(id) {
  const turns = new Map((await stored("turns", turnsOf(id))).map(t => [t.id, t]));
  for (const t of store.turns.values())
    if (t.talk === id) turns.set(t.id, t);
  return new Map([...turns.values()].sort((a, b) => a.time - b.time).map(t => [t.id, t]));
}

function tellTabs(what, id) {
  if (store.channel) store.channel.postMessage([what, id]);
}

function writeUnsaved() {
  return new Promise((resolve, reject) => {
    const t = store.database.transaction(["talks", "turns"], "readwrite");
    t.oncomplete = resolve;
    t.onabort = () => reject(t.error);
    for (const [kind, record] of store.unsaved.values()) t.objectStore(kind).put(record);
    t.commit();                                        // at once: the page may be about to go
  });
}

// Writes a talk and some of its turns. Never fails: store.failure says what is wrong.
async function storeSave(talk, ...turns) {
  if (store.removed.has(talk.id)) return;
  store.talks.set(talk.id, talk);
  store.unsaved.set(talk.id, ["talks", talk]);
  for (const t of turns) {
    store.turns.set(turnKey(t), t);
    store.unsaved.set(turnKey(t), ["turns", t]);
  }
  if (!store.database) return;
  const written = new Map(store.unsaved);
  try {
    await writeUnsaved();
    for (const [key, record] of written)
      if (store.unsaved.get(key) === record) store.unsaved.delete(key);
    store.failure = "";
    tellTabs("saved", talk.id);
  } catch (e) { store.failure = e && e.name === "QuotaExceededError" ? "full" : "failed"; }
}

function forgetTalk(id) {
  store.removed.add(id);
  store.talks.delete(id);
  store.unsaved.delete(id);
  for (const key of [...store.turns.keys()])
    if (key.startsWith(id + "/")) store.turns.delete(key), store.unsaved.delete(key);
}

async function storeRemove(id) {
  forgetTalk(id);
  if (!store.database) return;
  try {
    const t = store.database.transaction(["talks", "turns"], "readwrite");
    t.objectStore("talks").delete(id);
    await result(t.objectStore("turns").delete(turnsOf(id)));
    tellTabs("removed", id);
  } catch (e) { store.failure = "failed"; }
}

// ---- Files of conversations -------------------------------------------------------------------------------------------------------

const TALK = {id: "string", title: "string", created: "number", changed: "number", leaf: "string"};
const TURN = {id: "string", parent: "string", role: "string", content: "string", time: "number"};
const TURN_TOO = {thinking: "string", state: "string", failure: "string", stats: "object", files: "object"};
const IMAGE = /^data:image\/(png|jpeg);base64,[A-Za-z0-9+/]*={0,2}$/;     // of a file: {name, text} or {name, image}
const SETTINGS = ["system", "thinking", "temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];
const STATS = ["tokens", "speed", "prompt", "cached", "promptSpeed", "drafted", "accepted"];

async function exported(talks) {
  const out = {mote: "conversations", version: 1, conversations: []};
  for (const {id, title, created, changed, settings, leaf} of talks) {
    const turns = [...(await storedTurns(id)).values()].map(({talk, ...turn}) => turn);
    out.conversations.push({id, title, created, changed, settings, leaf, turns});
  }
  return JSON.stringify(out, null, 1);
}

// The fields of an object that are of the types wanted; an error names the first that is not. Those of `optional` may be left out.
function checked(where, object, wanted, optional) {
  const out = {};
  if (!object || typeof object !== "object") throw new Error(where + " is no object");
  for (const [name, type] of Object.entries({...wanted, ...optional})) {
    const value = object[name];
    if (value === undefined && !(name in wanted)) continue;
    if (typeof value !== type || value === null || Number.isNaN(value)) throw new Error(where + "." + name + " is no " + type);
    out[name] = value;
  }
  return out;
}

function checkedFile(where, object) {
  if (!object || object.image === undefined) return checked(where, object, {name: "string", text: "string"});
  const file = checked(where, object, {name: "string", image: "string"});
  if (!IMAGE.test(file.image)) throw new Error(where + ".image is no PNG or JPEG");
  return file;
}

function checkedTurn(where, talk, object, known) {
  const turn = {talk, thinking: "", state: "", ...checked(where, object, TURN, TURN_TOO)};
  if (turn.role !== "user" && turn.role !== "assistant") throw new Error(where + ".role is neither user nor assistant");
  if (turn.parent && !known.has(turn.parent)) throw new Error(where + ".parent is no turn before it");
  if (known.has(turn.id)) throw new Error(where + ".id is that of a turn before it");
  if (turn.files) {
    if (!Array.isArray(turn.files)) throw new Error(where + ".files is no list");
    turn.files = turn.files.map((f, i) => checkedFile(where + ".files[" + i + "]", f));
  }
  if (turn.stats) turn.stats = checked(where + ".stats", turn.stats, {}, Object.fromEntries(STATS.map(s => [s, "number"])));
  return turn;
}

// [[talk, its turns], ...] of a file's text; an error says what is wrong with it.
function imported(text) {
  const file = JSON.parse(text);
  if (!file || file.mote !== "conversations" || !Array.isArray(file.conversations)) throw new Error("these are no conversations of mote");
  if (file.version !== 1) throw new Error("version " + file.version + " is not known here");
  return file.conversations.map((object, i) => {
    const where = "conversations[" + i + "]", talk = checked(where, object, TALK), turns = new Map();
    if (!/^[\w-]{1,64}$/.test(talk.id)) throw new Error(where + ".id is not of letters and digits");
    talk.settings = checked(where + ".settings", object.settings, {}, Object.fromEntries(SETTINGS.map(s => [s, "string"])));
    if (!Array.isArray(object.turns)) throw new Error(where + ".turns is no list");
    object.turns.forEach((t, k) => {
      const turn = checkedTurn(where + ".turns[" + k + "]", talk.id, t, turns);
      turns.set(turn.id, turn);
    });
    if (!turns.has(talk.leaf)) throw new Error(where + ".leaf is none of its turns");
    return [talk, [...turns.values()]];
  });
}

// Adds what is not there yet; what is there stays as it is.
async function storeImport(text) {
  const talks = imported(text), there = new Map((await storedTalks()).map(t => [t.id, t]));
  for (const [talk, turns] of talks) {
    const known = await storedTurns(talk.id);
    store.removed.delete(talk.id);
    await storeSave(there.get(talk.id) || talk, ...turns.filter(t => !known.has(t.id)));
  }
  return talks.length;
}
