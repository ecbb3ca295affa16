// Emulates the CUDA runtime and one GPU for the programs of tests/gpu, so that all but the kernels' machine
// code is tested without a GPU. Memory is the host's, and the host driver runs the kernels. A stream does
// nothing until a caller waits for it or queries it, so that a result that is read too early is detected.
// Memory of the GPU is initialized with bytes that make a nan.
//   FAKE_CUDA_GPUS=N     number of GPUs of each node (1), of which CUDA_VISIBLE_DEVICES can choose some
//   FAKE_CUDA_CAPABILITY=N  compute capability N.0 (9)
//   FAKE_CUDA_FAIL=N     the N-th call (from 1) that can fail does
//   FAKE_CUDA_MIB=N      memory of the GPU (80)
//   FAKE_CUDA_LATE_MS=N  each launch of a graph comes that much later
//   FAKE_CUDA_ROOM=FILE  processes with the same file share the GPU and its memory
// The branches of a graph are as independent as on a GPU. Each launch runs another operation as early as its
// dependencies allow, and all others as late, so that a missing dependency shows after as many launches as
// the graph has operations.
//   FAKE_CUDA_GRAPH_END=waits  the destruction of a graph that is in flight waits until its work is done;
//   otherwise the
//                        graph's resources are released when its work is done. CUDA promises neither

#include "tests/support/fake_cuda.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "apps/train/health/checks/health_kernels.h"
#include "apps/train/kernels/gpu/body.h"
#include "apps/train/kernels/gpu/device_launch.h"
#include "apps/train/kernels/gpu/net_programs.h"
#include "apps/train/kernels/gpu/update_body.h"
#include "tests/support/host_launch.h"

namespace {

/// Done when it returns true; until then the stream stands still.
using Work = std::function<bool()>;

// A real cuBLASLt on this machine must not get the fake's memory.
[[maybe_unused]] const int g_no_real_library = ::setenv("DDPLAUNCH_CUBLASLT_LIBRARY", "/none", 0);

int g_graphs = 0;
std::atomic<int> g_exchanges = 0;  ///< unfinished work that waits for other ranks, graphs not counted
std::vector<ddp::FakeCudaNode> g_last_graph;
thread_local cudaError_t t_last_error = cudaSuccess;

int number_of(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoi(text) : otherwise;
}

thread_local int t_gpu = 0;

/// Returns the node's numbers of the GPUs that this process sees.
std::vector<std::string> visible_gpus() {
  std::vector<std::string> gpus;
  if (const char* const chosen = std::getenv("CUDA_VISIBLE_DEVICES")) {
    std::istringstream list(chosen);
    for (std::string gpu; std::getline(list, gpu, ',');)
      gpus.push_back(gpu);
  } else {
    for (int gpu = 0; gpu < number_of("FAKE_CUDA_GPUS", 1); ++gpu)
      gpus.push_back(std::to_string(gpu));
  }
  return number_of("FAKE_CUDA_GPUS", 1) > 0 ? gpus : std::vector<std::string>{};
}

/// Returns what fake_cuda_gpu() returns, for any GPU.
std::string name_of_gpu(int gpu) {
  const char* const node = std::getenv("GROUP_RANK");
  return (node != nullptr ? node : "") + ("/" + visible_gpus().at(static_cast<std::size_t>(gpu)));
}

std::size_t all_memory() {
  return static_cast<std::size_t>(number_of("FAKE_CUDA_MIB", 80)) << 20;
}

/// The memory of a GPU that processes share. The memory of an unshared GPU is not counted.
class Room {
 public:
  Room() {
    const char* const path = std::getenv("FAKE_CUDA_ROOM");
    if (path == nullptr) return;
    const int file = ::open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ::ftruncate(file, sizeof *taken_) != 0) std::abort();
    void* const data = ::mmap(nullptr, sizeof *taken_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ::close(file);
    if (data == MAP_FAILED) std::abort();
    taken_ = static_cast<std::atomic<std::size_t>*>(data);
  }

  bool reserve(std::size_t size) {
    if (taken_ == nullptr) return true;
    std::size_t before = *taken_;
    do {
      if (size > all_memory() - before) return false;
    } while (!taken_->compare_exchange_weak(before, before + size));
    return true;
  }
  void own(void* memory, std::size_t size) {
    const std::lock_guard lock(mutex_);
    if (taken_ != nullptr) sizes_[memory] = size;
  }
  void give_back(void* memory) {
    const std::lock_guard lock(mutex_);
    if (const auto found = sizes_.find(memory); found != sizes_.end()) {
      *taken_ -= found->second;
      sizes_.erase(found);
    }
  }
  std::size_t free() const { return taken_ == nullptr ? all_memory() : all_memory() - *taken_; }

 private:
  std::atomic<std::size_t>* taken_ = nullptr;
  std::mutex mutex_;
  std::map<void*, std::size_t> sizes_;
};

Room& room() {
  static Room& room = *new Room;  // never destroyed, because memory may be freed at the very end
  return room;
}

cudaError_t answer() {
  static const int fail_at = number_of("FAKE_CUDA_FAIL", 0);
  static std::atomic<int> calls = 0;
  return ++calls == fail_at ? cudaErrorLaunchFailure : cudaSuccess;
}

}  // namespace

struct GraphNode : ddp::FakeCudaNode {
  Work work;
};
struct CUgraph_st {
  std::vector<GraphNode> nodes;
  std::vector<std::shared_ptr<void>> held;
};
/// A capture in progress.
struct FakeCapture {
  cudaStream_t origin;
  std::vector<cudaStream_t> streams;  ///< the origin and those that joined
  CUgraph_st graph;
};
/// The resources that a graph's launches in flight hold.
struct GraphResources {
  std::vector<std::shared_ptr<void>> held;
};
struct CUgraphExec_st {
  std::vector<GraphNode> nodes;
  std::shared_ptr<GraphResources> resources;
  int launches = 0;
  cudaStream_t launched_in = nullptr;
};
struct CUstream_st {
  std::deque<Work> waiting;
  std::shared_ptr<FakeCapture> capture;
  std::vector<std::size_t> last;  ///< nodes of the capture that the next one follows

  void add(Work work, bool is_exchange = false) {
    if (capture) {
      capture->graph.nodes.push_back({{is_exchange, last}, std::move(work)});
      last = {capture->graph.nodes.size() - 1};
    } else {
      waiting.push_back(std::move(work));
    }
  }
  /// Adds work that is done when it returns.
  template <class Done>
  void add_done(Done done) {
    add([done = std::move(done)] {
      done();
      return true;
    });
  }
  /// Returns whether the next work is done. The queue must not be empty.
  bool move_on() {
    if (!waiting.front()()) return false;
    waiting.pop_front();
    return true;
  }
};
/// A position in a stream's work, or in a capture.
struct CUevent_st {
  cudaStream_t stream = nullptr;
  std::shared_ptr<bool> passed = std::make_shared<bool>(true);
  std::shared_ptr<std::chrono::steady_clock::time_point> at;  ///< when it was passed; null: it is not timed
  std::shared_ptr<FakeCapture> capture;
  std::vector<std::size_t> last;
};

namespace {

/// Pinned memory by its start. A copy from it reads the memory when the stream reaches the copy, and no
/// earlier.
std::map<const std::byte*, std::size_t> g_pinned;

bool is_pinned(const std::byte* memory) {
  auto after = g_pinned.upper_bound(memory);
  return after != g_pinned.begin() && memory < std::prev(after)->first + std::prev(after)->second;
}

}  // namespace

namespace {

void drain(cudaStream_t stream) {
  while (!stream->waiting.empty()) {
    if (!stream->move_on()) std::this_thread::yield();
  }
}

/// Returns whether the work before the event is done. The stream runs that work, and nothing behind it.
bool has_passed(cudaStream_t stream, const bool& passed) {
  while (!passed) {
    if (!stream->move_on()) return false;
  }
  return true;
}

/// Returns true if the origin's next operation would follow every operation of the capture.
bool all_are_joined(const FakeCapture& capture) {
  std::vector<bool> before(capture.graph.nodes.size());
  for (const std::size_t last : capture.origin->last)
    before[last] = true;
  for (std::size_t i = before.size(); i-- > 0;) {
    if (!before[i]) return false;
    for (const std::size_t other : capture.graph.nodes[i].after)
      before[other] = true;
  }
  return true;
}

/// One launch of a graph.
class GraphRun {
 public:
  GraphRun(const CUgraphExec_st& graph)
      : nodes_(graph.nodes), done_(graph.nodes.size()), resources_(graph.resources) {
    std::vector<bool> early(nodes_.size());
    if (!nodes_.empty()) early[static_cast<std::size_t>(graph.launches) % nodes_.size()] = true;
    for (std::size_t i = nodes_.size(); i-- > 0;) {
      for (const std::size_t other : nodes_[i].after)
        early[other] = early[other] || early[i];
    }
    for (std::size_t i = 0; i < nodes_.size(); ++i)
      if (early[i]) order_.push_back(i);
    for (std::size_t i = nodes_.size(); i-- > 0;)
      if (!early[i]) order_.push_back(i);
  }

  /// Runs what can run. Returns whether all is done.
  bool operator()() {
    bool moved = true;
    while (moved && left_ != 0) {
      moved = false;
      for (std::size_t i = 0; !moved && i < order_.size(); ++i)
        moved = run(order_[i]);
    }
    return left_ == 0;
  }

 private:
  bool run(std::size_t i) {
    if (done_[i] || !std::ranges::all_of(nodes_[i].after, [this](std::size_t other) { return done_[other]; }))
      return false;
    if (!nodes_[i].work()) return false;
    done_[i] = true;
    --left_;
    return true;
  }

  std::vector<GraphNode> nodes_;
  std::vector<bool> done_;
  std::vector<std::size_t> order_;  ///< of preference
  std::size_t left_ = nodes_.size();
  std::shared_ptr<GraphResources> resources_;
};

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = static_cast<int>(visible_gpus().size());
  if (std::getenv("FAKE_CUDA_DRIVER") != nullptr) return cudaErrorInsufficientDriver;
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaSetDevice(int gpu) {
  t_gpu = gpu;
  return answer();
}
const char* cudaGetErrorName(cudaError_t error) {
  if (error == cudaErrorMemoryAllocation) return "cudaErrorMemoryAllocation";
  return error == cudaErrorNoDevice ? "cudaErrorNoDevice" : "cudaErrorLaunchFailure";
}
const char* cudaGetErrorString(cudaError_t error) {
  if (error == cudaErrorMemoryAllocation) return "out of memory";
  return error == cudaErrorNoDevice ? "no CUDA-capable device is detected" : "unspecified launch failure";
}
/// Like the real runtime, this also returns the "not ready" of an earlier query.
cudaError_t cudaGetLastError() {
  return std::exchange(t_last_error, cudaSuccess);
}
cudaError_t cudaMalloc(void** memory, size_t size) {
  *memory = nullptr;
  if (answer() != cudaSuccess) return cudaErrorLaunchFailure;
  if (!room().reserve(size)) return cudaErrorMemoryAllocation;
  *memory = ::operator new(size, std::align_val_t(256));
  std::memset(*memory, 0xff, size);
  room().own(*memory, size);
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  room().give_back(memory);
  ::operator delete(memory, std::align_val_t(256));
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = room().free();
  *total = all_memory();
  return answer();
}
cudaError_t cudaMemset(void* memory, int value, size_t size) {
  std::memset(memory, value, size);
  return answer();
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t size, cudaStream_t stream) {
  stream->add_done([=] { std::memset(memory, value, size); });
  return answer();
}
cudaError_t cudaDeviceSynchronize() {
  return answer();
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = nullptr;
  if (answer() != cudaSuccess) return cudaErrorLaunchFailure;
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  cudaError_t state;
  while ((state = cudaStreamQuery(stream)) == cudaErrorNotReady)
    std::this_thread::yield();
  t_last_error = cudaSuccess;
  return state;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (stream->capture) return cudaErrorLaunchFailure;
  while (!stream->waiting.empty()) {
    if (!stream->move_on()) return t_last_error = cudaErrorNotReady;
  }
  return answer();
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (answer() != cudaSuccess) return cudaErrorLaunchFailure;
  const auto* bytes = static_cast<const std::byte*>(from);
  constexpr size_t kStaged = size_t{64} << 10;  // the runtime stages at most this; for larger copies it waits
                                                // for the stream
  if (kind == cudaMemcpyHostToDevice && !is_pinned(bytes)) {  // copied at once
    if (size > kStaged && !stream->capture) drain(stream);
    stream->add_done([to, kept = std::vector<std::byte>(bytes, bytes + size)] {
      std::memcpy(to, kept.data(), kept.size());
    });
    return cudaSuccess;
  }
  stream->add_done([to, from, size] { std::memcpy(to, from, size); });
  // A copy to memory that is not pinned is complete on return.
  if (kind == cudaMemcpyDeviceToHost && !is_pinned(static_cast<const std::byte*>(to))) drain(stream);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** memory, size_t size) {
  *memory = nullptr;
  if (answer() != cudaSuccess) return cudaErrorLaunchFailure;
  *memory = ::operator new(size, std::align_val_t(256));
  std::memset(*memory, 0xff, size);
  g_pinned[static_cast<std::byte*>(*memory)] = size;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  g_pinned.erase(static_cast<std::byte*>(memory));
  return cudaFree(memory);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = nullptr;
  if (answer() != cudaSuccess) return cudaErrorLaunchFailure;
  *event = new CUevent_st;
  if ((flags & cudaEventDisableTiming) == 0)
    (*event)->at = std::make_shared<std::chrono::steady_clock::time_point>();
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->stream = stream;
  event->capture = stream->capture;
  event->last = stream->last;
  if (stream->capture) return answer();
  event->passed = std::make_shared<bool>(false);
  stream->add_done([passed = event->passed, at = event->at] {
    if (at) *at = std::chrono::steady_clock::now();
    *passed = true;
  });
  return answer();
}
/// An external record is an operation of the captured graph.
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  if ((flags == cudaEventRecordExternal) != (stream->capture != nullptr)) return cudaErrorIllegalState;
  if (!stream->capture) return cudaEventRecord(event, stream);
  stream->add_done([at = event->at] { *at = std::chrono::steady_clock::now(); });
  return answer();
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  if (!begin->at || !end->at) return cudaErrorInvalidResourceHandle;
  if (!*begin->passed || !*end->passed) return t_last_error = cudaErrorNotReady;
  *ms = std::chrono::duration<float, std::milli>(*end->at - *begin->at).count();
  return answer();
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (!event->capture) {
    stream->add([from = event->stream, passed = event->passed] { return has_passed(from, *passed); });
    return answer();
  }
  // An event of an earlier capture, and a stream that belongs to another one, are errors.
  if (event->capture != event->stream->capture) return t_last_error = cudaErrorLaunchFailure;
  if (stream->capture && stream->capture != event->capture) return t_last_error = cudaErrorLaunchFailure;
  if (!stream->capture) {
    stream->capture = event->capture;
    stream->capture->streams.push_back(stream);
  }
  stream->last.insert(stream->last.end(), event->last.begin(), event->last.end());
  return answer();
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (event->capture) return t_last_error = cudaErrorLaunchFailure;
  return has_passed(event->stream, *event->passed) ? answer() : t_last_error = cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  cudaError_t state;
  while ((state = cudaEventQuery(event)) == cudaErrorNotReady)
    std::this_thread::yield();
  t_last_error = cudaSuccess;
  return state;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (answer() != cudaSuccess) return cudaErrorLaunchFailure;
  stream->capture = std::make_shared<FakeCapture>(FakeCapture{stream, {stream}, {}});
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = stream->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  if (!stream->capture || stream->capture->origin != stream) return t_last_error = cudaErrorIllegalState;
  const auto capture = stream->capture;
  const bool joined = all_are_joined(*capture);
  for (const cudaStream_t one : capture->streams) {
    one->capture.reset();
    one->last.clear();
  }
  if (!joined) {
    capture->graph = {};  // an event may still name the capture
    return t_last_error = cudaErrorStreamCaptureUnjoined;
  }
  g_last_graph.assign(capture->graph.nodes.begin(), capture->graph.nodes.end());
  *graph = new CUgraph_st(std::move(capture->graph));
  return answer();
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = nullptr;
  if (answer() != cudaSuccess) return cudaErrorLaunchFailure;
  *exec = new CUgraphExec_st{graph->nodes, std::make_shared<GraphResources>(GraphResources{graph->held})};
  ++g_graphs;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  const char* const end = std::getenv("FAKE_CUDA_GRAPH_END");
  if (end != nullptr && std::strcmp(end, "waits") == 0) {
    while (exec->resources.use_count() > 1) {
      if (!exec->launched_in->move_on()) std::this_thread::yield();
    }
  }
  delete exec;
  --g_graphs;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  static const int late = number_of("FAKE_CUDA_LATE_MS", 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(late));
  stream->add(GraphRun(*exec));
  ++exec->launches;
  exec->launched_in = stream;
  return answer();
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {};
  properties->totalGlobalMem = all_memory();
  properties->pciBusID = device;
  properties->major = number_of("FAKE_CUDA_CAPABILITY", 9);
  std::strcpy(properties->name, "emulated GPU");
  std::snprintf(properties->uuid.bytes, sizeof properties->uuid.bytes, "%s", name_of_gpu(device).c_str());
  return cudaSuccess;
}
// FAKE_CUDA_DRIVER: the version of a driver that is too old; 0: there is no driver.
cudaError_t cudaDriverGetVersion(int* version) {
  *version = number_of("FAKE_CUDA_DRIVER", 0);
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13010;
  return cudaSuccess;
}

}  // extern "C"

namespace ddp {

std::string fake_cuda_gpu() {
  return name_of_gpu(t_gpu);
}

bool fake_cuda_exchanges() {
  return g_exchanges != 0;
}

cudaError_t fake_cuda_call(cudaStream_t stream, std::function<void()> work) {
  if (answer() != cudaSuccess) return cudaErrorLaunchFailure;
  stream->add_done(std::move(work));
  return cudaSuccess;
}

void fake_cuda_enqueue(cudaStream_t stream, std::function<bool()> work, std::shared_ptr<void> held) {
  if (stream->capture) {
    stream->capture->graph.held.push_back(std::move(held));
    stream->add(std::move(work), true);
    return;
  }
  ++g_exchanges;
  stream->add([work = std::move(work)] {
    if (!work()) return false;
    --g_exchanges;
    return true;
  });
}

bool fake_cuda_is_capturing(cudaStream_t stream) {
  return stream->capture != nullptr;
}

int fake_cuda_graphs() {
  return g_graphs;
}

std::vector<FakeCudaNode> fake_cuda_last_graph() {
  return g_last_graph;
}

}  // namespace ddp

namespace ddp::train::kernels::device {

template <class Body>
bool g_is_loaded = false;

template <class Body>
cudaError_t load_on_device() {
  g_is_loaded<Body> = true;
  return answer();
}

template <class Body>
cudaError_t launch_on_device(const typename Body::Args& args, cudaStream_t stream) {
  if (answer() != cudaSuccess) return cudaErrorLaunchFailure;
  if (!std::exchange(g_is_loaded<Body>, true) && g_exchanges != 0) {
    std::fputs("fake CUDA: a kernel is loaded while an exchange with other ranks runs\n", stderr);
    return cudaErrorLaunchFailure;
  }
  stream->add_done([args] { run_on_host<Body>(args, {true, 7}); });
  return cudaGetLastError();  // as device_launch.h does
}

namespace {

/// Takes the address of each load and launch of a program, so that the linker finds them.
struct EveryLaunch {
  template <class Body>
  void run(const typename Body::Args&) const {
    [[maybe_unused]] static auto* volatile keep_load = &load_on_device<Body>;
    [[maybe_unused]] static auto* volatile keep = &launch_on_device<Body>;
  }
};

template <class T, class S>
[[maybe_unused]] void every_launch(const ConvNetMemory<T, S>& conv_net, const MlpMemory<T, S>& mlp) {
  for (const int batch : {1, 1000})
    run_conv_net_forward(EveryLaunch{}, conv_net, batch, true);
  run_conv_net_backward(EveryLaunch{}, conv_net, 1, {});
  run_mlp_forward(EveryLaunch{}, mlp, 1, true);
  run_mlp_backward(EveryLaunch{}, mlp, 1, {});
  run_update(EveryLaunch{}, conv_net.training, {}, T(1));
  run_round_weights(EveryLaunch{}, conv_net.training);
  EveryLaunch{}.run<Gather<T>>({});
  EveryLaunch{}.run<AddVector<T>>({});
}

}  // namespace

// Instantiates all launches; never called.
void instantiate_launches(const ConvNetMemory<float>& a, const MlpMemory<float>& b,
                          const ConvNetMemory<double>& c, const MlpMemory<double>& d,
                          const ConvNetMemory<float, Bf16>& e, const MlpMemory<float, Bf16>& f) {
  every_launch(a, b);
  every_launch(c, d);
  every_launch(e, f);
  EveryLaunch{}.run<WritePattern>({});
  EveryLaunch{}.run<ReadPattern>({});
  EveryLaunch{}.run<CompareProduct>({});
  EveryLaunch{}.run<FinishProduct<float>>({});
  EveryLaunch{}.run<FinishProduct<float, Bf16>>({});
  EveryLaunch{}.run<FinishProduct<float, Bf16, Bf16>>({});
}

}  // namespace ddp::train::kernels::device
