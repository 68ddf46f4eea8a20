-- What every script of this folder begins with. A value that its key cannot hold ends a script before it has changed
-- anything, with the answer {"junk", key, what stood there, what is right}.

local MOST_COUNTED = 1e12 -- no version and no epoch is higher

local function type_of(key)
  return redis.call('TYPE', key)['ok']
end

-- Whether a key is missing or of this type; as second value the answer that says otherwise.
local function is(key, kind)
  local there = type_of(key)
  if there == 'none' or there == kind then
    return true
  end
  return false, {'junk', key, 'a ' .. there, 'a ' .. kind}
end

-- A whole number as every writer writes it, 0 where there is nothing, nil of anything else.
local function number(text)
  if not text then
    return 0
  end
  local value = (text == '0' or string.match(text, '^[1-9]%d*$')) and tonumber(text)
  return value and value < 9007199254740992 and value or nil
end

-- What a STRING counts; as second value the answer that says why it cannot be read.
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

-- The trainer's lease, all of it; as second value the answer that says why it cannot be read.
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
    local is_time = name == 'until_ms' or name == 'seen_ms' or name == 'rows'
    if not lease[name] or (text == '' and name ~= 'pinned') or (not is_time and lease[name] > MOST_COUNTED) then
      return nil, {'junk', key .. ' ' .. name, text, 'a whole number'}
    end
  end
  return lease
end
