"use strict";
// Everything that the report says is put into the page as text or as an attribute, never as markup.

const report = JSON.parse(document.getElementById("data").textContent);
const VERDICTS = { trust: "●", caution: "▲", "do not trust": "■" };
const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const digit = Object.fromEntries([...DIGITS].map((character, i) => [character, i]));
const within = (selector, id) => document.getElementById(id).querySelector(selector);
const byId = (id) => document.getElementById(id);
const slug = (text) => text.replaceAll(" ", "-");
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

function number(x) {
  if (x === null || x === undefined) return "–";
  return String(Number(x.toPrecision(4))).replace("-", "−");
}

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function mark(verdict) {
  return make("span", { class: `mark ${slug(verdict)}`, "aria-hidden": "true" }, VERDICTS[verdict]);
}

function show(id) {
  byId(id).hidden = false;
}

// ---------------------------------------------------------------- the head

function drawHead() {
  byId("headline").textContent = report.summary[0] ?? "";
  byId("sentences").append(...report.summary.slice(1).map((sentence) => make("li", {}, sentence)));
  byId("theme").addEventListener("click", () => {
    const chosen = document.documentElement.dataset.theme;
    const dark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = dark ? "light" : "dark";
  });
}

// ---------------------------------------------------------------- verdicts and the table

function drawVerdicts(table) {
  const titles = { trust: "Trust", caution: "Caution", "do not trust": "Do not trust" };
  for (const verdict of Object.keys(VERDICTS)) {
    const methods = table.verdicts.filter((found) => found.verdict === verdict);
    if (!methods.length) continue;
    const list = make("dl");
    for (const { method, why } of methods) list.append(make("dt", {}, method), make("dd", {}, why));
    const heading = make("h3", {}, mark(verdict), ` ${titles[verdict]}`);
    within(".verdict-groups", "verdicts").append(
      make("div", { class: `card verdict-group ${slug(verdict)}` }, heading, list),
    );
  }
  show("verdicts");
}

// The common scale holds what may be believed, the truth and the log; wilder intervals run off its ends.
function commonScale(table) {
  const believed = table.rows.filter((row) => row.verdict !== "do not trust");
  const kept = believed.length ? believed : table.rows;
  const numbers = kept.flatMap((row) => [row.value, row.low, row.high]).filter((x) => x !== null);
  numbers.push(table.logged_mean, ...Object.values(table.truth));
  const low = Math.min(...numbers), high = Math.max(...numbers);
  const margin = (high - low || 1) * 0.06;
  return { low: low - margin, high: high + margin };
}

const share = (x, scale) => (100 * (x - scale.low)) / (scale.high - scale.low);
const clamp = (x) => Math.max(0, Math.min(100, x));

function intervalBar(row, table, scale) {
  const bar = make("div", { class: `scale ${slug(row.verdict)}`, "aria-hidden": "true" });
  const place = (name, x, width) => {
    const piece = make("i", { class: name });
    piece.style.left = `${x}%`;
    if (width !== undefined) piece.style.width = `${width}%`;
    bar.append(piece);
    return piece;
  };
  place("logged", share(table.logged_mean, scale));
  if (row.value !== null) {
    const low = row.low === null ? -Infinity : share(row.low, scale);
    const high = row.high === null ? Infinity : share(row.high, scale);
    if (high >= 0 && low <= 100) {
      const span = place("span", clamp(low), clamp(high) - clamp(low));
      if (low < 0) span.classList.add("cut-low");
      if (high > 100) span.classList.add("cut-high");
    }
    const at = share(row.value, scale);
    if (at >= 0 && at <= 100) place("point", at);
  }
  if (row.policy in table.truth) place("true", share(table.truth[row.policy], scale));
  return bar;
}

function findingsList(row) {
  const list = make("ul", { class: "findings" });
  if (!row.findings.length || row.value === null) list.append(make("li", {}, mark(row.verdict), ` ${row.reasons}`));
  for (const { name, verdict, sentence } of row.findings) {
    list.append(make("li", {}, mark(verdict), " ", make("b", {}, name), ` ${sentence}`));
  }
  const facts = [`${number(row.effective_sample_size)} effective episodes`];
  if (row.low !== null || row.high !== null) {
    facts.push(`${number(100 * row.level)} % interval from ${number(row.low)} to ${number(row.high)}`);
  }
  if (row.error !== null) facts.push(`relative error ${number(row.error)}`);
  list.append(make("li", {}, facts.join(" · ")));
  return list;
}

function estimateRows(row, table, scale, id) {
  const hint = row.findings.map(({ name, verdict, sentence }) => `${name} (${verdict}): ${sentence}`).join("\n");
  const button = make(
    "button",
    {
      type: "button", class: slug(row.verdict), title: hint || row.reasons, "aria-expanded": "false", "aria-controls": id,
      "aria-label": `${row.method}, ${row.policy}: ${row.verdict}. Show why.`,
    },
    ...(row.findings.length ? row.findings : [row]).map((finding) => mark(finding.verdict)),
    make("span", { class: "word" }, row.verdict),
  );
  const limits = row.low === null && row.high === null ? "" : ` ${number(row.low)} to ${number(row.high)}`;
  const value = make("td", { class: row.value === null ? "value none" : "value" }, row.value === null ? "cannot tell" : number(row.value));
  if (row.value !== null) value.dataset.value = row.value;
  const shown = make(
    "tr",
    { class: "row", title: limits.trim() },
    make("th", { class: "method", scope: "row" }, row.method),
    value,
    make("td", { class: "interval" }, intervalBar(row, table, scale)),
    make("td", { class: "checks" }, button),
  );
  const reasons = make("tr", { class: "reasons", id }, make("td", { colspan: 4 }, findingsList(row)));
  reasons.hidden = true;
  shown.addEventListener("click", () => {
    reasons.hidden = !reasons.hidden;
    button.setAttribute("aria-expanded", String(!reasons.hidden));
  });
  return [shown, reasons];
}

function drawTable(table) {
  const scale = commonScale(table);
  const ticks = make("div", { class: "ticks" });
  for (const part of [0, 0.5, 1]) {
    const tick = make("span", {}, number(Number((scale.low + part * (scale.high - scale.low)).toPrecision(2))));
    tick.style.left = `${100 * part}%`;
    ticks.append(tick);
  }
  const head = make(
    "thead", {},
    make("tr", {}, make("th", {}, "estimator"), make("th", {}, "E[G]"), make("th", { class: "scale-head" }, ticks), make("th", {}, "checks")),
  );
  const body = make("tbody");
  for (const policy of new Set(table.rows.map((row) => row.policy))) {
    const truth = policy in table.truth ? `in truth ${number(table.truth[policy])}` : "";
    body.append(make("tr", { class: "policy" }, make("th", { colspan: 4 }, policy, make("span", { class: "truth" }, truth))));
    for (const row of table.rows.filter((row) => row.policy === policy)) {
      body.append(...estimateRows(row, table, scale, `why-${body.children.length}`));
    }
  }
  within(".estimates", "table").append(make("table", {}, head, body));
  const lead = within(".lead", "table");
  lead.append(`From ${table.num_episodes.toLocaleString("en-US")} logged episodes.`);
  lead.append(make("span", { class: "key thin" }), `the log's own mean, ${number(table.logged_mean)}`);
  if (Object.keys(table.truth).length) lead.append(make("span", { class: "key" }), "the truth");
  lead.append(". Tap a row for its reasons.");
  show("table");
}

// ---------------------------------------------------------------- the explorer

const FILTERS = {
  all: "all", "lost-won": "lost → won", "won-lost": "won → lost", same: "same",
};
const MILLISECONDS_A_STEP = 320;
const state = { policy: 0, filter: "all", order: "change", episode: 0, step: 0, timer: null };

const explorer = report.explorer;
const won = (value) => value >= explorer.threshold;
const factualReturn = (episode) => sum(episode.factual.rewards);
const wouldReturn = (episode) => sum(episode.counterfactual[state.policy].rewards);

function flip(episode) {
  const before = won(factualReturn(episode)), after = won(wouldReturn(episode));
  return before === after ? "same" : after ? "lost-won" : "won-lost";
}

// Places in explorer.episodes that the filter lets through, in the chosen order.
function listed() {
  const places = explorer.episodes.map((_, i) => i).filter((i) => {
    return state.filter === "all" || flip(explorer.episodes[i]) === state.filter;
  });
  const change = (i) => Math.abs(wouldReturn(explorer.episodes[i]) - factualReturn(explorer.episodes[i]));
  return state.order === "change" ? places.sort((a, b) => change(b) - change(a) || a - b) : places;
}

function current() {
  const episode = explorer.episodes[state.episode];
  const played = episode.counterfactual[state.policy];
  return { episode, factual: episode.factual, played, last: Math.max(episode.factual.rewards.length, played.rewards.length) };
}

function choiceButton(text, pressed, choose, digitKey) {
  const button = make("button", { type: "button", class: "choice", "aria-pressed": String(pressed) });
  if (digitKey && digitKey <= 9) button.append(make("kbd", { "aria-hidden": "true" }, String(digitKey)));
  button.append(text);
  button.addEventListener("click", choose);
  return button;
}

function drawChoices() {
  const counts = { all: explorer.episodes.length, "lost-won": 0, "won-lost": 0, same: 0 };
  for (const episode of explorer.episodes) counts[flip(episode)] += 1;
  within(".policies", "explorer").replaceChildren(
    ...explorer.policies.map((name, i) => choiceButton(name, i === state.policy, () => choosePolicy(i), i + 1)),
  );
  within(".filters", "explorer").replaceChildren(
    ...Object.entries(FILTERS).map(([name, text]) => {
      const button = choiceButton(`${text} ${counts[name]}`, name === state.filter, () => chooseFilter(name));
      button.dataset.filter = name;
      return button;
    }),
  );
  within(".orders", "explorer").replaceChildren(
    "sorted by",
    ...["change", "number"].map((name) => choiceButton(name, name === state.order, () => chooseOrder(name))),
  );
}

function drawList() {
  const places = listed();
  const items = places.map((i) => {
    const episode = explorer.episodes[i], kind = flip(episode);
    const item = make(
      "li",
      { role: "option", id: `episode-${i}`, class: kind, "aria-selected": String(i === state.episode) },
      make("span", { class: "number" }, `#${episode.number}`),
      make("span", {}, `${number(factualReturn(episode))} → ${number(wouldReturn(episode))}`),
      make("span", { class: "flip" }, kind === "same" ? "" : FILTERS[kind]),
    );
    item.addEventListener("click", () => chooseEpisode(i));
    return item;
  });
  const list = byId("episodes");
  const none = make("li", { class: "none", role: "option", "aria-disabled": "true" }, "No episode is like that.");
  list.replaceChildren(...(items.length ? items : [none]));
  list.setAttribute("aria-activedescendant", `episode-${state.episode}`);
  const chosen = byId(`episode-${state.episode}`);
  if (chosen) {
    // Not scrollIntoView, which would also move the page.
    const above = chosen.offsetTop - list.scrollTop;
    if (above < 0 || above + chosen.offsetHeight > list.clientHeight) {
      list.scrollTop = chosen.offsetTop - list.clientHeight / 2;
    }
  }
}

function drawOutcome() {
  const { episode } = current();
  const word = (value) => make("b", { class: won(value) ? "won" : "lost" }, won(value) ? "won" : "lost");
  const before = factualReturn(episode), after = wouldReturn(episode);
  const shown = (name, value) => {
    const element = make("b", { id: name }, number(value));
    element.dataset.value = value;
    return element;
  };
  within(".outcome", "explorer").replaceChildren(
    `Episode ${episode.number} was `, word(before), " with ", shown("factual-return", before),
    `. Under ${explorer.policies[state.policy]} it would have been `, word(after), " with ",
    shown("counterfactual-return", after), ".",
  );
}

function drawDoubt() {
  const { factual, played } = current();
  const wins = played.returns.filter(won).length;
  const paragraph = within(".doubt", "explorer");
  paragraph.replaceChildren(
    `The same in all ${explorer.num_samples} scenarios drawn from the posterior of this episode: won in ${wins} of ` +
      `${explorer.num_samples}, mean return ${number(sum(played.returns) / played.returns.length)}.`,
  );
  const replayed = factual.returns[0], logged = sum(factual.rewards);
  if (Math.abs(replayed - logged) > 1e-3 * (1 + Math.abs(logged))) {
    const text = `The logged actions pay ${number(replayed)} on the scenario shown, not ${number(logged)} as logged: it is not quite what happened.`;
    paragraph.prepend(make("span", { class: "warn" }, text));
  }
}

const soFar = (play, step) => sum(play.rewards.slice(0, step));

function drawStep() {
  const { last } = current();
  const scrub = byId("scrub");
  scrub.max = last;
  scrub.value = state.step;
  byId("step").textContent = `step ${state.step} / ${last}`;
  const { scene } = explorer;
  if (scene.type === "grid") drawGrids();
  else drawLines();
  drawRunning();
}

function refresh() {
  drawChoices();
  drawList();
  drawOutcome();
  drawDoubt();
  drawStep();
}

// ---------------------------------------------------------------- grids

const panels = {};

function makeGrids(scene) {
  const root = within(".panels", "explorer");
  root.classList.add("grids");
  scene.tiles.forEach(({ svg }, i) => {
    const picture = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">${svg}</svg>`;
    root.style.setProperty(`--tile-${i}`, `url("data:image/svg+xml,${encodeURIComponent(picture)}")`);
  });
  const kinds = {
    seen: ["Observed", "what the log shows"],
    fact: ["Factual", "logged actions, inferred scenario"],
    counter: ["Counterfactual", ""],
  };
  for (const [kind, [title, text]] of Object.entries(kinds)) {
    const grid = make("div", { class: "grid", role: "img" });
    grid.style.gridTemplateColumns = `repeat(${scene.width}, 1fr)`;
    for (let i = 0; i < scene.height * scene.width; i += 1) grid.append(make("i"));
    const note = make("span", {}, text), act = make("span", { class: "act" }), pay = make("b");
    const caption = make("figcaption", {}, make("b", {}, title), note);
    root.append(make("figure", { class: `panel ${kind}` }, caption, grid, make("div", { class: "now" }, act, pay)));
    panels[kind] = { title, grid, note, act, pay };
  }
}

function fillGrid(panel, frames, frame) {
  const { scene, num_samples: draws } = explorer;
  const size = scene.height * scene.width;
  [...panel.grid.children].forEach((tile, i) => {
    const kind = digit[frames.tiles[frame * size + i]];
    const agree = frames.agreement ? digit[frames.agreement[frame * size + i]] : draws;
    tile.style.backgroundImage = `var(--tile-${kind})`;
    tile.style.setProperty("--unsure", 1 - agree / draws);
    tile.dataset.tile = kind;
    tile.title = scene.tiles[kind].name + (frames.agreement ? `, in ${agree} of ${draws} draws` : "");
  });
}

function fillPanel(panel, play, frames) {
  const length = play.rewards.length, frame = Math.min(state.step, length);
  fillGrid(panel, frames, frame);
  panel.act.textContent = state.step < length ? `next: ${play.actions[state.step]}` : "the end";
  const value = soFar(play, frame);
  panel.pay.textContent = `return ${number(value)}`;
  panel.pay.dataset.value = value;
  panel.grid.setAttribute("aria-label", `${panel.title}, step ${frame}, return ${number(value)}`);
}

function drawGrids() {
  const { episode, factual, played } = current();
  fillPanel(panels.seen, factual, episode.observed);
  fillPanel(panels.fact, factual, factual.frames);
  fillPanel(panels.counter, played, played.frames);
  panels.counter.note.textContent = `${explorer.policies[state.policy]}, same scenario, same noise`;
  panels.seen.act.textContent = "";
  panels.seen.pay.textContent = "";
}

// ---------------------------------------------------------------- lines

const WIDTH = 320, LEFT = 52, RIGHT = 10, TOP = 22;

// One chart of two plays over the episode's steps; what lies ahead of the current step is faint.
function chart({ name, labels, height, last, fact, counter, bands, seen }) {
  const every = [...fact, ...counter, ...(seen ?? []).filter((x) => x !== null)];
  for (const band of bands ?? []) every.push(...band.low, ...band.high);
  let low = labels.length ? 0 : Math.min(...every), high = labels.length ? labels.length - 1 : Math.max(...every);
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  const bottom = height - 6;
  const x = (t) => LEFT + ((WIDTH - LEFT - RIGHT) * t) / Math.max(last, 1);
  const y = (v) => bottom - ((bottom - TOP) * (v - low)) / (high - low);
  const stepped = labels.length > 0 || name === "return so far";
  const line = (values) => values.map((v, t) => {
    if (!t) return `M${x(0)} ${y(v)}`;
    return stepped ? `H${x(t)}V${y(v)}` : `L${x(t)} ${y(v)}`;
  }).join("");
  const picture = draw("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": name });
  picture.append(draw("text", { x: 0, y: 12, class: "name" }, name));
  const marks = labels.length ? labels.map((label, i) => [label, i]) : [low, high].map((v) => [number(Number(v.toPrecision(3))), v]);
  for (const [label, v] of marks) {
    picture.append(draw("path", { class: "rule", d: `M${LEFT} ${y(v)}H${WIDTH - RIGHT}` }));
    picture.append(draw("text", { x: LEFT - 6, y: y(v) + 3.5, "text-anchor": "end" }, label));
  }
  for (const { kind, low: from, high: to } of bands ?? []) {
    const back = to.map((v, t) => `L${x(t)} ${y(v)}`).reverse().join("");
    picture.append(draw("path", { class: `band ${kind}`, d: `${from.map((v, t) => `${t ? "L" : "M"}${x(t)} ${y(v)}`).join("")}${back}Z` }));
  }
  picture.append(draw("path", { class: "cursor", d: `M${x(state.step)} ${TOP - 4}V${bottom + 3}` }));
  for (const [kind, values] of [["fact", fact], ["counter", counter]]) {
    const now = Math.min(state.step, values.length - 1);
    picture.append(draw("path", { class: `${kind} ahead`, d: line(values) }));
    picture.append(draw("path", { class: kind, d: line(values.slice(0, now + 1)) }));
    const dot = draw("circle", { class: kind, cx: x(now), cy: y(values[now]), r: 4 });
    dot.dataset.value = values[now];
    picture.append(dot);
  }
  (seen ?? []).forEach((v, t) => {
    if (v !== null && t <= state.step) picture.append(draw("circle", { class: "seen", cx: x(t), cy: y(v), r: 2 }));
  });
  return picture;
}

function drawLines() {
  const { episode, factual, played, last } = current();
  const { channels } = explorer.scene;
  const charts = channels.map(({ name, labels, hidden }, c) => chart({
    name: hidden ? `${name} (hidden)` : name, labels, last,
    height: labels.length ? TOP + 12 + 15 * Math.max(labels.length - 1, 1) : 104,
    fact: factual.frames.values[c], counter: played.frames.values[c],
    bands: [
      { kind: "fact", low: factual.frames.low[c], high: factual.frames.high[c] },
      { kind: "counter", low: played.frames.low[c], high: played.frames.high[c] },
    ],
    seen: episode.observed.values[c],
  }));
  const acts = [["fact", "Factual", factual], ["counter", "Counterfactual", played]].map(([kind, title, play]) => {
    const act = state.step < play.rewards.length ? play.actions[state.step] : "the end";
    return make("div", { class: `panel ${kind}` }, make("figcaption", {}, make("b", {}, title), `next: ${act}`));
  });
  within(".panels", "explorer").replaceChildren(...acts, ...charts);
}

function drawRunning() {
  const { factual, played, last } = current();
  const running = (play) => play.rewards.reduce((total, reward) => [...total, total.at(-1) + reward], [0]);
  within(".running", "explorer").replaceChildren(
    chart({ name: "return so far", labels: [], height: 92, last, fact: running(factual), counter: running(played) }),
  );
}

function drawLegend() {
  const entries = { fact: "factual", counter: "counterfactual, same noise" };
  if (explorer.scene.type === "series") entries.seen = "observed; shaded: nine in ten posterior draws";
  within(".legend", "explorer").replaceChildren(
    ...Object.entries(entries).map(([kind, text]) => make("span", { class: kind }, make("i"), text)),
  );
}

// ---------------------------------------------------------------- what a person may do

function chooseEpisode(i) {
  pause();
  state.episode = i;
  state.step = 0;
  refresh();
}

function keepListed() {
  const places = listed();
  if (places.length && !places.includes(state.episode)) state.episode = places[0];
  state.step = 0;
  refresh();
}

function choosePolicy(i) {
  pause();
  state.policy = i;
  keepListed();
}

function chooseFilter(name) {
  pause();
  state.filter = name;
  keepListed();
}

function chooseOrder(name) {
  state.order = name;
  refresh();
}

function nextEpisode(by) {
  const places = listed();
  if (!places.length) return;
  const at = places.indexOf(state.episode);
  chooseEpisode(places[Math.max(0, Math.min(places.length - 1, at + by))]);
}

function go(step) {
  state.step = Math.max(0, Math.min(current().last, step));
  drawStep();
}

function pause() {
  clearInterval(state.timer);
  state.timer = null;
  drawPlay();
}

function drawPlay() {
  const playing = state.timer !== null;
  byId("play").textContent = playing ? "❚❚" : "▶ play";
  byId("play").setAttribute("aria-label", playing ? "Pause" : "Play");
  byId("play").setAttribute("aria-pressed", String(playing));
}

function togglePlay() {
  if (state.timer !== null) return pause();
  if (state.step >= current().last) go(0);
  state.timer = setInterval(() => {
    go(state.step + 1);
    if (state.step >= current().last) pause();
  }, MILLISECONDS_A_STEP);
  return drawPlay();
}

// Keys are the explorer's while it has the focus, or while nothing has and it fills the middle of the window.
function listens() {
  const root = byId("explorer"), { activeElement: focused, body } = document;
  if (root.contains(focused)) return true;
  const { top, bottom } = root.getBoundingClientRect();
  return (focused === body || !focused) && top < innerHeight / 2 && bottom > innerHeight / 2;
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || !listens()) return;
  const keys = {
    ArrowRight: () => { pause(); go(state.step + 1); },
    ArrowLeft: () => { pause(); go(state.step - 1); },
    ArrowDown: () => nextEpisode(1),
    ArrowUp: () => nextEpisode(-1),
    " ": togglePlay,
  };
  if (event.key === " " && event.target.closest("button")) return;
  const chosen = Number(event.key) - 1;
  if (event.key in keys) keys[event.key]();
  else if (chosen >= 0 && chosen < explorer.policies.length) choosePolicy(chosen);
  else return;
  event.preventDefault();
}

function listenAll() {
  byId("first").addEventListener("click", () => { pause(); go(0); });
  byId("back").addEventListener("click", () => { pause(); go(state.step - 1); });
  byId("forward").addEventListener("click", () => { pause(); go(state.step + 1); });
  byId("play").addEventListener("click", togglePlay);
  byId("scrub").addEventListener("input", (event) => { pause(); go(Number(event.target.value)); });
  // After a click with the mouse the space bar should play, not press the same button again.
  byId("explorer").addEventListener("click", (event) => {
    if (event.detail > 0) byId("explorer").focus({ preventScroll: true });
  });
  document.addEventListener("keydown", onKey);
}

function drawExplorer() {
  const lead = `${explorer.episodes.length} logged episodes, each with the scenario inferred from it in hindsight, and ` +
    `what each policy would have made of that same scenario. Won is a return of ${number(explorer.threshold)} or more.`;
  const shaded = " Hatched tiles are those on which the posterior draws do not agree.";
  within(".lead", "explorer").textContent = lead + (explorer.scene.type === "grid" ? shaded : "");
  if (explorer.scene.type === "grid") makeGrids(explorer.scene);
  else within(".panels", "explorer").classList.add("lines");
  drawLegend();
  listenAll();
  drawPlay();
  state.episode = listed()[0];
  show("explorer");
  refresh();
}

// ---------------------------------------------------------------- figures and facts

function drawFigures() {
  for (const { title, caption, svg } of report.figures) {
    // In an <img> no script of the picture's runs, and its styles stay its own.
    const bytes = new TextEncoder().encode(svg);
    const source = `data:image/svg+xml;base64,${btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""))}`;
    const figure = make("figure", { class: "card" }, make("h3", {}, title), make("img", { src: source, alt: title }), make("figcaption", {}, caption));
    within(".gallery", "figures").append(figure);
  }
  show("figures");
}

function drawFacts() {
  const root = within(".facts", "provenance");
  for (const [name, entries] of Object.entries(report.provenance)) {
    if (!Object.keys(entries).length) continue;
    const list = make("dl");
    for (const [key, value] of Object.entries(entries)) {
      list.append(make("dt", {}, key), make("dd", {}, typeof value === "string" ? value : JSON.stringify(value)));
    }
    root.append(make("div", { class: "card" }, make("h3", {}, name), list));
  }
  if (root.children.length) show("provenance");
}

drawHead();
if (report.table) {
  drawVerdicts(report.table);
  drawTable(report.table);
}
if (explorer) drawExplorer();
if (report.figures.length) drawFigures();
drawFacts();
