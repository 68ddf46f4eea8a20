-- Make a version active, if it and the versions it needs are complete, and the writer is not stale.
--
-- KEYS  1 active STRING · 2 active_epoch STRING · 3 history LIST · 4 events STREAM · 5 trainer HASH
--       6… the version's manifest HASH and its chunks in order; the same for its parent if it is a delta, and so on, back
--          to a snapshot
-- ARGV  1 version · 2 the writer's epoch · 3 "activate" or "rollback" · 4 maximum length of the history
--       5 who activates: "writer", "operator", or "overruling" (an operator against a guard)
--       6… the number of chunks of each of these versions
--
-- Returns {"ok", the version active before or "", skipped keys …}, or the obstacle. Place 0 is the version, 1 its parent, …
--   {"absent", place}                                    no manifest
--   {"chunk", place, index, bytes expected, bytes found} an incomplete version
--   {"stale", epoch of the last activation}              a later writer has activated
--   {"fenced", epoch, host, process}                     another trainer has the model
--   {"held", host, process, ms since it was last seen}   a trainer has the model, and this writer is not that trainer
--   {"pinned", version}                                  an operator pinned that version, and this writer is the trainer
--   {"junk", key, what was found, what is expected}      see checks.lua
-- Skipped keys held unreadable values: then the version active before is unknown, or history or events were not written.
-- An operator's order overwrites an unreadable active_epoch.
--
-- The history lists the versions active before, latest first. A rollback removes its target and everything later from the
-- list, so that the next rollback goes further back.

local version, epoch, way = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local skipped = {}
-- The two fences: the epoch of the last activation, and that of the lease. Whatever is refused is refused before the
-- first write, since Redis takes no write of a script back.
local last_epoch, junk = counter(KEYS[2])
-- A program must not pass a fence that cannot be read; the order of an operator replaces it.
if junk and ARGV[5] == 'writer' then
  return junk
elseif junk then
  last_epoch = 0
  skipped[1] = KEYS[2]
end
local lease, no_lease = lease_of(KEYS[5])
if no_lease then
  return no_lease
end
local fence = lease.epoch
-- Only the holder has exactly the lease's epoch: other writers begin with a higher one, former trainers have a lower
-- one.
local is_trainer = ARGV[5] == 'writer' and fence > 0 and epoch == fence
if is_trainer and lease.pinned > 0 then
  return {'pinned', lease.pinned}
end
-- The order of an operator took a higher epoch than the trainer has; once it is lifted, it fences the trainer off no
-- more.
local is_resumed = is_trainer and last_epoch <= lease.resumed
if epoch < last_epoch and not is_resumed then
  return {'stale', last_epoch}
end
if epoch < fence then
  return {'fenced', fence, lease.host, lease.process}
end
-- A writer that began after the trainer is refused only while the trainer lives. An operator is not.
if fence > 0 and epoch > fence and ARGV[5] == 'writer' then
  local now = now_ms()
  if is_valid(KEYS[5], lease, now) then
    return {'held', lease.host, lease.process, now - lease.seen_ms}
  end
end

local key = 6
for place = 0, #ARGV - 6 do
  local manifest = type_of(KEYS[key]) == 'hash' and redis.call('HMGET', KEYS[key], 'size', 'chunk_bytes')
  if not manifest or not manifest[1] then
    return {'absent', place}
  end
  local left, chunk_bytes, chunks = number(manifest[1]), number(manifest[2]), tonumber(ARGV[6 + place])
  if not left or not chunk_bytes then
    return {'junk', KEYS[key], manifest[1] .. ' and ' .. (manifest[2] or ''), 'size and chunk_bytes'}
  end
  for i = 1, chunks do
    -- Sizes and not digests, which would be O(bytes): readers verify the bytes.
    local expected, there = math.min(left, chunk_bytes), size_of(KEYS[key + i])
    if there ~= expected then
      return {'chunk', place, i - 1, expected, there}
    end
    left = left - expected
  end
  key = key + 1 + chunks
end

-- Never lowered: a trainer that was resumed has a lower epoch, and the others stay fenced off.
redis.call('SET', KEYS[2], string.format('%d', math.max(epoch, last_epoch)))
-- Also if the version is active already: the order is to stay with it.
if ARGV[5] == 'operator' and fence > 0 then
  redis.call('HSET', KEYS[5], 'pinned', version)
end
local before = type_of(KEYS[1]) == 'string' and redis.call('GET', KEYS[1])
if before == version then
  return {'ok', before, unpack(skipped)}
end
-- An unreadable pointer is overwritten, and does not enter the history.
if (before and (number(before) or 0) < 1) or not is(KEYS[1], 'string') then
  before = nil
  skipped[#skipped + 1] = KEYS[1]
end

if not is(KEYS[3], 'list') then
  skipped[#skipped + 1] = KEYS[3]
elseif way == 'rollback' then
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
-- A version of another spec may divide the traffic otherwise: since when it is this one tells what may be compared.
local spec, last_spec = redis.call('HGET', KEYS[6], 'spec_sha256'), redis.call('HGET', KEYS[5], 'spec')
if spec and spec ~= last_spec then
  redis.call('HSET', KEYS[5], 'spec', spec)
  if last_spec then
    redis.call('HSET', KEYS[5], 'spec_ms', string.format('%d', now_ms()))
  end
end
-- pcall: servers poll as well, so an unwritable stream does not stop an activation.
local event = redis.pcall('XADD', KEYS[4], 'MAXLEN', '~', 1000, '*', 'way', way, 'version', version, 'before', before or '')
if type(event) == 'table' and event.err then
  skipped[#skipped + 1] = KEYS[4]
end
return {'ok', before or '', unpack(skipped)}
