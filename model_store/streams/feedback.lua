-- Add feedback to a model's stream, each event once, however often it is reported.
--
-- KEYS  1 clicks STREAM · 2… for each event a STRING that exists while the event is known
-- ARGV  1 entries the stream keeps · 2 ms an entry is kept · 3 ms an event is known · 4… each event, JSON
--
-- Returns for each event 1 if it is new, 0 if it was known.
--
-- The stream is written first: if that fails because the key has another type, nothing has changed.

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local is_new = {}
for i = 1, #KEYS - 1 do
  local known = KEYS[1 + i]
  is_new[i] = 0
  if redis.call('EXISTS', known) == 0 then
    redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'json', ARGV[3 + i])
    redis.call('SET', known, '', 'PX', ARGV[3])
    is_new[i] = 1
  end
end
redis.call('XTRIM', KEYS[1], 'MINID', '~', string.format('%.0f', math.max(0, now - tonumber(ARGV[2]))))
return is_new
