-- Being the one trainer of a model: take the lease, renew it, give it back. Its epoch is the fence: publish.lua and
-- activate.lua refuse a trainer whose epoch is older, whether its lease still runs or not.
--
-- KEYS  1 trainer HASH · 2 epoch STRING
-- ARGV  1 "take", "renew", "release", or "look", which changes nothing · 2 owner · 3 epoch, 0 to take or look
--       4 how long it runs, ms · 5 host · 6 process · 7 rows
--
-- Returns {"ok", epoch, rows that this owner has told last, 1 if the store had lost the lease that it renews}
--         {"held", host, process, ms since it was heard of}   another owner's lease runs
--         {"stale", epoch, host, process}                     another has taken it since
--         {"junk", key, what stood there, what is right}      see checks.lua
--
-- Times are the store's own clock. The HASH stays when the lease has run out or was given back: it is the fence.

local verb, owner, epoch = ARGV[1], ARGV[2], tonumber(ARGV[3])
local there, junk = lease_of(KEYS[1])
if junk then
  return junk
end
local last_epoch, no_epoch = counter(KEYS[2])
if no_epoch then
  return no_epoch
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local same, rows, lost = there.owner == owner, ARGV[7], 0
local others = there.owner and not same and now < there.until_ms
if (verb == 'take' or verb == 'look') and others then
  return {'held', there.host, there.process, now - there.seen_ms}
end
if verb == 'look' then
  return {'ok', 0, 0, 0}
elseif verb == 'take' then
  epoch = math.max(last_epoch, there.epoch) + 1
  redis.call('SET', KEYS[2], string.format('%.0f', epoch))
  rows = same and string.format('%.0f', there.rows) or '0'
elseif there.epoch > epoch or (there.epoch ~= epoch and others) then
  return {'stale', there.epoch, there.host, there.process}
elseif there.epoch < epoch then
  -- The store has lost its data, or a backup of an earlier day was restored: who comes next must come after this one.
  lost = 1
  if last_epoch < epoch then
    redis.call('SET', KEYS[2], string.format('%.0f', epoch))
  end
end

local ends = verb == 'release' and now or now + tonumber(ARGV[4])
redis.call('HSET', KEYS[1], 'owner', owner, 'epoch', string.format('%.0f', epoch), 'until_ms', string.format('%.0f', ends),
  'seen_ms', string.format('%.0f', now), 'host', ARGV[5], 'process', ARGV[6], 'rows', rows)
return {'ok', epoch, tonumber(rows), lost}
