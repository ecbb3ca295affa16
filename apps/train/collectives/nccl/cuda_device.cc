#include "apps/train/collectives/nccl/nccl_device.h"

#include <chrono>
#include <string>

#include "apps/train/gpu/cuda_runtime.h"

namespace ddp::train {

namespace {

class CudaDevice final : public NcclDevice {
 public:
  explicit CudaDevice(int gpu) : gpu_(gpu) {}
  ~CudaDevice() override {
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  }
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  Result<> open() {
    if (auto done = take(); !done) return done;
    cudaDeviceProp properties{};
    if (auto done = cuda_check(cudaGetDeviceProperties(&properties, gpu_), "cudaGetDeviceProperties"); !done)
      return done;
    name_ = "GPU " + std::to_string(gpu_) + " (" + properties.name + ")";
    // The default stream would wait for every other stream.
    return cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
                      "cudaStreamCreateWithFlags");
  }

  std::string name() const override { return name_; }
  Result<> take() override { return cuda_check(cudaSetDevice(gpu_), "cudaSetDevice"); }
  void* stream() override { return stream_; }

  Result<std::byte*> allocate(std::size_t bytes) override {
    void* data = nullptr;
    if (auto done = cuda_check(cudaMalloc(&data, bytes), "cudaMalloc"); !done) return done.error();
    return static_cast<std::byte*>(data);
  }
  void release(std::byte* data) override { (void)cudaFree(data); }
  Result<> zero(std::byte* data, std::size_t bytes) override {
    const auto begun = cuda_check(cudaMemsetAsync(data, 0, bytes, stream_), "cudaMemsetAsync");
    return begun ? wait_for_stream(stream_, kCopyTimeout, "the zeros of new memory") : begun;
  }

  Result<> to_device(std::byte* device, const std::byte* host, std::size_t bytes) override {
    // The runtime copies pageable memory before it returns.
    return cuda_check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_),
                      "cudaMemcpyAsync");
  }
  Result<> to_host(std::byte* host, const std::byte* device, std::size_t bytes) override {
    if (auto done = cuda_check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream_),
                               "cudaMemcpyAsync");
        !done)
      return done;
    return wait_for_stream(stream_, kCopyTimeout, "a copy");
  }
  Result<bool> is_idle(void* stream) override {
    return cuda_is_done(cudaStreamQuery(static_cast<cudaStream_t>(stream)), "cudaStreamQuery");
  }

 private:
  /// Long enough for a full GPU memory over a slow bus.
  static constexpr std::chrono::seconds kCopyTimeout{60};
  int gpu_;
  std::string name_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<NcclDevice>> open_cuda_device(int gpu) {
  auto device = std::make_unique<CudaDevice>(gpu);
  if (auto opened = device->open(); !opened) return opened.error();
  return std::unique_ptr<NcclDevice>(std::move(device));
}

}  // namespace ddp::train
