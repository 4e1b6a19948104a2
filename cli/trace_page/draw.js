"use strict";
// Elements, tokens, and pictures of numbers. Text of tokens is only ever text: of nodes, of attributes, drawn on a canvas.

const trace = JSON.parse(document.getElementById("trace").textContent);
const $ = id => document.getElementById(id);
const pictures = [];                       // all that is drawn, for when the colours or the chosen token change
let chosen = -1;                           // the token that is framed

function element(tag, properties, ...children) {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
}

// A token's text with what is not seen made visible.
function visible(token) {
    if (!token.text) return "#" + token.id;
    return token.text.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/ /g, "·").replace(/[\u0000-\u001f\u007f-\u009f]/g, "�");
}

const chip = (token, kind) => element("span", {className: "chip " + (kind || "")}, visible(token));
const named = t => t + " " + visible(trace.tokens[t]);
const percent = p => (100 * p).toFixed(p > 0 && p < 0.095 ? 1 : 0) + " %";

// ---- Colours ------------------------------------------------------------------------------------------------------

let colors;

function readColors() {
    const style = getComputedStyle(document.documentElement);
    const of = name => {
        const hex = style.getPropertyValue(name).trim().slice(1);
        const full = hex.length === 3 ? [...hex].map(c => c + c).join("") : hex;
        return [0, 2, 4].map(i => parseInt(full.slice(i, i + 2), 16));
    };
    colors = {low: of("--low"), high: of("--high"), negative: of("--negative"), soft: style.getPropertyValue("--soft").trim(),
              mark: style.getPropertyValue("--mark").trim()};
}

// -1 to 1; a little is seen already.
function color(value) {
    const to = value < 0 ? colors.negative : colors.high, share = Math.min(1, Math.abs(value)) ** 0.6;
    return "rgb(" + colors.low.map((low, i) => Math.round(low + (to[i] - low) * share)).join(" ") + ")";
}

// ---- Pictures -------------------------------------------------------------------------------------------------------

const COLUMN = Math.max(9, Math.min(24, Math.floor(760 / trace.tokens.length)));     // pixels of a token's column

// A picture that is drawn anew when it has to be: paint(context) on a canvas of so many pixels; at(x, y) says what is there.
function picture(caption, width, height, paint, at) {
    const canvas = element("canvas", {width: 0, height: 0});
    const scale = window.devicePixelRatio || 1;
    canvas.style.width = width + "px";
    canvas.style.height = height + "px";
    canvas.width = Math.ceil(width * scale);
    canvas.height = Math.ceil(height * scale);
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", caption);
    canvas.addEventListener("mousemove", event => {
        const box = canvas.getBoundingClientRect(), text = at(event.clientX - box.left, event.clientY - box.top);
        if (text) $("under").textContent = text;
    });
    const draw = () => {
        const context = canvas.getContext("2d");
        context.setTransform(scale, 0, 0, scale, 0, 0);
        context.clearRect(0, 0, width, height);
        paint(context);
    };
    pictures.push(draw);
    draw();
    return element("figure", {}, element("figcaption", {}, caption), canvas);
}

function paintLabel(context, text, x, y, turn) {
    context.save();
    context.translate(x, y);
    if (turn) context.rotate(-Math.PI / 3);
    context.fillStyle = colors.soft;
    context.font = "10px ui-monospace, monospace";
    context.textAlign = turn ? "left" : "right";
    context.textBaseline = "middle";
    const whole = [...text];
    context.fillText(whole.length > 11 ? whole.slice(0, 10).join("") + "…" : text, 0, 0);
    context.restore();
}

function paintFrame(context, x, y, width, height) {
    context.strokeStyle = colors.mark;
    context.lineWidth = 1.5;
    context.strokeRect(x + 0.75, y + 0.75, width - 1.5, height - 1.5);
}

const NAMES = 66;                          // pixels of the tokens' names above a picture

// A heat map. rows, columns, width and height of a cell; value(row, column): -1 to 1, or null for no cell; say(row, column): in words.
// tokens: the columns are tokens, whose names stand above them; rowName(row), rowToken(row): names on the left; the row is a token.
function heat(caption, o) {
    const left = o.rowName ? o.gutter || 26 : 0, top = o.tokens && o.names ? NAMES : 0, gap = o.height > 5 ? 1 : 0;
    const right = top ? 30 : 0;
    const paint = context => {
        for (let row = 0; row < o.rows; row++) {
            if (left && (o.height > 8 || row % 8 === 0)) paintLabel(context, o.rowName(row), left - 4, top + row * o.height + o.height / 2);
            for (let column = 0; column < o.columns; column++) {
                const value = o.value(row, column);
                if (value === null || value === undefined) continue;
                context.fillStyle = color(value);
                context.fillRect(left + column * o.width, top + row * o.height, o.width - (o.width > 5 ? 1 : 0), o.height - gap);
            }
        }
        for (let column = 0; top && column < o.columns; column++)
            paintLabel(context, visible(trace.tokens[column]), left + column * o.width + o.width / 2, top - 5, true);
        if (o.tokens && chosen >= 0 && chosen < o.columns)
            paintFrame(context, left + chosen * o.width - 1, top, o.width + 1, o.rows * o.height);
        if (o.rowToken && chosen >= 0 && chosen < o.rows)
            paintFrame(context, left, top + chosen * o.height - 1, o.columns * o.width, o.height + 1);
    };
    const at = (x, y) => {
        const row = Math.floor((y - top) / o.height), column = Math.floor((x - left) / o.width);
        if (row < 0 || row >= o.rows || column < 0 || column >= o.columns) return "";
        const value = o.value(row, column);
        return value === null || value === undefined ? "" : o.say(row, column);
    };
    return picture(caption, left + o.columns * o.width + right, top + o.rows * o.height, paint, at);
}

function redraw() {
    readColors();
    for (const draw of pictures) draw();
}

readColors();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
