-- Make an uploaded part of a round visible, if it is complete and its writer still has the partition.
--
-- KEYS  1 the partition's lease HASH · 2 the part's HASH · 3… its chunks, in order
-- ARGV  1 the writer's epoch · 2 how long the part is kept, s · 3… each chunk's bytes, in order · then field, value, …
--
-- Returns {"ok"}; {"there", sha256}: the part exists, and stays as it is; or the obstacle: {"chunk", index, bytes expected,
-- bytes found}; {"stale", epoch, host, process}: another trainer has the partition; {"junk", …} (see checks.lua).

local lease, junk = lease_of(KEYS[1])
if junk then
  return junk
elseif tonumber(ARGV[1]) < lease.epoch then
  return {'stale', lease.epoch, lease.host, lease.process}
end
local fits, other = is(KEYS[2], 'hash')
if not fits then
  return other
end
-- A partition that learns a round again after a crash must give the same part: the one that others may have merged.
local there = redis.call('HGET', KEYS[2], 'sha256')
if there then
  return {'there', there}
end
local chunks = #KEYS - 2
for i = 1, chunks do
  local expected, found = tonumber(ARGV[2 + i]), size_of(KEYS[2 + i])
  if found ~= expected then
    return {'chunk', i - 1, expected, found}
  end
end
for i = 1, chunks do
  -- Chunks get the lifetime of the part; until now they had that of an upload.
  redis.call('EXPIRE', KEYS[2 + i], ARGV[2])
end
for i = 3 + chunks, #ARGV, 2 do
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
end
redis.call('EXPIRE', KEYS[2], ARGV[2])
return {'ok'}
