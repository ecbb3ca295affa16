#pragma once

#include "apps/train/kernels/cpu/kernel_table.h"

// The tables that isa_kernels.cc defines, one namespace per instruction set; kernel_table.cc chooses among
// them.
#define DDP_DECLARE_KERNELS(isa)            \
  namespace ddp::train::kernels::isa {      \
  extern const KernelTable<float> kFloat;   \
  extern const KernelTable<double> kDouble; \
  }

DDP_DECLARE_KERNELS(generic)
#if defined(__x86_64__)
DDP_DECLARE_KERNELS(x86_64_v2)
DDP_DECLARE_KERNELS(x86_64_v3)
DDP_DECLARE_KERNELS(x86_64_v4)
#endif

#undef DDP_DECLARE_KERNELS
