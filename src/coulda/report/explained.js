// Explanations in the explorer: a slider for k, the curve over it, and what would have been done instead.

const changesOf = (episode, k) => episode.explained.changes[k];

function explainedLead(explorer) {
  return `${explorer.episodes.length} logged episodes, and what at most ${explorer.changes} other decisions would have ` +
    `made of each, on the same noise. Won is a return of ${number(explorer.threshold)} or more.`;
}

function changeSentence(k) {
  if (k === 0) return "As it was";
  return `With at most ${k} ${k === 1 ? "change" : "changes"}`;
}

// The expected return over k, and what holds whatever the mechanism; the chosen k is a dot.
function drawChangeCurve(explained, k) {
  const width = 260, height = 110, left = 52, right = 10, top = 22, bottom = height - 20;
  const every = [...explained.values, ...explained.guaranteed];
  let low = Math.min(...every), high = Math.max(...every);
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  const last = Math.max(explained.values.length - 1, 1);
  const x = (i) => left + ((width - left - right) * i) / last;
  const y = (v) => bottom - ((bottom - top) * (v - low)) / (high - low);
  const line = (values) => values.map((v, i) => `${i ? "L" : "M"}${x(i)} ${y(v)}`).join("");
  const label = `return over the number of changes: ${explained.values.map(number).join(", ")}`;
  const picture = draw("svg", { class: "chart curve", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  picture.append(draw("text", { x: 0, y: 12, class: "name" }, "return over changes"));
  for (const v of [low, high]) {
    picture.append(draw("path", { class: "rule", d: `M${left} ${y(v)}H${width - right}` }));
    picture.append(draw("text", { x: left - 6, y: y(v) + 3.5, "text-anchor": "end" }, number(Number(v.toPrecision(3)))));
  }
  explained.values.forEach((_, i) => picture.append(draw("text", { x: x(i), y: height - 4, "text-anchor": "middle" }, i)));
  if (explained.guaranteed.length) picture.append(draw("path", { class: "guaranteed", d: line(explained.guaranteed) }));
  picture.append(draw("path", { class: "counter", d: line(explained.values) }));
  const dot = draw("circle", { class: "counter", cx: x(k), cy: y(explained.values[k]), r: 4 });
  dot.dataset.value = explained.values[k];
  picture.append(dot);
  return picture;
}

// One button for each change: where it was, what was done, what instead; it goes to its step.
function changeButtons(episode, k, step, choose) {
  return changesOf(episode, k).map((change) => {
    const button = make(
      "button",
      { type: "button", class: "change", "aria-pressed": String(change.step === step) },
      make("b", {}, `step ${change.step}`),
      make("span", { class: "did" }, `did ${change.did}`),
      make("span", { class: "instead" }, `instead ${change.instead}`),
    );
    button.dataset.step = change.step;
    button.addEventListener("click", () => choose(change.step));
    return button;
  });
}

// Credit under the trajectory, on its axis of steps: a bar for what each decision was worth against the policy's own,
// everything else done as it was, and a line for its interval.
function drawCredit({ effect, low, high }, last, step, width) {
  const height = 84, bottom = height - 6;
  const least = Math.min(...low, 0), most = Math.max(...high, 0), span = most - least || 1;
  const x = (t) => LEFT + ((width - LEFT - RIGHT) * t) / Math.max(last, 1);
  const y = (v) => bottom - ((bottom - TOP) * (v - least)) / span;
  const name = "credit: each decision against the policy's own, with 95 % intervals (the case of one change)";
  const picture = draw("svg", { class: "chart credit", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${name}: ${effect.map(number).join(", ")}` });
  picture.append(draw("text", { x: 0, y: 12, class: "name" }, name));
  for (const v of new Set([least, 0, most])) {
    picture.append(draw("path", { class: "rule", d: `M${LEFT} ${y(v)}H${width - RIGHT}` }));
    picture.append(draw("text", { x: LEFT - 6, y: y(v) + 3.5, "text-anchor": "end" }, number(Number(v.toPrecision(3)))));
  }
  effect.forEach((worth, t) => {
    const kind = `${worth < 0 ? "worse" : "better"}${t === step ? " now" : ""}`, from = x(t) + 1, wide = Math.max(x(t + 1) - from - 1, 1);
    const bar = draw("rect", { class: kind, x: from, y: Math.min(y(worth), y(0)), width: wide, height: Math.abs(y(worth) - y(0)) });
    Object.assign(bar.dataset, { effect: worth, low: low[t], high: high[t] });
    bar.append(draw("title", {}, `step ${t}: ${number(worth)} (${number(low[t])} to ${number(high[t])})`));
    picture.append(bar, draw("path", { class: "interval", d: `M${from + wide / 2} ${y(low[t])}V${y(high[t])}` }));
  });
  return picture;
}
