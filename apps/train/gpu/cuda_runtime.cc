#include "apps/train/gpu/cuda_runtime.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string_view>
#include <system_error>
#include <thread>

#include "base/files.h"
#include "base/program.h"
#include "base/text.h"

namespace ddp::train {

namespace {

std::string text_of(cudaError_t answer) {
  return std::string(cudaGetErrorName(answer)) + " (" + cudaGetErrorString(answer) + ")";
}

/// Formats 13010 as "13.1".
std::string cuda_version_text(int version) {
  return concat(version / 1000, ".", version % 1000 / 10);
}

/// CUDA has one error for an old driver and for none.
std::string driver_error() {
  int driver = 0, runtime = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) return "no NVIDIA driver is installed";
  (void)cudaRuntimeGetVersion(&runtime);
  return "the NVIDIA driver is too old: it supports CUDA " + cuda_version_text(driver) +
         ", this program needs CUDA " + cuda_version_text(runtime) + "; update the driver";
}

std::atomic<bool> g_given_up = false;

bool is_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone;
}

}  // namespace

Result<> cuda_check(cudaError_t answer, const char* call, std::source_location where) {
  if (answer == cudaSuccess) return {};
  const std::string_view path = where.file_name();
  const std::string_view file = path.substr(path.rfind('/') + 1);  // npos + 1 is 0
  return error_of(ErrorCode::kSystem, file, ":", where.line(), ": ", call, ": ", text_of(answer));
}

Result<bool> cuda_is_done(cudaError_t answer, const char* call, std::source_location where) {
  if (answer == cudaErrorNotReady) {
    (void)cudaGetLastError();  // clears the error; else the next launch would seem refused
    return false;
  }
  DDP_TRY(cuda_check(answer, call, where));
  return true;
}

Result<> wait_for_stream(cudaStream_t stream, std::chrono::milliseconds timeout, const char* work) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begun = Clock::now();
  for (;;) {
    const auto done = DDP_TRY(cuda_is_done(cudaStreamQuery(stream), "cudaStreamQuery"));
    if (done) return {};
    const auto waited = Clock::now() - begun;
    if (waited >= timeout) {
      return error_of(ErrorCode::kTimeout, "the GPU did not finish ", work, " within ",
                      format_duration(timeout));
    }
    constexpr std::chrono::milliseconds kPause{1};
    if (waited < kPause) {  // most work takes less than a pause
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPause);
    }
  }
}

Result<int> count_gpus() {
  int count = 0;
  const cudaError_t answer = cudaGetDeviceCount(&count);
  if (answer == cudaSuccess && count > 0) return count;
  (void)cudaGetLastError();  // clears the error; else the next check would report it
  if (answer == cudaErrorInsufficientDriver) return Error{ErrorCode::kSystem, driver_error()};
  return error_of(ErrorCode::kSystem,
                  "cudaGetDeviceCount: ", text_of(answer == cudaSuccess ? cudaErrorNoDevice : answer));
}

bool gpus_are_restricted() {
  return std::getenv("CUDA_VISIBLE_DEVICES") != nullptr;
}

Result<int> choose_gpu(int gpus, int local_rank, bool restricted, bool shared) {
  if (local_rank < gpus) return local_rank;
  if (shared) return local_rank % gpus;
  if (restricted && gpus == 1) return 0;
  return usage_error("this process sees ", counted(gpus, "GPU"), ", none for local rank ", local_rank);
}

std::string gpu_identity(const cudaDeviceProp& properties) {
  const std::span<const char> uuid(properties.uuid.bytes);
  if (std::ranges::all_of(uuid, [](char byte) { return byte == 0; })) {
    return concat(host_name(), " ", properties.pciDomainID, ":", properties.pciBusID, ":",
                  properties.pciDeviceID);
  }
  std::string text;
  for (const char byte : uuid)
    text += std::to_string(static_cast<unsigned char>(byte)) + ".";
  return text;
}

void give_up_gpus() {
  g_given_up = true;
}

bool gpus_are_given_up() {
  return g_given_up;
}

Result<DeviceBytes> make_device_bytes(std::size_t size) {
  void* memory = nullptr;
  if (const auto done = DDP_CUDA_CHECK(cudaMalloc, &memory, size); !done) {
    (void)cudaGetLastError();
    return within(concat("cannot allocate ", size >> 20, " MiB of GPU memory"), done.error());
  }
  DeviceBytes bytes(static_cast<std::byte*>(memory));
  DDP_TRY(DDP_CUDA_CHECK(cudaMemset, memory, 0, size));
  // The streams of make_cuda_stream() do not wait for a cudaMemset that has begun.
  DDP_TRY(DDP_CUDA_CHECK(cudaDeviceSynchronize));
  return bytes;
}

Result<PinnedBytes> make_pinned_bytes(std::size_t size) {
  void* memory = nullptr;
  DDP_TRY(DDP_CUDA_CHECK(cudaMallocHost, &memory, size));
  return PinnedBytes(static_cast<std::byte*>(memory));
}

Result<CudaEvent> make_cuda_event(bool timed) {
  cudaEvent_t event = nullptr;
  DDP_TRY(
      DDP_CUDA_CHECK(cudaEventCreateWithFlags, &event, timed ? cudaEventDefault : cudaEventDisableTiming));
  return CudaEvent(event);
}

Result<> record_time(cudaEvent_t event, cudaStream_t stream) {
  // An external record is a node of the graph; the usual one is only an order inside of a capture. CUDA
  // refuses an external one elsewhere.
  const unsigned flags = is_captured(stream) ? cudaEventRecordExternal : cudaEventRecordDefault;
  return DDP_CUDA_CHECK(cudaEventRecordWithFlags, event, stream, flags);
}

Result<double> seconds_between(cudaEvent_t begin, cudaEvent_t end) {
  float ms = 0;
  DDP_TRY(DDP_CUDA_CHECK(cudaEventElapsedTime, &ms, begin, end));
  return static_cast<double>(ms) / 1e3;
}

Result<CudaStream> make_cuda_stream(StreamPriority priority) {
  int least = 0, greatest = 0;
  DDP_TRY(DDP_CUDA_CHECK(cudaDeviceGetStreamPriorityRange, &least, &greatest));
  cudaStream_t stream = nullptr;
  const int wanted = priority == StreamPriority::kHighest ? greatest : least;
  DDP_TRY(DDP_CUDA_CHECK(cudaStreamCreateWithPriority, &stream, cudaStreamNonBlocking, wanted));
  return CudaStream(stream);
}

Result<> order_streams(cudaStream_t from, cudaStream_t to, cudaEvent_t mark) {
  DDP_TRY(DDP_CUDA_CHECK(cudaEventRecord, mark, from));
  return DDP_CUDA_CHECK(cudaStreamWaitEvent, to, mark, 0);
}

namespace {

/// `enqueued`: the result of what the capture holds.
Result<CudaGraph> end_capture(cudaStream_t stream, const Result<>& enqueued) {
  if (!enqueued && !is_captured(stream)) return enqueued.error();  // the capture was abandoned
  cudaGraph_t graph = nullptr;
  const Result<> ended = DDP_CUDA_CHECK(cudaStreamEndCapture, stream, &graph);
  const std::unique_ptr<CUgraph_st, CudaRelease<&cudaGraphDestroy, false>> keeper(graph);
  DDP_TRY(enqueued);
  DDP_TRY(ended);
  cudaGraphExec_t exec = nullptr;
  DDP_TRY(DDP_CUDA_CHECK(cudaGraphInstantiate, &exec, graph, 0));
  return CudaGraph(exec);
}

}  // namespace

Result<CudaGraph> capture_graph(cudaStream_t stream, const std::function<Result<>()>& enqueue) {
  // Relaxed: a non-blocking communicator adds its part to the stream from its own thread.
  DDP_TRY(DDP_CUDA_CHECK(cudaStreamBeginCapture, stream, cudaStreamCaptureModeRelaxed));
  return end_capture(stream, enqueue());
}

void abandon_capture(cudaStream_t stream) {
  if (!is_captured(stream)) return;
  const Error abandoned{ErrorCode::kCancelled, "abandoned"};
  (void)end_capture(stream, abandoned);
  (void)cudaGetLastError();  // clears an error of the end; else the next launch would seem refused
}

std::vector<std::string> library_files(const std::string& name, const std::vector<std::string>& wheel_folders,
                                       const std::function<const char*(const char*)>& get) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  std::vector<std::string> found;
  const auto add = [&](const fs::path& path) {
    if (fs::exists(path, ignored) && std::ranges::find(found, path.string()) == found.end())
      found.push_back(path.string());
  };
  const auto value = [&get](const char* variable) {
    const char* text = get(variable);
    return std::string(text != nullptr ? text : "");
  };
  for (const std::string& toolkit :
       {value("CUDA_HOME"), value("CUDA_PATH"), std::string("/usr/local/cuda")}) {
    if (!toolkit.empty()) add(fs::path(toolkit) / "lib64" / name);
  }
  const fs::path conda = value("CONDA_PREFIX");
  if (!conda.empty()) add(conda / "lib" / name);
  std::vector<fs::path> prefixes{value("VIRTUAL_ENV"), conda};
  if (const auto python = find_program("python3", value("PATH"))) {
    prefixes.push_back(fs::path(*python).parent_path().parent_path());
    const fs::path real = fs::canonical(*python, ignored);  // empty if it fails
    if (!real.empty()) {
      prefixes.push_back(real.parent_path().parent_path());
      prefixes.push_back(prefixes.back() / "local");  // Debian: /usr/local/lib/python3.11/dist-packages
    }
  }
  if (!value("HOME").empty()) prefixes.push_back(fs::path(value("HOME")) / ".local");
  for (const fs::path& prefix : prefixes) {
    if (prefix.empty()) continue;
    for (const fs::path& python : list_directory(prefix / "lib")) {
      if (!python.filename().string().starts_with("python3")) continue;
      for (const char* packages : {"site-packages", "dist-packages"}) {
        for (const std::string& folder : wheel_folders)
          add(python / packages / folder / name);
      }
    }
  }
  return found;
}

Result<> load_library(const std::vector<std::string>& files, const char* symbol,
                      const std::function<Result<>(LibraryFunctions, const std::string&)>& load) {
  Error error{ErrorCode::kUnreachable, ""};
  for (const std::string& file : files) {
    error.text += error.text.empty() ? "" : "; ";
    void* const handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      const char* why = ::dlerror();
      error.text += one_line(why != nullptr ? why : "no reason was given");
      continue;
    }
    void* const function = ::dlsym(handle, symbol);
    Dl_info info{};
    const bool known = function != nullptr && ::dladdr(function, &info) != 0 && info.dli_fname != nullptr;
    const auto loaded = load({handle}, known ? info.dli_fname : file);
    if (loaded) return {};
    error.code = ErrorCode::kUsage;  // a library of another place may be newer
    error.text += loaded.error().text;
  }
  return error;
}

}  // namespace ddp::train
