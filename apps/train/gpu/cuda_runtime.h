#pragma once

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <chrono>
#include <compare>
#include <cstddef>
#include <functional>
#include <memory>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "apps/train/kernels/gpu/device_launch.h"
#include "apps/train/kernels/gpu/gemm_body.h"
#include "base/result.h"

namespace ddp::train {

/// Converts the answer of a CUDA runtime call to a Result. An error reads "cuda_runtime.cc:133: cudaMalloc:
/// cudaErrorMemoryAllocation (out of memory)".
Result<> cuda_check(cudaError_t answer, const char* call,
                    std::source_location where = std::source_location::current());
/// Every runtime call is made and checked here: DDP_TRY(DDP_CUDA_CHECK(cudaMalloc, &data, bytes)).
#define DDP_CUDA_CHECK(call, ...) ::ddp::train::cuda_check(call(__VA_ARGS__), #call)

/// Converts the answer of a query (cudaStreamQuery, cudaEventQuery): true if the queried work is done.
Result<bool> cuda_is_done(cudaError_t answer, const char* call,
                          std::source_location where = std::source_location::current());

/// Waits until all work of the stream is done. Fails with kTimeout after `timeout`; the run time's own waits
/// have no deadline. `work` names the work in the error.
Result<> wait_for_stream(cudaStream_t stream, std::chrono::milliseconds timeout, const char* work);

/// Returns the number of GPUs that the runtime sees, at least one. The error is "no NVIDIA driver
/// is installed", "the NVIDIA driver is too old: …", or quotes cudaGetDeviceCount: "cudaGetDeviceCount:
/// cudaErrorNoDevice (no CUDA-capable device is detected)".
Result<int> count_gpus();

/// Returns whether CUDA_VISIBLE_DEVICES is set, so that ranks of a node may see different GPUs.
bool gpus_are_restricted();

/// Returns the GPU of a rank, out of `gpus`: that of its local rank, or the only one that
/// CUDA_VISIBLE_DEVICES leaves (`restricted`). With `shared`, GPUs are dealt out in turn. Error (kUsage):
/// "this process sees 2 GPUs, none for local rank 2".
Result<int> choose_gpu(int gpus, int local_rank, bool restricted, bool shared);

/// Returns a text that only this GPU has: its UUID in decimal if it has one, since ranks in containers have
/// different host names on one host; else host and PCI address.
std::string gpu_identity(const cudaDeviceProp& properties);

// Owners of CUDA runtime resources. They drop the errors of releasing calls, since no caller could use them.

/// Gives up all GPUs, because work on one of them may never end. Freeing memory would wait for that work, so
/// no memory is freed afterwards. The process should end by _exit. Any thread.
void give_up_gpus();
bool gpus_are_given_up();

/// Releases a resource. `Waits`: CUDA waits for work then, so given-up GPUs keep the resource.
template <auto Release, bool Waits = true>
struct CudaRelease {
  void operator()(auto* resource) const {
    if (!Waits || !gpus_are_given_up()) (void)Release(resource);
  }
};
/// GPU memory, aligned to 256 bytes.
using DeviceBytes = std::unique_ptr<std::byte, CudaRelease<&cudaFree>>;
/// Pinned host memory: the GPU copies from and to it while the host continues.
using PinnedBytes = std::unique_ptr<std::byte, CudaRelease<&cudaFreeHost>>;
using CudaEvent = std::unique_ptr<CUevent_st, CudaRelease<&cudaEventDestroy, false>>;
using CudaStream = std::unique_ptr<CUstream_st, CudaRelease<&cudaStreamDestroy>>;
/// An executable graph.
using CudaGraph = std::unique_ptr<CUgraphExec_st, CudaRelease<&cudaGraphExecDestroy>>;

/// Returns zeroed memory. If the GPU has no room, the error is kSystem and its text has the size.
Result<DeviceBytes> make_device_bytes(std::size_t size);
Result<PinnedBytes> make_pinned_bytes(std::size_t size);
/// Returns an event that records no time, or a `timed` one.
Result<CudaEvent> make_cuda_event(bool timed = false);
/// Records a timed event in the stream, or in each launch of the graph that the stream captures.
Result<> record_time(cudaEvent_t event, cudaStream_t stream);
/// Returns the seconds between two timed events that have passed.
Result<double> seconds_between(cudaEvent_t begin, cudaEvent_t end);
enum class StreamPriority { kNormal, kHighest };
/// Returns a stream that waits for no other stream.
Result<CudaStream> make_cuda_stream(StreamPriority priority = StreamPriority::kNormal);
/// Makes later work of `to` wait for all present work of `from`. `mark` is used for this call only. If `from`
/// is under capture, `to` joins the capture; it must be joined to the capture's stream before the end.
Result<> order_streams(cudaStream_t from, cudaStream_t to, cudaEvent_t mark);

/// Captures the operations that `enqueue()` (→ Result<>) puts into the stream as a graph; none of them runs
/// during the capture. Until the capture ends, calls that wait and calls that other streams see are not
/// allowed. The stream leaves the capture in any case.
Result<CudaGraph> capture_graph(cudaStream_t stream, const std::function<Result<>()>& enqueue);
/// Ends the stream's capture, if there is one, and drops what it captured. The enqueue() of that capture must
/// fail.
void abandon_capture(cudaStream_t stream);

/// Launches the kernels of a program on a stream, or only loads them. After the first error the later kernels
/// are skipped.
class DeviceRunner {
 public:
  enum class Mode { kLaunch, kLoad };

  explicit DeviceRunner(cudaStream_t stream, Mode mode = Mode::kLaunch) : stream_(stream), mode_(mode) {}
  /// `beside`: the stream of run_beside(). `mark`: for order_streams().
  DeviceRunner(cudaStream_t stream, cudaStream_t beside, cudaEvent_t mark)
      : stream_(stream), mode_(Mode::kLaunch), beside_(beside), mark_(mark) {}

  template <class Body>
  void run(const typename Body::Args& args) const {
    if (!outcome_) return;
    outcome_ = mode_ == Mode::kLoad
                   ? cuda_check(kernels::device::load_on_device<Body>(), "a kernel's load")
                   : cuda_check(kernels::device::launch_on_device<Body>(args, stream_), "a kernel's launch");
  }
  /// Calls enqueue(stream) → Result<>, which puts a library's kernels into the stream. Skipped when kernels
  /// are only loaded.
  template <class Enqueue>
  void call(const Enqueue& enqueue) const {
    if (outcome_ && mode_ == Mode::kLaunch) outcome_ = enqueue(stream_);
  }
  /// Launches the kernels of launches(runner) on the second stream, if there is one.
  template <class Launches>
  void run_beside(const Launches& launches) const {
    if (beside_ != nullptr && outcome_) outcome_ = order_streams(stream_, beside_, mark_);
    has_branch_ = beside_ != nullptr;
    if (has_branch_) std::swap(stream_, beside_);
    launches(*this);
    if (has_branch_) std::swap(stream_, beside_);
  }
  /// Makes later work of the first stream wait for that of run_beside(), also after an error.
  void join_branch() const {
    if (!std::exchange(has_branch_, false)) return;
    const Result<> joined = order_streams(beside_, stream_, mark_);
    if (outcome_) outcome_ = joined;
  }
  /// Makes later work of `other` wait for all launches so far.
  Result<> precede(cudaStream_t other) const {
    if (has_branch_) DDP_TRY(order_streams(beside_, other, mark_));
    return order_streams(stream_, other, mark_);
  }
  Result<> outcome() const { return outcome_; }

 private:
  mutable cudaStream_t stream_;
  Mode mode_;
  mutable cudaStream_t beside_ = nullptr;
  cudaEvent_t mark_ = nullptr;
  mutable bool has_branch_ = false;  ///< the first stream has not joined the second
  mutable Result<> outcome_;
};

/// c[row][column] = sum over depth of a[row][depth] * b[depth][column], as Gemm computes it (gemm_body.h).
/// In each factor one of the two strides is 1.
struct ProductShape {
  int rows, columns, depth;
  std::ptrdiff_t a_row, a_depth;
  std::ptrdiff_t b_depth, b_column;
  std::ptrdiff_t c_row;
  StoredNumber factors = StoredNumber::kFloat;  ///< how a and b are stored; sums are float
  StoredNumber result = StoredNumber::kFloat;
  bool tf32 = false;  ///< float factors may be rounded to 10 bits of fraction for the tensor cores

  auto operator<=>(const ProductShape&) const = default;
};

/// A library's matrix products on one GPU, which was the current one when they were opened.
class MatrixProducts {
 public:
  virtual ~MatrixProducts() = default;
  /// Returns "cuBLASLt 13.0.2 (/usr/local/cuda/lib64/libcublasLt.so.13)".
  virtual std::string name() const = 0;
  /// Puts c = a * b into the stream. Products share a workspace, so all of them belong to one stream. The
  /// first product of a shape chooses and loads its kernels, so it must not be under capture, nor behind
  /// operations that wait for other ranks.
  virtual Result<> enqueue(const ProductShape& shape, const void* a, const void* b, void* c,
                           cudaStream_t stream) = 0;
};

/// Loads the libcublasLt of the CUDA release that this program was built with: `file`, else the file that
/// DDPLAUNCH_CUBLASLT_LIBRARY names, else the one that the system's loader finds, else the first of
/// library_files(). It is never unloaded. The error (kUsage) says why the own kernels must do.
Result<std::unique_ptr<MatrixProducts>> open_matrix_products(const std::string& file = "");

/// Returns the files of a CUDA library that exist outside the loader's paths: in the CUDA toolkit (CUDA_HOME,
/// CUDA_PATH, /usr/local/cuda), in lib of CONDA_PREFIX, then in the Python wheels of VIRTUAL_ENV,
/// CONDA_PREFIX, of the python3 in PATH, and in HOME/.local. `name`: of the file; `wheel_folders`: inside
/// site-packages. `get` is std::getenv outside tests.
std::vector<std::string> library_files(const std::string& name, const std::vector<std::string>& wheel_folders,
                                       const std::function<const char*(const char*)>& get);

/// The functions of a library that is loaded on demand.
struct LibraryFunctions {
  void* handle;
  const char* missing = nullptr;  ///< the first function that need() did not find

  template <class Function>
  bool find(const char* name, Function& function) {
    function = reinterpret_cast<Function>(::dlsym(handle, name));
    return function != nullptr;
  }
  template <class Function>
  void need(const char* name, Function& function) {
    if (!find(name, function) && missing == nullptr) missing = name;
  }
};

/// Loads the first of `files` that `load` accepts; `path` is the file that has the function `symbol`. The
/// error says why each file does not serve. kUnreachable: none could be loaded.
Result<> load_library(
    const std::vector<std::string>& files, const char* symbol,
    const std::function<Result<>(LibraryFunctions functions, const std::string& path)>& load);

}  // namespace ddp::train
