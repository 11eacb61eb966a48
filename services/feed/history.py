"""A user's history as it stands in Redis: one value, how it is packed, and the scripts that change it.

The value is a JSON array: the number of its format, then of anything at all, then the items, latest first, in columns:

    [1, [tag, at, times, first, last], [item ids], [tags], [ats], [times], [firsts], [lasts]]

`tag` and `at` are of the latest session in which it was bought, the other three of the sessions before: see
`Bought`. So the session at hand can be taken out again, whose purchases are no history yet: training counts what was
bought before a session begins. Sessions are told apart by comparing with the latest one only: a user who buys in two
sessions by turns (A, B, A) has bought in three.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import starmap

from indexer.contract.purchases import UserPurchases
from services.domain import PastPurchase, PastPurchases
from services.feed.script import Script

FORMAT = 1
LIMIT_MS = 10**14 - 1
"""Lua's cjson writes 14 digits: until the year 5138. Moments beyond, either way, are stored as this one, and a history
with larger numbers is none."""

# A row: {item id, tag, at, times, first, last}. `anything` is a row without an item.
_ROWS = """
local function all_are(kind, values, count)
  if type(values) ~= 'table' or #values ~= count then return false end
  for i = 1, count do
    local value = values[i]
    if type(value) ~= kind or (kind == 'number' and not (math.abs(value) < 1e14)) then return false end
  end
  return true
end

local function unpacked(text)
  local read, found = pcall(cjson.decode, text)
  if not read or type(found) ~= 'table' or found[1] ~= 1 then return nil end
  local any, ids = found[2], found[3]
  if type(any) ~= 'table' or type(any[1]) ~= 'string' or type(ids) ~= 'table' then return nil end
  if not all_are('number', {any[2], any[3], any[4], any[5]}, 4) then return nil end
  local rows = {}
  for column = 3, 8 do
    if not all_are(column <= 4 and 'string' or 'number', found[column], #ids) then return nil end
    for i, value in ipairs(found[column]) do
      if column == 3 then rows[i] = {value} else rows[i][column - 2] = value end
    end
  end
  return {anything = {'', any[1], any[2], any[3], any[4], any[5]}, rows = rows}
end

local function packed(history, most)
  local columns = {{}, {}, {}, {}, {}, {}}
  for i = 1, math.min(most, #history.rows) do
    for column = 1, 6 do columns[column][i] = history.rows[i][column] end
  end
  local any = history.anything
  return cjson.encode({1, {any[2], any[3], any[4], any[5], any[6]}, unpack(columns)})
end

local function latest(row)
  if row[4] > 0 then return math.max(row[3], row[6]) end
  return row[3]
end

local function earliest(row)
  if row[4] > 0 then return math.min(row[3], row[5]) end
  return row[3]
end
"""

RECORD = Script(
    _ROWS
    + """
-- KEYS: history, one mark per purchase. ARGV: mark lifetime ms, most items, history lifetime ms, session's tag, then
-- per purchase: item, moment. Returns how many were new (-2: a key is of another type), and 1 if what stood there was
-- no history and had to go. Everything is computed before the first write: see event_stream.
local function bought(row, item, tag, at)
  if not row then return {item, tag, at, 0, 0, 0} end
  if row[2] == tag then return {item, tag, math.max(row[3], at), row[4], row[5], row[6]} end
  return {item, tag, at, row[4] + 1, earliest(row), latest(row)}
end

local new = {}
for i = 2, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 0 then new[#new + 1] = i end
end
if #new == 0 then return {0, 0} end
local found = redis.pcall('GET', KEYS[1])
if type(found) == 'table' then return {-2, 0} end
local history = found and unpacked(found)
local lost = found and not history
history = history or {rows = {}}
local rows, tag = history.rows, ARGV[4]
for _, i in ipairs(new) do
  local item, at = ARGV[2 * i + 1], tonumber(ARGV[2 * i + 2])
  history.anything = bought(history.anything, '', tag, at)
  local old
  for place, row in ipairs(rows) do
    if row[1] == item then old = table.remove(rows, place) break end
  end
  local row, place = bought(old, item, tag, at), 1
  while rows[place] and latest(rows[place]) > latest(row) do place = place + 1 end
  table.insert(rows, place, row)
end
redis.call('SET', KEYS[1], packed(history, tonumber(ARGV[2])), 'PX', ARGV[3])
for _, i in ipairs(new) do redis.call('SET', KEYS[i], '1', 'PX', ARGV[1]) end
return {#new, lost and 1 or 0}
"""
)

MERGE = Script(
    _ROWS
    + """
-- KEYS: histories. ARGV: most items, lifetime ms, then what is to be merged into each. Returns how many stood there
-- before, how many of them were no history and had to go, and how many keys are of another type and stay.
local function joined(one, other)
  if not one or not other then return one or other end
  if one[3] < other[3] or (one[3] == other[3] and one[2] < other[2]) then one, other = other, one end
  local times, first, last = one[4], math.huge, -math.huge
  if times > 0 then first, last = one[5], one[6] end
  if one[2] == other[2] then
    times = math.max(times, other[4])
    if other[4] > 0 then first, last = math.min(first, other[5]), math.max(last, other[6]) end
  else
    times = math.max(times, latest(other) < one[3] and other[4] + 1 or other[4])
    first, last = math.min(first, earliest(other)), math.max(last, latest(other))
  end
  if times == 0 then first, last = 0, 0 end
  return {one[1], one[2], one[3], times, first, last}
end

local function merged(one, other)
  local by_item, rows = {}, {}
  for _, row in ipairs(one.rows) do by_item[row[1]] = row end
  for _, row in ipairs(other.rows) do by_item[row[1]] = joined(by_item[row[1]], row) end
  for _, row in pairs(by_item) do rows[#rows + 1] = row end
  table.sort(rows, function(a, b)
    if latest(a) ~= latest(b) then return latest(a) > latest(b) end
    return a[1] < b[1]
  end)
  return {anything = joined(one.anything, other.anything), rows = rows}
end

local known, lost, foreign = 0, 0, 0
for i, key in ipairs(KEYS) do
  local text = ARGV[i + 2]
  local found = redis.pcall('GET', key)
  if type(found) == 'table' then
    foreign = foreign + 1
  else
    if found then
      known = known + 1
      local before = found ~= text and unpacked(found)
      if before then text = packed(merged(before, unpacked(text)), tonumber(ARGV[1]))
      elseif found ~= text then lost = lost + 1 end
    end
    redis.call('SET', key, text, 'PX', ARGV[2])
  end
end
return {known, lost, foreign}
"""
)


def pack(bought: UserPurchases) -> bytes:
    """The value of a history; `bought` is within the limits of its store."""
    anything, items = bought.anything, bought.items
    (whole,) = zip(
        anything.tags, anything.at_ms, anything.times, anything.first_ms, anything.last_ms, strict=True
    )  # one entry
    columns = bought.item_ids, items.tags, items.at_ms, items.times, items.first_ms, items.last_ms
    text = json.dumps([FORMAT, whole, *columns], separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def unpack(packed: bytes, tag: str, most: int) -> PastPurchases:
    """The history without the session of that tag (empty: none); at most `most` items.

    Raises ValueError or TypeError for anything that is not the value of a history.
    """
    number, whole, *columns = json.loads(packed)
    if number != FORMAT:
        raise ValueError(f"history: expected format {FORMAT}, got {number!r:.20}")
    item_ids, tags, at, times, first, last = columns
    _require(str, item_ids, tags, whole[:1])
    _require(int, at, times, first, last, whole[1:])
    _require_within(LIMIT_MS, at, times, first, last, whole[1:])
    session, _, sessions, _, _ = whole
    items = []
    for item_id, of, at_ms, earlier, first_ms, last_ms in zip(item_ids, tags, at, times, first, last, strict=True):
        if of == tag:
            if earlier:
                items.append((item_id, earlier, first_ms, last_ms))
        elif earlier:
            items.append((item_id, earlier + 1, min(first_ms, at_ms), max(last_ms, at_ms)))
        else:
            items.append((item_id, 1, at_ms, at_ms))
    if tag in tags:
        items.sort(key=lambda item: item[3], reverse=True)  # stable, too, when reversed
    return PastPurchases(tuple(starmap(PastPurchase, items[:most])), sessions + (session != tag))


def clamped(moment_ms: int) -> int:
    """The moment, within what the store can hold."""
    return max(-LIMIT_MS, min(LIMIT_MS, moment_ms))


def _require(kind: type, *columns: Sequence[object]) -> None:
    if {each for column in columns for each in set(map(type, column))} != {kind}:
        raise TypeError(f"history: expected columns of {kind.__name__}")


def _require_within(limit: int, *columns: Sequence[int]) -> None:
    if any(column and max(map(abs, column)) > limit for column in columns):
        raise ValueError(f"history: expected numbers up to {limit}")
