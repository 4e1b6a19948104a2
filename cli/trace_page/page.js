"use strict";
// What is read: the text, what comes next, the answer. Then all of the page.

function choose(t) {
    chosen = chosen === t ? -1 : t;
    [...$("tokens").children].forEach((one, i) => one.setAttribute("aria-pressed", i === chosen));
    [...$("next").querySelectorAll("tbody tr")].forEach((one, i) => one.classList.toggle("chosen", i === chosen));
    redraw();
}

function showText() {
    $("model").textContent = trace.model + ", " + trace.architecture + ": " + trace.layers.filter(l => !l.mtp).length + " layers" +
        (trace.layers.some(l => l.mtp) ? " and an MTP layer" : "") + ", hidden size " + trace.hidden + ", vocabulary " +
        trace.vocabulary + "; " + trace.tokens.length + " tokens" + (trace.chat ? ", a question in the chat template" : "");
    trace.tokens.forEach((token, t) => {
        const one = element("button", {type: "button", className: "chip"}, element("sub", {}, String(t)), visible(token));
        one.setAttribute("aria-pressed", "false");
        one.addEventListener("click", () => choose(t));
        $("tokens").append(one);
    });
}

// The draft that the MTP layer makes at a token, with the one after it, and whether the model chooses it there.
function draftCell(t) {
    const draft = trace.drafts[t], cell = element("td");
    if (!draft) return cell;
    const taken = draft.id === trace.next[t + 1][0].id;
    cell.append(chip(draft, taken ? "taken" : "refused"), " " + percent(draft.p));
    return cell;
}

function showNext() {
    const mtp = trace.drafts.length > 0;
    $("next_note").textContent = "After each token, the five that the model thinks most probable." + (mtp ? " The last column is the MTP " +
        "layer's: it also knows the token after it, and drafts the next but one. Struck out is what the model itself would not have " +
        "chosen there." : "");
    const head = ["", "token", "1", "2", "3", "4", "5"].concat(mtp ? ["MTP"] : []);
    const body = element("tbody");
    trace.next.forEach((list, t) => {
        const row = element("tr", {}, element("td", {className: "soft"}, String(t)), element("td", {}, chip(trace.tokens[t])));
        for (const one of list) {
            const bar = element("span", {className: "bar"});
            bar.style.width = (5 * one.p) + "rem";
            row.append(element("td", {}, chip(one), " " + percent(one.p), bar));
        }
        if (mtp) row.append(draftCell(t));
        body.append(row);
    });
    $("next").append(element("thead", {}, element("tr", {}, ...head.map(text => element("th", {}, text)))), body);
}

function showPasses() {
    const tokens = trace.passes.reduce((sum, pass) => sum + 1 + pass.taken, 0), drafts = trace.passes.some(pass => pass.tokens.length > 1);
    $("answer_note").textContent = "Always with the most probable token: " + tokens + " in " + trace.passes.length + " passes. " +
        (drafts ? "A pass verifies a token and drafts after it: those that the model would have chosen itself are taken, the first other " +
        "one and all after it are not." : "Nothing was drafted.");
    for (const pass of trace.passes) {
        const line = element("li");
        pass.tokens.forEach((token, i) => line.append(chip(token, i === 0 ? "" : i <= pass.taken ? "taken" : "refused"), " "));
        if (pass.source === "copy" && pass.tokens.length > 1) line.append(element("span", {className: "soft"}, "copied from before"));
        $("passes").append(line);
    }
}

showText();
showNext();
showPasses();
showLengths();
showExperts();
showLayers();
