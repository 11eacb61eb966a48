// The calls to the service. A failed one throws an Error whose message can be shown.

async function answer(response) {
  const body = await response.json().catch(() => null);
  if (response.ok) return body;
  const fault = body && body.error;
  if (!fault) throw new Error(`The service answered with status ${response.status}.`);
  throw new Error(fault.field ? `${fault.field}: ${fault.message}` : fault.message);
}

async function call(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Error("The service does not answer.");
  }
  return response;
}

function post(path, body, headers = {}) {
  return call(path, {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers },
    body: JSON.stringify(body),
  });
}

export async function getFeed(request) {
  return answer(await post("/v1/feed", request));
}

export async function recordEvents(request, token) {
  return answer(await post("/v1/events", request, token ? { Authorization: `Bearer ${token}` } : {}));
}

export async function findItems(query, limit, signal) {
  const parameters = new URLSearchParams({ query, limit: String(limit) });
  return answer(await call(`/v1/items?${parameters}`, { signal }));
}

export async function readiness() {
  return (await call("/readyz")).json();
}

const known = new Map();

// Titles, categories and prices by id, from memory where they are known.
export async function describeItems(ids, snapshot) {
  if (known.snapshot !== snapshot) {
    known.clear();
    known.snapshot = snapshot;
  }
  const asked = ids.filter((id) => !known.has(id));
  if (asked.length) {
    const found = await answer(await call(`/v1/items?${new URLSearchParams(asked.map((id) => ["id", id]))}`));
    for (const item of found.items) known.set(item.item_id, item);
  }
  return new Map(ids.map((id) => [id, known.get(id) ?? { item_id: id, title: id, category: "", price: null }]));
}
