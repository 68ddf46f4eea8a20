-- Remove an operator's pin, so that the model's trainer activates again.
--
-- KEYS  1 trainer HASH · 2 active_epoch STRING
--
-- Returns the version that was pinned, 0 if none was, or {"junk", …} (see checks.lua). activate.lua pins. The trainer's
-- epoch is below that of the operator's order; `resumed` lets the trainer activate again up to that epoch, while other
-- writers that began before the order stay fenced off.

local lease, last_epoch, junk = lease_and_counter(KEYS[1], KEYS[2])
if junk then
  return junk
end
if lease.pinned > 0 then
  redis.call('HSET', KEYS[1], 'pinned', '', 'resumed', string.format('%.0f', last_epoch))
end
return lease.pinned
