#include "client/gpu/kernels.h"

#ifdef CAIRN_KERNELS_FILE

// The linker takes the file as it is; a driver wants it at a multiple of 8.
asm(R"(
  .section .rodata
  .balign 16
cairn_kernels_begin:
  .incbin ")" CAIRN_KERNELS_FILE R"("
cairn_kernels_end:
  .byte 0
  .previous
)");
extern "C" const char cairn_kernels_begin[], cairn_kernels_end[];

absl::string_view cairn::gpu::Kernels() {
  return {cairn_kernels_begin, static_cast<size_t>(cairn_kernels_end - cairn_kernels_begin)};
}

#else

absl::string_view cairn::gpu::Kernels() { return {}; }

#endif
