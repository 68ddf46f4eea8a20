-- Replace a model's experiment as a whole, if its revision is still the one that the change was made from.
--
-- KEYS  1 experiment HASH · 2 events STREAM
-- ARGV  1 the revision the change was made from (0: no experiment), or "any" · then the HASH's field, value, …
--
-- Returns {"ok", the new revision}, {"changed", the present revision}, or {"junk", …} (see checks.lua). The event is only
-- a hint: servers also poll every second, so an unwritable stream delays the change by at most a second.

local fits, junk = is(KEYS[1], 'hash')
if not fits and ARGV[1] ~= 'any' then
  return junk
end
-- With 'any' a key of another type is replaced too: that is how `ftrie experiment clear` repairs it.
local there = fits and redis.call('HGET', KEYS[1], 'revision') or '0'
if ARGV[1] ~= 'any' and ARGV[1] ~= there then
  return {'changed', there}
end

local revision = string.format('%d', (number(there) or 0) + 1)
-- Deleted first, so that no pin stays that the new record does not have.
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'revision', revision)
for i = 2, #ARGV, 2 do
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
end
redis.pcall('XADD', KEYS[2], 'MAXLEN', '~', 1000, '*', 'way', 'experiment', 'revision', revision)
return {'ok', revision}
