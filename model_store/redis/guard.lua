-- Set fields of a guard's record and count one event.
--
-- KEYS  1 guard HASH
-- ARGV  1 the field that counts · then field, value, …
--
-- Returns the new count, or {"junk", …} (see checks.lua).

local fits, junk = is(KEYS[1], 'hash')
if not fits then
  return junk
end
local text = redis.call('HGET', KEYS[1], ARGV[1])
local count = number(text)
if not count then
  return {'junk', KEYS[1] .. ' ' .. ARGV[1], text, 'a whole number'}
end
-- %.0f, since Lua writes large numbers with an exponent.
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', count + 1), unpack(ARGV, 2))
return count + 1
