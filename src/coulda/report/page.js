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
    for (const why of new Set(methods.map((found) => found.why))) {
      const names = methods.filter((found) => found.why === why).map((found) => found.method);
      list.append(make("dt", {}, names.join(", ")), make("dd", {}, why));
    }
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
  if (Object.hasOwn(table.truth, row.policy)) place("true", share(table.truth[row.policy], scale));
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
    make("span", { class: "word" }, row.verdict),
    ...(row.findings.length ? row.findings : [row]).map((finding) => mark(finding.verdict)),
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

function differencesList(table) {
  const list = make("ul", { class: "findings differences" });
  for (const { verdict, sentence } of table.differences) list.append(make("li", {}, mark(verdict), ` ${sentence}`));
  return list;
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
    const truth = Object.hasOwn(table.truth, policy) ? `in truth ${number(table.truth[policy])}` : "";
    body.append(make("tr", { class: "policy" }, make("th", { colspan: 4 }, policy, make("span", { class: "truth" }, truth))));
    for (const row of table.rows.filter((row) => row.policy === policy)) {
      body.append(...estimateRows(row, table, scale, `why-${body.children.length}`));
    }
  }
  within(".estimates", "table").append(make("table", {}, head, body), differencesList(table));
  const lead = within(".lead", "table");
  lead.append(`From ${table.num_episodes.toLocaleString("en-US")} logged episodes.`);
  lead.append(make("span", { class: "key thin" }), `the log's own mean, ${number(table.logged_mean)}`);
  if (Object.keys(table.truth).length) lead.append(make("span", { class: "key" }), "the truth");
  lead.append(". Tap a row for its reasons.");
  show("table");
}

// ---------------------------------------------------------------- figures and facts

function drawModel(model) {
  const titles = { trust: "Trust it", caution: "Be careful with it", "do not trust": "Do not trust it" };
  within(".lead", "model").append(mark(model.verdict), ` ${titles[model.verdict]}. ${model.sentences.join(" ")}`);
  const list = make("ul", { class: "findings" });
  for (const { name, verdict, sentence } of model.findings) {
    list.append(make("li", {}, mark(verdict), " ", make("b", {}, name), ` ${sentence}`));
  }
  within(".card", "model").append(list);
  show("model");
}

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
if (report.model) drawModel(report.model);
if (report.figures.length) drawFigures();
drawFacts();
