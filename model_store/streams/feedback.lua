-- Add feedback to a model's stream, each event once, however often it is reported.
--
-- KEYS  1 clicks STREAM · 2… for each event a STRING that exists while the event is known
-- ARGV  1 entries the stream keeps · 2 ms an entry is kept · 3 ms an event is known · 4 this call · 5… each event, JSON
--
-- Returns for each event 1 if it is new, 0 if it was known. A call that is repeated, since its answer was lost, gets the same
-- answer: the STRING of an event names the call that added it.
--
-- The stream is written first: if that fails because the key has another type, nothing has changed.

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local is_new, seen = {}, {}
for i = 1, #KEYS - 1 do
  local known = KEYS[1 + i]
  local call = redis.pcall('GET', known) -- a key of another type counts as known
  if not call then
    redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'json', ARGV[4 + i])
    redis.call('SET', known, ARGV[4], 'PX', ARGV[3])
  end
  -- An event that occurs twice in one call is new once, also in the answer to a repeated call.
  is_new[i] = (not call or call == ARGV[4]) and not seen[known] and 1 or 0
  seen[known] = true
end
redis.call('XTRIM', KEYS[1], 'MINID', '~', string.format('%.0f', math.max(0, now - tonumber(ARGV[2]))))
return is_new
