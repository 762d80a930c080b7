-- Wireshark dissector for the Thinwire protocol, version 2, as docs/protocol.md defines it.
--
-- Use: tshark -X lua_script:thinwire.lua ..., or copy it to the personal plugin folder
-- (docs/wireshark.md). It makes the checks of a receiver, in the same order: a frame that a receiver
-- would refuse shows the reason in thinwire.refused.

local thinwire = Proto("thinwire", "Thinwire")

-- Newer Lua has no bit32; Wireshark brings its own, whose results are signed.
local bits32 = bit32 or bit

local VERSION, SUITES_MAX, HEADER_BYTES, PUBLIC_BYTES = 2, 4, 80, 48
local TAG_AT, TAG_BYTES = 32, 16
local FRAME_BYTES_MIN = 1232
local NAME_BYTES_MAX, TEXT_BYTES_MAX, SECRET_BYTES_MAX = 64, 200, 1024
local ADDRESSES_MAX, MEMBERS_MAX, RANGES_MAX, SUMS_MAX = 16, 16, 32, 257
local SESSION, PROBE, PROBE_REPLY = 1, 7, 8

local KINDS = {
    [1] = "SESSION", [2] = "HELLO", [3] = "WELCOME", [4] = "REFUSE", [5] = "DISCOVER", [6] = "OFFER",
    [7] = "PROBE", [8] = "PROBE_REPLY", [9] = "UNKNOWN_SESSION", [10] = "RETRY",
    [11] = "KEYED_HELLO", [12] = "KEYED_ANSWER",
}
local OPERATIONS = {
    [1] = "READ", [2] = "WRITE", [3] = "FLUSH", [4] = "DISCARD", [5] = "WRITE_ZEROES",
    [6] = "BLOCK_STATUS", [7] = "CUT",
}
local STATUSES = {
    [0] = "OK", [1] = "IO", [2] = "INVALID", [3] = "NO_SPACE", [4] = "READ_ONLY",
    [5] = "UNSUPPORTED", [6] = "FENCED", [7] = "NOT_FOUND", [8] = "BUSY", [9] = "NO_ATTACHMENT",
    [10] = "SHUTTING_DOWN", [11] = "INSECURE", [12] = "VERSION", [13] = "TOO_MANY",
    [14] = "WRONG_SHARD", [15] = "OTHER_CONTENT", [16] = "UNKNOWN_KEY",
    [17] = "ALTERED",
}
local CLOCK_KINDS = { [0] = "OFF", [1] = "PHYSICAL", [2] = "VIRTUAL" }
local BORDERS = { "arrived", "received", "taken", "submitted", "stored", "sent", "handed_over" }
local EVENTS = { [1] = "RESIZE", [2] = "SHUTDOWN", [3] = "FENCED" }
local FAMILIES = { [1] = "MAC", [2] = "V4", [3] = "V6", [4] = "SIM" }
local OP_FLAGS = { { "fua", 0x01 }, { "no_hole", 0x02 }, { "one_extent", 0x04 }, { "meta", 0x08 } }
local ATTACH_FLAGS = {
    { "read_only", 0x01 }, { "take_over", 0x02 }, { "resume", 0x04 }, { "integrity", 0x08 },
}
local FEATURES = {
    { "read_only", 0x01 }, { "discard", 0x02 }, { "write_zeroes", 0x04 }, { "block_status", 0x08 },
    { "integrity", 0x10 }, { "held", 0x20 },
}
local SECURITY = { { "without_keys", 0x01 } }

-- Fields ----------------------------------------------------------------------------------------

local fields, by_name = {}, {}

local function define(constructor, abbreviation, label, ...)
    local field = ProtoField[constructor]("thinwire." .. abbreviation, label, ...)
    fields[#fields + 1] = field
    by_name[abbreviation] = field
    return field
end

define("uint8", "version", "version")
define("uint8", "kind", "kind", base.DEC, KINDS)
define("uint8", "suite", "suite")
define("uint8", "key_phase", "key_phase")
define("uint8", "flags", "flags", base.HEX)
define("bool", "flags.ack", "acknowledgement", 8, nil, 0x01)
define("bool", "flags.credit", "credit", 8, nil, 0x02)
define("uint16", "length", "length")
define("uint16", "data_offset", "data_offset")
define("uint64", "session", "session", base.HEX)
define("bytes", "tag", "tag")
define("uint32", "epoch", "epoch")
define("uint64", "packet_number", "packet_number")
define("uint8", "path", "path")
define("uint8", "ack_path", "ack_path")
define("uint16", "ack_delay", "ack_delay (4 us)")
define("uint16", "messages_end", "messages_end")
define("uint64", "ack_largest", "ack_largest")
define("uint64", "ack_bitmap", "ack_bitmap", base.HEX)
define("uint32", "credit_slots", "credit_slots")
define("uint64", "credit_bytes", "credit_bytes")
define("bytes", "reserved", "reserved")
define("bytes", "gap", "gap before the payload")
define("bytes", "sealed", "sealed")
define("bytes", "padding", "padding behind the frame")
define("bytes", "payload", "payload")
define("bytes", "probe_padding", "padding of the probe")
define("string", "refused", "refused as")

define("string", "message", "message")
define("uint8", "message_type", "type", base.HEX)
define("uint8", "message_flags", "message_flags", base.HEX)
define("bool", "message_flags.skippable", "skippable", 8, nil, 0x01)
define("uint16", "message_length", "message_length")
define("bytes", "unknown", "unknown message")

-- Fields that several messages share, so that one filter finds all of them.
define("uint16", "slot", "slot")
define("uint32", "sequence", "sequence")
define("uint32", "attachment", "attachment")
define("uint32", "generation", "generation")
define("uint32", "transaction", "transaction")
define("uint64", "nonce", "nonce", base.HEX)
define("uint16", "status", "status", base.DEC, STATUSES)
define("uint64", "verifier", "verifier", base.HEX)
define("uint64", "cookie", "cookie", base.HEX)

define("uint8", "request.op", "op", base.DEC, OPERATIONS)
define("uint8", "request.op_flags", "op_flags", base.HEX)
define("uint64", "request.address", "address")
define("uint32", "request.length", "length")
define("uint32", "data.offset", "offset")
define("uint32", "data.length", "length")
define("uint32", "complete.length", "length")
define("uint8", "ack_ranges.path", "path")
define("uint8", "ack_ranges.count", "count")
define("uint16", "ack_ranges.delay", "delay (4 us)")
define("uint64", "ack_ranges.first", "first")
define("uint64", "ack_ranges.last", "last")
define("uint8", "credit.path", "path")
define("uint32", "credit.frames", "frames")
define("uint32", "credit.bytes", "bytes")
define("uint32", "reset.length", "length")
define("uint8", "ask_clocks.kind", "kind", base.DEC, CLOCK_KINDS)
define("uint64", "clocks.clock", "clock", base.HEX)
define("uint64", "clocks.requests", "requests")
for _, border in ipairs(BORDERS) do define("uint64", "clocks." .. border, border) end
define("uint16", "sums.count", "count")
define("uint32", "sums.sums", "sums", base.HEX)
define("uint16", "event.code", "code", base.DEC, EVENTS)
define("uint64", "event.value", "value")
define("uint8", "attach.flags", "flags", base.HEX)
define("uint64", "attach.writer_generation", "writer_generation")
define("string", "attach.export", "export")
define("uint32", "attached.block_bytes", "block_bytes")
define("uint32", "attached.preferred_bytes", "preferred_bytes")
define("uint32", "attached.io_bytes_max", "io_bytes_max")
define("uint64", "attached.bytes", "bytes")
define("bytes", "attached.identity", "identity")
define("uint64", "attached.incarnation", "incarnation", base.HEX)
define("uint64", "attached.writer_generation", "writer_generation")
define("uint8", "attached.features", "features", base.HEX)
define("uint32", "attached.idle_generations", "idle_generations")
define("uint32", "attach_refused.seconds_left", "seconds_left")
define("string", "attach_refused.text", "text")
define("uint64", "hello.session", "session", base.HEX)
define("bytes", "hello.initiator", "initiator")
define("uint64", "hello.instance", "instance", base.HEX)
define("uint16", "hello.frame_bytes_max", "frame_bytes_max")
define("uint8", "hello.security", "security", base.HEX)
define("uint8", "hello.member", "member")
define("uint32", "hello.room_frames", "room_frames")
define("uint32", "hello.room_bytes", "room_bytes")
define("string", "hello.node", "node")
define("string", "hello.export", "export")
define("string", "hello.name", "name")
define("uint64", "welcome.session", "session", base.HEX)
define("uint64", "welcome.instance", "instance", base.HEX)
define("uint32", "welcome.epoch", "epoch")
define("uint16", "welcome.slots", "slots")
define("uint16", "welcome.frame_bytes_max", "frame_bytes_max")
define("uint32", "welcome.request_bytes_max", "request_bytes_max")
define("uint32", "welcome.room_frames", "room_frames")
define("uint32", "welcome.room_bytes", "room_bytes")
define("uint64", "welcome.credit_bytes", "credit_bytes")
define("uint8", "welcome.address_count", "address_count")
define("uint8", "welcome.family", "family", base.DEC, FAMILIES)
define("ether", "welcome.mac", "station")
define("ipv4", "welcome.ipv4", "address")
define("ipv6", "welcome.ipv6", "address")
define("uint16", "welcome.port", "port")
define("uint32", "welcome.sim", "station of a simulated wire")
define("string", "refuse.text", "text")
define("uint64", "keyed_hello.session", "session", base.HEX)
define("bytes", "keyed_hello.key", "key")
define("uint8", "keyed_hello.suites", "suites", base.HEX)
define("string", "keyed_hello.node", "node")
define("bytes", "keyed_hello.secret", "secret")
define("bytes", "keyed_answer.secret", "secret")
define("uint64", "unknown_session.session", "session", base.HEX)
define("uint64", "discover.session", "session", base.HEX)
define("uint16", "discover.first", "first")
define("uint16", "discover.spread_ms", "spread_ms")
define("string", "discover.node", "node")
define("uint64", "offer.instance", "instance", base.HEX)
define("uint16", "offer.total", "total")
define("uint16", "offer.first", "first")
define("string", "offer.node", "node")
define("uint16", "offer.count", "count")
define("string", "offer.export", "export")
for _, message in ipairs({ "probe", "probe_reply" }) do
    define("uint64", message .. ".token", "token", base.HEX)
    define("uint32", message .. ".room_frames", "room_frames")
    define("uint32", message .. ".room_bytes", "room_bytes")
end
for prefix, bits in pairs({
    ["request.op_flags"] = OP_FLAGS,
    ["attach.flags"] = ATTACH_FLAGS,
    ["attached.features"] = FEATURES,
    ["hello.security"] = SECURITY,
}) do
    for _, bit in ipairs(bits) do
        define("bool", prefix .. "." .. bit[1], bit[1], 8, nil, bit[2])
    end
end

thinwire.fields = fields

local expert_refused = ProtoExpert.new(
    "thinwire.expert.refused", "A receiver refuses this frame", expert.group.PROTOCOL,
    expert.severity.ERROR)
local expert_cut = ProtoExpert.new(
    "thinwire.expert.cut", "The capture holds only the start of this frame",
    expert.group.UNDECODED, expert.severity.NOTE)
thinwire.experts = { expert_refused, expert_cut }

thinwire.prefs.ethertype =
    Pref.uint("EtherType", 0x88b5, "EtherType of raw frames; 0x88B5 unless the link says otherwise")
thinwire.prefs.udp_port = Pref.uint("UDP port", 34997, "UDP port of targets")
thinwire.prefs.checksum = Pref.bool(
    "Verify checksums", true, "Compute the CRC32C of every frame (slow for large captures)")

-- CRC32C ----------------------------------------------------------------------------------------

local crc_table
local function crc32c(bytes)
    if crc_table == nil then
        crc_table = {}
        for i = 0, 255 do
            local value = i
            for _ = 1, 8 do
                local odd = bits32.band(value, 1) == 1
                value = bits32.rshift(value, 1)
                if odd then value = bits32.bxor(value, 0x82f63b78) end
            end
            crc_table[i] = value
        end
    end
    local crc = 0xffffffff
    for i = 1, #bytes do
        local index = bits32.band(bits32.bxor(crc, bytes:byte(i)), 0xff)
        crc = bits32.bxor(bits32.rshift(crc, 8), crc_table[index])
    end
    return bits32.bnot(crc) % 4294967296
end

-- Reading ---------------------------------------------------------------------------------------

-- Raised while a frame is read: what a receiver refuses it as.
local function refuse(reason, what)
    error({ reason = reason, what = what }, 0)
end

local Cursor = {}
Cursor.__index = Cursor

-- Reads fields one after the other from `at` up to `limit`, into a tree.
local function cursor(tvb, at, limit, tree, name)
    return setmetatable({ tvb = tvb, at = at, limit = limit, tree = tree, name = name }, Cursor)
end

function Cursor:take(bytes)
    if bytes > self.limit - self.at then
        refuse("message-length", "it needs more bytes than it has")
    end
    local range = self.tvb(self.at, bytes)
    self.at = self.at + bytes
    return range
end

function Cursor:field(name)
    return by_name[self.name .. "." .. name] or by_name[name]
end

local function number(self, bytes, name)
    local range = self:take(bytes)
    self.item = self.tree:add(self:field(name), range)
    if bytes == 8 then return range:uint64() end
    return range:uint()
end

function Cursor:u8(name) return number(self, 1, name) end
function Cursor:u16(name) return number(self, 2, name) end
function Cursor:u32(name) return number(self, 4, name) end
function Cursor:u64(name) return number(self, 8, name) end

function Cursor:bytes(count, name)
    self.item = self.tree:add(self:field(name), self:take(count))
end

-- Shows the bits of the flags read last; the caller checks the others when a receiver does.
function Cursor:bits(bits, name)
    local range = self.tvb(self.at - 1, 1)
    local known = 0
    for _, bit in ipairs(bits) do
        self.item:add(self:field(name .. "." .. bit[1]), range)
        known = known + bit[2]
    end
    return bits32.band(range:uint(), bits32.bnot(known)) == 0
end

local function is_zero(range)
    for i = 0, range:len() - 1 do
        if range(i, 1):uint() ~= 0 then return false end
    end
    return true
end

function Cursor:zero(bytes)
    local range = self:take(bytes)
    if not is_zero(range) then
        self.tree:add(by_name.reserved, range)
        refuse("reserved", "a reserved field is not zero")
    end
end

-- Strict UTF-8 without control characters.
local function is_text(bytes)
    local at = 1
    while at <= #bytes do
        local first = bytes:byte(at)
        local count, low, high = 0, 0x80, 0xbf
        if first < 0x80 then
            if first < 0x20 or first == 0x7f then return false end
        elseif first >= 0xc2 and first <= 0xdf then
            count = 1
            -- U+0080 to U+009F are controls.
            if first == 0xc2 then low = 0xa0 end
        elseif first >= 0xe0 and first <= 0xef then
            count = 2
            if first == 0xe0 then low = 0xa0 elseif first == 0xed then high = 0x9f end
        elseif first >= 0xf0 and first <= 0xf4 then
            count = 3
            if first == 0xf0 then low = 0x90 elseif first == 0xf4 then high = 0x8f end
        else
            return false
        end
        for i = 1, count do
            local byte = bytes:byte(at + i)
            if byte == nil or byte < low or byte > high then return false end
            low, high = 0x80, 0xbf
        end
        at = at + count + 1
    end
    return true
end

function Cursor:text(max, name)
    local length = self:take(1):uint()
    local start = self.at - 1
    local bytes = ""
    if length > 0 then bytes = self:take(length):raw() end
    if length > max or not is_text(bytes) then
        refuse("message-value", name .. " is no text of at most " .. max .. " bytes")
    end
    self.tree:add(self:field(name), self.tvb(start, length + 1), bytes)
    return bytes
end

function Cursor:secret()
    local length = self:take(2):uint()
    local start = self.at - 2
    if length > SECRET_BYTES_MAX then
        refuse("message-value", "a secret of more than " .. SECRET_BYTES_MAX .. " bytes")
    end
    if length > 0 then self:take(length) end
    self.tree:add(self:field("secret"), self.tvb(start, length + 2))
    return length
end

function Cursor:finish()
    local left = self.limit - self.at
    if left > 3 then refuse("message-length", left .. " bytes are left over") end
    if left > 0 then self:zero(left) end
end

local function value_unless(ok, what)
    if not ok then refuse("message-value", what) end
end

local function name_of(names, value)
    return names[value] or tostring(value)
end

-- Messages --------------------------------------------------------------------------------------

-- By type: name, the kind of frame it stands in, its size if fixed, and what reads it from a cursor
-- and returns a summary.
local MESSAGES = {}

local function message(number, name, kind, size, read)
    MESSAGES[number] = { name = name, kind = kind, size = size, read = read }
end

message(0x01, "REQUEST", SESSION, 32, function(c)
    local slot, op = c:u16("slot"), c:u8("op")
    c:u8("op_flags")
    local known = c:bits(OP_FLAGS, "op_flags")
    local sequence = c:u32("sequence")
    c:u32("attachment")
    c:u32("generation")
    local address, length = c:u64("address"), c:u32("length")
    if not known then refuse("reserved", "unknown operation flags") end
    return string.format(
        "%s %d:%d %d@%s", name_of(OPERATIONS, op), slot, sequence, length, tostring(address))
end)

message(0x02, "DATA", SESSION, 20, function(c, frame)
    local slot = c:u16("slot")
    c:zero(2)
    local sequence, offset, length = c:u32("sequence"), c:u32("offset"), c:u32("length")
    value_unless(length > 0, "no data")
    frame.data_length = length
    return string.format("%d:%d %d+%d", slot, sequence, offset, length)
end)

message(0x03, "COMPLETE", SESSION, 24, function(c)
    local slot, status, sequence = c:u16("slot"), c:u16("status"), c:u32("sequence")
    c:u64("verifier")
    c:u32("length")
    return string.format("%d:%d %s", slot, sequence, name_of(STATUSES, status))
end)

message(0x04, "ACK_RANGES", SESSION, nil, function(c)
    local path, count = c:u8("path"), c:u8("count")
    c:u16("delay")
    value_unless(count > 0 and count <= RANGES_MAX, "1 to " .. RANGES_MAX .. " ranges")
    -- Whether they are all there comes before what they are.
    local start = c.at
    c:take(16 * count)
    c.at = start
    local below, largest
    for _ = 1, count do
        local first, last = c:u64("first"), c:u64("last")
        local ordered = below == nil and last < UInt64.max() or below ~= nil and last < below
        value_unless(first <= last and ordered, "ranges are not in order")
        below, largest = first, largest or last
    end
    c:finish()
    return string.format("path %d up to %s", path, tostring(largest))
end)

message(0x05, "CREDIT", SESSION, 16, function(c)
    local path = c:u8("path")
    c:zero(3)
    local frames, bytes = c:u32("frames"), c:u32("bytes")
    return string.format("path %d: %d frames, %d bytes", path, frames, bytes)
end)

message(0x06, "RESET", SESSION, 16, function(c)
    local slot = c:u16("slot")
    c:zero(2)
    local sequence = c:u32("sequence")
    c:u32("length")
    return string.format("%d:%d", slot, sequence)
end)

message(0x07, "RESET_DONE", SESSION, 12, function(c)
    local slot = c:u16("slot")
    c:zero(2)
    return string.format("%d:%d", slot, c:u32("sequence"))
end)

message(0x08, "EVENT", SESSION, 24, function(c)
    local code = c:u16("code")
    c:zero(2)
    c:u32("attachment")
    c:u32("generation")
    return name_of(EVENTS, code) .. " " .. tostring(c:u64("value"))
end)

message(0x09, "PING", SESSION, 4, function() return "" end)

message(0x0a, "ATTACH", SESSION, nil, function(c)
    c:u32("transaction")
    c:u8("flags")
    local known = c:bits(ATTACH_FLAGS, "flags")
    c:zero(3)
    c:u64("writer_generation")
    local export = c:text(NAME_BYTES_MAX, "export")
    c:finish()
    if not known then refuse("reserved", "unknown attach flags") end
    return export
end)

message(0x0b, "ATTACHED", SESSION, 84, function(c)
    c:u32("transaction")
    local attachment = c:u32("attachment")
    c:u32("generation")
    local block = c:u32("block_bytes")
    c:u32("preferred_bytes")
    local io_bytes_max, bytes = c:u32("io_bytes_max"), c:u64("bytes")
    c:bytes(16, "identity")
    c:u64("incarnation")
    c:u64("writer_generation")
    c:u64("verifier")
    c:u8("features")
    local known = c:bits(FEATURES, "features")
    c:zero(3)
    c:u32("idle_generations")
    if not known then refuse("reserved", "unknown features") end
    value_unless(block == 512 or block == 4096, "a logical block is 512 or 4096 bytes")
    value_unless(bytes % UInt64(block) == UInt64(0), "the size is no multiple of the block")
    value_unless(
        io_bytes_max >= block and io_bytes_max % block == 0,
        "the longest request is no multiple of the block")
    return string.format("handle %d, %s bytes", attachment, tostring(bytes))
end)

message(0x0c, "ATTACH_REFUSED", SESSION, nil, function(c)
    c:u32("transaction")
    local status = c:u16("status")
    c:zero(2)
    c:u32("seconds_left")
    local text = c:text(TEXT_BYTES_MAX, "text")
    c:finish()
    return name_of(STATUSES, status) .. " " .. text
end)

message(0x0d, "DETACH", SESSION, 16, function(c)
    c:u32("transaction")
    local attachment = c:u32("attachment")
    c:u32("generation")
    return "handle " .. attachment
end)

message(0x0e, "DETACHED", SESSION, 8, function(c)
    c:u32("transaction")
    return ""
end)

message(0x0f, "BYE", SESSION, 8, function(c)
    local status = c:u16("status")
    c:zero(2)
    return name_of(STATUSES, status)
end)

message(0x10, "ASK_CLOCKS", SESSION, 12, function(c)
    c:u32("transaction")
    local kind = c:u8("ask_clocks.kind")
    c:zero(3)
    return name_of(CLOCK_KINDS, kind)
end)

message(0x11, "CLOCKS", SESSION, 80, function(c)
    c:u32("transaction")
    c:u64("clocks.clock")
    local requests = c:u64("clocks.requests")
    for _, border in ipairs(BORDERS) do c:u64("clocks." .. border) end
    return tostring(requests) .. " requests"
end)

message(0x12, "SUMS", SESSION, nil, function(c)
    local slot, count, sequence = c:u16("slot"), c:u16("count"), c:u32("sequence")
    value_unless(count > 0 and count <= SUMS_MAX, "1 to " .. SUMS_MAX .. " sums")
    for _ = 1, count do c:u32("sums") end
    c:finish()
    return string.format("%d:%d %d sums", slot, sequence, count)
end)

message(0x20, "HELLO", 2, nil, function(c)
    c:u64("nonce")
    local session = c:u64("session")
    c:bytes(16, "initiator")
    c:u64("instance")
    local largest = c:u16("frame_bytes_max")
    c:u8("security")
    local known = c:bits(SECURITY, "security")
    local member = c:u8("member")
    c:u32("room_frames")
    c:u32("room_bytes")
    c:u64("cookie")
    local node = c:text(NAME_BYTES_MAX, "node")
    local export = c:text(NAME_BYTES_MAX, "export")
    local name = c:text(NAME_BYTES_MAX, "name")
    c:finish()
    if not known then refuse("reserved", "unknown security") end
    value_unless(session ~= UInt64(0), "no session id")
    value_unless(member < MEMBERS_MAX, "a member beyond " .. MEMBERS_MAX - 1)
    value_unless(largest >= FRAME_BYTES_MIN, "frames of less than " .. FRAME_BYTES_MIN)
    return string.format("%s asks for %s/%s", name, node, export)
end)

local ADDRESS = {
    [1] = function(c) c:bytes(6, "mac") end,
    [2] = function(c) c:bytes(4, "ipv4") c:u16("port") end,
    [3] = function(c) c:bytes(16, "ipv6") c:u16("port") end,
    [4] = function(c) c:u32("sim") end,
}

message(0x21, "WELCOME", 3, nil, function(c)
    c:u64("nonce")
    local session = c:u64("session")
    c:u64("instance")
    local epoch, slots = c:u32("epoch"), c:u16("slots")
    local largest, request_bytes_max = c:u16("frame_bytes_max"), c:u32("request_bytes_max")
    c:u32("room_frames")
    c:u32("room_bytes")
    c:u64("credit_bytes")
    local count = c:u8("address_count")
    value_unless(count <= ADDRESSES_MAX, "more than " .. ADDRESSES_MAX .. " addresses")
    for _ = 1, count do
        local family = c:u8("family")
        value_unless(ADDRESS[family] ~= nil, "unknown address family")
        ADDRESS[family](c)
    end
    c:finish()
    value_unless(session ~= UInt64(0), "no session id")
    value_unless(slots > 0, "no slots")
    value_unless(largest >= FRAME_BYTES_MIN, "frames of less than " .. FRAME_BYTES_MIN)
    value_unless(request_bytes_max >= 512, "requests of less than 512")
    return string.format("epoch %d, %d slots", epoch, slots)
end)

message(0x22, "REFUSE", 4, nil, function(c)
    c:u64("nonce")
    local status = c:u16("status")
    local text = c:text(TEXT_BYTES_MAX, "text")
    c:finish()
    return name_of(STATUSES, status) .. " " .. text
end)

message(0x23, "UNKNOWN_SESSION", 9, 12, function(c)
    return tostring(c:u64("session"):tohex())
end)

message(0x24, "RETRY", 10, 20, function(c)
    c:u64("nonce")
    local cookie = c:u64("cookie")
    value_unless(cookie ~= UInt64(0), "no cookie")
    return "with cookie " .. tostring(cookie:tohex())
end)

message(0x25, "KEYED_HELLO", 11, nil, function(c)
    c:u64("nonce")
    c:u64("session")
    c:bytes(8, "key")
    c:u64("cookie")
    local suites = c:u8("suites")
    c:zero(3)
    local node = c:text(NAME_BYTES_MAX, "node")
    local length = c:secret()
    c:finish()
    value_unless(suites > 0, "no suite")
    return string.format("with a key to %s, %d bytes", node, length)
end)

message(0x26, "KEYED_ANSWER", 12, nil, function(c)
    c:u64("nonce")
    local length = c:secret()
    c:finish()
    return length .. " bytes"
end)

message(0x28, "DISCOVER", 5, nil, function(c)
    c:u64("nonce")
    c:u64("session")
    c:u16("first")
    c:u16("spread_ms")
    c:u64("cookie")
    local node = c:text(NAME_BYTES_MAX, "node")
    c:finish()
    return node == "" and "everybody" or node
end)

message(0x29, "OFFER", 6, nil, function(c)
    c:u64("nonce")
    c:u64("instance")
    local total = c:u16("total")
    c:u16("first")
    c:u64("cookie")
    local node = c:text(NAME_BYTES_MAX, "node")
    local count = c:u16("count")
    local names = {}
    for i = 1, count do names[i] = c:text(NAME_BYTES_MAX, "export") end
    c:finish()
    local list = table.concat(names, " ", 1, math.min(#names, 8))
    return string.format("by %s, %d exports: %s", node, total, list)
end)

local function probe(c)
    local token = c:u64("token")
    c:u32("room_frames")
    c:u32("room_bytes")
    return "token " .. tostring(token:tohex())
end
message(0x30, "PROBE", PROBE, 20, probe)
message(0x31, "PROBE_REPLY", PROBE_REPLY, 20, probe)

-- Frames ----------------------------------------------------------------------------------------

local SUMMARIES_MAX = 6

-- Reads one message from `at`; returns where the next begins.
local function read_message(tvb, at, frame, tree)
    local left = frame.messages_end - at
    if left < 4 then refuse("message-length", "half a message") end
    local number, flags = tvb(at, 1):uint(), tvb(at + 1, 1):uint()
    local length = tvb(at + 2, 2):uint()
    if length < 4 or length % 4 ~= 0 or length > left then
        refuse("message-length", "message length " .. length .. " of " .. left)
    end
    local known = MESSAGES[number]
    local name = known and known.name or string.format("type 0x%02x", number)
    local subtree = tree:add(thinwire, tvb(at, length), name)
    local title = subtree:add(by_name.message, tvb(at, length), name)
    title:set_generated()
    subtree:add(by_name.message_type, tvb(at, 1)):append_text(" (" .. name .. ")")
    subtree:add(by_name.message_flags, tvb(at + 1, 1))
        :add(by_name["message_flags.skippable"], tvb(at + 1, 1))
    subtree:add(by_name.message_length, tvb(at + 2, 2))
    if bits32.band(flags, 0xfe) ~= 0 then refuse("reserved", "unknown message flags") end
    if known == nil then
        if flags == 0 then refuse("message-unknown", name) end
        if length > 4 then subtree:add(by_name.unknown, tvb(at + 4, length - 4)) end
        return at + length
    end
    if known.size and known.size ~= length then
        refuse("message-length", name .. " has " .. known.size .. " bytes")
    end
    frame.data_length = nil
    local c = cursor(tvb, at + 4, at + length, subtree, name:lower())
    local summary = known.read(c, frame)
    if flags ~= 0 then refuse("reserved", "a known message is not skippable") end
    if summary ~= "" then subtree:append_text(": " .. summary) end
    frame.count = frame.count + 1
    if frame.count <= SUMMARIES_MAX then
        frame.summaries[frame.count] = summary == "" and name or name .. " " .. summary
    end
    if frame.data_length then
        if frame.data_length > frame.length - frame.payload_at then
            refuse("payload", "more data than payload")
        end
        local range = tvb(frame.payload_at, frame.data_length)
        subtree:add(by_name.payload, range)
        frame.payload_at = frame.payload_at + frame.data_length
    end
    if known.kind ~= frame.kind then
        refuse("message-misplaced", name .. " in a frame of kind " .. name_of(KINDS, frame.kind))
    end
    return at + length
end

local function read_messages(tvb, frame, tree)
    local at = HEADER_BYTES
    while at < frame.messages_end do
        at = read_message(tvb, at, frame, tree)
    end
    if frame.kind == SESSION then
        if frame.payload_at ~= frame.length then refuse("payload", "payload that nobody owns") end
        return
    end
    if frame.count ~= 1 then
        refuse("message-misplaced", frame.count .. " messages instead of one")
    end
    if frame.kind ~= PROBE and frame.data_offset ~= frame.length then
        refuse("payload", "payload in a frame of this kind")
    end
    if frame.data_offset < frame.length then
        tree:add(
            by_name.probe_padding, tvb(frame.data_offset, frame.length - frame.data_offset))
    end
end

-- Shows the header and returns its values; checks nothing.
local function show_header(tvb, tree)
    local function add(name, at, bytes) return tree:add(by_name[name], tvb(at, bytes)) end
    add("version", 0, 1)
    add("kind", 1, 1)
    add("suite", 2, 1)
    add("key_phase", 3, 1)
    add("length", 4, 2)
    add("data_offset", 6, 2)
    add("session", 8, 8)
    add("packet_number", 16, 8)
    add("epoch", 24, 4)
    add("messages_end", 28, 2)
    add("path", 30, 1)
    add("tag", TAG_AT, TAG_BYTES)
    -- What is behind it is shown as it is, unless a key hides it.
    if tvb(2, 1):uint() == 0 then
        local flags = add("flags", 48, 1)
        flags:add(by_name["flags.ack"], tvb(48, 1))
        flags:add(by_name["flags.credit"], tvb(48, 1))
        add("ack_path", 49, 1)
        add("ack_delay", 50, 2)
        add("credit_slots", 52, 4)
        add("ack_largest", 56, 8)
        add("ack_bitmap", 64, 8)
        add("credit_bytes", 72, 8)
    end
    return {
        version = tvb(0, 1):uint(),
        kind = tvb(1, 1):uint(),
        suite = tvb(2, 1):uint(),
        flags = tvb(2, 1):uint() == 0 and tvb(48, 1):uint() or 0,
        length = tvb(4, 2):uint(),
        data_offset = tvb(6, 2):uint(),
        messages_end = tvb(28, 2):uint(),
        payload_at = tvb(6, 2):uint(),
        count = 0,
        summaries = {},
    }
end

local function zero(tvb, at, bytes, what)
    if not is_zero(tvb(at, bytes)) then refuse("reserved", what) end
end

-- The public part of the header: what is known before the frame is unsealed.
local function check_public(tvb, frame)
    if frame.version ~= VERSION then refuse("version", "version " .. frame.version) end
    if KINDS[frame.kind] == nil then refuse("kind", "kind " .. frame.kind) end
    local numbered = frame.kind == SESSION or frame.kind == PROBE or frame.kind == PROBE_REPLY
    if frame.suite > SUITES_MAX then refuse("suite", "suite " .. frame.suite) end
    if frame.suite > 0 and not numbered then refuse("suite", "a key outside a session") end
    if frame.suite == 0 then zero(tvb, 3, 1, "a key phase without a key") end
    zero(tvb, 31, 1, "reserved field at 31")
    if not numbered then
        zero(tvb, 16, 12, "a packet number or an epoch outside a session")
        zero(tvb, 30, 1, "a path outside a session")
    end
    if frame.length > tvb:reported_len() then refuse("truncated", "shorter than its length") end
    local ordered = HEADER_BYTES <= frame.messages_end and frame.messages_end <= frame.data_offset
        and frame.data_offset <= frame.length
    local gap = frame.data_offset == frame.length and frame.messages_end ~= frame.length
    if not ordered or gap then refuse("layout", "its borders contradict each other") end
end

-- The tag of suite 0.
local function check_tag(tvb, frame)
    if frame.suite ~= 0 or not thinwire.prefs.checksum or tvb:len() < frame.length then return end
    local after = ""
    if frame.length > PUBLIC_BYTES then
        after = tvb(PUBLIC_BYTES, frame.length - PUBLIC_BYTES):raw()
    end
    local bytes = tvb(0, TAG_AT):raw() .. string.rep("\0", TAG_BYTES) .. after
    if crc32c(bytes) ~= tvb(TAG_AT, 4):uint() or not is_zero(tvb(TAG_AT + 4, TAG_BYTES - 4)) then
        refuse("checksum", "the tag does not fit")
    end
end

-- The sealed part of the header.
local function check_sealed(tvb, frame)
    if frame.flags > 3 or frame.flags > 0 and frame.kind ~= SESSION then
        refuse("reserved", "unknown flags")
    end
    local acknowledges, credits = frame.flags % 2 == 1, frame.flags >= 2
    if not acknowledges then
        zero(tvb, 49, 3, "acknowledgement without its flag")
        zero(tvb, 56, 16, "acknowledgement without its flag")
    end
    if not credits then
        zero(tvb, 52, 4, "credit without its flag")
        zero(tvb, 72, 8, "credit without its flag")
    end
    local largest, bitmap = tvb(56, 8):uint64(), tvb(64, 8):uint64()
    if largest < UInt64(64) and bitmap:rshift(largest:tonumber()) ~= UInt64(0) then
        refuse("reserved", "acknowledgement of numbers below 0")
    end
end

local function show_refusal(root, why)
    -- Not raised by us: a fault of this script. Let Wireshark show it as such.
    if type(why) ~= "table" then error(why, 0) end
    root:add(by_name.refused, why.reason):set_generated()
    root:add_proto_expert_info(expert_refused, why.reason .. ": " .. why.what)
end

local function summary_of(tvb, frame)
    local parts = { name_of(KINDS, frame.kind) }
    if frame.kind == SESSION then
        parts[#parts + 1] = "#" .. tostring(tvb(16, 8):uint64())
        parts[#parts + 1] = "path " .. tvb(30, 1):uint()
        if frame.flags % 2 == 1 then
            local path = tvb(49, 1):uint()
            parts[#parts + 1] = "ack " .. path .. "#" .. tostring(tvb(56, 8):uint64())
        end
        parts[1] = table.concat(parts, " ")
        parts = { parts[1], table.concat(frame.summaries, "; ") }
        if frame.count > SUMMARIES_MAX then
            parts[2] = parts[2] .. "; and " .. frame.count - SUMMARIES_MAX .. " more"
        end
        if frame.count == 0 then parts[2] = nil end
        if frame.suite ~= 0 then parts[2] = "sealed, suite " .. frame.suite end
        return table.concat(parts, " | ")
    end
    if frame.kind == PROBE or frame.kind == PROBE_REPLY then
        parts[#parts + 1] = "#" .. tostring(tvb(16, 8):uint64())
        parts[#parts + 1] = "path " .. tvb(30, 1):uint()
        if frame.kind == PROBE then parts[#parts + 1] = frame.length .. " bytes" end
        return table.concat(parts, " ")
    end
    local text = frame.summaries[1]
    if text then parts[#parts + 1] = text:match("^%S+ (.*)$") end
    return table.concat(parts, " ")
end

function thinwire.dissector(tvb, pinfo, tree)
    pinfo.cols.protocol = "Thinwire"
    pinfo.cols.info = ""
    local root = tree:add(thinwire, tvb())
    if tvb:len() < HEADER_BYTES then
        local why
        if tvb:len() > 0 and tvb(0, 1):uint() ~= VERSION then
            why = { reason = "version", what = "version " .. tvb(0, 1):uint() }
        elseif tvb:reported_len() < HEADER_BYTES then
            why = { reason = "truncated", what = "shorter than a header" }
        end
        if why then
            show_refusal(root, why)
            pinfo.cols.info = "refused: " .. why.reason
        else
            root:add_proto_expert_info(expert_cut)
        end
        return tvb:len()
    end
    local frame = show_header(tvb, root)
    local refused
    for _, step in ipairs({
        function() check_public(tvb, frame) end,
        function() check_tag(tvb, frame) end,
        function()
            if frame.suite == 0 then check_sealed(tvb, frame) end
        end,
        function()
            if frame.suite ~= 0 then
                local shown = math.min(tvb:len(), frame.length) - PUBLIC_BYTES
                root:add(by_name.sealed, tvb(PUBLIC_BYTES, shown))
            elseif tvb:len() < frame.length then
                root:add_proto_expert_info(expert_cut)
            else
                read_messages(tvb, frame, root)
            end
        end,
    }) do
        local fine, why = pcall(step)
        if not fine then
            show_refusal(root, why)
            refused = why.reason
            -- Behind a wrong checksum there may be something to see.
            if refused == "checksum" and pcall(check_sealed, tvb, frame) then
                pcall(read_messages, tvb, frame, root)
            end
            break
        end
    end
    local shown = math.min(tvb:len(), math.max(frame.length, HEADER_BYTES))
    if tvb:len() > shown then
        root:add(by_name.padding, tvb(shown))
    end
    if frame.suite == 0 and refused ~= "truncated" and refused ~= "layout" and frame.data_offset > frame.messages_end
        and frame.data_offset <= tvb:len()
    then
        root:add(
            by_name.gap, tvb(frame.messages_end, frame.data_offset - frame.messages_end))
    end
    local summary = summary_of(tvb, frame)
    if refused then summary = "refused: " .. refused .. " | " .. summary end
    pinfo.cols.info = summary
    root:append_text(", " .. summary)
    return tvb:len()
end

-- Registration ----------------------------------------------------------------------------------

local registered = {}
local function register()
    for _, was in ipairs(registered) do
        DissectorTable.get(was[1]):remove(was[2], thinwire)
    end
    registered = {
        { "ethertype", thinwire.prefs.ethertype },
        { "udp.port", thinwire.prefs.udp_port },
    }
    for _, is in ipairs(registered) do
        DissectorTable.get(is[1]):add(is[2], thinwire)
    end
end

function thinwire.prefs_changed()
    register()
end

register()
