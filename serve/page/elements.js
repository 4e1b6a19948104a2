// elements.js: what the page's elements are made with. Text becomes text, never HTML.
"use strict";
let elements = 0, maxElements = 0;                     // of the answer that is drawn: see markdown.js

function element(name, text, ...inside) {
  const e = document.createElement(name);
  elements++;
  if (text) e.textContent = text;
  e.append(...inside);
  return e;
}

function classed(e, name) {
  e.className = name;
  return e;
}

function link(address, text, ...inside) {
  const a = element("a", text, ...inside);
  a.href = address;
  a.rel = "noopener noreferrer";
  a.target = "_blank";
  return a;
}

function button(name, what, label) {
  const b = element("button", name);
  b.type = "button";
  b.onclick = () => what(b);
  if (label) b.ariaLabel = b.title = label;
  return b;
}
