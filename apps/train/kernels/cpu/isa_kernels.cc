// Compiled once per instruction set (CMakeLists.txt gives DDP_KERNEL_ISA and the flags). This file must
// include no inline functions that other files share: the linker could keep a copy that only a newer
// processor runs.

#include "apps/train/kernels/cpu/kernel_table.h"

#include "apps/train/kernels/cpu/channel_sums.h"
#include "apps/train/kernels/cpu/convolution.h"
#include "apps/train/kernels/cpu/convolution_gradient.h"
#include "apps/train/kernels/cpu/gemm.h"
#include "apps/train/kernels/cpu/linear.h"
#include "apps/train/kernels/cpu/norm_pool.h"

#define DDP_KERNEL_TEXT_OF(name) #name
#define DDP_KERNEL_TEXT(name) DDP_KERNEL_TEXT_OF(name)

namespace ddp::train::kernels::DDP_KERNEL_ISA {

#define DDP_KERNEL_TABLE(T)                                                                     \
  {                                                                                             \
    DDP_KERNEL_TEXT(DDP_KERNEL_ISA), convolve<T>, convolve_weight_gradient<T>, turn_weights<T>, \
        channel_moments<T>, channel_sum<T>, norm_relu_pool<T>, pool_gradient_sums<T>,           \
        norm_relu_pool_gradient<T>, linear<T>, linear_gradient<T>, gemm<T>                      \
  }

const KernelTable<float> kFloat = DDP_KERNEL_TABLE(float);
const KernelTable<double> kDouble = DDP_KERNEL_TABLE(double);

}  // namespace ddp::train::kernels::DDP_KERNEL_ISA
