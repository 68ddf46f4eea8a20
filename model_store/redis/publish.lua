-- Make an uploaded version visible if it is complete; a delta only if its parent exists.
--
-- KEYS  1 manifest HASH · 2 versions ZSET · 3 the parent's manifest HASH (a snapshot: its own) · 4 trainer HASH
--       5… chunks, in order
-- ARGV  1 version · 2 publish time (s since 1970) · 3 the content that a delta's parent must have, "" for a snapshot
--       4 the writer's epoch, or 0 · 5… each chunk's bytes, in order · then the manifest's field, value, …
--
-- Returns {"ok"}, or the obstacle: {"chunk", 0, index, bytes expected, bytes found}; {"orphan"}: the parent is gone;
-- {"other", content}: the parent has another content; {"fenced", epoch, host, process}: another trainer has the model;
-- {"junk", key, what was found, what is expected} (see checks.lua).

local epoch = tonumber(ARGV[4])
if epoch > 0 then
  local lease, junk = lease_of(KEYS[4])
  if junk then
    return junk
  elseif epoch < lease.epoch then
    return {'fenced', lease.epoch, lease.host, lease.process}
  end
end
if type_of(KEYS[1]) ~= 'none' then
  return {'junk', KEYS[1], 'a ' .. type_of(KEYS[1]), 'no key: this version is new'}
end
local fits, junk = is(KEYS[2], 'zset')
if not fits then
  return junk
end

if ARGV[3] ~= '' then
  -- Looked at here and not by the publisher, since gc may delete the parent until this moment.
  local parent = type_of(KEYS[3]) == 'hash' and redis.call('HMGET', KEYS[3], 'sha256', 'content')
  if not parent or not parent[1] then
    return {'orphan'}
  end
  if parent[2] and parent[2] ~= '' and parent[2] ~= ARGV[3] then
    return {'other', parent[2]}
  end
end
local chunks = #KEYS - 4
for i = 1, chunks do
  local expected, there = tonumber(ARGV[4 + i]), size_of(KEYS[4 + i])
  if there ~= expected then
    return {'chunk', 0, i - 1, expected, there}
  end
end
for i = 1, chunks do
  -- From now on the chunks are kept until gc, no longer until the expiry of the upload.
  redis.call('PERSIST', KEYS[4 + i])
end
for i = 5 + chunks, #ARGV, 2 do
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
end
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
return {'ok'}
