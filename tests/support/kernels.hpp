// SPDX-License-Identifier: Apache-2.0
// The test kernels as PTX text, so that no build needs a CUDA compiler: the driver compiles them.
#pragma once

namespace weir::testing_support {

/// Every kernel walks its words with a grid-stride loop, so any launch shape covers any count.
///
///   weir_fill(u32* words, u32 value, u64 count)
///   weir_check(const u32* words, u32 expected, u64 count, u32* mismatches)   adds to *mismatches
///   weir_increment(u32* words, u64 count)
///   weir_copy(u32* to, const u32* from, u64 count)
///   weir_spin(u64 nanoseconds)                                               keeps one thread busy
///   weir_hold(const u32* flag, u64 limit)     until *flag is not 0, at most `limit` nanoseconds
inline constexpr const char* kernel_text = R"ptx(
.version 7.0
.target sm_50
.address_size 64

.visible .entry weir_fill(.param .u64 words, .param .u32 value, .param .u64 count)
{
  .reg .pred %p<2>;
  .reg .b32 %r<6>;
  .reg .b64 %rd<8>;
  ld.param.u64 %rd1, [words];
  ld.param.u32 %r5, [value];
  ld.param.u64 %rd2, [count];
  cvta.to.global.u64 %rd1, %rd1;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mov.u32 %r4, %nctaid.x;
  mul.wide.u32 %rd3, %r1, %r2;
  cvt.u64.u32 %rd4, %r3;
  add.u64 %rd3, %rd3, %rd4;
  mul.wide.u32 %rd5, %r4, %r2;
fill_next:
  setp.ge.u64 %p1, %rd3, %rd2;
  @%p1 bra fill_done;
  shl.b64 %rd6, %rd3, 2;
  add.u64 %rd7, %rd1, %rd6;
  st.global.u32 [%rd7], %r5;
  add.u64 %rd3, %rd3, %rd5;
  bra fill_next;
fill_done:
  ret;
}

.visible .entry weir_check(.param .u64 words, .param .u32 expected, .param .u64 count,
                           .param .u64 mismatches)
{
  .reg .pred %p<3>;
  .reg .b32 %r<7>;
  .reg .b64 %rd<9>;
  ld.param.u64 %rd1, [words];
  ld.param.u32 %r5, [expected];
  ld.param.u64 %rd2, [count];
  ld.param.u64 %rd8, [mismatches];
  cvta.to.global.u64 %rd1, %rd1;
  cvta.to.global.u64 %rd8, %rd8;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mov.u32 %r4, %nctaid.x;
  mul.wide.u32 %rd3, %r1, %r2;
  cvt.u64.u32 %rd4, %r3;
  add.u64 %rd3, %rd3, %rd4;
  mul.wide.u32 %rd5, %r4, %r2;
check_next:
  setp.ge.u64 %p1, %rd3, %rd2;
  @%p1 bra check_done;
  shl.b64 %rd6, %rd3, 2;
  add.u64 %rd7, %rd1, %rd6;
  ld.global.u32 %r6, [%rd7];
  add.u64 %rd3, %rd3, %rd5;
  setp.eq.u32 %p2, %r6, %r5;
  @%p2 bra check_next;
  red.global.add.u32 [%rd8], 1;
  bra check_next;
check_done:
  ret;
}

.visible .entry weir_increment(.param .u64 words, .param .u64 count)
{
  .reg .pred %p<2>;
  .reg .b32 %r<6>;
  .reg .b64 %rd<8>;
  ld.param.u64 %rd1, [words];
  ld.param.u64 %rd2, [count];
  cvta.to.global.u64 %rd1, %rd1;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mov.u32 %r4, %nctaid.x;
  mul.wide.u32 %rd3, %r1, %r2;
  cvt.u64.u32 %rd4, %r3;
  add.u64 %rd3, %rd3, %rd4;
  mul.wide.u32 %rd5, %r4, %r2;
increment_next:
  setp.ge.u64 %p1, %rd3, %rd2;
  @%p1 bra increment_done;
  shl.b64 %rd6, %rd3, 2;
  add.u64 %rd7, %rd1, %rd6;
  ld.global.u32 %r5, [%rd7];
  add.u32 %r5, %r5, 1;
  st.global.u32 [%rd7], %r5;
  add.u64 %rd3, %rd3, %rd5;
  bra increment_next;
increment_done:
  ret;
}

.visible .entry weir_copy(.param .u64 to, .param .u64 from, .param .u64 count)
{
  .reg .pred %p<2>;
  .reg .b32 %r<6>;
  .reg .b64 %rd<10>;
  ld.param.u64 %rd1, [to];
  ld.param.u64 %rd8, [from];
  ld.param.u64 %rd2, [count];
  cvta.to.global.u64 %rd1, %rd1;
  cvta.to.global.u64 %rd8, %rd8;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mov.u32 %r4, %nctaid.x;
  mul.wide.u32 %rd3, %r1, %r2;
  cvt.u64.u32 %rd4, %r3;
  add.u64 %rd3, %rd3, %rd4;
  mul.wide.u32 %rd5, %r4, %r2;
copy_next:
  setp.ge.u64 %p1, %rd3, %rd2;
  @%p1 bra copy_done;
  shl.b64 %rd6, %rd3, 2;
  add.u64 %rd7, %rd1, %rd6;
  add.u64 %rd9, %rd8, %rd6;
  ld.global.u32 %r5, [%rd9];
  st.global.u32 [%rd7], %r5;
  add.u64 %rd3, %rd3, %rd5;
  bra copy_next;
copy_done:
  ret;
}

.visible .entry weir_spin(.param .u64 nanoseconds)
{
  .reg .pred %p<2>;
  .reg .b64 %rd<5>;
  ld.param.u64 %rd1, [nanoseconds];
  mov.u64 %rd2, %globaltimer;
spin_next:
  mov.u64 %rd3, %globaltimer;
  sub.u64 %rd4, %rd3, %rd2;
  setp.lt.u64 %p1, %rd4, %rd1;
  @%p1 bra spin_next;
  ret;
}

.visible .entry weir_hold(.param .u64 flag, .param .u64 limit)
{
  .reg .pred %p<3>;
  .reg .b32 %r<2>;
  .reg .b64 %rd<6>;
  ld.param.u64 %rd1, [flag];
  ld.param.u64 %rd2, [limit];
  cvta.to.global.u64 %rd1, %rd1;
  mov.u64 %rd3, %globaltimer;
hold_next:
  ld.volatile.global.u32 %r1, [%rd1];
  setp.ne.u32 %p1, %r1, 0;
  @%p1 bra hold_done;
  mov.u64 %rd4, %globaltimer;
  sub.u64 %rd5, %rd4, %rd3;
  setp.lt.u64 %p2, %rd5, %rd2;
  @%p2 bra hold_next;
hold_done:
  ret;
}
)ptx";

}  // namespace weir::testing_support
