-- Prepended to every script of this folder; once.lua is appended. If a key holds an unreadable value, a script ends before
-- it changes anything and returns {"junk", key, what was found, what is expected}.

local MOST_COUNTED = 1e12 -- the maximum of versions and epochs

local function type_of(key)
  return redis.call('TYPE', key)['ok']
end

-- The bytes of a STRING, in O(1); 0 for a missing key, and for one of another type.
local function size_of(key)
  return type_of(key) == 'string' and redis.call('STRLEN', key) or 0
end

-- True if a key is missing or has this type; else false and the "junk" answer.
local function is(key, kind)
  local there = type_of(key)
  if there == 'none' or there == kind then
    return true
  end
  return false, {'junk', key, 'a ' .. there, 'a ' .. kind}
end

-- A whole number as all writers write it, 0 for a missing text, nil for anything else.
local function number(text)
  if not text then
    return 0
  end
  -- tonumber alone also takes 1e3, 0x10 and blanks.
  local value = (text == '0' or string.match(text, '^[1-9]%d*$')) and tonumber(text)
  -- 2^53: Lua counts in doubles, and beyond it they skip numbers.
  return value and value < 9007199254740992 and value or nil
end

-- The number in a STRING; else nil and the "junk" answer.
local function counter(key)
  local fits, junk = is(key, 'string')
  if not fits then
    return nil, junk
  end
  local text = redis.call('GET', key)
  local value = number(text)
  if not value or value > MOST_COUNTED then
    return nil, {'junk', key, text, 'a whole number'}
  end
  return value
end

-- The trainer's lease; else nil and the "junk" answer.
local function lease_of(key)
  local fits, junk = is(key, 'hash')
  if not fits then
    return nil, junk
  end
  local texts = redis.call('HMGET', key, 'owner', 'host', 'process')
  local lease = {owner = texts[1], host = texts[2] or '', process = texts[3] or ''}
  for _, name in ipairs({'epoch', 'until_ms', 'seen_ms', 'rows', 'resumed', 'pinned'}) do
    local text = redis.call('HGET', key, name)
    lease[name] = number(text ~= '' and text)
    -- Times and rows are no counters, whose bound they may exceed. An empty pin means none.
    local is_time = name == 'until_ms' or name == 'seen_ms' or name == 'rows'
    if not lease[name] or (text == '' and name ~= 'pinned') or (not is_time and lease[name] > MOST_COUNTED) then
      return nil, {'junk', key .. ' ' .. name, text, 'a whole number'}
    end
  end
  return lease
end

-- The trainer's lease and the number in a counter; else nil, nil and the "junk" answer.
local function lease_and_counter(lease_key, counter_key)
  local lease, junk = lease_of(lease_key)
  if junk then
    return nil, nil, junk
  end
  local count, unreadable = counter(counter_key)
  return lease, count, unreadable
end

-- The store's clock, ms since 1970.
local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- True until a lease ends. If the store's clock was set back since it was renewed, its term begins again: else a trainer
-- that died would hold the model for as long as the clock was set back.
local function is_valid(key, lease, now)
  if lease.seen_ms > now then
    lease.until_ms, lease.seen_ms = now + lease.until_ms - lease.seen_ms, now
    redis.call('HSET', key, 'until_ms', string.format('%.0f', lease.until_ms), 'seen_ms', string.format('%.0f', now))
  end
  return now < lease.until_ms
end
