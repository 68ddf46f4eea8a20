-- Add what an operator changed to a model's audit.
--
-- KEYS  1 audit STREAM
-- ARGV  1 entries the stream keeps · then field, value, …
--
-- Returns the entry's id.

return redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', unpack(ARGV, 2))
