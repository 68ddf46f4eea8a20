-- Replace a model's experiment as a whole, if it still is the one that the change was made from.
--
-- KEYS  1 experiment HASH · 2 events STREAM
-- ARGV  1 the revision the change was made from (0: there was none), or "any" · then the HASH's field, value, …
--
-- Returns {"ok", the new revision}, or {"changed", the revision there is}.

local there = redis.pcall('HGET', KEYS[1], 'revision') or '0'
if type(there) == 'table' then -- something else than a HASH stands there
  if ARGV[1] ~= 'any' then
    return there
  end
  there = '0'
end
if ARGV[1] ~= 'any' and ARGV[1] ~= there then
  return {'changed', there}
end

local revision = string.format('%d', (tonumber(there) or 0) + 1)
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'revision', revision)
for i = 2, #ARGV, 2 do
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
end
redis.call('XADD', KEYS[2], 'MAXLEN', '~', 1000, '*', 'way', 'experiment', 'revision', revision)
return {'ok', revision}
