-- Make an uploaded version visible, whole, or not at all.
--
-- KEYS  1 manifest HASH · 2 versions ZSET · 3… chunks, in order
-- ARGV  1 version · 2 publish time (s since 1970) · 3… each chunk's bytes, in order · then the manifest's field, value, …
--
-- Returns "ok", or what stands in the way: {"chunk", index, bytes expected, bytes there}.

local chunks = #KEYS - 2
for i = 1, chunks do
  local expected, there = tonumber(ARGV[2 + i]), redis.call('STRLEN', KEYS[2 + i])
  if there ~= expected then
    return {'chunk', i - 1, expected, there}
  end
end
for i = 1, chunks do
  redis.call('PERSIST', KEYS[2 + i])
end
for i = 3 + chunks, #ARGV, 2 do
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
end
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
return {'ok'}
