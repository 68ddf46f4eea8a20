-- Let the trainer of a model activate again, after an operator has chosen what is served.
--
-- KEYS  1 trainer HASH · 2 active_epoch STRING
--
-- Returns the version that was pinned, "" where none was. activate.lua pins; the trainer, whose epoch is below that of the
-- operator's order, may go on up to `resumed`. No other writer may: those that began before the order stay fenced off.

local pinned = redis.call('HGET', KEYS[1], 'pinned') or ''
if pinned ~= '' then
  redis.call('HSET', KEYS[1], 'pinned', '', 'resumed', redis.call('GET', KEYS[2]) or '0')
end
return pinned
