-- Appended to every script of this folder, whose own text is the body of `run`. A client repeats a command whose answer was
-- lost, although the store may have run it: a repeated call gets the answer of the first one, and changes nothing.
--
-- KEYS  the last one: the answer of this call STRING, MessagePack; the script itself does not see it

local call = table.remove(KEYS)
local known = redis.call('GET', call)
local packed = known or cmsgpack.pack(run())
-- Written again for a repeated call too: WAIT counts the replicas that have the writes of its own connection. Where nothing
-- may be written, nothing was changed, and repeating is harmless.
-- A minute is longer than a client repeats a call. An error is not remembered: the call that failed may be run again.
redis.pcall('SET', call, packed, 'PX', 60000)
return cmsgpack.unpack(packed)
