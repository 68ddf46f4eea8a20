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
--
-- Times are the store's own clock. The HASH stays when the lease has run out or was given back: it is the fence.

local verb, owner, epoch = ARGV[1], ARGV[2], ARGV[3]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local there = redis.call('HMGET', KEYS[1], 'owner', 'epoch', 'until_ms', 'seen_ms', 'host', 'process', 'rows')

local same, rows, lost = there[1] == owner, ARGV[7], 0
local fence = tonumber(there[2] or '0')
if (verb == 'take' or verb == 'look') and there[1] and not same and now < tonumber(there[3]) then
  return {'held', there[5], there[6], now - tonumber(there[4])}
end
if verb == 'look' then
  return {'ok', 0, 0, 0}
elseif verb == 'take' then
  epoch = string.format('%d', redis.call('INCRBY', KEYS[2], 1))
  rows = same and there[7] or '0'
elseif fence > tonumber(epoch) or (fence ~= tonumber(epoch) and there[1] and not same and now < tonumber(there[3])) then
  return {'stale', fence, there[5], there[6]}
elseif fence < tonumber(epoch) then
  -- The store has lost its data, or a backup of an earlier day was restored: who comes next must come after this one.
  lost = 1
  if tonumber(redis.call('GET', KEYS[2]) or '0') < tonumber(epoch) then
    redis.call('SET', KEYS[2], epoch)
  end
end

local ends = verb == 'release' and now or now + tonumber(ARGV[4])
redis.call('HSET', KEYS[1], 'owner', owner, 'epoch', epoch, 'until_ms', string.format('%.0f', ends),
  'seen_ms', string.format('%.0f', now), 'host', ARGV[5], 'process', ARGV[6], 'rows', rows)
return {'ok', tonumber(epoch), tonumber(rows), lost}
