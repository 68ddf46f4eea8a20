"""Connections to Redis or an embedded Valkey, key names, Lua scripts and the parsing of stored values."""
