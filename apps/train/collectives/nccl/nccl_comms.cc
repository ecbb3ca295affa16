#include "apps/train/collectives/nccl/nccl_comms.h"

#include <poll.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <iterator>
#include <mutex>
#include <thread>

#include "apps/train/collectives/nccl/nccl_settings.h"
#include "base/text.h"

namespace ddp::train {

namespace {

constexpr const char* kUsualName = "libnccl.so.2";
constexpr const char* kVariable = "DDPLAUNCH_NCCL_LIBRARY";

Error refused(const std::string& text) {
  return usage_error("--comm nccl: ", text);
}

const char* result_name(ncclResult_t result) {
  constexpr const char* kNames[] = {"ncclSuccess",       "ncclUnhandledCudaError", "ncclSystemError",
                                    "ncclInternalError", "ncclInvalidArgument",    "ncclInvalidUsage",
                                    "ncclRemoteError",   "ncclInProgress"};
  const auto number = static_cast<std::size_t>(result);
  return number < std::size(kNames) ? kNames[number] : "unknown NCCL error";
}

}  // namespace

std::vector<std::string> nccl_files(const std::function<const char*(const char*)>& get) {
  return library_files(kUsualName, {"nvidia/nccl/lib"}, get);
}

Result<std::shared_ptr<const NcclLibrary>> NcclLibrary::open(const std::string& file) {
  std::vector<std::string> names{file.empty() ? kUsualName : file};
  if (file.empty()) std::ranges::copy(nccl_files(::getenv), std::back_inserter(names));
  auto library = std::make_shared<NcclLibrary>();
  const auto loaded =
      load_library(names, "ncclGetVersion", [&](LibraryFunctions from, const std::string& path) {
        library->path_ = path;
        return library->resolve(from);
      });
  if (loaded) return std::shared_ptr<const NcclLibrary>(std::move(library));
  const std::string& errors = loaded.error().text;
  if (names.size() == 1 && loaded.error().code == ErrorCode::kUsage) return refused(errors);
  if (!file.empty())
    return refused(std::string(kVariable) + " names a library that cannot be loaded: " + errors);
  return refused("NCCL cannot be loaded: " + errors +
                 "; install it (package libnccl2, or pip install nvidia-nccl-cu13), or name the file by " +
                 kVariable);
}

Result<std::shared_ptr<const NcclLibrary>> NcclLibrary::open() {
  static const auto library = [] {
    const char* file = std::getenv(kVariable);
    return open(file != nullptr ? file : "");
  }();
  return library;
}

Result<> NcclLibrary::resolve(LibraryFunctions from) {
  NcclFunctions& own = functions_;
  // The version comes first: an old library lacks functions because of its age.
  if (!from.find("ncclGetVersion", own.get_version) || own.get_version(&version_) != ncclSuccess)
    return usage_error(path_, " is not NCCL: ncclGetVersion is missing or fails");
  if (version_ < kOldest) {
    return usage_error(path_, " is NCCL ", nccl_version_text(version_), "; ", nccl_version_text(kOldest),
                       " or newer is needed");
  }
  from.need("ncclGetUniqueId", own.get_unique_id);
  from.need("ncclGetErrorString", own.get_error_string);
  from.need("ncclGetLastError", own.get_last_error);
  from.need("ncclCommInitRankConfig", own.init_rank);
  from.need("ncclCommGetAsyncError", own.get_async_error);
  from.need("ncclCommDestroy", own.destroy);
  from.need("ncclCommAbort", own.abort);
  from.need("ncclAllReduce", own.all_reduce);
  from.need("ncclBroadcast", own.broadcast);
  from.need("ncclReduceScatter", own.reduce_scatter);
  from.need("ncclAllGather", own.all_gather);
  from.need("ncclSend", own.send);
  from.need("ncclRecv", own.recv);
  from.need("ncclGroupStart", own.group_start);
  from.need("ncclGroupEnd", own.group_end);
  if (from.missing != nullptr)
    return usage_error(name(), " lacks ", from.missing, "; check that the file is complete");
  from.find("ncclCommSplit", own.split);
  from.find("ncclMemAlloc", own.allocate);
  from.find("ncclMemFree", own.release);
  from.find("ncclCommRegister", own.register_memory);
  from.find("ncclCommDeregister", own.deregister_memory);
  from.find("ncclCommWindowRegister", own.register_window);
  from.find("ncclCommWindowDeregister", own.deregister_window);
  from.find("ncclCommInitRankScalable", own.init_rank_scalable);
  return {};
}

std::string NcclLibrary::name() const {
  return "NCCL " + nccl_version_text(version_) + " (" + path_ + ")";
}

std::string NcclLibrary::text_of(ncclResult_t result, ncclComm_t comm) const {
  std::string text = std::string(result_name(result)) + ": " + functions_.get_error_string(result);
  const char* last = functions_.get_last_error(comm);
  if (last == nullptr || *last == '\0') return text;
  std::string said = last;
  while (!said.empty() && (said.back() == '\n' || said.back() == ' '))
    said.pop_back();
  return text + " (" + one_line(said) + ")";
}

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// Long enough for a full GPU memory over a slow bus.
constexpr std::chrono::seconds kCopyTimeout{60};

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
    return error_of(ErrorCode::kTimeout, "the other ranks did not join the operation within ",
                    format_duration(timeout_));
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
    case ncclUnhandledCudaError: return ErrorCode::kSystem;
    case ncclSystemError:
    case ncclRemoteError: return ErrorCode::kLinkLost;
    case ncclInvalidArgument:
    case ncclInvalidUsage: return ErrorCode::kUsage;
    default: return ErrorCode::kInternal;
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

/// What a call that is stuck in NCCL or on the GPU may still use. Deques, so that elements do not move: NCCL
/// writes to them while it works. ncclMemFree does not wait for work that uses the memory, unlike cudaFree,
/// so the communicators must have ended before.
struct NcclComms::Resources {
  std::shared_ptr<const NcclLibrary> library;
  CudaStream stream;
  DeviceBytes staging;
  std::size_t staged = 0;
  std::deque<ncclComm_t> comms{};
  std::deque<void*> windows{};
  std::vector<void*> blocks{};  ///< of ncclMemAlloc
  std::vector<Registration> registrations{};

  ~Resources() {
    for (void* block : blocks)
      (void)(*library)->release(block);
  }
};

/// Counts the threads that end communicators, for the thread that waits for them. It outlives both if NCCL
/// hangs.
struct NcclComms::CommunicatorEndings {
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t left = 0;
};

NcclComms::NcclComms(std::shared_ptr<const NcclLibrary> library, int gpu, WorldConfig config)
    : library_(std::move(library)), gpu_(gpu), config_(std::move(config)) {}

Result<std::shared_ptr<NcclComms>> NcclComms::make(std::shared_ptr<const NcclLibrary> library, int gpu,
                                                   WorldConfig config) {
  std::shared_ptr<NcclComms> comms(new NcclComms(std::move(library), gpu, std::move(config)));
  DDP_TRY(comms->take_gpu());
  auto stream = DDP_TRY(make_cuda_stream());  // the default stream would wait for every other stream
  comms->held_.reset(new Resources{comms->library_, std::move(stream), nullptr});
  return comms;
}

NcclComms::~NcclComms() {
  if (held_ == nullptr) return;
  // After a revocation, some ranks are gone, and NCCL's orderly end would wait for them.
  if (!stuck_) (void)end_all(failed_.has_value() || is_revoked(config_.interrupt));
  if (stuck_) keep_for_ever(held_);  // freeing memory waits for the device, possibly forever
}

Result<> NcclComms::take_gpu() const {
  return DDP_CUDA_CHECK(cudaSetDevice, gpu_);
}

Result<std::vector<ncclUniqueId>> NcclComms::meet(PeerDirectory& directory, const std::string& group,
                                                  int rank, int size) {
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

Result<ncclComm_t> NcclComms::open(PeerDirectory& directory, const std::string& group, int rank, int size) {
  if (failed_) return *failed_;
  DDP_TRY(checked(take_gpu(), "start"));
  auto ids = DDP_TRY(meet(directory, group, rank, size));
  const NcclFunctions& nccl = *library_->operator->();
  ncclConfig_t settings = NCCL_CONFIG_INITIALIZER;
  settings.blocking = 0;
  ncclComm_t& comm = held_->comms.emplace_back(nullptr);
  const ncclResult_t begun =
      ids.size() == 1
          ? nccl.init_rank(&comm, size, ids.front(), rank, &settings)
          : nccl.init_rank_scalable(&comm, size, rank, static_cast<int>(ids.size()), ids.data(), &settings);
  DDP_TRY(settle(comm, begun, "start", config_.start_timeout));
  return comm;
}

Result<ncclComm_t> NcclComms::split(ncclComm_t whole, int color, int key) {
  if (failed_) return *failed_;
  const NcclFunctions& nccl = *library_->operator->();
  if (nccl.split == nullptr) return usage_error(library_->name(), " has no ncclCommSplit");
  ncclConfig_t settings = NCCL_CONFIG_INITIALIZER;
  settings.blocking = 0;
  ncclComm_t& part = held_->comms.emplace_back(nullptr);
  const ncclResult_t begun = nccl.split(whole, color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, &part, &settings);
  // The part exists when the whole communicator has finished the split.
  DDP_TRY(settle(whole, begun, "split", config_.start_timeout));
  if (part == nullptr) return part;
  DDP_TRY(settle(part, ncclInProgress, "split", config_.start_timeout));
  return part;
}

Result<> NcclComms::settle(ncclComm_t comm, ncclResult_t result, std::string_view operation,
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

Result<> NcclComms::call(ncclComm_t comm, std::string_view operation, const NcclCall& call) {
  if (failed_) return *failed_;
  return settle(comm, call(*library_->operator->()), operation, config_.step_timeout);
}

Result<> NcclComms::wait(ncclComm_t comm, std::string_view operation,
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

/// Returns device memory of at least `bytes` bytes, for one operation. The next call may move it.
Result<std::byte*> NcclComms::staging(std::size_t bytes) {
  if (failed_) return *failed_;  // the stream may hang
  if (bytes <= held_->staged) return held_->staging.get();
  held_->staging.reset();
  held_->staged = 0;
  void* data = nullptr;
  DDP_TRY(checked(DDP_CUDA_CHECK(cudaMalloc, &data, bytes), "staging"));
  held_->staging.reset(static_cast<std::byte*>(data));
  held_->staged = bytes;
  return held_->staging.get();
}

Result<> NcclComms::staged(ncclComm_t comm, std::string_view operation, std::span<std::byte> host,
                           BufferRange up, BufferRange down, const StagedCall& enqueue) {
  if (host.empty()) return {};
  std::byte* const device = DDP_TRY(staging(host.size()));
  const cudaStream_t stream = held_->stream.get();
  const auto copy = [&](void* to, const void* from, std::size_t size, cudaMemcpyKind kind) {
    return checked(DDP_CUDA_CHECK(cudaMemcpyAsync, to, from, size, kind, stream), operation);
  };
  // The runtime copies pageable memory before it returns.
  if (up.size != 0)
    DDP_TRY(copy(device + up.offset, host.data() + up.offset, up.size, cudaMemcpyHostToDevice));
  DDP_TRY(call(comm, operation, [&](const NcclFunctions& nccl) { return enqueue(nccl, device, stream); }));
  DDP_TRY(wait(comm, operation, [&] { return cuda_is_done(cudaStreamQuery(stream), "cudaStreamQuery"); }));
  if (down.size == 0) return {};
  DDP_TRY(copy(host.data() + down.offset, device + down.offset, down.size, cudaMemcpyDeviceToHost));
  return checked(wait_for_stream(stream, kCopyTimeout, "a copy"), operation);
}

/// Returns zeroed memory whose size is a multiple of a window's alignment.
Result<std::span<std::byte>> NcclComms::allocate(ncclComm_t comm, std::size_t bytes) {
  constexpr std::size_t kAlignment = 4096;  // NCCL_WIN_REQUIRED_ALIGNMENT
  const std::size_t size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* block = nullptr;
  if (const auto result = (*library_)->allocate(&block, size); result != ncclSuccess)
    return error_of(ErrorCode::kSystem, "ncclMemAlloc: ", library_->text_of(result, comm));
  held_->blocks.push_back(block);
  DDP_TRY(DDP_CUDA_CHECK(cudaMemsetAsync, block, 0, size, held_->stream.get()));
  DDP_TRY(wait_for_stream(held_->stream.get(), kCopyTimeout, "the zeros of new memory"));
  return std::span(static_cast<std::byte*>(block), size);
}

/// Calls ncclCommRegister, which asks no other rank.
bool NcclComms::register_alone(ncclComm_t comm, std::span<std::byte> block) {
  void* handle = nullptr;
  const auto result = (*library_)->register_memory(comm, block.data(), block.size(), &handle);
  if (result == ncclSuccess) {
    held_->registrations.push_back({comm, handle, false, block.data()});
    return true;
  }
  if (!std::exchange(said_, true)) {
    std::fprintf(stderr, "train: sums are copied through NCCL's buffers: ncclCommRegister: %s\n",
                 library_->text_of(result, comm).c_str());
  }
  return false;
}

DeviceMemory NcclComms::share_memory(ncclComm_t comm, std::size_t bytes) {
  const NcclFunctions& nccl = *library_->operator->();
  if (failed_ || nccl.allocate == nullptr || nccl.release == nullptr || nccl.register_memory == nullptr ||
      nccl.deregister_memory == nullptr)
    return {};
  const auto block = allocate(comm, bytes);
  // Some NCCL transports ask all ranks for the address of registered memory. So all ranks register it, or
  // none.
  if (!all_agree(comm, block.has_value())) return {};
  // An abort leaks windows, so no later attempt shall make new ones. Ranks on one GPU gain nothing by them.
  const bool may_use_windows = !config_.rejoins && !config_.share_gpu;
  if (may_use_windows && nccl.register_window != nullptr && nccl.deregister_window != nullptr) {
    // Symmetric: this memory of all ranks in one address space, so that small sums need one round. If the
    // ranks' GPUs cannot reach each other's memory, NCCL makes no window and reports no error.
    constexpr int kSymmetric = 1;  // NCCL_WIN_COLL_SYMMETRIC
    void*& window = held_->windows.emplace_back(nullptr);
    auto& registrations = held_->registrations;
    registrations.push_back({comm, nullptr, true, block->data()});
    const auto begun = nccl.register_window(comm, block->data(), block->size(), &window, kSymmetric);
    // A rank that NCCL refuses a window must not end the job: all ranks use plain buffers then.
    const bool is_refused = is_done(begun) && begun != ncclSuccess;
    if (is_refused) window = nullptr;
    if (!is_refused && !settle(comm, begun, "start of a window", config_.start_timeout)) return {};
    registrations.back().handle = window;
    if (all_agree(comm, window != nullptr))
      return {block->first(bytes), DeviceMemory::RegistrationKind::kWindow};
    if (failed_) return {};
    if (window != nullptr) (void)nccl.deregister_window(comm, window);
    registrations.pop_back();
  }
  const bool registered = register_alone(comm, *block);
  if (all_agree(comm, registered)) return {block->first(bytes), DeviceMemory::RegistrationKind::kRegistered};
  if (!registered || failed_) return {};
  if (void* const handle = held_->registrations.back().handle; handle != nullptr)
    (void)nccl.deregister_memory(comm, handle);
  held_->registrations.pop_back();
  return {};
}

/// Returns true if `mine` is true on all ranks; false also if they could not be asked.
bool NcclComms::all_agree(ncclComm_t comm, bool mine) {
  float against = mine ? 0.0F : 1.0F;
  const BufferRange all{0, sizeof against};
  const auto sum = [&](const NcclFunctions& nccl, std::byte* device, cudaStream_t stream) {
    return nccl.all_reduce(device, device, 1, ncclFloat32, ncclSum, comm, stream);
  };
  return staged(comm, "start", std::as_writable_bytes(std::span(&against, 1)), all, all, sum) &&
         against == 0.0F;
}

Error NcclComms::failed_call(ncclComm_t comm, ncclResult_t result, std::string_view operation) {
  std::string advice;
  if (operation == "start") {
    advice = " of " + library_->name();
    advice +=
        result == ncclInvalidUsage ? "; two ranks on one GPU need --comm nccl --share-gpu" : config_.advice;
  }
  return fail(code_of(result), library_->text_of(result, comm), operation, advice);
}

Error NcclComms::fail(ErrorCode code, const std::string& reason, std::string_view operation,
                      const std::string& advice) {
  if (failed_) return *failed_;
  const std::string text = concat("rank ", config_.rank, " over NCCL: ", reason);
  const std::string during = " during " + std::string(operation) + advice;
  failed_ = Error{code, text + during};  // before the end, so that nothing begins meanwhile
  if (!end_all(true))
    failed_->text = text + "; NCCL did not abort within " + format_duration(config_.end_timeout) + during;
  return *failed_;
}

/// NCCL frees a communicator when the last graph that holds it has been destroyed. A graph in flight may not
/// end before the abort has stopped NCCL's kernels, and CUDA may wait for a graph that it destroys. So
/// an abort begins first, and the graphs follow when they are idle. An orderly end has no work in flight.
bool NcclComms::end_all(bool abort) {
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
    held_->comms.clear();
  } else {
    stuck_ = true;
    give_up_gpus();
  }
  return ended;
}

/// Drops the graphs of all owners that become idle before the deadline. Returns false if one did not, or if
/// other work is left: then memory that the work uses must not be freed.
bool NcclComms::drop_graphs(Clock::time_point deadline) {
  const auto is_idle = [this] {
    const auto done = cuda_is_done(cudaStreamQuery(held_->stream.get()), "cudaStreamQuery");
    return !done || *done;  // a GPU that has failed runs nothing
  };
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
std::shared_ptr<NcclComms::CommunicatorEndings> NcclComms::begin_endings(bool abort) {
  const auto endings = std::make_shared<CommunicatorEndings>();
  std::vector<ncclComm_t> comms;
  for (const ncclComm_t comm : held_->comms) {
    if (comm != nullptr) comms.push_back(comm);
  }
  endings->left = comms.size();
  for (const ncclComm_t comm : comms) {
    std::thread([endings, comm, abort, gpu = gpu_, registrations = take_registrations(comm, abort),
                 library = library_]() mutable {
      (void)cudaSetDevice(gpu);
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
      library.reset();
      const std::lock_guard lock(endings->mutex);
      --endings->left;
      endings->changed.notify_all();
    }).detach();
  }
  return endings;
}

/// Returns what must be deregistered before the communicator is destroyed. An abort ends registrations
/// itself, but not windows, so their memory stays until the process ends.
std::vector<NcclComms::Registration> NcclComms::take_registrations(ncclComm_t comm, bool abort) {
  std::vector<Registration> taken;
  std::erase_if(held_->registrations, [&](const Registration& one) {
    if (one.comm != comm) return false;
    if (abort && one.is_window) std::erase(held_->blocks, one.block);
    if (!abort && one.handle != nullptr) taken.push_back(one);
    return true;
  });
  return taken;
}

}  // namespace ddp::train
