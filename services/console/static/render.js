// From answers to the page. Text of a catalogue enters by textContent only.

import { CACHES, KINDS, REASONS, RUNGS, SOURCES, VERBS } from "./words.js";

const at = (id) => document.getElementById(id);

function make(tag, className, ...content) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...content);
  return element;
}

export const price = (value) => (value === null || value === undefined ? "" : value.toFixed(2));

export const duration = (ms) => `${ms < 10 ? ms.toFixed(2) : ms.toFixed(1)} ms`;

function age(seconds) {
  if (seconds <= 0) return "Computed now";
  return seconds < 90 ? `${seconds.toFixed(1)} s` : `${(seconds / 60).toFixed(1)} min`;
}

function tags(sources) {
  return sources.map((source) => {
    const [name, text] = SOURCES[source] ?? [source, ""];
    const tag = make("span", `tag from-${source}`, name);
    tag.title = text;
    return tag;
  });
}

function about(item, sources = []) {
  const details = make("span", "details");
  if (item.category) details.append(make("span", "category", item.category));
  if (price(item.price)) details.append(make("span", "price", price(item.price)));
  details.append(...tags(sources));
  return make("span", "about", make("span", "title", item.title), details);
}

function pickButton(item, kind) {
  const button = make("button", "pick", VERBS[kind]);
  button.type = "button";
  button.dataset.item = item.item_id;
  button.setAttribute("aria-label", `${VERBS[kind]}: ${item.title}`);
  return button;
}

export function showResults(items, kind, query) {
  at("results").replaceChildren(
    ...items.map((item) => make("li", "", about(item), pickButton(item, kind))),
    ...(items.length ? [] : [make("li", "empty", query ? "No item holds this text." : "No items.")]),
  );
}

export function showEvents(events) {
  at("event-count").textContent = String(events.length);
  at("no-events").hidden = events.length > 0;
  at("twin").disabled = events.length === 0;
  const newest = events.slice(-8).reverse();
  at("events").replaceChildren(
    ...newest.map((event) =>
      make("li", "", make("span", `kind ${event.type}`, KINDS[event.type]), make("span", "title", event.title)),
    ),
  );
}

// `before`: rank by item id in the list shown earlier, to tell what moved; empty: nothing is marked.
export function showItems(items, described, before, kind) {
  const most = Math.max(...items.map((item) => Math.abs(item.score)), 1e-9);
  at("no-items").hidden = items.length > 0;
  at("items").replaceChildren(
    ...items.map((item) => {
      const details = described.get(item.item_id);
      const moved = make("span", "moved");
      if (before.size) {
        const was = before.get(item.item_id);
        if (was === undefined) {
          moved.append("new");
          moved.classList.add("new");
        } else if (was !== item.rank) {
          moved.append(`${was > item.rank ? "▲" : "▼"}${Math.abs(was - item.rank)}`);
          moved.classList.add(was > item.rank ? "up" : "down");
        }
      }
      const fill = make("span", "fill");
      fill.style.width = `${(100 * Math.max(item.score, 0)) / most}%`;
      const score = make("span", "score", make("span", "value", item.score.toFixed(3)), make("span", "track", fill));
      score.title = "Score; comparable within this page only";
      return make("li", "", make("span", "rank", String(item.rank)), about(details, item.sources), moved, score, pickButton(details, kind));
    }),
  );
}

export function relabel(kind) {
  for (const button of document.querySelectorAll("button.pick")) {
    const title = button.getAttribute("aria-label").split(": ").slice(1).join(": ");
    button.textContent = VERBS[kind];
    button.setAttribute("aria-label", `${VERBS[kind]}: ${title}`);
  }
}

export function showSource(source, roundTripMs) {
  const [name, text] = RUNGS[source.rung] ?? [source.rung, ""];
  at("quality").textContent = source.degraded ? "Degraded" : "Full quality";
  at("quality").className = `chip ${source.degraded ? "low" : "full"}`;
  at("rung").textContent = name;
  at("rung-text").textContent = text;
  at("reasons").replaceChildren(
    ...source.reasons.map((reason) => make("li", "", REASONS[reason] ?? "", " ", make("code", "", reason))),
  );
  const hit = ["local", "shared", "joined"].includes(source.cache);
  at("cache").textContent = CACHES[source.cache] ?? source.cache;
  at("cache").className = hit ? "hit" : "";
  at("age").textContent = hit || source.cache === "stale" ? age(source.cache_age_seconds) : "Computed now";
  at("context").textContent = String(source.context_events);
  at("history").textContent = String(source.history_items);
  at("ranker").textContent = source.ranker_id || "none";
  at("snapshot").textContent = source.snapshot_id || "none";
  at("response").textContent = source.response_id;
  showStages(source.stages, roundTripMs);
}

const SCORING = new Set(["queue", "retrieve", "rerank", "personal"]);

// Stages with where their bars begin, milliseconds from the start. They come in order and do not overlap.
export function waterfall(stages) {
  let start = 0;
  return stages
    .filter((stage) => stage.stage !== "total")
    .map((stage) => ({ ...stage, start: (start += stage.milliseconds) - stage.milliseconds }));
}

function showStages(stages, roundTripMs) {
  const total = stages.find((stage) => stage.stage === "total")?.milliseconds ?? 0;
  const parts = waterfall(stages);
  const scale = Math.max(total, ...parts.map((part) => part.start + part.milliseconds), 1e-6);
  at("total").textContent = duration(total);
  at("stages").replaceChildren(
    ...parts.map((part) => {
      const bar = make("span", SCORING.has(part.stage) ? "bar-fill work" : "bar-fill");
      bar.style.marginLeft = `${(100 * part.start) / scale}%`;
      bar.style.width = `${(100 * part.milliseconds) / scale}%`;
      const lane = make("span", "lane", bar);
      return make("li", "", make("span", "stage", part.stage), lane, make("span", "ms", duration(part.milliseconds)));
    }),
  );
  at("round-trip").textContent = `${duration(roundTripMs)} as this browser sees it, HTTP included.`;
}

export function showShopper(number, session) {
  at("shopper-number").textContent = String(number);
  at("session").textContent = session;
}

export function showPage(number, hasNext) {
  at("page-number").textContent = `Page ${number}`;
  at("previous").disabled = number === 1;
  at("next").disabled = !hasNext;
}

export function showReadiness(ready) {
  const state = !ready.ready ? "off" : ready.degraded ? "low" : "on";
  at("ready").className = `ready ${state}`;
  at("ready-text").textContent = { off: "Not ready", low: "Ready, degraded", on: "Ready" }[state];
}

export function showLive(live) {
  at("live").setAttribute("aria-pressed", String(live));
  at("live-text").textContent = live ? "Live" : "Paused";
}

export function alertPerson(message) {
  at("alert").textContent = message;
  at("alert").hidden = !message;
}
