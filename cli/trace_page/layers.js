"use strict";
// The pictures of layers, from the trace's numbers.

const layerName = l => l.mtp ? "MTP" : String(l.index);
const longName = l => l.mtp ? "MTP layer" : "layer " + l.index;
const tokenMap = (rows, more) => ({rows, columns: trace.tokens.length, width: COLUMN, tokens: true, ...more});

// ---- All layers ------------------------------------------------------------------------------------------------------

// Numbers of each layer and token, shown as a share of the largest one.
function lengthMap(caption, half, of, shown, words) {
    const layers = trace.layers.filter(l => !l.mtp && half(l));
    const most = Math.max(...layers.flatMap(l => of(l).map(shown)));
    return heat(caption, tokenMap(layers.length, {
        height: Math.max(4, Math.min(18, 400 / layers.length)), names: true, rowName: row => layerName(layers[row]),
        value: (row, t) => shown(of(layers[row])[t]) / most,
        say: (row, t) => longName(layers[row]) + ", token " + named(t) + ": " + words(layers[row], t)}));
}

function showLengths() {
    const first = l => l.mixer || l.ffn;
    const added = (half, name) => !trace.layers.some(half) ? [] : [lengthMap(
        "what the " + name + " adds, as a share of it", half, l => half(l).added.map((added, t) => added / (half(l).before[t] || 1)),
        v => Math.min(v, 1), (l, t) => "the " + name + " adds " + half(l).added[t] + " to " + half(l).before[t])];
    $("lengths").append(
        lengthMap("length of the residual before each layer, log scale", first, l => first(l).before, Math.log1p,
                  (l, t) => first(l).before[t]),
        ...added(l => l.mixer, "mixer"), ...added(l => l.ffn, "FFN"));
}

// Experts lit by token: a grid of all experts for each token and layer. Of few they are large, of many small.
function litExperts(layers, experts, caption) {
    const across = experts <= 16 ? Math.min(4, experts) : Math.ceil(Math.sqrt(experts)), down = Math.ceil(experts / across);
    const size = experts <= 16 ? Math.max(7, Math.floor((COLUMN - 2) / across)) : 3, width = across * size + 6, height = down * size + 6;
    const left = 34, top = NAMES, count = trace.tokens.length;
    const weights = layers.map(l => l.ffn.chosen.map(list => new Map(list.map(one => [one.expert, one.weight]))));
    const most = Math.max(...layers.flatMap(l => l.ffn.chosen.flat().map(one => one.weight)));
    const paint = context => {
        layers.forEach((l, row) => {
            paintLabel(context, layerName(l), left - 4, top + row * height + height / 2);
            weights[row].forEach((of, t) => {
                const x = left + t * width, y = top + row * height;
                context.fillStyle = color(0);
                context.fillRect(x - 1, y - 1, across * size + 2, down * size + 2);
                for (const [e, weight] of of) {
                    context.fillStyle = color(weight / most);
                    context.fillRect(x + e % across * size, y + Math.floor(e / across) * size, size, size);
                }
            });
        });
        for (let t = 0; t < count; t++) paintLabel(context, visible(trace.tokens[t]), left + t * width + width / 2, top - 5, true);
        if (chosen >= 0) paintFrame(context, left + chosen * width - 4, top - 3, width + 2, layers.length * height);
    };
    const at = (x, y) => {
        const t = Math.floor((x - left) / width), row = Math.floor((y - top) / height);
        const column = Math.floor((x - left - t * width) / size), line = Math.floor((y - top - row * height) / size);
        const e = line * across + column;
        if (t < 0 || row < 0 || row >= layers.length || !weights[row][t]) return "";
        const list = layers[row].ffn.chosen[t].map(one => one.expert + " " + one.weight.toFixed(2)).join(", ");
        const under = column < across && e < experts ? "; under the pointer expert " + e : "";
        return longName(layers[row]) + ", token " + named(t) + ": experts " + list + under;
    };
    return picture(caption, left + count * width + 30, top + layers.length * height, paint, at);
}

function showExperts() {
    const layers = trace.layers.filter(l => l.ffn && l.ffn.kind === "moe");
    $("experts").hidden = !layers.length;
    if (!layers.length) return;
    const {experts, top_k} = layers[0].ffn;
    $("experts_note").textContent = "Each layer has " + experts + ", and its router chooses " + top_k + " for a token. Every small grid " +
        "is all of a layer's experts, row by row; lit are the chosen ones, by weight.";
    $("lit").append(litExperts(layers, experts, "experts lit by token; columns are tokens, rows layers"));
}

// ---- One layer -----------------------------------------------------------------------------------------------------

const headHeight = heads => heads <= 8 ? 14 : heads <= 32 ? 8 : 5;

// Numbers of each token and head.
function headMap(l, caption, values, most, what) {
    const heads = l.mixer.heads;
    return heat(caption, tokenMap(heads, {
        height: headHeight(heads), rowName: String, value: (h, t) => values[t] ? values[t][h] / most : null,
        say: (h, t) => longName(l) + ", head " + h + ", token " + named(t) + ": " + what + " " + values[t][h]}));
}

function stateMaps(l) {
    const S = l.mixer.S, size = Math.max(1, Math.round(128 / S.columns * 10) / 10);
    return S.values.map((values, h) => heat("S of head " + h + ", up to ±" + S.scale[h], {
        rows: S.rows, columns: S.columns, width: size, height: size, value: (row, column) => values[row * S.columns + column] / 99,
        say: (row, column) => longName(l) + ", head " + h + ": S is " + (values[row * S.columns + column] * S.scale[h] / 99).toPrecision(2) +
            " where value " + row + " of " + S.rows + " meets key " + column + " of " + S.columns}));
}

function attentionMaps(l) {
    const count = trace.tokens.length, size = Math.max(4, Math.min(12, Math.floor(180 / count)));
    return l.mixer.weights.map((weights, h) => heat("head " + h, {
        rows: weights.length, columns: weights.length, width: size, height: size, tokens: true, rowToken: true,
        gutter: 70, rowName: size > 8 ? t => visible(trace.tokens[t]) : null,
        value: (t, p) => p <= t ? weights[t][p] : null,
        say: (t, p) => longName(l) + ", head " + h + ": token " + named(t) + " looks at " + named(p) + ": " + percent(weights[t][p])}));
}

function mixerPictures(l) {
    const m = l.mixer;
    if (!m) return [];
    if (m.decay)
        return [headMap(l, "decay: what is left of S; rows are heads, columns tokens", m.decay, 1, "decay"),
                headMap(l, "write: how strongly the token is written", m.write, Math.max(1, ...m.write.flat()), "write"),
                headMap(l, "|S| after each token", m.length, Math.max(...m.length.flat()), "|S| is"),
                element("div", {className: "row"}, ...stateMaps(l))];
    const gates = m.gate ? [headMap(l, "gate: what a head's output is multiplied with, on average", m.gate, Math.max(1, ...m.gate.flat()), "gate")] : [];
    return [element("div", {className: "row"}, ...attentionMaps(l)), ...gates];
}

function ffnPictures(l) {
    const f = l.ffn;
    if (!f || f.kind !== "moe") return [];
    const maps = [heat("router: probability of each expert; rows are experts, columns tokens", tokenMap(f.experts, {
        height: f.experts <= 16 ? 12 : f.experts <= 64 ? 5 : 2, rowName: String,
        value: (e, t) => f.router[t] ? f.router[t][e] : null,
        say: (e, t) => longName(l) + ", token " + named(t) + ": expert " + e + " " + percent(f.router[t][e])}))];
    if (f.shared)
        maps.push(heat("how far the shared expert is open", tokenMap(1, {
            height: 14, rowName: () => "", value: (row, t) => f.shared[t] === undefined ? null : f.shared[t],
            say: (row, t) => longName(l) + ", token " + named(t) + ": shared expert " + percent(f.shared[t])})));
    return maps;
}

function layerBlock(l) {
    const note = !l.mixer ? "" : l.mixer.weights ? "; rows look at columns" : "; S: values down, keys across, after the last token";
    const block = element("details", {}, element("summary", {}, longName(l), element("span", {className: "soft"},
        [l.mixer, l.ffn].filter(half => half).map(half => half.kind).join(" + ") + note)));
    block.addEventListener("toggle", () => {
        if (!block.open || block.childElementCount > 1) return;
        block.append(element("div", {className: "row"}, ...mixerPictures(l), ...ffnPictures(l)));
    });
    return block;
}

// Pictures of a layer are made when it is opened; where there are few, they all are.
function showLayers() {
    const blocks = trace.layers.map(layerBlock), first = trace.layers.findIndex(l => l.mixer && l.mixer.weights);
    $("layers").append(...blocks);
    blocks.forEach((block, i) => block.open = blocks.length <= 12 || i === 0 || i === first);
}
