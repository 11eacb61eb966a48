// The service's words in plain language.

export const RUNGS = {
  ranked: ["Ranked", "Candidates were retrieved for this session and reranked."],
  blended: ["Blended", "Reranked, but without vector retrieval: popular items stand in for it."],
  retrieved: ["Retrieved", "Candidates in the order of the blend; they were not reranked."],
  stale: ["Stale", "An earlier answer to the same question, past its lifetime."],
  popular_category: ["Popular in the category", "What sells in this category."],
  popular: ["Popular", "What sells overall, or in the region."],
  unspecified: ["Unknown", ""],
};

export const CACHES = {
  off: "Switched off",
  unused: "Not needed",
  local: "Hit in this process",
  shared: "Hit in Redis",
  joined: "Shared a running computation",
  miss: "Miss: computed now",
  stale: "An expired entry",
  unspecified: "Unknown",
};

export const REASONS = {
  no_snapshot: "There is no snapshot to answer from.",
  previous_snapshot: "The current snapshot was refused; the one before it answers.",
  no_index: "The snapshot's vector index, or what it is asked with, cannot be used.",
  no_neighbours: "The snapshot's lists of neighbours cannot be used.",
  no_ranker: "The snapshot's ranker cannot be used.",
  session_unavailable: "The session could not be read: Redis does not answer.",
  history_unavailable: "This person's history could not be read; the page does without it.",
  admission: "The service is full, and nobody waits at the door.",
  queue_full: "The scoring queue is full.",
  no_time: "The time budget was used up.",
  retrieval_failed: "Retrieval failed.",
  rerank_failed: "The ranker failed.",
  scoring_failed: "Scoring failed.",
  internal_error: "Something unforeseen failed; it is in the service's log.",
  cache_unavailable: "Redis does not answer; this page was computed without it.",
  no_context: "Nothing is known of this shopper yet, so popularity is the ranking.",
  no_history: "No purchases of this person are known.",
  unknown_category: "The snapshot does not know this category.",
  unknown_region: "The snapshot does not know this region.",
  page_token_restarted: "The feed changed since the page before; it was started again.",
};

// What brought an item: a short word, and what it means.
export const SOURCES = {
  ann: ["near", "Near this session in vector space."],
  neighbours: ["together", "Bought or seen together with items of this session."],
  history: ["again", "Bought by this person before."],
  popularity: ["popular", "Popular in the region or the category."],
  unspecified: ["unknown", ""],
};

export const KINDS = { view: "Viewed", click: "Clicked", cart: "In the cart", purchase: "Bought" };

export const VERBS = { view: "View", click: "Click", cart: "Add", purchase: "Buy" };
