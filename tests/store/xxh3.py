"""XXH3-64 with seed 0 in plain Python, so that the plain reader needs nothing but the page.

Written from the algorithm's own description (xxHash, doc/xxhash_spec.md); `test_format.py` compares
it with the package `xxhash`. Slow: a few MB a second.
"""

import struct

import numpy as np

P32_1, P32_2, P32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
P64_1, P64_2, P64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P64_4, P64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
MX1, MX2 = 0x165667919E3779F9, 0x9FB21C651E98DF25
M64 = (1 << 64) - 1
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8"
    "fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364ea"
    "c5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b"
    "16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)


def xxh3_64(data):
    """The hash of some bytes, an int."""
    data = bytes(data)
    size = len(data)
    if size <= 16:
        return _short(data, size)
    if size <= 128:
        return _medium(data, size)
    if size <= 240:
        return _upper_medium(data, size)
    return _long(data, size)


def _u32(data, at=0):
    return struct.unpack_from("<I", data, at)[0]


def _u64(data, at=0):
    return struct.unpack_from("<Q", data, at)[0]


def _fold(a, b):
    product = a * b
    return (product & M64) ^ (product >> 64)


def _swap64(x):
    return int.from_bytes(x.to_bytes(8, "little"), "big")


def _rotate(x, n):
    return ((x << n) | (x >> (64 - n))) & M64


def _avalanche(h):
    h ^= h >> 37
    h = h * MX1 & M64
    return h ^ (h >> 32)


def _avalanche64(h):
    h ^= h >> 33
    h = h * P64_2 & M64
    h ^= h >> 29
    h = h * P64_3 & M64
    return h ^ (h >> 32)


def _short(data, size):
    if size > 8:
        low = _u64(data) ^ _u64(SECRET, 24) ^ _u64(SECRET, 32)
        high = _u64(data, size - 8) ^ _u64(SECRET, 40) ^ _u64(SECRET, 48)
        return _avalanche((size + _swap64(low) + high + _fold(low, high)) & M64)
    if size >= 4:
        joined = _u32(data, size - 4) + (_u32(data) << 32)
        x = joined ^ _u64(SECRET, 8) ^ _u64(SECRET, 16)
        x ^= _rotate(x, 49) ^ _rotate(x, 24)
        x = x * MX2 & M64
        x ^= (x >> 35) + size
        x = x * MX2 & M64
        return x ^ (x >> 28)
    if size:
        joined = (data[0] << 16) | (data[size >> 1] << 24) | data[-1] | (size << 8)
        return _avalanche64(joined ^ _u32(SECRET) ^ _u32(SECRET, 4))
    return _avalanche64(_u64(SECRET, 56) ^ _u64(SECRET, 64))


def _mix16(data, at, secret):
    return _fold(
        _u64(data, at) ^ _u64(SECRET, secret), _u64(data, at + 8) ^ _u64(SECRET, secret + 8)
    )


def _medium(data, size):
    h = size * P64_1
    for i in range((size - 1) // 32, -1, -1):
        h += _mix16(data, 16 * i, 32 * i) + _mix16(data, size - 16 * (i + 1), 32 * i + 16)
    return _avalanche(h & M64)


def _upper_medium(data, size):
    h = size * P64_1
    for i in range(8):
        h += _mix16(data, 16 * i, 16 * i)
    h = _avalanche(h & M64)
    for i in range(8, size // 16):
        h += _mix16(data, 16 * i, 16 * (i - 8) + 3)
    return _avalanche((h + _mix16(data, size - 16, 136 - 17)) & M64)


STRIPES = (len(SECRET) - 64) // 8
KEYS = np.stack([np.frombuffer(SECRET, "<u8", 8, 8 * i) for i in range(STRIPES)])
LAST_KEY = np.frombuffer(SECRET, "<u8", 8, len(SECRET) - 64 - 7)
SCRAMBLE = np.frombuffer(SECRET, "<u8", 8, len(SECRET) - 64)
NEIGHBOUR = np.arange(8) ^ 1


def _accumulate(lanes, stripes, keys):
    """`stripes` [n, 8] into the eight lanes; sums wrap, so their order does not matter."""
    keyed = stripes ^ keys
    products = (keyed & np.uint64(0xFFFFFFFF)) * (keyed >> np.uint64(32))
    return lanes + products.sum(0, dtype=np.uint64) + stripes[:, NEIGHBOUR].sum(0, dtype=np.uint64)


def _long(data, size):
    first = [P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1]
    lanes = np.array(first, np.uint64)
    stripes = np.frombuffer(data, "<u8", (size - 1) // 64 * 8).reshape(-1, 8)
    for start in range(0, len(stripes), STRIPES):
        block = stripes[start : start + STRIPES]
        lanes = _accumulate(lanes, block, KEYS[: len(block)])
        if len(block) == STRIPES:
            lanes = (lanes ^ (lanes >> np.uint64(47)) ^ SCRAMBLE) * np.uint64(P32_1)
    last = np.frombuffer(data, "<u8", 8, size - 64)[None]
    lanes = _accumulate(lanes, last, LAST_KEY).tolist()
    h = size * P64_1
    for i in range(4):
        low, high = lanes[2 * i], lanes[2 * i + 1]
        h += _fold(low ^ _u64(SECRET, 11 + 16 * i), high ^ _u64(SECRET, 11 + 16 * i + 8))
    return _avalanche(h & M64)
