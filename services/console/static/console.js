// What a person does on the page, and what follows.

import { describeItems, findItems, getFeed, readiness, recordEvents } from "./service.js";
import * as render from "./render.js";

const REFRESH_MS = 3000;
const PAGE_SIZE = 20;
const at = (id) => document.getElementById(id);
const fresh = () => crypto.getRandomValues(new Uint32Array(2)).reduce((text, word) => text + word.toString(36), "");

// `carried`: events that another shopper's session holds and this one sends along; `own`: recorded for this session.
const state = {
  shopper: 1,
  session: `web-${fresh()}`,
  user: `person-${fresh()}`,
  own: [],
  carried: [],
  tokens: [""],
  shown: { key: "", ranks: new Map() },
  response: "",
  live: true,
  asked: 0,
};

const kind = () => document.querySelector('input[name="kind"]:checked').value;
const wire = ({ event_id, item_id, type, occurred_at }) => ({ event_id, item_id, type, occurred_at });

async function refresh() {
  const asking = ++state.asked;
  const request = {
    session_id: state.session,
    user_id: state.user,
    surface: "console",
    category: at("category").value,
    region: at("region").value,
    page_size: PAGE_SIZE,
    page_token: state.tokens.at(-1),
    recent_events: state.carried.slice(-100).map(wire),
  };
  try {
    const start = performance.now();
    const page = await getFeed(request);
    const roundTripMs = performance.now() - start;
    const described = await describeItems(page.items.map((item) => item.item_id), page.provenance.snapshot_id);
    if (asking !== state.asked) return; // A later question is on its way; this answer is of no interest.
    show(page, described, roundTripMs);
    render.alertPerson("");
  } catch (error) {
    if (asking === state.asked) render.alertPerson(error.message);
  }
}

function show(page, described, roundTripMs) {
  // Items are only drawn anew when they differ, so that a refresh takes away neither focus nor the marks of what moved.
  const key = JSON.stringify(page.items);
  if (key !== state.shown.key) {
    const ranks = new Map(page.items.map((item) => [item.item_id, item.rank]));
    render.showItems(page.items, described, state.tokens.length === 1 ? state.shown.ranks : new Map(), kind());
    state.shown = { key, ranks };
  }
  state.response = page.provenance.response_id;
  state.next = page.next_page_token;
  render.showSource(page.provenance, roundTripMs);
  render.showPage(state.tokens.length, Boolean(page.next_page_token));
}

async function pick(itemId, responseId) {
  const event = {
    event_id: `web-${fresh()}`,
    item_id: itemId,
    type: kind(),
    occurred_at: new Date().toISOString(),
    response_id: responseId,
  };
  try {
    await recordEvents(
      { session_id: state.session, user_id: state.user, region: at("region").value, events: [event] },
      at("token")?.value,
    );
  } catch (error) {
    render.alertPerson(`Not stored: ${error.message}`);
    return;
  }
  const described = await describeItems([itemId], at("snapshot").textContent);
  state.own.push({ ...event, title: described.get(itemId).title });
  render.showEvents([...state.carried, ...state.own]);
  await restart();
}

// The first page of the feed, by the question as it is now.
async function restart() {
  state.tokens = [""];
  await refresh();
}

async function turn(tokens) {
  state.tokens = tokens;
  await refresh();
  at("feed").scrollIntoView();
}

// Another person with the same recent events: the same question.
async function become(carried) {
  state.shopper += 1;
  state.user = `person-${fresh()}`;
  await begin(carried);
}

// A new session. What this person bought in the one before is history now.
async function begin(carried) {
  state.session = `web-${fresh()}`;
  state.carried = carried;
  state.own = [];
  render.showShopper(state.shopper, state.session);
  render.showEvents(carried);
  await restart();
}

let searching = new AbortController();

async function search() {
  searching.abort();
  searching = new AbortController();
  const query = at("search").value.trim();
  try {
    const found = await findItems(query, query ? 12 : 4, searching.signal);
    render.showResults(found.items, kind(), query);
  } catch (error) {
    if (!searching.signal.aborted) render.alertPerson(error.message);
  }
}

async function tick() {
  if (!state.live || document.hidden) return;
  await Promise.all([refresh(), look()]);
}

async function look() {
  render.showReadiness(await readiness().catch(() => ({ ready: false })));
}

function listen() {
  let typing;
  at("search").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(search, 150);
  });
  for (const list of ["results", "items"]) {
    at(list).addEventListener("click", (event) => {
      const button = event.target.closest("button.pick");
      if (button) pick(button.dataset.item, list === "items" ? state.response : "");
    });
  }
  for (const radio of document.querySelectorAll('input[name="kind"]')) {
    radio.addEventListener("change", () => render.relabel(kind()));
  }
  for (const filter of ["category", "region"]) at(filter).addEventListener("change", restart);
  at("next").addEventListener("click", () => turn([...state.tokens, state.next]));
  at("previous").addEventListener("click", () => turn(state.tokens.slice(0, -1)));
  at("twin").addEventListener("click", () => become([...state.carried, ...state.own]));
  at("fresh").addEventListener("click", () => begin([]));
  at("live").addEventListener("click", () => {
    state.live = !state.live;
    render.showLive(state.live);
    tick();
  });
}

listen();
render.showShopper(state.shopper, state.session);
render.showEvents([]);
search();
tick();
setInterval(tick, REFRESH_MS);
