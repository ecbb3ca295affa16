#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace ddp::train {

// Sizes of the images of MNIST and Fashion-MNIST, and of the border that a 5 x 5 convolution needs.
inline constexpr int kImageSide = 28;
inline constexpr int kImagePixels = kImageSide * kImageSide;
inline constexpr int kClasses = 10;
inline constexpr int kImageBorder = 2;
inline constexpr int kPaddedSide = kImageSide + 2 * kImageBorder;
inline constexpr int kPaddedPixels = kPaddedSide * kPaddedSide;

enum class OptimizerKind : std::uint8_t { kSgd, kAdamw };

struct OptimizerSettings {
  OptimizerKind kind = OptimizerKind::kSgd;
  double momentum = 0.9;                              ///< SGD
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;  ///< AdamW
  double weight_decay = 0;  ///< AdamW's is separate from the gradient (Loshchilov, Hutter 2019)
};

/// The hyperparameters of a step from the gradient to the weights, but for the learning rate.
struct UpdateSettings : OptimizerSettings {
  double clip_value = 0, clip_norm = 0;  ///< 0: off
};

}  // namespace ddp::train

namespace ddp::train::kernels {

/// A convolution with a square odd window, stride 1 and zero padding that keeps height and width. Activations
/// are NHWC, weights [ky][kx][in][out]. "Padded" images have a border of window/2 zero pixels on all four
/// sides.
struct ConvShape {
  int height = 0;
  int width = 0;
  int in_channels = 0;
  int out_channels = 0;
  int window = 0;

  int border() const { return window / 2; }
  int padded_height() const { return height + 2 * border(); }
  int padded_width() const { return width + 2 * border(); }
  int taps_per_row() const { return window * in_channels; }  ///< contiguous in memory: (kx, in) of one ky
  int padded_size() const { return padded_height() * padded_width() * in_channels; }
  int output_size() const { return height * width * out_channels; }
  int weight_size() const { return window * taps_per_row() * out_channels; }
};

/// Per channel: a pixel x of the convolution becomes x * scale + shift, then ReLU, then the maximum of 2 x 2.
template <class T>
struct NormScale {
  const T* scale;
  const T* shift;
};

/// Per channel: a gradient g passes the normalization as g * scale + offset + x * slope.
template <class T>
struct NormGradient {
  const T* scale;
  const T* offset;
  const T* slope;
};

struct LinearShape {
  int batch = 0;
  int inputs = 0;
  int outputs = 0;  ///< at most kMaxLinearOutputs
};
inline constexpr int kMaxLinearOutputs = 16;

/// c[row][column] = sum over depth of a[row][depth] * b[depth][column]. The two strides of a factor, in
/// elements, allow it to be transposed. The columns of c are contiguous.
struct GemmShape {
  int rows = 0;
  int columns = 0;
  int depth = 0;
  std::ptrdiff_t a_row = 0, a_depth = 0;
  std::ptrdiff_t b_depth = 0, b_column = 0;
  std::ptrdiff_t c_row = 0;
};
// Blocks of both factors that fit the caches. kGemmDepth also bounds what is summed before it is added to c.
inline constexpr int kGemmRows = 84;
inline constexpr int kGemmColumns = 1024;
inline constexpr int kGemmDepth = 256;
/// Elements of scratch memory, aligned to a cache line; each concurrent call needs its own.
inline constexpr int kGemmScratch = (kGemmRows + kGemmColumns) * kGemmDepth;

/// The kernels of one instruction set. They use plain pointers and plain structs, and no allocation, state or
/// exceptions, so that a device could run the same bodies. Sums run in one fixed order, so equal input gives
/// equal bits on the same instruction set. Convolution and pooling work on one image, so that it stays in the
/// cache between them.
template <class T>
struct KernelTable {
  const char* name;

  /// output[y][x][out] = bias[out] + sum over (ky, kx, in) of padded[y+ky][x+kx][in] *
  /// weight[ky][kx][in][out]. `bias` may be null: the gradient toward the input is this kernel with turned
  /// weights.
  void (*convolve)(const ConvShape&, const T* padded, const T* weight, const T* bias, T* output);

  /// weight_gradient += sum over pixels of padded[y+ky][x+kx][in] * output_gradient[y][x][out]. Rows of
  /// output_gradient lie `gradient_stride` elements apart.
  void (*convolve_weight_gradient)(const ConvShape&, const T* padded, const T* output_gradient,
                                   std::ptrdiff_t gradient_stride, T* weight_gradient);

  /// turned[ky][kx][out][in] = weight[window-1-ky][window-1-kx][in][out].
  void (*turn_weights)(const ConvShape&, const T* weight, T* turned);

  /// Computes per channel, over `pixels`, the mean and the sum of squared differences from it.
  void (*channel_moments)(int pixels, int channels, const T* image, T* mean, T* squares);

  /// sum[channel] += the image's pixels; rows of `width` pixels lie `stride` elements apart.
  void (*channel_sum)(int height, int width, int channels, const T* image, std::ptrdiff_t stride, T* sum);

  /// Normalization, ReLU and 2 x 2 maximum: image [height][width][channels] (both even) to pooled
  /// [height/2][width/2][channels], whose rows lie `stride` elements apart.
  void (*norm_relu_pool)(int height, int width, int channels, const T* image, NormScale<T>, T* pooled,
                         std::ptrdiff_t stride);

  /// gradient_sum[channel] = sum of the pooled gradient over windows whose maximum is above zero;
  /// product_sum[channel] = the same sum times the window's winning pixel of `image`. The first pixel in row
  /// order wins a tie.
  void (*pool_gradient_sums)(int height, int width, int channels, const T* image, NormScale<T>,
                             const T* pooled_gradient, T* gradient_sum, T* product_sum);

  /// Computes the gradient of `image`, with rows `stride` elements apart.
  void (*norm_relu_pool_gradient)(int height, int width, int channels, const T* image, NormScale<T>,
                                  NormGradient<T>, const T* pooled_gradient, T* image_gradient,
                                  std::ptrdiff_t stride);

  /// output[n][o] = bias[o] + sum over i of input[n][i] * weight[o][i].
  void (*linear)(const LinearShape&, const T* input, const T* weight, const T* bias, T* output);

  /// Writes (does not add) the gradients of input, weight and bias.
  void (*linear_gradient)(const LinearShape&, const T* input, const T* weight, const T* output_gradient,
                          T* input_gradient, T* weight_gradient, T* bias_gradient);

  /// Overwrites c. Each element's sum runs in the order of the depth, for any part of c that a call computes.
  /// So a product that is divided over threads keeps its bits. Depth 0 leaves c unchanged.
  void (*gemm)(const GemmShape&, const T* a, const T* b, T* c, T* scratch);
};

/// The names of all kernels, plainest first. A build or a processor may lack some.
inline constexpr std::array kKernelNames{"generic", "x86_64_v2", "x86_64_v3", "x86_64_v4"};

/// Returns the best kernels that this processor runs.
template <class T>
const KernelTable<T>& best_kernels();

/// Returns all kernels that this processor runs, plainest first; for tests and comparisons.
template <class T>
std::vector<const KernelTable<T>*> all_kernels();

/// Returns the kernels with this name of kKernelNames; null if this processor does not run them. Empty: the
/// best.
template <class T>
const KernelTable<T>* find_kernels(std::string_view name);

struct BatchScore {
  double loss_sum = 0;  ///< cross entropy, summed over the batch in order
  int correct = 0;      ///< rows whose largest logit (the first of equals) is at the label
};

/// Softmax cross entropy of logits [batch][classes]. If `gradient` is not empty, it has the size of `logits`
/// and receives the gradient of the batch's mean loss.
template <class T>
BatchScore softmax_loss(std::span<const T> logits, std::span<const std::uint8_t> labels, int classes,
                        std::span<T> gradient);

// Operations on a reduced gradient before the update. They give the same bits on every processor, as
// sgd_step.

/// to += from.
template <class T>
void add(std::span<T> to, std::span<const T> from);
/// Multiplies by `share`; returns false if a number is nan or infinite afterwards.
template <class T>
bool average(std::span<T> values, T share);
/// Clips into [-limit, limit]; a nan stays a nan.
template <class T>
void clip_value(std::span<T> values, T limit);
/// Sums in double, in a fixed order.
template <class T>
double squared_norm(std::span<const T> values);

/// SGD with momentum as torch.optim.SGD: velocity = momentum * velocity + gradient + decay * parameter;
/// parameter -= lr * velocity. Built without fused multiply-add and for the plainest processor, so that every
/// rank gets the same bits from the same gradient, even if processors differ.
template <class T>
void sgd_step(std::span<T> parameters, std::span<T> velocity, std::span<const T> gradients, T lr, T momentum,
              T decay);

/// Makes the `step`-th step (from 1) as torch.optim.AdamW. Same bits on every processor, as sgd_step.
template <class T>
void adamw_step(std::span<T> parameters, std::span<T> mean, std::span<T> square, std::span<const T> gradients,
                const OptimizerSettings& settings, double lr, std::int64_t step);

}  // namespace ddp::train::kernels

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
