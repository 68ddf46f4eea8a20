-- Point a model at one of its versions, if that version is complete and the writer is not stale.
--
-- KEYS  1 manifest HASH · 2 active STRING · 3 active_epoch STRING · 4 history LIST · 5 events STREAM
--       6… the version's chunks, in order
-- ARGV  1 version · 2 the writer's epoch · 3 "activate" or "rollback" · 4 how many versions the history keeps
--
-- Returns {"ok", the version active before or ""}, or what stands in the way:
--   {"absent"} no manifest · {"chunk", index, bytes expected, bytes there} · {"stale", epoch of the last activation}
--
-- The history lists what was active before, latest first. Going back takes the target, and all that came after it,
-- off the list, so that the next rollback goes further back.

local version, epoch, way = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local manifest = redis.call('HMGET', KEYS[1], 'size', 'chunk_bytes', 'chunks')
if not manifest[1] then
  return {'absent'}
end

local last_epoch = tonumber(redis.call('GET', KEYS[3]) or '0')
if epoch < last_epoch then
  return {'stale', last_epoch}
end

local left, chunk_bytes = tonumber(manifest[1]), tonumber(manifest[2])
for i = 1, tonumber(manifest[3]) do
  local expected, there = math.min(left, chunk_bytes), redis.call('STRLEN', KEYS[5 + i])
  if there ~= expected then
    return {'chunk', i - 1, expected, there}
  end
  left = left - expected
end

redis.call('SET', KEYS[3], ARGV[2])
local before = redis.call('GET', KEYS[2])
if before == version then
  return {'ok', before}
end

if way == 'rollback' then
  local history = redis.call('LRANGE', KEYS[4], 0, -1)
  for i = 1, #history do
    if history[i] == version then
      redis.call('LTRIM', KEYS[4], i, -1)
      break
    end
  end
elseif before then
  redis.call('LPUSH', KEYS[4], before)
  redis.call('LTRIM', KEYS[4], 0, tonumber(ARGV[4]) - 1)
end
redis.call('SET', KEYS[2], version)
redis.call('XADD', KEYS[5], 'MAXLEN', '~', 1000, '*', 'way', way, 'version', version, 'before', before or '')
return {'ok', before or ''}
