// SPDX-License-Identifier: Apache-2.0
// The CRC-32 of zlib, for tests: node has it only from version 22 on.
const table = Uint32Array.from({ length: 256 }, (_, i) => {
  let value = i;
  for (let bit = 0; bit < 8; ++bit) value = (value >>> 1) ^ (value & 1 ? 0xedb88320 : 0);
  return value;
});

export const crc32 = (bytes) => ~bytes.reduce((value, byte) => (value >>> 8) ^ table[(value ^ byte) & 255], ~0) >>> 0;
