"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const state = { layer: 0, head: 0, token: null, attention: null };
const percent = (value) => `${(100 * value).toFixed(value < 0.0995 ? 1 : 0)}%`;
// Attention is stored in steps of 1/255, so tenths of a percent would mean nothing.
const whole = (value) => (value < 0.005 ? "less than 1%" : `${Math.round(100 * value)}%`);
const SHOWN = 0.02;

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function shape(name, attributes = {}, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Attention arrives as bytes from 0 to 255, compressed, in the order [layers, heads, from, to].
async function readAttention() {
  const bytes = Uint8Array.from(atob(data.attention), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function weights(layer, head) {
  const length = data.tokens.length;
  const start = (layer * data.heads + head) * length * length;
  return (from, to) => state.attention[start + from * length + to] / 255;
}

// The rows and columns of the large head: tokens, or words with summed targets and mean sources.
function matrix() {
  const get = weights(state.layer, state.head);
  const names = data.tokens;
  if (!byId("by-word").checked) {
    return { names, rows: names.map((_, from) => names.map((_, to) => get(from, to))) };
  }
  const sum = (from, [, start, stop]) => {
    let total = 0;
    for (let to = start; to < stop; to++) total += get(from, to);
    return total;
  };
  const rows = data.words.map(([, start, stop]) => data.words.map((target) => {
    let total = 0;
    for (let from = start; from < stop; from++) total += sum(from, target);
    return total / (stop - start);
  }));
  return { names: data.words.map(([text]) => text), rows };
}

function paint(canvas, size, value) {
  canvas.width = canvas.height = size;
  const context = canvas.getContext("2d");
  const [red, green, blue] = color("--accent").split(",").map(Number);
  const image = context.createImageData(size, size);
  for (let from = 0; from < size; from++) {
    for (let to = 0; to < size; to++) {
      image.data.set([red, green, blue, 255 * Math.sqrt(value(from, to))], 4 * (from * size + to));
    }
  }
  context.putImageData(image, 0, 0);
}

function drawGrid() {
  const grid = byId("grid");
  grid.style.gridTemplateColumns = `repeat(${data.heads + 1}, auto)`;
  const title = element("div", { role: "row", style: "display: contents" });
  title.append(element("div", { class: "label", role: "columnheader" }));
  for (let head = 0; head < data.heads; head++) {
    title.append(element("div", { class: "label", role: "columnheader" }, `${head + 1}`));
  }
  grid.append(title);
  for (let layer = 0; layer < data.layers; layer++) {
    const row = element("div", { role: "row", style: "display: contents" });
    row.append(element("div", { class: "label", role: "rowheader" }, `${layer + 1}`));
    for (let head = 0; head < data.heads; head++) {
      const name = `layer ${layer + 1}, head ${head + 1}`;
      const button = element("button", {
        role: "gridcell", id: `head-${layer}-${head}`, "aria-label": name, title: name,
        tabindex: "-1",
      });
      button.append(element("canvas", { "aria-hidden": "true" }));
      button.addEventListener("click", () => select(layer, head));
      row.append(button);
    }
    grid.append(row);
  }
  grid.addEventListener("keydown", (event) => {
    const moves = {
      ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0],
      Home: [0, -data.heads], End: [0, data.heads],
    };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    const clip = (value, limit) => Math.max(0, Math.min(limit - 1, value));
    select(clip(state.layer + move[0], data.layers), clip(state.head + move[1], data.heads));
    byId(`head-${state.layer}-${state.head}`).focus();
  });
}

function paintGrid() {
  for (let layer = 0; layer < data.layers; layer++) {
    for (let head = 0; head < data.heads; head++) {
      const canvas = byId(`head-${layer}-${head}`).firstChild;
      paint(canvas, data.tokens.length, weights(layer, head));
    }
  }
}

function select(layer, head) {
  const old = byId(`head-${state.layer}-${state.head}`);
  old.setAttribute("aria-selected", "false");
  old.tabIndex = -1;
  Object.assign(state, { layer, head });
  const chosen = byId(`head-${layer}-${head}`);
  chosen.setAttribute("aria-selected", "true");
  chosen.tabIndex = 0;
  drawHead();
}

const PATTERNS = {
  none: "(no highlighting)", previous: "to the previous token", next: "to the next token",
  separator: `to ${data.separator}`, broad: "broadly",
};

function drawPatterns() {
  for (const [name, text] of Object.entries(PATTERNS)) {
    const input = element("input", { type: "radio", name: "pattern", value: name });
    input.checked = name === "none";
    input.addEventListener("change", () => highlight(name));
    byId("patterns").append(element("label", {}, input, ` ${text}`));
  }
}

function highlight(name) {
  const ranked = [];
  for (let layer = 0; layer < data.layers; layer++) {
    for (let head = 0; head < data.heads; head++) {
      const score = name === "none" ? 1 : data.patterns[name][layer][head];
      byId(`head-${layer}-${head}`).style.opacity = name === "none" ? 1 : 0.12 + 0.88 * score;
      ranked.push({ layer, head, score });
    }
  }
  const best = byId("best");
  best.replaceChildren();
  if (name === "none") return;
  ranked.sort((a, b) => b.score - a.score);
  for (const { layer, head, score } of ranked.slice(0, 5)) {
    const text = `${layer + 1}-${head + 1}: ${percent(score)}`;
    const button = element("button", { class: "link" }, text);
    button.addEventListener("click", () => select(layer, head));
    best.append(button);
  }
}

function drawHead() {
  byId("head-title").textContent = `Layer ${state.layer + 1}, head ${state.head + 1}`;
  const view = document.querySelector('input[name="view"]:checked').value;
  byId("drawing").replaceChildren(view === "lines" ? lines() : map());
  byId("threshold").hidden = view !== "lines";
  describe();
}

function describe() {
  const { names, rows } = matrix();
  const reading = byId("reading");
  if (state.token === null || state.token >= names.length) {
    reading.textContent = byId("drawing").querySelector(".token")
      ? "Point at a token, or move to it with the Tab key, to see what it attends to."
      : "Point at a square to see its weight.";
    return;
  }
  const order = names.map((_, to) => to);
  order.sort((a, b) => rows[state.token][b] - rows[state.token][a]);
  const parts = order.slice(0, 4).map((to) => `${names[to]} ${whole(rows[state.token][to])}`);
  reading.textContent = `${names[state.token]} attends to ${parts.join(", ")}`;
}

const ROW = 24;
const SIDE = 130;
const short = (name) => (name.length > 14 ? `${name.slice(0, 13)}…` : name);

function lines() {
  const { names, rows } = matrix();
  const [width, height] = [460, ROW * names.length + 8];
  const viewBox = `0 0 ${width} ${height}`;
  const picture = shape("svg", {
    class: "fit", width, height, viewBox, role: "group", "aria-label": "attention",
  });
  const paths = shape("g");
  picture.append(paths);
  const left = [];
  names.forEach((name, index) => {
    const y = ROW * index + 17;
    picture.append(shape("text", { x: width - SIDE + 8, y }, short(name)));
    const token = shape("g", { class: "token", tabindex: "0", role: "button", "aria-label": name });
    token.append(shape("rect", { x: 0, y: y - 17, width: SIDE - 2, height: ROW, rx: 4 }));
    token.append(shape("text", { x: SIDE - 8, y, "text-anchor": "end" }, short(name)));
    const choose = () => { state.token = index; show(); describe(); };
    const leave = () => { state.token = null; show(); describe(); };
    token.addEventListener("mouseenter", choose);
    token.addEventListener("focus", choose);
    token.addEventListener("click", choose);
    token.addEventListener("mouseleave", leave);
    token.addEventListener("blur", leave);
    left.push(token);
    picture.append(token);
  });
  function show() {
    paths.replaceChildren();
    left.forEach((token, index) => token.classList.toggle("chosen", index === state.token));
    rows.forEach((row, from) => {
      if (state.token !== null && from !== state.token) return;
      row.forEach((weight, to) => {
        if (weight < SHOWN) return;
        const [start, end] = [ROW * from + 12, ROW * to + 12];
        const [near, far] = [SIDE, width - SIDE];
        const middle = (near + far) / 2;
        paths.append(shape("path", {
          d: `M${near} ${start}C${middle} ${start} ${middle} ${end} ${far} ${end}`,
          fill: "none", stroke: `rgb(${color("--accent")})`, "stroke-opacity": Math.sqrt(weight).toFixed(3),
          "stroke-width": (1 + 3 * weight).toFixed(2),
        }));
      });
    });
  }
  show();
  return picture;
}

function map() {
  const { names, rows } = matrix();
  const cell = 20;
  const size = cell * names.length;
  const picture = shape("svg", {
    width: SIDE + size + 8, height: SIDE + size + 8, role: "img",
    "aria-label": "heat map of the attention from rows to columns",
  });
  names.forEach((name, index) => {
    const middle = SIDE + cell * index + 15;
    picture.append(shape("text", { x: SIDE - 6, y: middle, "text-anchor": "end" }, short(name)));
    picture.append(shape("text", {
      x: 0, y: 0, transform: `translate(${middle} ${SIDE - 6}) rotate(-90)`,
    }, short(name)));
  });
  rows.forEach((row, from) => row.forEach((weight, to) => {
    const square = shape("rect", {
      x: SIDE + cell * to, y: SIDE + cell * from, width: cell - 1, height: cell - 1,
      fill: `rgb(${color("--accent")})`, "fill-opacity": Math.sqrt(weight).toFixed(3),
    });
    square.append(shape("title", {}, `${names[from]} → ${names[to]}: ${whole(weight)}`));
    picture.append(square);
  }));
  return picture;
}

function panel(title, text, ...children) {
  const made = element("section", {}, element("h2", {}, title));
  if (text) made.append(element("p", {}, text));
  made.append(...children);
  byId("views").append(made);
}

const tint = (name, share) => `background: rgba(${`var(--${name})`}, ${share.toFixed(3)})`;

function drawGuesses() {
  for (const { position, layers } of data.guesses ?? []) {
    const table = element("table");
    layers.forEach((guesses, layer) => {
      const name = layer === 0 ? "embeddings" : `layer ${layer}`;
      const row = element("tr", {}, element("th", { scope: "row" }, name));
      for (const [token, probability] of guesses) {
        const style = tint("accent", 0.6 * Math.sqrt(probability));
        row.append(element("td", { class: "guess", style }, `${token} ${percent(probability)}`));
      }
      table.append(row);
    });
    const text = "The masked-LM head, applied to every layer. It was trained on the last layer only.";
    const title = `Guesses for ${data.tokens[position]} (token ${position + 1})`;
    panel(title, text, element("div", { class: "scroll" }, table));
  }
}

const SERIES = ["accent", "warm", "good", "cool"];

function drawOccurrences() {
  for (const { word, pairs } of data.occurrences) {
    const [width, height, left, bottom] = [460, 200, 40, 30];
    const last = data.layers;
    const x = (layer) => left + (layer / last) * (width - left - 16);
    const lowest = Math.min(0, ...pairs.flatMap(({ similarity }) => similarity));
    const y = (value) => 10 + ((1 - value) / (1 - lowest)) * (height - bottom - 10);
    const viewBox = `0 0 ${width} ${height}`;
    const picture = shape("svg", {
      class: "fit", width, height, viewBox, role: "img", "aria-label": "similarity by layer",
    });
    for (const value of [1, 0.5, 0]) {
      picture.append(shape("line", {
        x1: left, x2: width - 16, y1: y(value), y2: y(value), stroke: "var(--line)",
      }));
      const text = { x: left - 6, y: y(value) + 4, class: "soft", "text-anchor": "end" };
      picture.append(shape("text", text, `${value}`));
    }
    const every = Math.ceil((last + 1) / 13);
    for (let layer = 0; layer <= last; layer += every) {
      const text = { x: x(layer), y: height - 10, class: "soft", "text-anchor": "middle" };
      picture.append(shape("text", text, layer === 0 ? "emb." : `${layer}`));
    }
    const key = element("p", { class: "key" });
    pairs.forEach(({ name, similarity }, number) => {
      const stroke = `rgb(var(--${SERIES[number % SERIES.length]}))`;
      const points = similarity.map((value, layer) => `${x(layer)},${y(value)}`).join(" ");
      picture.append(shape("polyline", { points, fill: "none", stroke, "stroke-width": 2 }));
      key.append(element("span", {}, element("i", { style: `background: ${stroke}` }), name));
    });
    const text = "The cosine similarity between occurrences of the word, layer by layer.";
    panel(`“${word}” in context`, text, picture, key);
  }
}

function drawAnswer() {
  if (!data.answer) return;
  const { start, end } = data.answer;
  const most = Math.max(...start, ...end);
  const bars = element("div", { class: "bars" });
  data.tokens.forEach((name, index) => {
    const bar = (value, hue) => element("i", {
      style: `height: ${(100 * value / most).toFixed(1)}%; background: rgb(var(--${hue}))`,
    });
    const title = `${name}: start ${percent(start[index])}, end ${percent(end[index])}`;
    const pair = element("div", { class: "pair" }, bar(start[index], "accent"),
      bar(end[index], "warm"));
    bars.append(element("div", { class: "column", title }, pair,
      element("div", { class: "name" }, name)));
  });
  const key = element("p", { class: "key" },
    element("span", {}, element("i", { style: "background: rgb(var(--accent))" }), "start"),
    element("span", {}, element("i", { style: "background: rgb(var(--warm))" }), "end"));
  const text = `Answer: ${data.answer.text}`;
  panel("Where the answer starts and ends", text, key, element("div", { class: "scroll" }, bars));
}

function drawEntities() {
  if (!data.tags) return;
  const kinds = [...new Set(data.tags.map(({ type }) => type).filter(Boolean))];
  const words = element("p", { class: "words" });
  for (const { text, type, label } of data.tags) {
    const hue = SERIES[kinds.indexOf(type) % SERIES.length];
    const span = element("span", type ? { style: tint(hue, 0.3) } : {}, text);
    if (label) span.append(element("sub", {}, label));
    words.append(span, " ");
  }
  panel("Tags", "", words);
}

function drawAttribution() {
  if (!data.attribution) return;
  const { target, score, baseline, scores } = data.attribution;
  const most = Math.max(...scores.map(Math.abs), 1e-9);
  const words = element("p", { class: "words" });
  data.words.forEach(([name], index) => {
    const hue = scores[index] >= 0 ? "accent" : "warm";
    const title = `${name}: ${scores[index] >= 0 ? "+" : ""}${scores[index].toFixed(3)}`;
    const style = tint(hue, 0.75 * Math.abs(scores[index]) / most);
    words.append(element("span", { style, title }, name), " ");
  });
  const key = element("p", { class: "key" },
    element("span", {}, element("i", { style: tint("accent", 0.75) }), "raises the score"),
    element("span", {}, element("i", { style: tint("warm", 0.75) }), "lowers the score"));
  const text = `Score for “${target}”: ${score.toFixed(3)}; with all words masked: ` +
    `${baseline.toFixed(3)}. Integrated gradients distribute the difference over the words.`;
  panel(data.probabilities ? `Why “${target}”?` : "Why this value?", text, words, key);
}

function drawScores() {
  if (!data.scores) return;
  const table = element("table");
  for (const [name, value] of data.scores) {
    const cell = element("td", { class: "guess", style: tint("accent", 0.6 * data.shade(value)) },
      data.probabilities ? percent(value) : value.toFixed(3));
    table.append(element("tr", {}, element("th", { scope: "row" }, name), cell));
  }
  panel("Prediction", "", element("div", { class: "scroll" }, table));
}

async function main() {
  byId("title").textContent = data.title;
  byId("text").textContent = data.second === null ? data.text : `${data.text} — ${data.second}`;
  byId("notes").append(...data.notes.map((note) => element("li", {}, note)));
  data.shade = (value) => (data.probabilities ? Math.sqrt(value) : 0);
  drawPatterns();
  drawGrid();
  drawScores();
  drawAttribution();
  drawGuesses();
  drawAnswer();
  drawEntities();
  drawOccurrences();
  byId("threshold").textContent = `Lines below ${whole(SHOWN)} are not drawn.`;
  state.attention = await readAttention();
  paintGrid();
  select(0, 0);
  for (const input of document.querySelectorAll("#head input")) {
    input.addEventListener("change", () => { state.token = null; drawHead(); });
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    paintGrid();
    drawHead();
  });
  document.body.dataset.ready = "true";
}

main();
