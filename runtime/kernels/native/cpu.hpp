// What the running machine can execute: instructions that both the processor and the kernel grant.
#pragma once

namespace gristmill {

bool supports_avx2();         // with FMA and F16C
bool supports_avx2_vnni();
bool supports_avx512_vnni();  // with F, BW, DQ, VL
bool supports_avx512_bf16();
bool supports_amx();          // int8 and bfloat16 tiles, and the kernel's permission to use them

}  // namespace gristmill
