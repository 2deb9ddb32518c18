// SPDX-License-Identifier: Apache-2.0
// Frames as the zstd program writes them, and what is in them.

const random = (seed) => {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff;
    return state >> 16;
  };
};
const wordsOf = () => {
  const next = random(1);
  const words = ['alloc', 'free', 'segment', 'weights', 'cache', 'stream', 'pool', 'block'];
  return Buffer.from(Array.from({ length: 900 }, () => words[next() % 8]).join(' '));
};
const skewedOf = () => {
  const next = random(7);
  return Buffer.from(Array.from({ length: 2000 }, () => {
    const share = next() % 100;
    return share < 60 ? 65 : share < 85 ? 66 : 67 + (share % 12);
  }));
};

export const plain = {
  nothing: Buffer.alloc(0), oneByte: Buffer.from('x'), sameBytes: Buffer.alloc(300000), words: wordsOf(), wordsBest: wordsOf(), wordsFast: wordsOf(),
  skewed: skewedOf(), skewedBest: skewedOf(), pair: wordsOf().subarray(0, 500),
};

export const frames = {
  nothing: 'KLUv/SQAAQAAmenYUQ==',
  oneByte: 'KLUv/QRYCQAAeCMRBIM=',
  sameBytes: 'KLUv/QRYVAAAEAAAAQD7/znAAgIAEAADnwQALSjeJg==',
  words: 'KLUv/QRIJR8AUsoYFLAl6QBsyWSyZM+2SfKpTJKUZEAFHSROe8XbNEjsFW+TfyO8Ra94m3rF2yRQr/g33qYOEtsr/8bb1F75tyG8BeEt2qvpIJHwFiNQrwzj36aDxAJQIegwlBEEGjDt1fi38W8BgfSosSdJYdk3IQQNRaIcWw8SUGCxDIhUrTVEM0kh7RsZAfGhboz89iKpBNPEYyMC8qsKIr1cCxfLaka3odq4wugL9EIGs5oW9uSiChdYHkJuTyrtgsX2y7jAkRxaJviHJclOtKUYaLKWumPsRyA3UFUiuBhzIjx3TDfhHqOncp5JIxlqFqmHfqfosHYwpI6OCgxtbrrxkiDZselODr5hUgRkocTKDnocq+sIG+1V+VZZ0Poxytrw7j+nR6qRmwGS6kmKruktgAUgGq6rBNmnZOVJJDi4vCWnzUkmpqcRAKj2n7lZE8pWshICXALFJV52aUBQFM6L40VBIulbbENCHxACR8JbPZYLFocGBVBcKV6J/Fk48GCeaju8dXjUszJEUU92M1C8PzpCHFY+/Ymth3sil7gtIt9UX1kDedG9kYSMzwftquKgcgpHAOEa72lq5xvq7fZhIxnx66kXszizspvhF3CDQQs5++zccD1meHgb/DVblQ+GWWae9ImUmTZ3I+CdM+5jxMDAxDm8PsX5qSgGKzS+llAE6UBQqFhHerurT9fWPdJW+MzdUrrRnXjP4p5sAxXh9mSkDQ8zIYO64EOMTYnpkv38dJB6P4oDiM7DMKixYNvAI3jy/wYE7SQHeuaLwPcX4Z1LchqfSR67NwYr2lcP7m3Tv1s4VBZhWxDpsnemSgP7sMwzsWF30PcQLfkXZNmSzRKqVxPze8ix5cC7eehBcoQqLDMpGW9uRR38qEOBMSp3gAenaFIicWPvafR6DVPmO1MRzp1lQatmkxNv74lc43qr6gQ6bqSC5nQexl5CkBQAZRbUiNETPBGdV52C/5ZJTB7n/rZRzdUTnFo0Q/LWX5ytNHaBoE6uMNjIdG307A0usGdeJRg/d6eS5JVJWckUZi7WJXFOT9jRy24wgWZ4RGVNBkdCAB3/SrdML6NTCMGslpm7pdwf+cfi4CXLGf8iWhHgISLhJWUvWhj4wrNPzAQMuHMZvwxsPDljg3yuyESJf9Vgt16qbK4RMmEcKIDeG6yiMc4xsI8FsDjsm7vLxWg4DZKC3NyqtDoBcngLXon6fIq2dIV6QXc4mBRSmYWi3rkqAFWyWoryd/e+pEbog49ScxLCMcvWgQwoElhl6Ngk2OCjgyomxWSScyNIQfxn1jzVJinFajwuIO/JBlcF1cBXG+LfOFYV+1v1eg==',
  wordsBest: 'KLUv/QRo3RYA4kIKEMDrAF1OaWwsSbLE/1/65wzF/0rxwMw5qfToVR0b4Uw1BPEyOwU7IgqBaajhawybASEIAYRxjkqKDxJo4AgQkIBiGhAiQAwMwygQVKBChjmnN+5WTnrVc2CYMl/gtn/cooxG4Kdu3r/7qpbhZrdh09CZlcSu4vby4yjOYJWt0Cb7Gw95M1WzVZG4i82qIJrkyLCUiHF9UFv+MjnMgh2Ul8mxikN0dPdRCa+H4qbRt3nfsmc0C7iCjBqIsa9bbAbiqfMeQa2VJLzMuuUZaPS8d5pV971aFpSQavp8iD9ebAdRXimf83gXYc6nPsQoJmNiHEVhxw2i+cRwLJgtJtA5zjV4DcH4WO+xOM5SxH5BgMHUmECO+xYpahawo5nbtP0WigTUo9CPLTY6CsQNTkwYkMRKgUq5OpgSYcNJh0Gc0RY4EAUu6bkJjitEs1QO2Zd/nBWkSFuEWTtJgJgXKQGt+1Gq1WxRE4Ss1zroE6uqSIIBVQh4pPlvMcMUqil0wZPNwa+VXnFEG4dapfusomxjMtpbjAw7d8XIK2CRgPpw8mdk+NAeGorwhxCAQkPv7n5MGEANLgDfYII07Xk+AOQY3D74F/dqc8dChABbiStwQCKBH6Sc/Yn7ykFDVMc15NLKTNvR5GuvBAE6lIL4f+lWoZXAvyIap8EK7F5eAnmHMDixCCDA80SYcrqaEI/CzWhViZTNlJQ1Fh6btDf0SW7HGu0GxdiiRjKoMcAP60/Zi5NamxEafare4UgXMtGv9vBogWnXKd/HTCX1dfQhvwoZ7jj3zO7r2rmyncaZTSNL0luinBSAXw/l1SWvYGCHznO2p/UtJRb2ytgScgLocaEMqMMk7HOw+AuzYd5U+HlJ9K7ClLq0oqoPo2470s7/QMX0rhUTUcwStOGrKHGcTl5sNadc5KmpYqxb5m77d+mKnGEHDG6ZRxwpSCpOInLhan/9M6qzqMKU/QP7W/V6',
  wordsFast: 'KLUv/QRIDSYAhA9wb29sIHBvb2wgZnJlZSB3ZWlnaHRzc2VnbWVudCB3ZWlnaHRzIGNhY2hlIHBvb2wgc3RyZWFtIGJsb2NrIGNhY2hlIGNhY2hlIGZyZWUgYmxvY2sgZnJlZSBibG9jayBmcmVlIGJsb2NrIGJsb2NrIGJsb2NrIHBvb2xhbGxvYyBjYWNoZXBvb2xmcmVlIGFsbG9jcG9vbCBzdHJlYW1mcmVlIGZyZWVwb29sIGZyZWVmcmVlZnJlZSBwb29scG9vbGFsbG9jIHBvcG9vbHNlZ21lbnQgYWxsb2Mgc2VmcmVlIGJsb3dlaWdodHMgZnJlZSBjYWNoZYJ9qKKPipLssRsyCKSYbEi6bgMSSACLMoHUKdok6d+hp3oCp6c3MhhIJi6svdC0tAYKjCltJ5CxjjaG6jzPqFU//5/Ly+1YoWTgHf6HUOcxnc56yCA23J2LfCiRPs6j5rUiY5X8+87Dwk0J78VFufDEpXCAwICTu6mljORbT8rGR4CT3hCEOhNKXKjg2K9qX+LQA0Md7G+IqbGfljjdttoz2CnxIdoDuMGAEiEnWQchp1j1UCP7xxCTS7n1+ftoj4R1FosQNWfGTetRFsPlcFjzPI//Ts/+Ym28zEwnuvrPWjO/GwZMTi0wKdCyocVwrADcD0KCNe5D6IPWWCArW0/Nsn2MMoLQ/Nb8H33JwgJ5cRXYAAIayhZC7/YEkvHcIA4v+wrSgUm44p4g8c+nBx9QlaU3/c2Qi+nmVRAHYRzp+6hdFfGJAfZHqXJUPXHJ67gec75tjZKB+4oVQVVMNZzpsYwu3zSPvs4ogcxJSriFKlPruoG8xzACpfhVRaeUxWdgJASc/S8CCcZczE2SwRl89aJJzU9tWktmgbDcQy5MV28R47mEVtsGx6ERjUS66KhxMwg+aft3qV5vaitcL+fdVW+8msV7mHVdfbHuRxxtnn8+RuUZtB+hY0/SRJ7aOA8qXZt9D6G75tmCVyS0BTLbv4iPtx3DSwpKm2MINg+gvZIG5BRxaCCNVyNH2onnne5IWXNJJhh95hgTcK/CG7F6JCEQuC9Ll8xDZ9C8LQtIDqLemVaz6ao8oe2K85lIX9WGK7/R0EOtZme3Z73WBHqNMmF7cYDhzLffSzBoZ6+OtgBOZMgCR0f9VzZoz9IvAo+tO9fyLst6KiCIq5OI54tyloKscb9WTav5jg7h8WBKB9NVMZOgYGSkEk0nxfJ4hYsCfE4aJUhGwtwqRDyhDqfTccENBeYn6BbrMcnqa1dj+JKyOlIlm9CNvYSYGfqTcWLCxsDRo6vJpHNowRc9eU2jpLQMevMTnYwnwnvNzmIFv09wkM6DkfQ0lhfLX5ZAlGU8JkL0fMicmj0ANqzED5V5Jeh4OQnlXFrMLsWJkv9yz0CZECSZTY4BJNzltdcp4VtLNQJ90MjImMprIatks0YKi2yTxWbGV7TZ03bZ5TKE+ZpxLxJXSjm9yPgFP8C+7ovNTrdxGu/IJUUPCp5elVIXV8BlA7pprmx7lesNoOQCjPBqFD7HNlBdVf3Tx0aZfJNf0x1V+Kn2SdynTUzAxMOFnVkXmRdtzMQHYkC0oK5YhMopnjUziXQ7Pg0Mccst0E9ugZY5mNr7W/V6',
  skewed: 'KLUv/QRYjRUANl81DLC5GGRrRit7zwyDlysAMgAyAL9kEnHSoyrW9u2cIa2a2fTs5Ne4jrA60HItKrHU+/pSydUspuoK3bWE+x7ntSznxnrMKSH+0INiiemW67uMZYBLxyk31LFmUDA5sFilfRQvt7L1sy7r4k3KT2EvK+bAmODSk+DhzU70Am3gpkngrAWJPaFd6WeLBmiumNNbo5L1/WsQCf3wopZG7YWBP6cGCxWCrdQHsgv0Tx3qeATmELUGYMyPeJYJ7TEMBdAKXT587VRet7bWwVO3kw9vA4aF5kszgOyogbVjRZIkBSk0ByACQgxCeHYQEO6mNmN0KJwlgEZCX0vJNa9pf737v454GaypNW3lgm54BLXTEHngtKgRyEqwpFrzulSSA7Q1C5LEcnzV4IDa52dcHIukiY0jeMJPolSbpN66F2bevcEhK3sTQBcI4EnEBNKEEZEU0p95EbZoMRIpKzGBLcYQLQZJHKELCWj5d6D6BT8PmCC7p6lU/pqybNZfR4QXe4aEHXluQUqyAuDBeQYETt6nl411YkPCyg3/RVaBnU07j3pSxDG9EkBNKLEr0AV0RDRAjR+iaMr0InKSIlOjpACQRNkfxswutx+xc9prhXMqq97FL+lqcy4jgmJXBDTjBrY1fXC+oojJ/ZNB6WByrSp0u6qBJUJ0VWWGedP9wbiTCPWZQdbRI4r9LSS4mwdO5anRUzSTyzuwL7V0fY1ZRTIfN4U5VHzD+CjNA08g86vUDngsyM48t2b/ejWTg9EcaM2s3KSeEqXzDJ3IzW8wk+eIS8FyQoCMayOlklse3muEhY+gNO4JuI8MiWgCT4p7B0C+XdlcNl3wOCPwb/gNMSx94dBhDaFeHwACAHJOcFxwIkN8dSH1rgVvgfbQY/k9y5eKyk9CjORszUGc7cSsuj9uhVvM',
  skewedBest: 'KLUv/QBodRAA6nncBw2guXLtfzcRieX//8MMeAB2AH8A31pfYxPmq9Vpe6X3u4QOtKGrGPmP7hfSB7vSfSaJJBXN1kX0RXXTFQaCRvYvqeX3Vg8c+FIJ3F8SAzZ5H/Tu/vXk2z9eaGldezmO67AH9Ne+1N4alddH6xFVYw930DuTXZxIbopUcuTAvpfF1m/5FW7d2uQ2EbYWX389rPE60bXZDlbk6rAf8YDEsoEaVpw0LvWtdluYvN3lvNA66tdt/ma/PGpievHqK72jsW1t3wx9vJ9RZuJLrG7vG+6mfvz2oND7WmnXxL3aVm4RyXzv00bWYcbi73DWL/LwX4/CDB/65Mv+u3aD/7Xvp60fM3euF0q+MF18NaVJwSevW7U2fZB/Nd13MWBDUzmDhP1vbtqod/LSTkaWX8rO/X6NXQY5EixQjdfUE0UEN/+6b1VQb83oL/2GAKCepQP77Nf7lSXwP3IZT+1mZo8kNAeEGuFKy8rfau+q3wetu9+QO1r8toz9+U6DXKat6JphNgHV++vCj2u/6PuEN/T0/i+JF/tH0iIX/KcS7bn+u+/mo8aL/Kva6+vkffRPDEi148OukXr8fcoh6MKJSR/Ya30LjlH2W5MN8TWLnvxX7QcjGu5HoH9cMujEn+H+wszO8lIB/H/1FY/383vz/6PWLdi7skgDyLsDBQC402tPJhDZQhQQ4XagU+YW0g==',
  pair: 'KLUv/QRYbQUAtANwb29sIHBvb2wgZnJlZSB3ZWlnaHRzc2VnbWVudGNhY2hlc3RyZWFtIGJsb2NrYWxsb2Nwb29sIGJsby8gECTkHB+mGaBkGbYNLI1Q5kFcAPg4SAKfGVYNcHTA3CdAjMA0wjoYWBGIPiFCLkBm+JbDbYBjB1wMUMDA0CBlB8AP5gPSD6gEMAlgzrVNQojB8QWRw+oAbgI5bGAg0A1QXggaYJnT9tA7hbEZNAEs9YSR',
};

// One frame of blocks that are stored as they are.
export function stored(bytes) {
  const parts = [Buffer.from([0x28, 0xb5, 0x2f, 0xfd, 0xa0]), Buffer.alloc(4)];
  parts[1].writeUInt32LE(bytes.length);
  for (let at = 0; at < bytes.length; at += 100000) {
    const part = bytes.subarray(at, at + 100000);
    const head = Buffer.alloc(4);
    head.writeUInt32LE(part.length * 8 + (at + 100000 >= bytes.length ? 1 : 0));
    parts.push(head.subarray(0, 3), part);
  }
  return Buffer.concat(parts);
}
