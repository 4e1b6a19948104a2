// answer.js: one answer of the server: what is asked, the events of its stream, what it came to. It knows no page: `changed` is called
// when there is something new.
"use strict";
const ANSWER_MOST = 4096;                              // tokens of an answer, unless the settings say another number

// A file's text between fences that are longer than any in it.
function fenced(file) {
  const longest = Math.max(2, ...Array.from(file.text.matchAll(/`{3,}/g), m => m[0].length)), fence = "`".repeat(longest + 1);
  return file.name + ":\n" + fence + "\n" + file.text.replace(/\n?$/, "\n") + fence + "\n\n";
}

// A text, or with images a list of parts, images first.
function contentOf(turn) {
  const files = turn.files || [], images = files.filter(f => f.image);
  const text = files.filter(f => !f.image).map(fenced).join("") + turn.content;
  if (!images.length) return text;
  return [...images.map(f => ({type: "image_url", image_url: {url: f.image}})), ...(text ? [{type: "text", text}] : [])];
}

function messageOf(turn) {
  const message = {role: turn.role, content: contentOf(turn)};
  if (turn.thinking) message.reasoning_content = turn.thinking;        // whether it stays is the template's business
  return message;
}

// path: the turns up to the answer, which may have a beginning already: then it goes on from there. switches: the template can think or not.
function requestOf(settings, path, switches) {
  const body = {messages: [], stream: true, stream_options: {include_usage: true}, return_progress: true, max_tokens: ANSWER_MOST};
  if (settings.system) body.messages.push({role: "system", content: settings.system});
  for (const t of path)
    if (t.content || t.role === "user") body.messages.push(messageOf(t));
  for (const s of ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"])
    if (settings[s]) body[s] = Number(settings[s]);
  if (settings.thinking && switches) body.chat_template_kwargs = {enable_thinking: settings.thinking === "1"};
  if (path[path.length - 1].content) body.continue_final_message = true;
  return body;
}

// The server's own words for what is wrong, if it is the server that answers.
async function failureOf(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error.message;
  } catch (e) { return "the server answers " + response.status + " " + response.statusText; }
}

// take(event, comment): each event of a stream; comments keep the connection open and say what the server is doing.
async function readEvents(response, take) {
  const reader = response.body.getReader(), decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return;
    rest += decoder.decode(value, {stream: true});
    for (let end; (end = rest.indexOf("\n\n")) >= 0; rest = rest.slice(end + 2)) {
      const event = rest.slice(0, end);
      if (event[0] === ":") take(null, event.slice(1).trim());
      else if (event.startsWith("data: ") && event !== "data: [DONE]") take(JSON.parse(event.slice(6)), "");
    }
  }
}

const count = n => Math.round(n).toLocaleString("en");

function duration(seconds) {
  return seconds < 90 ? Math.ceil(seconds) + " s" : Math.round(seconds / 60) + " min";
}

// "1,024 of 6,000 tokens read, 900 tokens/s, 6 s left"
function progressText(p) {
  const speed = p.time_ms > 0 ? (p.processed - p.cache) * 1000 / p.time_ms : 0;
  return count(p.processed) + " of " + count(p.total) + " tokens read" +
         (speed > 0 ? ", " + count(speed) + " tokens/s, " + duration((p.total - p.processed) / speed) + " left" : "");
}

// What an answer came to.
function statsText(s) {
  const parts = [];
  const speed = n => n ? ", " + count(n) + " tokens/s" : "";
  if (s.tokens) parts.push(count(s.tokens) + (s.tokens === 1 ? " token" : " tokens") + speed(s.speed));
  if (s.drafted) parts.push(count(s.accepted) + " of " + count(s.drafted) + " drafts accepted");
  const known = s.cached ? ", " + count(s.cached) + " of them known" : "";
  if (s.prompt) parts.push("prompt: " + count(s.prompt) + known + speed(s.promptSpeed));
  return parts.join(" · ");
}

function statsOf(event) {
  const u = event.usage, t = event.timings || {}, stats = {tokens: u.completion_tokens, prompt: u.prompt_tokens};
  if (t.predicted_per_second) stats.speed = t.predicted_per_second;
  if (t.cache_n) stats.cached = t.cache_n;
  if (t.prompt_per_second) stats.promptSpeed = t.prompt_per_second;
  if (t.draft_n) stats.drafted = t.draft_n, stats.accepted = t.draft_n_accepted;
  return stats;
}

// One event into the turn. live: what is known of the answer under way.
function takeEvent(turn, live, event, comment) {
  if (comment === "waiting") live.reading = {text: "Waiting until another answer ends"};
  if (!event) return;
  if (event.error) throw new Error(event.error.message);
  const choice = (event.choices || [])[0], p = event.prompt_progress, now = performance.now();
  if (event.usage) turn.stats = statsOf(event);
  if (p) live.reading = {text: progressText(p), part: p.processed / Math.max(1, p.total)}, live.prompt = p.total;
  if (!choice) return;
  turn.content += choice.delta.content || "";
  turn.thinking += choice.delta.reasoning_content || "";
  if (choice.delta.content || choice.delta.reasoning_content) {
    live.reading = null;
    if (++live.tokens === 1) live.first = now;
    turn.stats = {tokens: live.tokens, speed: live.tokens > 2 ? (live.tokens - 1) * 1000 / Math.max(1, now - live.first) : 0};
    if (live.prompt) turn.stats.prompt = live.prompt;
  }
  if (choice.finish_reason) live.ended = choice.finish_reason;
}

// Asks for `turn` and fills it in. Ends when the answer has: turn.state is "" for a whole answer, "cut" for one that reached its most
// tokens, "stopped", or "failed", with why in turn.failure. When the page is being left it stays "writing".
async function fetchAnswer(turn, live, body, key, changed) {
  const headers = {"Content-Type": "application/json"};
  if (key) headers.Authorization = "Bearer " + key;
  try {
    const asked = {method: "POST", headers, body: JSON.stringify(body), signal: live.stopper.signal};
    const response = await fetch("/v1/chat/completions", asked);
    live.status = response.status;
    if (!response.ok) throw new Error(await failureOf(response));
    await readEvents(response, (event, comment) => {
      takeEvent(turn, live, event, comment);
      changed();
    });
    if (!live.ended) throw new Error("the connection ended before the answer did");
    turn.state = live.ended === "length" ? "cut" : "";
  } catch (e) {
    if (live.leaves) return;
    turn.state = e.name === "AbortError" ? "stopped" : "failed";
    if (turn.state === "failed") turn.failure = e instanceof TypeError ? "The server cannot be reached: " + e.message : e.message;
  }
}
