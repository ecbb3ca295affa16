#include "apps/train/collectives/nccl/nccl_link.h"

#include <poll.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>
#include <thread>

#include "apps/train/collectives/nccl/nccl_settings.h"
#include "apps/train/gpu/cuda_runtime.h"
#include "base/text.h"

namespace ddp::train {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

std::atomic<bool> g_stuck = false;

/// The pauses of one wait, with its deadline and interrupt.
class WaitPauses {
 public:
  WaitPauses(int interrupt, milliseconds timeout)
      : interrupt_(interrupt), timeout_(timeout), begun_(Clock::now()), deadline_(begun_ + timeout) {}

  /// Pauses before the next check. The first checks have no pause, since a millisecond is long for most
  /// operations. Later pauses are long: a rank that waits for another must look idle to the hang detection.
  Result<> pause() {
    ::pollfd revoked{interrupt_, POLLIN, 0};
    const Clock::time_point now = Clock::now();
    const int wait_ms = now < begun_ + kWithoutPause ? 0 : now < begun_ + kWithShortOnes ? 1 : 20;
    if (::poll(&revoked, 1, wait_ms) > 0) return Error{ErrorCode::kCancelled, "revoked"};
    if (Clock::now() < deadline_) return {};
    return Error{ErrorCode::kTimeout,
                 "the other ranks did not join the operation within " + format_duration(timeout_)};
  }

 private:
  static constexpr milliseconds kWithoutPause{20}, kWithShortOnes{500};
  int interrupt_;
  milliseconds timeout_;
  Clock::time_point begun_;
  Clock::time_point deadline_;
};

ErrorCode code_of(ncclResult_t result) {
  switch (result) {
    case ncclUnhandledCudaError:
      return ErrorCode::kSystem;
    case ncclSystemError:
    case ncclRemoteError:
      return ErrorCode::kLinkLost;
    case ncclInvalidArgument:
    case ncclInvalidUsage:
      return ErrorCode::kUsage;
    default:
      return ErrorCode::kInternal;
  }
}

bool is_done(ncclResult_t result) {
  return result != ncclInProgress;
}

/// Keeps memory that a stuck call may still use. The memory is never freed and stays reachable.
void keep_for_ever(std::shared_ptr<void> used) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::shared_ptr<void>>;
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(used));
}

}  // namespace

/// Storage for the communicators and windows that NCCL makes. Deques, so that elements do not move.
struct NcclLink::Slots {
  std::deque<ncclComm_t> comms;
  std::deque<void*> windows;
};

/// Counts the threads that end communicators, for the thread that waits for them. It outlives both if NCCL
/// hangs.
struct NcclLink::CommunicatorEndings {
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t left = 0;
};

bool nccl_is_stuck() {
  return g_stuck;
}

NcclLink::NcclLink(std::shared_ptr<const NcclLibrary> library, std::shared_ptr<NcclDevice> device,
                   NcclLinkConfig config)
    : library_(std::move(library)),
      device_(std::move(device)),
      config_(config),
      slots_(std::make_shared<Slots>()),
      memory_(std::make_shared<NcclMemory>(library_, device_)) {}

NcclLink::~NcclLink() {
  // After a revocation, some ranks are gone, and NCCL's orderly end would wait for them.
  if (!stuck_) (void)end_all(failed_.has_value() || is_revoked(config_.interrupt));
  if (stuck_) {
    // Freeing memory waits for the device, possibly forever.
    keep_for_ever(device_);
    keep_for_ever(slots_);
    keep_for_ever(memory_);
    return;
  }
  if (staging_ != nullptr) device_->release(staging_);
}

Result<std::vector<ncclUniqueId>> NcclLink::meet(PeerDirectory& directory, const std::string& group, int rank,
                                                 int size) {
  const NcclFunctions& nccl = *library_->operator->();
  const int roots = nccl.init_rank_scalable != nullptr ? nccl_roots(size, kRanksPerRoot) : 1;
  const Clock::time_point deadline = Clock::now() + config_.start_timeout;
  std::vector<ncclUniqueId> ids(static_cast<std::size_t>(roots));
  for (int root = 0; root < roots; ++root) {
    if (nccl_root_rank(root, roots, size) != rank) continue;
    ncclUniqueId id{};
    // NCCL begins to listen here, in this process.
    if (const auto made = nccl.get_unique_id(&id); made != ncclSuccess)
      return failed_call(nullptr, made, "start");
    const std::string text = encode_nccl_id({id.internal, sizeof id.internal}, library_->version());
    DDP_TRY(checked(directory.share(nccl_root_key(group, root), text), "start"));
  }
  for (int root = 0; root < roots; ++root) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    const auto text = directory.find(nccl_root_key(group, root), std::max(left, milliseconds(1)));
    const std::string by = "rank " + std::to_string(nccl_root_rank(root, roots, size));
    if (!text && text.error().code == ErrorCode::kTimeout) {
      return fail(ErrorCode::kTimeout,
                  by + " of " + group + " has not published its NCCL id; check that it started", "start");
    }
    const std::string shared = DDP_TRY(checked(text, "start"));
    const auto decoded = DDP_TRY(checked(decode_nccl_id(shared, library_->version(), by), "start"));
    decoded.copy(ids[static_cast<std::size_t>(root)].internal, NCCL_UNIQUE_ID_BYTES);
  }
  return ids;
}

Result<ncclComm_t> NcclLink::open(PeerDirectory& directory, const std::string& group, int rank, int size) {
  if (failed_) return *failed_;
  DDP_TRY(checked(device_->take(), "start"));
  auto ids = DDP_TRY(meet(directory, group, rank, size));
  const NcclFunctions& nccl = *library_->operator->();
  ncclConfig_t settings = NCCL_CONFIG_INITIALIZER;
  settings.blocking = 0;
  ncclComm_t& comm = slots_->comms.emplace_back(nullptr);
  const ncclResult_t begun =
      ids.size() == 1
          ? nccl.init_rank(&comm, size, ids.front(), rank, &settings)
          : nccl.init_rank_scalable(&comm, size, rank, static_cast<int>(ids.size()), ids.data(), &settings);
  DDP_TRY(settle(comm, begun, "start", config_.start_timeout));
  return comm;
}

Result<ncclComm_t> NcclLink::split(ncclComm_t whole, int color, int key) {
  if (failed_) return *failed_;
  const NcclFunctions& nccl = *library_->operator->();
  if (nccl.split == nullptr) return Error{ErrorCode::kUsage, library_->name() + " has no ncclCommSplit"};
  ncclConfig_t settings = NCCL_CONFIG_INITIALIZER;
  settings.blocking = 0;
  ncclComm_t& part = slots_->comms.emplace_back(nullptr);
  const ncclResult_t begun = nccl.split(whole, color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, &part, &settings);
  // The part exists when the whole communicator has finished the split.
  DDP_TRY(settle(whole, begun, "split", config_.start_timeout));
  if (part == nullptr) return part;
  DDP_TRY(settle(part, ncclInProgress, "split", config_.start_timeout));
  return part;
}

Result<> NcclLink::settle(ncclComm_t comm, ncclResult_t result, std::string_view operation,
                          milliseconds timeout) {
  WaitPauses patience(config_.interrupt, timeout);
  for (bool first = true; !is_done(result) && comm != nullptr; first = false) {
    if (!first) DDP_TRY(checked(patience.pause(), operation));
    const ncclResult_t asked = library_->operator->()->get_async_error(comm, &result);
    if (asked != ncclSuccess) result = asked;
  }
  if (result == ncclSuccess) return {};
  return failed_call(comm, result, operation);
}

Result<> NcclLink::call(ncclComm_t comm, std::string_view operation, const NcclCall& call) {
  if (failed_) return *failed_;
  return settle(comm, call(*library_->operator->()), operation, config_.step_timeout);
}

Result<> NcclLink::wait(ncclComm_t comm, std::string_view operation,
                        const std::function<Result<bool>()>& done) {
  if (failed_) return *failed_;
  WaitPauses patience(config_.interrupt, config_.step_timeout);
  for (;;) {
    const bool complete = DDP_TRY(checked(done(), operation));
    if (complete) return {};
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = library_->operator->()->get_async_error(comm, &state);
    if (asked != ncclSuccess) state = asked;
    if (state != ncclSuccess && is_done(state)) return failed_call(comm, state, operation);
    DDP_TRY(checked(patience.pause(), operation));
  }
}

Result<std::byte*> NcclLink::staging(std::size_t bytes) {
  if (failed_) return *failed_;  // the stream may hang
  if (bytes <= staged_) return staging_;
  if (staging_ != nullptr) device_->release(staging_);
  staging_ = nullptr;
  staged_ = 0;
  staging_ = DDP_TRY(checked(device_->allocate(bytes), "staging"));
  staged_ = bytes;
  return staging_;
}

DeviceMemory NcclLink::share_memory(ncclComm_t comm, std::size_t bytes) {
  if (failed_ || !memory_->is_possible()) return {};
  const NcclFunctions& nccl = *library_->operator->();
  const auto block = memory_->allocate(comm, bytes);
  // Some NCCL transports ask all ranks for the address of registered memory. So all ranks register it, or
  // none.
  if (!all_agree(comm, block.has_value())) return {};
  if (config_.windows && nccl.register_window != nullptr && nccl.deregister_window != nullptr) {
    // Symmetric: this memory of all ranks in one address space, so that small sums need one round. If the
    // ranks' GPUs cannot reach each other's memory, NCCL makes no window and reports no error.
    constexpr int kSymmetric = 1;  // NCCL_WIN_COLL_SYMMETRIC
    void*& window = slots_->windows.emplace_back(nullptr);
    memory_->begin_window(comm, *block);
    const auto begun = nccl.register_window(comm, block->data(), block->size(), &window, kSymmetric);
    if (!settle(comm, begun, "start of a window", config_.start_timeout)) return {};
    memory_->end_window(window);
    if (window != nullptr) return {block->first(bytes), DeviceMemory::RegistrationKind::kWindow};
  }
  const bool registered = memory_->register_alone(comm, *block);
  if (all_agree(comm, registered)) return {block->first(bytes), DeviceMemory::RegistrationKind::kRegistered};
  if (registered && !failed_) memory_->take_back(comm);
  return {};
}

/// Returns true if `mine` is true on all ranks; false also if they could not be asked.
bool NcclLink::all_agree(ncclComm_t comm, bool mine) {
  auto room = staging(sizeof(float));
  float against = mine ? 0.0F : 1.0F;
  if (!room ||
      !checked(device_->to_device(*room, reinterpret_cast<const std::byte*>(&against), sizeof against),
               "start"))
    return false;
  const auto enqueue = [&](const NcclFunctions& nccl) {
    return nccl.all_reduce(*room, *room, 1, ncclFloat32, ncclSum, comm,
                           static_cast<cudaStream_t>(device_->stream()));
  };
  const auto is_idle = [&] { return device_->is_idle(device_->stream()); };
  if (!call(comm, "start", enqueue) || !wait(comm, "start", is_idle)) return false;
  return checked(device_->to_host(reinterpret_cast<std::byte*>(&against), *room, sizeof against), "start") &&
         against == 0.0F;
}

Error NcclLink::failed_call(ncclComm_t comm, ncclResult_t result, std::string_view operation) {
  std::string advice;
  if (operation == "start") {
    advice = " of " + library_->name();
    advice += result == ncclInvalidUsage ? "; two ranks on one GPU need --comm nccl --share-gpu"
                                         : config_.start_advice;
  }
  return fail(code_of(result), library_->text_of(result, comm), operation, advice);
}

Error NcclLink::fail(ErrorCode code, const std::string& reason, std::string_view operation,
                     const std::string& advice) {
  if (failed_) return *failed_;
  const std::string text = "rank " + std::to_string(config_.rank) + " over NCCL: " + reason;
  const std::string during = " during " + std::string(operation) + advice;
  failed_ = Error{code, text + during};  // before the end, so that nothing begins meanwhile
  if (!end_all(true))
    failed_->text = text + "; NCCL did not abort within " + format_duration(config_.end_timeout) + during;
  return *failed_;
}

/// NCCL frees a communicator when the last graph that holds it has been destroyed. A graph in flight may not
/// end before the abort has stopped NCCL's kernels, and CUDA may wait for a graph that it destroys. So
/// an abort begins first, and the graphs follow when they are idle. An orderly end has no work in flight.
bool NcclLink::end_all(bool abort) {
  for (const GraphOwner& owner : owners_)
    owner.abandon_capture();
  // Work that does not end needs the abort.
  if (!abort) abort = !drop_graphs(Clock::now() + config_.end_timeout);
  const Clock::time_point deadline = Clock::now() + config_.end_timeout;
  const auto endings = begin_endings(abort);
  const bool dropped = drop_graphs(deadline);
  std::unique_lock lock(endings->mutex);
  const bool ended =
      endings->changed.wait_until(lock, deadline, [&] { return endings->left == 0; }) && dropped;
  if (ended) {
    slots_->comms.clear();
  } else {
    stuck_ = true;
    g_stuck = true;
    give_up_gpus();
  }
  return ended;
}

/// Returns true if the link's own stream is idle.
bool NcclLink::is_idle() {
  const auto done = device_->is_idle(device_->stream());
  return !done || *done;  // a GPU that has failed runs nothing
}

/// Drops the graphs of all owners that become idle before the deadline. Returns false if one did not, or if
/// other work is left: then memory that the work uses must not be freed.
bool NcclLink::drop_graphs(Clock::time_point deadline) {
  for (;;) {
    std::erase_if(owners_, [](const GraphOwner& owner) {
      if (!owner.is_idle()) return false;
      owner.drop();
      return true;
    });
    if (owners_.empty() && is_idle()) return true;
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
}

/// Begins to end each communicator, on a thread of its own.
std::shared_ptr<NcclLink::CommunicatorEndings> NcclLink::begin_endings(bool abort) {
  const auto endings = std::make_shared<CommunicatorEndings>();
  std::vector<ncclComm_t> comms;
  for (const ncclComm_t comm : slots_->comms) {
    if (comm != nullptr) comms.push_back(comm);
  }
  endings->left = comms.size();
  for (const ncclComm_t comm : comms) {
    if (abort) memory_->leave_registrations(comm);
    auto registrations = memory_->take_registrations(comm);
    std::thread([endings, comm, abort, registrations = std::move(registrations), library = library_,
                 device = device_]() mutable {
      (void)device->take();
      if (abort) {
        (void)(*library)->abort(comm);
      } else {
        for (const auto& one : registrations) {
          (void)(one.is_window ? (*library)->deregister_window(comm, one.handle)
                               : (*library)->deregister_memory(comm, one.handle));
        }
        (void)(*library)->destroy(comm);
      }
      // The waiting thread may be the last owner then, so that this thread tears nothing down while the
      // program ends.
      device.reset();
      library.reset();
      const std::lock_guard lock(endings->mutex);
      --endings->left;
      endings->changed.notify_all();
    }).detach();
  }
  return endings;
}

NcclMemory::~NcclMemory() {
  for (void* block : blocks_)
    (void)(*library_)->release(block);
}

bool NcclMemory::is_possible() const {
  const NcclFunctions& nccl = *library_->operator->();
  return nccl.allocate != nullptr && nccl.release != nullptr && nccl.register_memory != nullptr &&
         nccl.deregister_memory != nullptr;
}

Result<std::span<std::byte>> NcclMemory::allocate(ncclComm_t comm, std::size_t bytes) {
  constexpr std::size_t kAlignment = 4096;  // NCCL_WIN_REQUIRED_ALIGNMENT
  const std::size_t size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* block = nullptr;
  if (const auto result = (*library_)->allocate(&block, size); result != ncclSuccess)
    return Error{ErrorCode::kSystem, "ncclMemAlloc: " + library_->text_of(result, comm)};
  blocks_.push_back(block);
  auto* const data = static_cast<std::byte*>(block);
  DDP_TRY(device_->zero(data, size));
  return std::span(data, size);
}

bool NcclMemory::register_alone(ncclComm_t comm, std::span<std::byte> block) {
  void* handle = nullptr;
  const auto result = (*library_)->register_memory(comm, block.data(), block.size(), &handle);
  if (result == ncclSuccess) {
    registrations_.push_back({comm, handle, false, block.data()});
    return true;
  }
  if (!std::exchange(said_, true)) {
    std::fprintf(stderr, "train: sums are copied through NCCL's buffers: ncclCommRegister: %s\n",
                 library_->text_of(result, comm).c_str());
  }
  return false;
}

void NcclMemory::take_back(ncclComm_t comm) {
  if (registrations_.back().handle != nullptr)
    (void)(*library_)->deregister_memory(comm, registrations_.back().handle);
  registrations_.pop_back();
}

std::vector<NcclMemory::Registration> NcclMemory::take_registrations(ncclComm_t comm) {
  std::vector<Registration> taken;
  std::erase_if(registrations_, [&](const Registration& one) {
    if (one.comm == comm && one.handle != nullptr) taken.push_back(one);
    return one.comm == comm;
  });
  return taken;
}

void NcclMemory::leave_registrations(ncclComm_t comm) {
  for (const Registration& one : registrations_) {
    if (one.comm == comm && one.is_window) std::erase(blocks_, one.block);
  }
  (void)take_registrations(comm);
}

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
    DDP_TRY(take());
    cudaDeviceProp properties{};
    DDP_TRY(DDP_CUDA_CHECK(cudaGetDeviceProperties, &properties, gpu_));
    name_ = "GPU " + std::to_string(gpu_) + " (" + properties.name + ")";
    // The default stream would wait for every other stream.
    return DDP_CUDA_CHECK(cudaStreamCreateWithFlags, &stream_, cudaStreamNonBlocking);
  }

  std::string name() const override { return name_; }
  Result<> take() override { return DDP_CUDA_CHECK(cudaSetDevice, gpu_); }
  void* stream() override { return stream_; }

  Result<std::byte*> allocate(std::size_t bytes) override {
    void* data = nullptr;
    DDP_TRY(DDP_CUDA_CHECK(cudaMalloc, &data, bytes));
    return static_cast<std::byte*>(data);
  }
  void release(std::byte* data) override { (void)cudaFree(data); }
  Result<> zero(std::byte* data, std::size_t bytes) override {
    DDP_TRY(DDP_CUDA_CHECK(cudaMemsetAsync, data, 0, bytes, stream_));
    return wait_for_stream(stream_, kCopyTimeout, "the zeros of new memory");
  }

  Result<> to_device(std::byte* device, const std::byte* host, std::size_t bytes) override {
    // The runtime copies pageable memory before it returns.
    return DDP_CUDA_CHECK(cudaMemcpyAsync, device, host, bytes, cudaMemcpyHostToDevice, stream_);
  }
  Result<> to_host(std::byte* host, const std::byte* device, std::size_t bytes) override {
    DDP_TRY(DDP_CUDA_CHECK(cudaMemcpyAsync, host, device, bytes, cudaMemcpyDeviceToHost, stream_));
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
  DDP_TRY(device->open());
  return std::unique_ptr<NcclDevice>(std::move(device));
}

}  // namespace ddp::train
