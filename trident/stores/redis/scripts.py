"""The Lua scripts that Redis runs for a state."""

from __future__ import annotations

# The values read are passed as an array, or, if all exist and are to be replaced, as one text to compare at once.
# Redis runs a whole script as one step. MGET returns nothing for a key that is not a string, hence EXISTS. {0}: all
# are lost.
COMPARE_AND_SET = b"""
local keys, new, old = cmsgpack.unpack(ARGV[1])
local ttl, hash = ARGV[2], ARGV[3]
if ARGV[4] ~= '' then
  local guard
  if hash == '' then guard = redis.call('GET', ARGV[4]) else guard = redis.call('HGET', hash, ARGV[4]) end
  if (guard or '') ~= ARGV[5] then return {0} end
end
local now
if hash == '' then now = redis.call('MGET', unpack(keys)) else now = redis.call('HMGET', hash, unpack(keys)) end
local sets, gone, fresh, lost = {}, {}, {}, {}
local m = 0
local same = false
if not old then
  local all, text = pcall(table.concat, now, '\\193')
  same = all and text == ARGV[6]
  if same then
    for i = 1, #keys do
      sets[m + 1] = keys[i]
      sets[m + 2] = new[i]
      m = m + 2
    end
  else
    old = {}
    for value in string.gmatch(ARGV[6] .. '\\193', '([^\\193]*)\\193') do old[#old + 1] = value end
  end
end
for i = 1, same and 0 or #keys do
  local value = now[i] or ''
  if value ~= old[i] then
    lost[#lost + 1] = i
  else
    if value == '' then fresh[#fresh + 1] = keys[i] end
    if new[i] == '' then
      gone[#gone + 1] = keys[i]
    else
      sets[m + 1] = keys[i]
      sets[m + 2] = new[i]
      m = m + 2
    end
  end
end
if hash == '' then
  if #fresh > 0 and redis.call('EXISTS', unpack(fresh)) > 0 then
    for i = 1, #fresh do redis.call('GET', fresh[i]) end
  end
  if m > 0 then
    if ttl == '0' then
      redis.call('MSET', unpack(sets))
    else
      for i = 1, m, 2 do redis.call('SET', sets[i], sets[i + 1], 'EX', ttl) end
    end
  end
  if #gone > 0 then redis.call('DEL', unpack(gone)) end
else
  if m > 0 then redis.call('HSET', hash, unpack(sets)) end
  if #gone > 0 then redis.call('HDEL', hash, unpack(gone)) end
  if ttl ~= '0' then redis.call('EXPIRE', hash, ttl) end
end
return lost
"""

# The same, unconditionally.
SET = b"""
local keys, new = cmsgpack.unpack(ARGV[1])
local ttl, hash = ARGV[2], ARGV[3]
for i = 1, #keys do
  if hash ~= '' then
    if new[i] == '' then redis.call('HDEL', hash, keys[i]) else redis.call('HSET', hash, keys[i], new[i]) end
  elseif new[i] == '' then redis.call('DEL', keys[i])
  elseif ttl == '0' then redis.call('SET', keys[i], new[i])
  else redis.call('SET', keys[i], new[i], 'EX', ttl) end
end
if hash ~= '' and ttl ~= '0' then redis.call('EXPIRE', hash, ttl) end
return {}
"""
