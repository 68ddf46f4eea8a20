-- Let the trainer of a model activate again, after an operator has chosen what is served.
--
-- KEYS  1 trainer HASH · 2 active_epoch STRING
--
-- Returns the version that was pinned, 0 where none was, or {"junk", …} (see checks.lua). activate.lua pins; the trainer, whose epoch is below that of the
-- operator's order, may go on up to `resumed`. No other writer may: those that began before the order stay fenced off.

local lease, junk = lease_of(KEYS[1])
if junk then
  return junk
end
local last_epoch, no_epoch = counter(KEYS[2])
if no_epoch then
  return no_epoch
end
if lease.pinned > 0 then
  redis.call('HSET', KEYS[1], 'pinned', '', 'resumed', string.format('%.0f', last_epoch))
end
return lease.pinned
