-- Give the entries of a stream whose ids are ahead of the clock ids of the present, in their order.
--
-- KEYS  1 STREAM · 2 a key that does not exist, where the entries are meanwhile
-- ARGV  1 the most milliseconds that an id may be ahead
--
-- Returns how many entries there were. The number of entries ever added stays, so that a reader finds its place by how
-- many it has passed (Redis 7 and Valkey). All entries are added again: a last id cannot be lowered below a deleted one.

local BATCH = 1000
local fits, junk = is(KEYS[1], 'stream')
if not fits then
  return junk
end
local latest, changed, after = now_ms() + tonumber(ARGV[1]), 0, '-'
local info, added = redis.call('XINFO', 'STREAM', KEYS[1]), nil
for index = 1, #info, 2 do
  added = info[index] == 'entries-added' and info[index + 1] or added
end
-- Moved aside, since XADD takes no id below the last one of a stream. Nobody sees it missing: a script is atomic.
redis.call('RENAME', KEYS[1], KEYS[2])
repeat
  local entries = redis.call('XRANGE', KEYS[2], after, '+', 'COUNT', BATCH)
  for _, entry in ipairs(entries) do
    local is_ahead = tonumber(string.match(entry[1], '^%d+')) > latest
    redis.call('XADD', KEYS[1], is_ahead and '*' or entry[1], unpack(entry[2]))
    changed = changed + (is_ahead and 1 or 0)
    after = '(' .. entry[1]
  end
until #entries < BATCH
redis.call('UNLINK', KEYS[2])
if after == '-' then -- all were trimmed
  -- An empty stream exists only if an entry was removed from it.
  redis.call('XADD', KEYS[1], '*', 'json', '')
  redis.call('XTRIM', KEYS[1], 'MAXLEN', 0)
end
if added then
  local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
  local id = last and last[1] or string.format('%.0f-0', now_ms() + 1)
  -- XADD has counted the entries that are left; the count must include those that were trimmed before.
  redis.call('XSETID', KEYS[1], id, 'ENTRIESADDED', added, 'MAXDELETEDID', '0-0')
end
return changed
