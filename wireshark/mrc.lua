-- SPDX-License-Identifier: GPL-2.0-only
--
-- A Wireshark dissector for MRC (Multipath Reliable Connection) over UDP, as mrcd speaks it.
--
--   tshark -X lua_script:mrc.lua -o udp.try_heuristic_first:TRUE -r FILE
--
-- Or copy the file to Wireshark's folder of personal plugins (Help, About, Folders). The layouts are
-- the published ones; docs/protocol.md gives their meaning and mrcd's departures. To work with Lua
-- 5.1 to 5.4, the script uses no bit operators and no library for them; 64-bit arithmetic is
-- Wireshark's own.
--
-- The upper half of an EV is the UDP source port, and the UDP dissector tries the lower port first,
-- so it may take a packet for DNS or NTP. Trying heuristics first (see above) avoids that.
--
-- Tags are shown, but not checked: a capture holds no keys.
--
-- Cells have no BTH. Those in IPv6 are found by the mark in the source address of an IPv6 header around
-- an IP packet, those in UDP by their port. The latter are VXLAN, with the state in the inner Ethernet
-- header.

local mrc = Proto("mrc", "Multipath Reliable Connection")

mrc.prefs.port = Pref.uint("UDP port", 4971, "UDP destination port of MRC packets")
mrc.prefs.cell_port = Pref.uint("UDP port of cells", 4974, "UDP destination port of cells in UDP")
mrc.prefs.block =
    Pref.string("uSID block", "fcbb:bb00", "First 32 bits of the addresses that are uSID lists")
mrc.prefs.columns =
    Pref.bool("MRC in the columns", true, "Info shows MRC first, then the inner packet")

-- ---- names of numbers

local BTH_LEN, METH_LEN, TSETH_LEN, RETH_LEN, IMM_LEN, ICRC_LEN = 12, 4, 4, 16, 4, 4
local SETH_LEN, CC_STATE_LEN, NETH_LEN, PETH_LEN, ERTH_LEN, EETH_LEN = 28, 8, 20, 16, 16, 36
local AETH_LEN, AUTH_LEN = 4, 12
local DSCP_TRIMMED, DSCP_LASTHOP = 43, 47
local RKEY_NETDEV, RKEY_STUB = 0x4e455430, 0x4e554c30
local TS_UNIT_NS = 128
local CELL_MSS_MIN, CELL_PACKETS = 512, 128
local CELL_STUB = 1
local VXLAN_LEN, VXLAN_FLAGS = 8, 0x08000000
local ETHERNET_LEN = 14
local IPV4, IPV6, TCP = 4, 41, 6 -- protocol numbers
local VERSIONS = { [0x0800] = 4, [0x86dd] = 6 } -- by EtherType
local SOLICIT = 1

local OPCODES = {
    [0xC6] = "Write First",
    [0xC7] = "Write Middle",
    [0xC8] = "Write Last",
    [0xC9] = "Write Last with Immediate",
    [0xCA] = "Write Only",
    [0xCB] = "Write Only with Immediate",
    [0xD1] = "Transport ACK",
    [0xD8] = "Endpoint Request",
    [0xD9] = "Endpoint Response",
    [0xDC] = "SACK",
    [0xDD] = "NACK",
    [0xDE] = "Probe",
}
local WRITE_FIRST, WRITE_LAST_IMM, WRITE_ONLY, WRITE_ONLY_IMM = 0xC6, 0xC9, 0xCA, 0xCB
local ENDPOINT_REQUEST = 0xD8
local VENDORS = { [SOLICIT] = "asks for a SACK" }
local ATTEMPTS = {
    [0] = "first sending", [1] = "second", [2] = "third", [3] = "fourth or later",
}
local VERDICTS = { [0] = "NONE", [1] = "SKIP_ONCE", [2] = "ALWAYS_SKIP" }
local REASONS = {
    [0x01] = "TRIMMED",
    [0x02] = "TRIMMED_LASTHOP",
    [0x06] = "NO_BITMAP",
    [0x07] = "NO_PKT_BUFFER",
    [0x0A] = "NO_RESOURCE",
    [0x0B] = "PSN_OOR_WINDOW",
    [0x19] = "UNEXP_EVENT",
}
local OPERATIONS = { [0] = "Port Status Update", [1] = "EV Probe" }
local ACK_KINDS = { [0] = "ACK", [1] = "RNR NAK", [3] = "NAK" }
local ENCAPS = { [0] = "full", [1] = "reduced", [2] = "ecmp over IPv6", [3] = "ecmp over IPv4" }
local FULL, REDUCED, ECMP6, ECMP4 = 0, 1, 2, 3
local ROLES = { [0] = "t0-", [1] = "t1-" }

-- ---- fields

local F = {}
local function field(kind, name, ...)
    local made = ProtoField[kind]("mrc." .. name, ...)
    F[name] = made
end

field("uint8", "encap", "Encapsulation", base.DEC, ENCAPS)
field("string", "usids", "uSID list")
field("uint32", "ev", "EV", base.HEX)
field("uint8", "ev.plane", "Plane")
field("uint16", "ev.t1", "T1")
field("uint16", "ev.entropy", "Entropy")
field("uint16", "ev.spare", "Spare", base.HEX)

field("uint8", "bth.opcode", "Opcode", base.HEX, OPCODES)
field("bool", "bth.se", "Solicited event", 8, nil, 0x80)
field("bool", "bth.m", "Migration", 8, nil, 0x40)
field("uint8", "bth.pad", "Pad count", base.DEC, nil, 0x30)
field("uint8", "bth.tver", "Transport version", base.DEC, nil, 0x0f)
field("uint16", "bth.pkey", "P_Key", base.HEX)
field("uint24", "bth.dqpn", "Destination QP", base.HEX)
field("bool", "bth.ackreq", "SACK requested", 8, nil, 0x80)
field("bool", "bth.rtx", "Retransmission", 8, nil, 0x20)
field("bool", "bth.ts", "TSETH follows", 8, nil, 0x10)
field("uint8", "bth.phase", "Phase of the key", base.DEC, nil, 0x01)
field("uint24", "bth.psn", "PSN", base.HEX)

field("uint16", "meth.rqmsn", "RQMSN", base.HEX)
field("uint16", "meth.msn", "MSN", base.HEX)
field("uint16", "ts.time", "Transmit time", base.HEX)
field("double", "ts.us", "Transmit time, us modulo 8.4 ms")
field("bool", "ts.tsr", "Resolution", 16, nil, 0x8000)
field("uint16", "ts.ftype", "Type", base.DEC, nil, 0x000f)
field("uint64", "reth.va", "VA", base.HEX)
field("uint64", "reth.tag", "Tag", base.HEX)
field("uint32", "reth.rkey", "R_Key", base.HEX,
    { [RKEY_NETDEV] = "mrc0 of the peer", [RKEY_STUB] = "nowhere: a stub" })
field("uint32", "reth.length", "Length")
field("uint32", "imm", "Immediate data", base.HEX)
field("bytes", "payload", "Payload")

field("uint8", "aeth.kind", "Kind", base.DEC, ACK_KINDS, 0x60)
field("uint8", "aeth.credits", "Credits", base.DEC, nil, 0x1f)
field("uint24", "aeth.msn", "MSN", base.HEX)

field("uint32", "seth.type", "Type", base.DEC, nil, 0xf0000000)
field("uint32", "seth.nxt", "Next", base.DEC, nil, 0x0f800000)
field("uint32", "seth.m", "Verdict on the path", base.DEC, VERDICTS, 0x00600000)
field("bool", "seth.pr", "Answers a probe", 32, nil, 0x00020000)
field("int16", "seth.ack_psn_offset", "Caused by PSN, relative to cumulative")
field("uint24", "seth.ack_psn", "Caused by PSN", base.HEX)
field("uint16", "seth.probe_id", "Probe id", base.HEX)
field("uint32", "seth.entropy", "EV reported on", base.HEX)
field("uint16", "seth.spdcid", "SPDCID", base.HEX)
field("uint16", "seth.dpdcid", "DPDCID", base.HEX)
field("uint8", "seth.down", "Planes down at the sender", base.HEX)
field("uint24", "seth.cack", "Cumulative PSN", base.HEX)
field("uint8", "seth.cc_type", "CC type", base.DEC, nil, 0xf0)
field("bool", "seth.solicited", "Asked for", 8, nil, 0x04)
field("bool", "seth.duplicate", "Caused by a duplicate", 8, nil, 0x02)
field("bool", "seth.delayed", "Sent by a clock", 8, nil, 0x01)
field("uint8", "seth.mpr", "MPR, in units of 128")
field("int16", "seth.sack_offset", "Bitmap start, relative to cumulative")
field("uint64", "seth.bitmap", "Bitmap", base.HEX)
field("string", "seth.arrived", "PSNs that arrived, from the bitmap")
field("uint16", "cc.time", "Reflected transmit time", base.HEX)
field("uint16", "cc.ooo", "Packets waiting behind a gap", base.DEC, nil, 0x7fff)
field("bool", "cc.restore", "Restore window", 32, nil, 0x80000000)
field("uint32", "cc.penalty", "Window penalty", base.DEC, nil, 0x7f000000)
field("uint32", "cc.bytes", "Nominal sizes of what arrived, in units of 256", base.DEC, nil, 0x00ffffff)

field("uint16", "neth.type", "Type", base.DEC, nil, 0xf000)
field("uint16", "neth.nxt", "Next", base.DEC, nil, 0x0f80)
field("uint8", "neth.reason", "Reason", base.HEX, REASONS)
field("uint8", "neth.vendor", "Vendor", base.HEX)
field("uint32", "neth.entropy", "EV reported on", base.HEX)
field("uint16", "neth.spdcid", "SPDCID", base.HEX)
field("uint16", "neth.dpdcid", "DPDCID", base.HEX)
field("uint24", "neth.psn", "PSN refused", base.HEX)
field("uint8", "neth.cc_type", "CC type", base.DEC, nil, 0xf0)
field("uint16", "neth.time", "Reflected transmit time", base.HEX)

field("uint16", "peth.type", "Type", base.DEC, nil, 0xf000)
field("uint16", "peth.nxt", "Next", base.DEC, nil, 0x0f80)
field("uint8", "peth.vendor", "Vendor", base.HEX, VENDORS)
field("uint16", "peth.probe_id", "Probe id", base.HEX)
field("uint16", "peth.spdcid", "SPDCID", base.HEX)
field("uint16", "peth.dpdcid", "DPDCID", base.HEX)

field("uint16", "endpoint.type", "Type", base.DEC, nil, 0xf000)
field("uint16", "endpoint.nxt", "Next", base.DEC, nil, 0x0f80)
field("uint16", "erth.op", "Operation", base.DEC, OPERATIONS, 0x0003)
field("uint16", "eeth.op", "Operation", base.DEC, OPERATIONS, 0x0030)
field("uint16", "endpoint.id", "Request id", base.HEX)
field("uint8", "endpoint.vendor", "Vendor", base.HEX)
field("uint32", "endpoint.ports", "Planes usable", base.HEX)
field("uint16", "endpoint.time", "Reflected transmit time", base.HEX)

field("uint32", "auth.count", "Count")
field("uint64", "auth.tag", "Tag", base.HEX)

field("uint32", "cell.vxlan", "VXLAN flags", base.HEX)
field("uint24", "cell.vni", "VNI: the label", base.HEX)
field("uint16", "cell.inner", "EtherType of the packet inside", base.HEX)
field("uint24", "cell.attempt", "Attempt", base.DEC, ATTEMPTS, 0x0c0000)
field("bool", "cell.ackreq", "SACK requested", 24, nil, 0x020000)
field("uint24", "cell.phase", "Phase of the key", base.DEC, nil, 0x010000)
field("uint32", "cell.block", "Block of NIC addresses", base.HEX)
field("uint16", "cell.mss", "TCP payload of a packet", base.DEC, nil, 0x3fff)
field("uint24", "cell.psn", "PSN of the first packet", base.HEX)
field("uint8", "cell.seq", "Bits 15 to 8 of the first TCP sequence number", base.HEX)
field("uint16", "cell.qp", "Destination QP, lower half", base.HEX)
field("uint32", "cell.tag", "Tag", base.HEX)
field("uint8", "cell.piece.index", "Number of this packet in the cell")
field("uint24", "cell.piece.psn", "PSN", base.HEX)
field("uint8", "cell.piece.packets", "Packets")

field("uint32", "icrc", "ICRC word", base.HEX)
field("uint32", "icrc.wanted", "ICRC word expected", base.HEX)
field("bool", "icrc.good", "ICRC word is correct")
field("bool", "trimmed", "Trimmed by a switch")
field("bool", "stub", "Stub of a packet that was too old at its sender")

for _, made in pairs(F) do
    mrc.fields[#mrc.fields + 1] = made
end

local E = {
    short = ProtoExpert.new(
        "mrc.short", "Packet ends within its headers", expert.group.MALFORMED, expert.severity.ERROR),
    opcode = ProtoExpert.new(
        "mrc.opcode.unknown", "Unknown opcode", expert.group.UNDECODED, expert.severity.WARN),
    version = ProtoExpert.new(
        "mrc.version", "Transport version or padding is not 0",
        expert.group.PROTOCOL, expert.severity.WARN),
    length = ProtoExpert.new(
        "mrc.length", "Lengths in the headers disagree",
        expert.group.MALFORMED, expert.severity.ERROR),
    inner = ProtoExpert.new(
        "mrc.inner", "Payload for mrc0 is not a complete IP packet",
        expert.group.MALFORMED, expert.severity.ERROR),
    entropy = ProtoExpert.new(
        "mrc.entropy", "Spare half of the EV is not 0",
        expert.group.PROTOCOL, expert.severity.NOTE),
    icrc = ProtoExpert.new(
        "mrc.icrc.bad", "ICRC word is wrong: damaged headers",
        expert.group.CHECKSUM, expert.severity.ERROR),
    piece = ProtoExpert.new(
        "mrc.cell.stray", "The packet has no place in its cell",
        expert.group.MALFORMED, expert.severity.ERROR),
    vxlan = ProtoExpert.new(
        "mrc.cell.words", "A fixed bit of VXLAN or the inner Ethernet header is wrong: no cell",
        expert.group.MALFORMED, expert.severity.ERROR),
    trimmed = ProtoExpert.new(
        "mrc.cut", "A switch trimmed the packet to its headers",
        expert.group.SEQUENCE, expert.severity.NOTE),
    rtx = ProtoExpert.new(
        "mrc.retransmission", "Retransmission", expert.group.SEQUENCE, expert.severity.NOTE),
    nack = ProtoExpert.new(
        "mrc.refused", "A packet did not arrive", expert.group.SEQUENCE, expert.severity.NOTE),
}
mrc.experts = { E.short, E.opcode, E.version, E.length, E.inner, E.entropy, E.icrc, E.piece,
    E.vxlan, E.trimmed, E.rtx, E.nack }

-- ---- the envelope around the UDP payload

local flow_of = Field.new("ipv6.flow")
local from_of = Field.new("ipv6.src")
local following_of = Field.new("ipv6.nxt")
local to_of = Field.new("ipv6.dst")
local class6_of = Field.new("ipv6.tclass.dscp")
local class4_of = Field.new("ip.dsfield.dscp")
local udp_length_of = Field.new("udp.length")

local function block_of(text)
    local high, low = text:match("^%s*(%x+):(%x+)")
    return high and tonumber(high, 16) * 65536 + tonumber(low, 16)
end

-- Return a uSID list such as "p1t0-1 p1t1-2 p1t0-2 p1:1": switches are shown by name, hosts by plane
-- and port of their T0.
local function usids_of(range)
    local names = {}
    for at = 4, 14, 2 do
        local usid = range:range(at, 2)
        if usid:uint() == 0 then break end
        local plane, role, index = usid:bitfield(0, 3), usid:bitfield(3, 2), usid:bitfield(5, 11)
        if ROLES[role] then
            names[#names + 1] = string.format("p%d%s%d", plane, ROLES[role], index)
        else
            names[#names + 1] = string.format("p%d:%d", plane, index)
        end
    end
    return table.concat(names, " ")
end

local function is_trimmed(class)
    return class[1] and (class[1].value == DSCP_TRIMMED or class[1].value == DSCP_LASTHOP)
end

-- Return the field of the uSID list that the last IPv6 header has for its destination, or nil.
local function list_of()
    local to = { to_of() }
    local last = to[#to]
    return last and last.range:range(0, 4):uint() == block_of(mrc.prefs.block) and last or nil
end

-- Return the encapsulation, the EV's high and low half, whether the DSCP is that of a trimmed packet,
-- and the field of the uSID list, if any.
local function envelope(pinfo)
    local flows, to = { flow_of() }, { to_of() }
    local high, low = pinfo.src_port, 0
    local class = { class6_of() }
    if #flows == 0 then
        class = { class4_of() }
        return ECMP4, high, 0, is_trimmed(class), nil
    end
    local cut = is_trimmed(class)
    local list = to[1] and to[1].range:range(0, 4):uint() == block_of(mrc.prefs.block) and to[1]
    low = flows[#flows].value % 65536
    if #flows > 1 then return FULL, high, low, cut, list end
    if list then return REDUCED, high, low, cut, list end
    if low == high then low = 0 end -- the label repeats the high half
    return ECMP6, high, low, cut, nil
end

local function add_usids(tree, list)
    tree:add(F["usids"], list.range, usids_of(list.range)):set_generated()
end

local function add_ev(tree, high, low, choice, free)
    local ev = tree:add(F["ev"], high * 65536 + low)
    ev:set_generated()
    ev:add(F["ev.plane"], math.floor(high / 4096)):set_generated()
    ev:add(F[choice], high % 4096):set_generated()
    ev:add(F["ev.spare"], low):set_generated()
    if low ~= 0 and not free then ev:add_proto_expert_info(E.entropy) end
    return high * 65536 + low
end

-- The EV of an endpoint request may be any below the plane.
local function add_envelope(tree, pinfo, is_request)
    local encap, high, low, cut, list = envelope(pinfo)
    tree:add(F["encap"], encap):set_generated()
    if list then add_usids(tree, list) end
    local choice = (encap == FULL or encap == REDUCED) and "ev.t1" or "ev.entropy"
    return add_ev(tree, high, low, choice, is_request), cut
end

-- ---- the ICRC word

local FACTOR = UInt64.new(0x7f4a7c15, 0x9e3779b9)

-- Return the sum of 32-bit words in pairs; 0 fills up the last pair.
local function sum_of(words)
    local sum = UInt64.new(0, 0)
    for at = 1, #words, 2 do
        sum = sum:bxor(UInt64.new(words[at + 1] or 0, words[at])) * FACTOR
        sum = sum:bxor(sum:rshift(32))
    end
    return sum
end

-- Return the ICRC word over the UDP ports and `length` bytes from the BTH on. `length` is a multiple
-- of four.
local function check_of(tvb, pinfo, length)
    local words = { pinfo.src_port * 65536 + pinfo.dst_port }
    for at = 0, length - 4, 4 do
        words[#words + 1] = tvb:range(at, 4):uint()
    end
    return sum_of(words):lower()
end

local function add_icrc(tree, tvb, pinfo, covered)
    local range = tvb:range(tvb:len() - ICRC_LEN, ICRC_LEN)
    local wanted = check_of(tvb, pinfo, covered)
    local item = tree:add(F["icrc"], range)
    local good = range:uint() == wanted
    item:add(F["icrc.good"], range, good):set_generated()
    if not good then
        item:add(F["icrc.wanted"], range, wanted):set_generated()
        item:add_proto_expert_info(E.icrc)
    end
end

-- ---- headers

local function add_all(tree, range, fields)
    for _, each in ipairs(fields) do
        tree:add(F[each[1]], range:range(each[2], each[3]))
    end
end

local function add_time(tree, range)
    tree:add(F["ts.time"], range:range(0, 2))
    tree:add(F["ts.us"], range:range(0, 2), range:range(0, 2):uint() * TS_UNIT_NS / 1000)
        :set_generated()
    tree:add(F["ts.tsr"], range:range(2, 2))
    tree:add(F["ts.ftype"], range:range(2, 2))
end

local function add_bth(tree, tvb, rtx)
    local bth = tree:add(mrc, tvb:range(0, BTH_LEN), "BTH")
    add_all(bth, tvb:range(0, BTH_LEN), {
        { "bth.opcode", 0, 1 }, { "bth.se", 1, 1 }, { "bth.m", 1, 1 }, { "bth.pad", 1, 1 },
        { "bth.tver", 1, 1 }, { "bth.pkey", 2, 2 }, { "bth.dqpn", 5, 3 }, { "bth.ackreq", 8, 1 },
        { "bth.rtx", 8, 1 }, { "bth.ts", 8, 1 }, { "bth.phase", 8, 1 }, { "bth.psn", 9, 3 },
    })
    if tvb:range(1, 1):bitfield(2, 6) ~= 0 then bth:add_proto_expert_info(E.version) end
    if rtx then bth:add_proto_expert_info(E.rtx) end
end

-- Dissect a packet of an application. It gets the column behind what stands there.
local function add_inner(root, tree, range, pinfo)
    if mrc.prefs.columns then
        pinfo.cols.info:append(" | ")
        pinfo.cols.info:fence()
    end
    local version = range:len() > 0 and range:range(0, 1):bitfield(0, 4)
    local dissector = version == 4 and "ip" or version == 6 and "ipv6"
    -- An inner dissector raises a Lua error for a packet that it cannot dissect.
    if not dissector or not pcall(function()
        Dissector.get(dissector):call(range:tvb(), pinfo, root)
    end) then
        tree:add(F["payload"], range):add_proto_expert_info(E.inner)
    end
    if mrc.prefs.columns then pinfo.cols.protocol = "MRC" end
end

-- Add the headers after the BTH of a Write. Return the length of all headers in bytes, a line for the
-- column, and whether the payload is for mrc0; nil if the packet ends within its headers.
local function add_write(tree, tvb, opcode, cut)
    local stamped = tvb:range(8, 1):bitfield(3, 1) == 1
    local immediate = opcode == WRITE_LAST_IMM or opcode == WRITE_ONLY_IMM
    local headers = BTH_LEN + METH_LEN + (stamped and TSETH_LEN or 0) + RETH_LEN
        + (immediate and IMM_LEN or 0)
    if tvb:len() < headers + (cut and 0 or ICRC_LEN) then return nil end
    local at = BTH_LEN
    local meth = tree:add(mrc, tvb:range(at, METH_LEN), "METH")
    add_all(meth, tvb:range(at, METH_LEN), { { "meth.rqmsn", 0, 2 }, { "meth.msn", 2, 2 } })
    at = at + METH_LEN
    if stamped then
        add_time(tree:add(mrc, tvb:range(at, TSETH_LEN), "TSETH"), tvb:range(at, TSETH_LEN))
        at = at + TSETH_LEN
    end
    local reth = tree:add(mrc, tvb:range(at, RETH_LEN), "RETH")
    local range = tvb:range(at, RETH_LEN)
    local rkey = range:range(8, 4):uint()
    local stub = rkey == RKEY_STUB
    local to_mrc0 = stub or rkey == RKEY_NETDEV
    local tagged = to_mrc0 and stamped and opcode == WRITE_ONLY
    add_all(reth, range, {
        { tagged and "reth.tag" or "reth.va", 0, 8 }, { "reth.rkey", 8, 4 },
        { "reth.length", 12, 4 },
    })
    if immediate then tree:add(F["imm"], tvb:range(at + RETH_LEN, IMM_LEN)) end
    local length = range:range(12, 4):uint()
    local whole = opcode == WRITE_ONLY or opcode == WRITE_ONLY_IMM
    if not cut and whole and length ~= tvb:len() - headers - ICRC_LEN then
        reth:add_proto_expert_info(E.length)
    end
    if stub then tree:add(F["stub"], true):set_generated() end
    return headers, stub and "stub" or string.format("%d bytes", length), to_mrc0
end

-- Return the PSNs of the bits that are set, such as "0x00f00d-0x00f00e, 0x00f010"; `first` is the PSN
-- of bit 0.
local function arrived(bitmap, first)
    local parts, from = {}, nil
    for bit = 0, 64 do
        -- bitfield counts from the most significant bit
        local set = bit < 64 and bitmap:bitfield(63 - bit, 1) == 1
        if set and not from then
            from = bit
        elseif not set and from then
            local low, high = (first + from) % 16777216, (first + bit - 1) % 16777216
            parts[#parts + 1] = low == high and string.format("0x%06x", low)
                or string.format("0x%06x-0x%06x", low, high)
            from = nil
        end
    end
    return table.concat(parts, ", ")
end

local function add_sack(tree, range)
    local seth = tree:add(mrc, range:range(0, SETH_LEN), "SETH")
    local answer = range:range(1, 1):bitfield(6, 1) == 1
    local cack = range:range(13, 3):uint()
    add_all(seth, range, {
        { "seth.type", 0, 4 }, { "seth.nxt", 0, 4 }, { "seth.m", 0, 4 }, { "seth.pr", 0, 4 },
    })
    local about
    if answer then
        seth:add(F["seth.probe_id"], range:range(2, 2))
        about = string.format("answers probe 0x%04x", range:range(2, 2):uint())
    else
        local caused = (cack + range:range(2, 2):int()) % 16777216
        seth:add(F["seth.ack_psn_offset"], range:range(2, 2))
        seth:add(F["seth.ack_psn"], range:range(2, 2), caused):set_generated()
        about = string.format("on 0x%06x", caused)
    end
    add_all(seth, range, {
        { "seth.entropy", 4, 4 }, { "seth.spdcid", 8, 2 }, { "seth.dpdcid", 10, 2 },
        { "seth.down", 12, 1 }, { "seth.cack", 13, 3 }, { "seth.cc_type", 16, 1 },
        { "seth.solicited", 16, 1 }, { "seth.duplicate", 16, 1 }, { "seth.delayed", 16, 1 },
        { "seth.mpr", 17, 1 }, { "seth.sack_offset", 18, 2 }, { "seth.bitmap", 20, 8 },
    })
    local bits = arrived(range:range(20, 8), cack + range:range(18, 2):int())
    seth:add(F["seth.arrived"], range:range(20, 8), bits):set_generated()
    local cc = tree:add(mrc, range:range(SETH_LEN, CC_STATE_LEN), "CC_STATE")
    add_all(cc, range:range(SETH_LEN, CC_STATE_LEN), {
        { "cc.time", 0, 2 }, { "cc.ooo", 2, 2 }, { "cc.restore", 4, 4 }, { "cc.penalty", 4, 4 },
        { "cc.bytes", 4, 4 },
    })
    local verdict = VERDICTS[range:range(0, 4):bitfield(9, 2)] or "?"
    return string.format("up to 0x%06x, %s%s", cack, about,
        verdict == "NONE" and "" or ", " .. verdict)
end

local function add_nack(tree, range)
    local neth = tree:add(mrc, range, "NETH")
    add_all(neth, range, {
        { "neth.type", 0, 2 }, { "neth.nxt", 0, 2 }, { "neth.reason", 2, 1 },
        { "neth.vendor", 3, 1 }, { "neth.entropy", 4, 4 }, { "neth.spdcid", 8, 2 },
        { "neth.dpdcid", 10, 2 }, { "neth.psn", 13, 3 }, { "neth.cc_type", 16, 1 },
        { "neth.time", 18, 2 },
    })
    neth:add_proto_expert_info(E.nack)
    return string.format("of 0x%06x, %s", range:range(13, 3):uint(),
        REASONS[range:range(2, 1):uint()] or "?")
end

local function add_probe(tree, range)
    local peth = tree:add(mrc, range, "PETH")
    add_all(peth, range, {
        { "peth.type", 0, 2 }, { "peth.nxt", 0, 2 }, { "peth.vendor", 3, 1 },
        { "peth.probe_id", 4, 2 }, { "peth.spdcid", 8, 2 }, { "peth.dpdcid", 10, 2 },
    })
    add_time(peth, range:range(12, 4))
    local asks = VENDORS[range:range(3, 1):uint()]
    return string.format("0x%04x%s", range:range(4, 2):uint(), asks and ", " .. asks or "")
end

local function add_ack(tree, range)
    local aeth = tree:add(mrc, range, "AETH")
    add_all(aeth, range, { { "aeth.kind", 0, 1 }, { "aeth.credits", 0, 1 }, { "aeth.msn", 1, 3 } })
    return string.format("%s, MSN 0x%06x", ACK_KINDS[range:bitfield(1, 2)] or "?",
        range:range(1, 3):uint())
end

local function add_request(tree, range, id)
    local erth = tree:add(mrc, range, "ERTH")
    add_all(erth, range, {
        { "endpoint.type", 0, 2 }, { "endpoint.nxt", 0, 2 }, { "erth.op", 0, 2 },
        { "endpoint.vendor", 3, 1 }, { "endpoint.ports", 4, 4 },
    })
    erth:add(F["endpoint.id"], id):set_generated()
    add_time(erth, range:range(12, 4))
    return string.format("%s 0x%04x", OPERATIONS[range:range(1, 1):bitfield(6, 2)] or "?", id)
end

local function add_response(tree, range, id)
    local eeth = tree:add(mrc, range, "EETH")
    add_all(eeth, range, {
        { "endpoint.type", 0, 2 }, { "endpoint.nxt", 0, 2 }, { "eeth.op", 0, 2 },
        { "endpoint.time", 28, 2 },
    })
    eeth:add(F["endpoint.id"], id):set_generated()
    return string.format("%s 0x%04x", OPERATIONS[range:range(1, 1):bitfield(2, 2)] or "?", id)
end

local function add_auth(tree, range)
    local auth = tree:add(mrc, range, "Tag")
    add_all(auth, range, { { "auth.count", 0, 4 }, { "auth.tag", 4, 8 } })
end

local TRANSPORT_ACK = 0xD1
local BODIES = {
    [TRANSPORT_ACK] = { AETH_LEN, add_ack },
    [ENDPOINT_REQUEST] = { ERTH_LEN, add_request },
    [0xD9] = { EETH_LEN, add_response },
    [0xDC] = { SETH_LEN + CC_STATE_LEN, add_sack },
    [0xDD] = { NETH_LEN, add_nack },
    [0xDE] = { PETH_LEN, add_probe },
}

-- ---- a packet

local function is_write(opcode)
    return opcode >= WRITE_FIRST and opcode <= WRITE_ONLY_IMM
end

-- Add the headers after the BTH. Return the length of all headers in bytes, a line for the column, and
-- whether the payload is for mrc0; nil if the packet ends within its headers.
local function add_body(tree, tvb, opcode, cut)
    if is_write(opcode) then return add_write(tree, tvb, opcode, cut) end
    local length, add = BODIES[opcode][1], BODIES[opcode][2]
    local headers = BTH_LEN + length + (opcode == TRANSPORT_ACK and 0 or AUTH_LEN)
    if tvb:len() < headers + ICRC_LEN then return nil end
    local line = add(tree, tvb:range(BTH_LEN, length), tvb:range(10, 2):uint())
    if opcode ~= TRANSPORT_ACK then add_auth(tree, tvb:range(BTH_LEN + length, AUTH_LEN)) end
    if tvb:len() > headers + ICRC_LEN then tree:add_proto_expert_info(E.length) end
    return headers, line, false
end

local function title(opcode, psn, rtx, ev, line)
    local words = { OPCODES[opcode] }
    if is_write(opcode) then words[#words + 1] = string.format("PSN 0x%06x", psn) end
    words[#words + 1] = line
    words[#words + 1] = string.format("EV 0x%08x", ev)
    if rtx then words[#words + 1] = "sent again" end
    return table.concat(words, ", ")
end

function mrc.dissector(tvb, pinfo, root)
    local tree = root:add(mrc, tvb())
    local is_request = tvb:len() > 0 and tvb:range(0, 1):uint() == ENDPOINT_REQUEST
    local ev, trimmed = add_envelope(tree, pinfo, is_request)
    pinfo.cols.protocol = "MRC"
    if tvb:len() < BTH_LEN then
        tree:add_proto_expert_info(E.short)
        pinfo.cols.info = "MRC, cut short"
        return tvb:len()
    end
    local udp = { udp_length_of() }
    -- A complete packet with this DSCP was too small to be trimmed.
    local cut = trimmed and udp[#udp].value - 8 > tvb:len()
    if cut then
        tree:add(F["trimmed"], true):set_generated()
        tree:add_proto_expert_info(E.trimmed)
    end
    local opcode, rtx = tvb:range(0, 1):uint(), tvb:range(8, 1):bitfield(2, 1) == 1
    add_bth(tree, tvb, rtx)
    if not is_write(opcode) and not BODIES[opcode] then
        tree:add_proto_expert_info(E.opcode)
        pinfo.cols.info = OPCODES[opcode] or string.format("MRC, opcode 0x%02x", opcode)
        return tvb:len()
    end
    local headers, line, to_mrc0 = add_body(tree, tvb, opcode, cut)
    if not headers then
        tree:add_proto_expert_info(E.short)
        pinfo.cols.info = OPCODES[opcode] .. ", cut short"
        return tvb:len()
    end
    pinfo.cols.info = title(opcode, tvb:range(9, 3):uint(), rtx, ev, cut and "trimmed" or line)
    if cut then return tvb:len() end
    add_icrc(tree, tvb, pinfo, headers)
    local payload = tvb:len() - headers - ICRC_LEN
    if is_write(opcode) and payload > 0 then
        local range = tvb:range(headers, payload)
        if to_mrc0 and opcode == WRITE_ONLY then
            add_inner(root, tree, range, pinfo)
        else
            tree:add(F["payload"], range)
        end
    end
    return tvb:len()
end

-- ---- a packet of a cell

-- Return TCP's sequence number, of which bits 15 to 8 only, and the length of its payload; nil if
-- the packet is not TCP or too short.
local function tcp_of(tvb)
    if tvb:len() < 40 then return nil end
    local at, ends, protocol = 40, tvb:range(4, 2):uint() + 40, tvb:range(6, 1):uint()
    if tvb:range(0, 1):bitfield(0, 4) == 4 then
        at, ends, protocol = tvb:range(0, 1):bitfield(4, 4) * 4, tvb:range(2, 2):uint(),
            tvb:range(9, 1):uint()
    end
    if protocol ~= TCP or tvb:len() < at + 20 then return nil end
    return tvb:range(at + 6, 1):uint(), ends - at - tvb:range(at + 12, 1):bitfield(0, 4) * 4
end

-- Add the PSNs of a packet, or of a piece that GRO made of several. Return them for the column.
local function add_piece(tree, tvb, mss, seq, first)
    local index, count = 0, 1
    if mss > 0 and mss ~= CELL_STUB then
        local bits, length = tcp_of(tvb)
        if mss < CELL_MSS_MIN or not bits or length < 1 then
            tree:add_proto_expert_info(E.piece)
            return string.format("PSN 0x%06x and later", first)
        end
        index = math.floor(((bits - seq) % 256 * 256 + 255) / mss)
        count = math.ceil(length / mss)
        if index + count > CELL_PACKETS then tree:add_proto_expert_info(E.piece) end
    end
    local psn = (first + index) % 16777216
    tree:add(F["cell.piece.index"], index):set_generated()
    tree:add(F["cell.piece.psn"], psn):set_generated()
    tree:add(F["cell.piece.packets"], count):set_generated()
    if count == 1 then return string.format("PSN 0x%06x", psn) end
    return string.format("PSN 0x%06x-0x%06x", psn, (psn + count - 1) % 16777216)
end

-- Add the state, from the mark and mss on.
local function add_state(tree, state)
    add_all(tree, state, {
        { "cell.mss", 0, 2 }, { "cell.psn", 2, 3 }, { "cell.seq", 5, 1 }, { "cell.qp", 6, 2 },
        { "cell.tag", 8, 4 },
    })
end

local function has_mark(state)
    return state:bitfield(0, 2) == 3
end

-- Return the source address of a cell and, in a fabric with uSIDs, its list, or nil if the IPv6
-- header before this packet is none of a cell. The destination is otherwise a NIC's address, which
-- has the block of the state. No NIC's address has the mark, the two bits after the block.
local function cell_of()
    local from, to, following = { from_of() }, { to_of() }, { following_of() }
    if #from == 0 or following[#following].value ~= IPV4 and following[#following].value ~= IPV6 then
        return nil
    end
    local source, list = from[#from].range, list_of()
    if not has_mark(source:range(4, 12)) then return nil end
    if list then return source, list end
    if to[#to].range:range(0, 4):uint() == source:range(0, 4):uint() then return source, nil end
    return nil
end

-- Return the length of an IP packet, by its header.
local function inner_length(tvb)
    if tvb:len() < 20 then return 0 end
    if tvb:range(0, 1):bitfield(0, 4) == 4 then return tvb:range(2, 2):uint() end
    return tvb:range(4, 2):uint() + 40
end

-- Add what a cell says, and the packet inside. `label` is the range of three bytes that end with the
-- label, `state` that of the state, `class` are the fields of the outer DSCP.
local function add_cell(tree, tvb, pinfo, root, label, state, list, class)
    if list then add_usids(tree, list) end
    local bits = label:uint() % 1048576
    local ev = add_ev(tree, bits % 65536, 0, list and "ev.t1" or "ev.entropy")
    tree:add(F["cell.attempt"], label)
    tree:add(F["cell.ackreq"], label)
    tree:add(F["cell.phase"], label)
    add_state(tree, state)
    local mss = state:bitfield(2, 14)
    local psns = add_piece(tree, tvb, mss, state:range(5, 1):uint(), state:range(2, 3):uint())
    local stub = mss == CELL_STUB
    if stub then tree:add(F["stub"], true):set_generated() end
    local words = { stub and "Stub" or "Cell", psns, string.format("EV 0x%08x", ev) }
    if bits >= 262144 then
        tree:add_proto_expert_info(E.rtx)
        words[#words + 1] = "sent again"
    end
    if is_trimmed(class) and inner_length(tvb) > tvb:len() then
        tree:add(F["trimmed"], true):set_generated()
        tree:add_proto_expert_info(E.trimmed)
        words[#words + 1] = "trimmed"
    end
    pinfo.cols.protocol = "MRC"
    pinfo.cols.info = table.concat(words, ", ")
    add_inner(root, tree, tvb:range(), pinfo)
end

-- This stands before the dissectors of IP in IPv6.
local table_of_protocols = DissectorTable.get("ip.proto")
local before = {
    [IPV4] = table_of_protocols:get_dissector(IPV4),
    [IPV6] = table_of_protocols:get_dissector(IPV6),
}
local cell = Proto("mrc_cell", "MRC cell")

function cell.dissector(tvb, pinfo, root)
    local source, list = cell_of()
    if source then
        local flows = { flow_of() }
        local tree = root:add(mrc, tvb:range(0, 0), "MRC cell")
        tree:add(F["cell.block"], source:range(0, 4))
        add_cell(tree, tvb, pinfo, root, flows[#flows].range, source:range(4, 12), list,
            { class6_of() })
        return tvb:len()
    end
    local version = tvb:len() > 0 and tvb:range(0, 1):bitfield(0, 4)
    return before[version == 6 and IPV6 or IPV4]:call(tvb, pinfo, root)
end

for number in pairs(before) do
    table_of_protocols:add(number, cell)
end

-- ---- a packet of a cell in UDP

local cell_in_udp = Proto("mrc_cell_udp", "MRC cell in UDP")

-- Do VXLAN and the inner Ethernet header have the one right value of all bits that say nothing?
local function is_cell(tvb)
    return tvb:range(0, 4):uint() == VXLAN_FLAGS and tvb:range(4, 1):bitfield(0, 4) == 0
        and tvb:range(7, 1):uint() == 0 and has_mark(tvb:range(VXLAN_LEN, 12))
        and VERSIONS[tvb:range(VXLAN_LEN + 12, 2):uint()] ~= nil
end

function cell_in_udp.dissector(tvb, pinfo, root)
    local headers = VXLAN_LEN + ETHERNET_LEN
    local tree = root:add(mrc, tvb:range(0, math.min(headers, tvb:len())), "MRC cell")
    pinfo.cols.protocol = "MRC"
    if tvb:len() <= headers then
        tree:add_proto_expert_info(E.short)
        pinfo.cols.info = "Cell, cut short"
        return tvb:len()
    end
    add_all(tree, tvb:range(0, headers), {
        { "cell.vxlan", 0, 4 }, { "cell.vni", 4, 3 }, { "cell.inner", VXLAN_LEN + 12, 2 },
    })
    if not is_cell(tvb) then
        tree:add_proto_expert_info(E.vxlan)
        pinfo.cols.info = "No cell, on its port"
        return tvb:len()
    end
    local class6, class4 = { class6_of() }, { class4_of() }
    add_cell(tree, tvb:range(headers):tvb(), pinfo, root, tvb:range(4, 3), tvb:range(VXLAN_LEN, 12), list_of(),
        #class6 > 0 and class6 or class4)
    return tvb:len()
end

-- ---- which packets

local table_of_ports = DissectorTable.get("udp.port")
local ports = {}

-- Have a protocol dissect what the preferences name, and no other port.
local function set_port(of, wanted)
    if ports[of] == wanted then return end
    if ports[of] and ports[of] ~= 0 then table_of_ports:remove(ports[of], of) end
    ports[of] = wanted
    if wanted ~= 0 then table_of_ports:add(wanted, of) end
end

local function set_ports()
    set_port(mrc, mrc.prefs.port)
    set_port(cell_in_udp, mrc.prefs.cell_port)
end

set_ports()

function mrc.prefs_changed()
    set_ports()
end

mrc:register_heuristic("udp", function(tvb, pinfo, root)
    if pinfo.dst_port ~= ports[mrc] or tvb:len() < BTH_LEN then return false end
    if not OPCODES[tvb:range(0, 1):uint()] or tvb:range(1, 1):bitfield(2, 6) ~= 0 then
        return false
    end
    mrc.dissector(tvb, pinfo, root)
    return true
end)
