// The explorer: state, what is drawn from it, and what a person may do. Loaded after page.js.

const FILTERS = {
  all: "all", "lost-won": "lost → won", "won-lost": "won → lost", same: "same",
};
const MILLISECONDS_A_STEP = 320;
const state = { policy: 0, filter: "all", order: "change", episode: 0, step: 0, timer: null, changes: 0 };

const explorer = report.explorer;
const won = (value) => value >= explorer.threshold;
const factualReturn = (episode) => sum(episode.factual.rewards);
const explains = () => explorer.changes > 0;
const playOf = (episode) => explains() ? episode.explained.plays[state.changes] : episode.counterfactual[state.policy];
const wouldReturn = (episode) => explains() ? episode.explained.values[state.changes] : sum(playOf(episode).rewards);
const counterfactualName = () => explains() ? changeSentence(state.changes) : `Under ${explorer.policies[state.policy]}`;

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
  const played = playOf(episode);
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
      make("span", { class: "flip" }, kind === "same" ? "" : kind === "lost-won" ? "won" : "lost"),
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
    `. ${counterfactualName()} it would have been `, word(after), " with ",
    shown("counterfactual-return", after), explains() ? " in expectation." : ".",
  );
}

function drawDoubt() {
  const { episode, factual, played } = current();
  if (explains()) {
    const { sentence, verdict, reasons } = episode.explained;
    within(".doubt", "explorer").replaceChildren(`${sentence} `, mark(verdict), ` ${verdict}: ${reasons}`);
    return;
  }
  const wins = played.returns.filter(won).length;
  const paragraph = within(".doubt", "explorer");
  paragraph.replaceChildren(
    `On ${explorer.num_samples} scenarios drawn from the posterior of this episode, ${explorer.policies[state.policy]} ` +
      `wins ${wins} times, with a mean return of ${number(sum(played.returns) / played.returns.length)}.`,
  );
  const replayed = factual.returns[0], logged = sum(factual.rewards);
  if (Math.abs(replayed - logged) > 1e-3 * (1 + Math.abs(logged))) {
    const text = `On the scenario shown the logged actions pay ${number(replayed)}, in the log ${number(logged)}: it is not quite the one that was.`;
    paragraph.prepend(make("span", { class: "warn" }, text));
  }
}

function drawExplained() {
  if (!explains()) return;
  const { episode } = current(), { explained } = episode;
  byId("changes").value = state.changes;
  byId("changes").setAttribute("aria-valuetext", changeSentence(state.changes));
  byId("changes-shown").textContent = `${state.changes} of at most ${explorer.changes}`;
  const buttons = changeButtons(episode, state.changes, state.step, (step) => { pause(); go(step); });
  const none = make("span", { class: "none" }, state.changes ? "No change would have been better." : "As it was.");
  within(".changed", "explorer").replaceChildren(...(buttons.length ? buttons : [none]));
  within(".change-charts", "explorer").replaceChildren(drawChangeCurve(explained, state.changes));
}

function chooseChanges(k) {
  pause();
  state.changes = Math.max(0, Math.min(explorer.changes, k));
  keepListed();
}

// What is done next; where it is a change, on both sides what was done and what instead.
function nextAct(play) {
  if (state.step >= play.rewards.length) return "the end";
  const { episode } = current();
  const change = explains() && changesOf(episode, state.changes).find(({ step }) => step === state.step);
  return change ? `did ${change.did} / instead ${change.instead}` : `next: ${play.actions[state.step]}`;
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
  drawExplained();
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
  panel.act.textContent = nextAct(play);
  panel.act.classList.toggle("is-change", panel.act.textContent.startsWith("did "));
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
  const who = explains() ? changeSentence(state.changes).toLowerCase() : explorer.policies[state.policy];
  panels.counter.note.textContent = `${who}, same scenario, same noise`;
  panels.seen.act.textContent = "";
  panels.seen.pay.textContent = "";
}

// ---------------------------------------------------------------- lines

const LEFT = 52, RIGHT = 10, TOP = 22;

// One chart of two plays over the episode's steps; what lies ahead of the current step is faint.
function chart({ name, labels, width, height, last, fact, counter, bands, seen }) {
  const known = (values) => values.some((x) => x !== null);
  const lines = [["fact", fact], ["counter", counter]].filter(([, values]) => known(values));
  const shaded = (bands ?? []).filter((band) => known(band.low));
  const every = [...lines.flatMap(([, values]) => values), ...(seen ?? []).filter((x) => x !== null)];
  for (const band of shaded) every.push(...band.low, ...band.high);
  let low = labels.length ? 0 : Math.min(...every), high = labels.length ? labels.length - 1 : Math.max(...every);
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  const bottom = height - 6;
  const x = (t) => LEFT + ((width - LEFT - RIGHT) * t) / Math.max(last, 1);
  const y = (v) => bottom - ((bottom - TOP) * (v - low)) / (high - low);
  const stepped = labels.length > 0 || name === "return so far";
  const line = (values) => values.map((v, t) => {
    if (!t) return `M${x(0)} ${y(v)}`;
    return stepped ? `H${x(t)}V${y(v)}` : `L${x(t)} ${y(v)}`;
  }).join("");
  const picture = draw("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": name });
  picture.append(draw("text", { x: 0, y: 12, class: "name" }, name));
  const marks = labels.length ? labels.map((label, i) => [label, i]) : [low, high].map((v) => [number(Number(v.toPrecision(3))), v]);
  for (const [label, v] of marks) {
    picture.append(draw("path", { class: "rule", d: `M${LEFT} ${y(v)}H${width - RIGHT}` }));
    picture.append(draw("text", { x: LEFT - 6, y: y(v) + 3.5, "text-anchor": "end" }, label));
  }
  for (const { kind, low: from, high: to } of shaded) {
    const back = to.map((v, t) => (stepped ? `V${y(v)}H${x(t)}` : `L${x(t)} ${y(v)}`)).reverse().join("");
    picture.append(draw("path", { class: `band ${kind}`, d: `${line(from)}${back}Z` }));
  }
  picture.append(draw("path", { class: "cursor", d: `M${x(state.step)} ${TOP - 4}V${bottom + 3}` }));
  for (const [kind, values] of lines) {
    const now = Math.min(state.step, values.length - 1);
    picture.append(draw("path", { class: `${kind} ahead`, d: line(values) }));
    picture.append(draw("path", { class: kind, d: line(values.slice(0, now + 1)) }));
    const dot = draw("circle", { class: kind, cx: x(now), cy: y(values[now]), r: 4 });
    dot.dataset.value = values[now];
    picture.append(dot);
  }
  const { episode } = current();
  for (const { step } of explains() ? changesOf(episode, state.changes) : []) {
    for (const [kind, values] of lines) {
      if (step < values.length) picture.append(draw("circle", { class: `${kind} changed-step`, cx: x(step), cy: y(values[step]), r: 5 }));
    }
  }
  (seen ?? []).forEach((v, t) => {
    if (v !== null && t <= state.step) picture.append(draw("circle", { class: "seen", cx: x(t), cy: y(v), r: 2 }));
  });
  return picture;
}

// What was done at each step, in the log and otherwise, each action in a shade of its own.
function actionTrack(width, last, factual, played) {
  const names = [...new Set([...factual.actions, ...played.actions])];
  const picture = draw("svg", { class: "chart actions", viewBox: `0 0 ${width} 66`, role: "img", "aria-label": "actions" });
  picture.append(draw("text", { x: 0, y: 12, class: "name" }, "actions"));
  const step = (width - LEFT - RIGHT) / Math.max(last, 1);
  [["fact", "logged", factual], ["counter", "policy", played]].forEach(([kind, title, play], row) => {
    const y = TOP + 22 * row;
    picture.append(draw("text", { x: LEFT - 6, y: y + 12, "text-anchor": "end" }, title));
    play.actions.forEach((action, t) => {
      const shade = names.length > 1 ? names.indexOf(action) / (names.length - 1) : 0;
      const cell = draw("g", { class: `act ${kind}${t < state.step ? "" : " ahead"}` });
      const box = { x: LEFT + t * step, y, width: Math.max(step - 2, 1), height: 17, rx: 3, "fill-opacity": 0.15 + 0.6 * shade };
      cell.append(draw("rect", box), draw("title", {}, `step ${t}: ${action}`));
      // About six pixels a letter.
      const room = Math.floor((step - 4) / 6);
      if (room > 0) {
        const shown = action.length > room ? `${action.slice(0, Math.max(room - 1, 1))}${room > 1 ? "…" : ""}` : action;
        cell.append(draw("text", { x: LEFT + t * step + step / 2 - 1, y: y + 12, "text-anchor": "middle" }, shown));
      }
      picture.append(cell);
    });
  });
  return picture;
}

function drawLines() {
  const { episode, factual, played, last } = current();
  const root = within(".panels", "explorer"), whole = root.clientWidth || 320;
  const { channels } = explorer.scene;
  // A few charts are as wide as the return below them; many stand side by side.
  const few = channels.length <= 3;
  root.classList.toggle("few", few);
  const charts = channels.map(({ name, labels, hidden }, c) => chart({
    name: hidden ? `${name} (hidden)` : name, labels, last, width: few ? whole : 320,
    height: labels.length ? TOP + 12 + 15 * Math.max(labels.length - 1, 1) : 104,
    fact: factual.frames.values[c], counter: played.frames.values[c],
    bands: [
      { kind: "fact", low: factual.frames.low[c], high: factual.frames.high[c] },
      { kind: "counter", low: played.frames.low[c], high: played.frames.high[c] },
    ],
    seen: episode.observed.values[c],
  }));
  const acts = [["fact", "Factual", factual], ["counter", "Counterfactual", played]].map(([kind, title, play]) => {
    const act = nextAct(play), kinds = `panel ${kind}${act.startsWith("did ") ? " is-change" : ""}`;
    return make("div", { class: kinds }, make("figcaption", {}, make("b", {}, title), act));
  });
  root.replaceChildren(...acts, ...charts, actionTrack(whole, last, factual, played));
}

function drawRunning() {
  const { episode, factual, played, last } = current();
  const root = within(".running", "explorer");
  const running = (play) => play.rewards.reduce((total, reward) => [...total, total.at(-1) + reward], [0]);
  const width = root.clientWidth || 320;
  const returns = { name: "return so far", labels: [], width, height: 92, last, fact: running(factual), counter: running(played) };
  const credit = episode.explained?.credit;
  root.replaceChildren(chart(returns), ...(credit ? [drawCredit(credit, last, state.step, width)] : []));
}

function drawLegend() {
  const entries = { fact: "factual", counter: "counterfactual, same noise" };
  if (explains()) entries["changed-step"] = "decided otherwise";
  const shown = (episode) => episode.observed.values?.some((channel) => channel.some((x) => x !== null));
  if (explorer.scene.type === "series") {
    entries.seen = `${explorer.episodes.some(shown) ? "observed; " : ""}shaded: nine in ten posterior draws`;
  }
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
  if (event.target.id === "changes" && event.key.startsWith("Arrow")) return;  // the slider's own keys
  if (explains()) Object.assign(keys, { "+": () => chooseChanges(state.changes + 1), "-": () => chooseChanges(state.changes - 1) });
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
  byId("changes").addEventListener("input", (event) => chooseChanges(Number(event.target.value)));
  byId("scrub").addEventListener("input", (event) => { pause(); go(Number(event.target.value)); });
  // After a click with the mouse the space bar should play, not press the same button again.
  byId("explorer").addEventListener("click", (event) => {
    if (event.detail > 0) byId("explorer").focus({ preventScroll: true });
  });
  document.addEventListener("keydown", onKey);
  addEventListener("resize", drawStep);
}

function drawExplorer() {
  const lead = `${explorer.episodes.length} logged episodes, each with the scenario inferred from it in hindsight, and ` +
    `what each policy would have made of that same scenario. Won is a return of ${number(explorer.threshold)} or more.`;
  const shaded = " Hatched tiles are those on which the posterior draws do not agree.";
  const told = lead + (explorer.scene.type === "grid" ? shaded : "");
  within(".lead", "explorer").textContent = explains() ? explainedLead(explorer) : told;
  if (explains()) {
    byId("changes").max = explorer.changes;
    state.changes = explorer.changes;
    within(".explained", "explorer").hidden = false;
    within(".change-keys", "explorer").hidden = false;
  }
  if (explorer.scene.type === "grid") makeGrids(explorer.scene);
  else within(".panels", "explorer").classList.add("lines");
  drawLegend();
  listenAll();
  drawPlay();
  state.episode = listed()[0];
  show("explorer");
  refresh();
}

if (explorer) drawExplorer();
