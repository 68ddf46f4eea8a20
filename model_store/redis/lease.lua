-- The trainer's lease: take, renew or release it. Its epoch is the fencing token: publish.lua and activate.lua refuse a
-- trainer with a lower epoch, whether or not its lease is still valid.
--
-- KEYS  1 trainer HASH · 2 epoch STRING
-- ARGV  1 "take", "renew", "release", or "look", which takes nothing · 2 owner · 3 epoch, 0 to take or look
--       4 duration, ms · 5 host · 6 process · 7 rows
--       8 the lease's until_ms as the caller last found it, or empty; by the caller's own clock: 9 how long ago that was,
--         10 how long the lease had left then, both in ms
--       11 how far a new epoch is above the last one
--
-- Returns {"ok", epoch, the rows this owner passed last, 1 if the store had lost the lease being renewed}
--         {"held", host, process, ms since it was last seen, until_ms, ms that it has left}   another owner's lease is valid
--         {"stale", epoch, host, process}                           another owner has taken it since
--         {"junk", key, what was found, what is expected}           see checks.lua
--
-- Times are those of the store's clock. The HASH stays after the lease expired or was released, since it is the fence.

local verb, owner, epoch = ARGV[1], ARGV[2], tonumber(ARGV[3])
local there, last_epoch, junk = lease_and_counter(KEYS[1], KEYS[2])
if junk then
  return junk
end
local now = now_ms()

local same, rows, lost = there.owner == owner, ARGV[7], 0
-- An owner of the same name is the same trainer after a crash: it need not wait until its own lease expires.
local others = there.owner and not same and is_valid(KEYS[1], there, now)
local left = there.until_ms - now
-- One that is over, and by the time that has passed for the caller is not: the store's clock was set ahead, and its
-- holder, which lives for all that is known, has not renewed it yet. It may have renewed it since the caller looked.
if there.owner and not same and not others and ARGV[8] ~= '' then
  local passed = tonumber(ARGV[9])
  if ARGV[8] == string.format('%.0f', there.until_ms) then
    left = tonumber(ARGV[10]) - passed
    others = left > 0
  else
    left = there.until_ms - there.seen_ms
    others = passed < left
  end
end
if (verb == 'take' or verb == 'look') and others then
  return {'held', there.host, there.process, now - there.seen_ms, there.until_ms, left}
end
if verb == 'look' then
  return {'ok', 0, 0, 0}
elseif verb == 'take' then
  -- Above both: either of them may have been set back.
  epoch = math.max(last_epoch, there.epoch) + tonumber(ARGV[11])
  redis.call('SET', KEYS[2], string.format('%.0f', epoch))
  rows = same and string.format('%.0f', there.rows) or '0'
-- An expired lease that nobody has taken is no obstacle: its holder still has the highest epoch, and may renew it.
elseif there.epoch > epoch or (there.epoch ~= epoch and others) then
  return {'stale', there.epoch, there.host, there.process}
elseif there.epoch < epoch then
  -- The store lost its data or was restored from an older backup: the next epoch must be above this one. Who activated
  -- while the lease was lost does not fence its holder off.
  lost = 1
  if last_epoch < epoch then
    redis.call('SET', KEYS[2], string.format('%.0f', epoch))
  else
    redis.call('HSET', KEYS[1], 'resumed', string.format('%.0f', last_epoch))
  end
end

-- A released lease is over at once, and stays in the HASH as the fence.
local ends = verb == 'release' and now or now + tonumber(ARGV[4])
redis.call('HSET', KEYS[1], 'owner', owner, 'epoch', string.format('%.0f', epoch), 'until_ms', string.format('%.0f', ends),
  'seen_ms', string.format('%.0f', now), 'host', ARGV[5], 'process', ARGV[6], 'rows', rows)
return {'ok', epoch, tonumber(rows), lost}
