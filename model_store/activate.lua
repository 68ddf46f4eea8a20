-- Point a model at one of its versions, if that version is complete, with all it is made of, and the writer is not stale.
--
-- KEYS  1 active STRING · 2 active_epoch STRING · 3 history LIST · 4 events STREAM · 5 trainer HASH
--       6… the version's manifest HASH and its chunks in order; then the same of its parent if it is a delta, and so on
--          up to a snapshot
-- ARGV  1 version · 2 the writer's epoch · 3 "activate" or "rollback" · 4 how many versions the history keeps
--       5 "writer", "operator", or "overruling" a guard: whose order it is
--       6… how many chunks each of these versions has
--
-- Returns {"ok", the version active before or ""}, or what stands in the way; place 0 is the version itself, 1 its
-- parent, …:  {"absent", place} no manifest · {"chunk", place, index, bytes expected, bytes there}
--             {"stale", epoch of the last activation} · {"fenced", epoch, host, process} another trainer has the model
--             {"held", host, process, ms since it was heard of} a trainer has it, and the writer is not that one
--             {"pinned", version} an operator has chosen that one, and the writer is the trainer (see resume.lua)
--
-- The history lists what was active before, latest first. Going back takes the target, and all that came after it,
-- off the list, so that the next rollback goes further back.

local version, epoch, way = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local last_epoch = tonumber(redis.call('GET', KEYS[2]) or '0')
local lease = redis.call('HMGET', KEYS[5], 'epoch', 'until_ms', 'seen_ms', 'host', 'process', 'pinned', 'resumed')
local fence = tonumber(lease[1] or '0')
local is_trainer = ARGV[5] == 'writer' and fence > 0 and epoch == fence
if is_trainer and (lease[6] or '') ~= '' then
  return {'pinned', tonumber(lease[6])}
end
local is_resumed = is_trainer and last_epoch <= tonumber(lease[7] or '0')
if epoch < last_epoch and not is_resumed then
  return {'stale', last_epoch}
end
if epoch < fence then
  return {'fenced', fence, lease[4], lease[5]}
end
if fence > 0 and epoch > fence and ARGV[5] == 'writer' then
  local time = redis.call('TIME')
  local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  if now < tonumber(lease[2]) then
    return {'held', lease[4], lease[5], now - tonumber(lease[3])}
  end
end

local key = 6
for place = 0, #ARGV - 6 do
  local manifest = redis.call('HMGET', KEYS[key], 'size', 'chunk_bytes')
  if not manifest[1] then
    return {'absent', place}
  end
  local left, chunk_bytes, chunks = tonumber(manifest[1]), tonumber(manifest[2]), tonumber(ARGV[6 + place])
  for i = 1, chunks do
    local expected, there = math.min(left, chunk_bytes), redis.call('STRLEN', KEYS[key + i])
    if there ~= expected then
      return {'chunk', place, i - 1, expected, there}
    end
    left = left - expected
  end
  key = key + 1 + chunks
end

redis.call('SET', KEYS[2], string.format('%d', math.max(epoch, last_epoch)))
if ARGV[5] == 'operator' and fence > 0 then
  redis.call('HSET', KEYS[5], 'pinned', version)
end
local before = redis.call('GET', KEYS[1])
if before == version then
  return {'ok', before}
end

if way == 'rollback' then
  local history = redis.call('LRANGE', KEYS[3], 0, -1)
  for i = 1, #history do
    if history[i] == version then
      redis.call('LTRIM', KEYS[3], i, -1)
      break
    end
  end
elseif before then
  redis.call('LPUSH', KEYS[3], before)
  redis.call('LTRIM', KEYS[3], 0, tonumber(ARGV[4]) - 1)
end
redis.call('SET', KEYS[1], version)
redis.call('XADD', KEYS[4], 'MAXLEN', '~', 1000, '*', 'way', way, 'version', version, 'before', before or '')
return {'ok', before or ''}
