-- Replace a model's experiment as a whole, if it still is the one that the change was made from.
--
-- KEYS  1 experiment HASH · 2 events STREAM
-- ARGV  1 the revision the change was made from (0: there was none), or "any" · then the HASH's field, value, …
--
-- Returns {"ok", the new revision}, {"changed", the revision there is}, or {"junk", …} (see checks.lua). The event is a hint:
-- servers look each second, so that a stream that takes none costs a second.

local fits, junk = is(KEYS[1], 'hash')
if not fits and ARGV[1] ~= 'any' then
  return junk
end
local there = fits and redis.call('HGET', KEYS[1], 'revision') or '0'
if ARGV[1] ~= 'any' and ARGV[1] ~= there then
  return {'changed', there}
end

local revision = string.format('%d', (number(there) or 0) + 1)
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'revision', revision)
for i = 2, #ARGV, 2 do
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
end
redis.pcall('XADD', KEYS[2], 'MAXLEN', '~', 1000, '*', 'way', 'experiment', 'revision', revision)
return {'ok', revision}
