-- Mark versions as refused, so that they are served only by force. Versions that do not exist are skipped.
--
-- KEYS  the versions' manifest HASHes
-- ARGV  1 the reason
--
-- Returns how many were marked. A version that was refused before keeps its first reason.

local marked = 0
for _, manifest in ipairs(KEYS) do
  local refused = type_of(manifest) == 'hash' and redis.call('HGET', manifest, 'refused')
  if type_of(manifest) == 'hash' and (not refused or refused == '') then
    redis.call('HSET', manifest, 'refused', ARGV[1])
    marked = marked + 1
  end
end
return marked
