// JobWriter: its owner's side, then its thread; and JobLog, which writes ddplaunch.log through it.
#include "launcher/output/job_writer.h"

#include <unistd.h>

#include <memory>
#include <utility>
#include <variant>

#include <spdlog/details/null_mutex.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>

#include "base/exit_status.h"
#include "base/program.h"
#include "base/text.h"
#include "remote/hosts/shell_command.h"

namespace ddp::launcher {
namespace {

/// Backlog of all files that starts a write. It is below kHigh, so that many ranks with little output each do
/// not look like a full disk.
constexpr std::size_t kEnough = JobWriter::kHigh / 4;
/// Number of buffers kept for reuse, and the largest capacity kept.
constexpr std::size_t kSpares = 16;
constexpr std::size_t kKeptCapacity = 2 * JobWriter::kPiece;

}  // namespace

JobWriter::JobWriter(asio::any_io_executor loop, JobDir dir, std::function<void(const std::string&)> say,
                     std::function<void()> drained)
    : loop_(std::move(loop)), dir_(std::move(dir)), say_(std::move(say)), drained_(std::move(drained)) {}

std::shared_ptr<JobWriter> JobWriter::start(asio::any_io_executor loop, JobDir dir,
                                            std::function<void(const std::string&)> say,
                                            std::function<void()> drained, FirstTask first) {
  std::shared_ptr<JobWriter> writer(
      new JobWriter(std::move(loop), std::move(dir), std::move(say), std::move(drained)));
  writer->writer_ = std::thread([writer, first = std::move(first)] {
    // On this thread, because a dead disk may hold it, and the loop must not wait for a disk.
    if (first) first();
    writer->write_loop();
  });
  return writer;
}

JobWriter::PendingOutput& JobWriter::pending_of(const OutputKey& key) {
  // The bound matters: last_ outlives the batch that the thread has taken away.
  if (last_.second < waiting_.size() && last_.first == key) return waiting_[last_.second];
  const auto [place, fresh] = place_.try_emplace(key, waiting_.size());
  if (fresh) waiting_.push_back({key, {}});
  last_ = {key, place->second};
  return waiting_[place->second];
}

std::string& JobWriter::gathered_of(PendingOutput& waiting) {
  // Only a piece of copied bytes can grow. Borrowed memory and a gap keep their place in the file.
  if (waiting.pieces.empty() || waiting.pieces.back().memory || waiting.pieces.back().lost > 0) {
    OutputPiece& piece = waiting.pieces.emplace_back();
    if (!spare_.empty()) {
      piece.gathered = std::move(spare_.back());
      spare_.pop_back();
    }
  }
  return waiting.pieces.back().gathered;
}

/// Returns true if there is no room for the bytes; they are then counted as lost.
bool JobWriter::lose(const OutputKey& key, std::size_t bytes) {
  if (backlog_.load(std::memory_order_relaxed) + bytes <= kMost) return false;
  std::vector<OutputPiece>& pieces = pending_of(key).pieces;
  if (pieces.empty() || pieces.back().lost == 0) pieces.emplace_back();
  pieces.back().lost += bytes;
  return true;
}

void JobWriter::append(const OutputKey& key, std::string_view bytes) {
  std::unique_lock lock(mutex_);
  if (lose(key, bytes.size())) return;
  const bool first = waiting_.empty();
  PendingOutput& waiting = pending_of(key);
  gathered_of(waiting) += bytes;
  added(lock, waiting, bytes.size(), first);
}

void JobWriter::append(const OutputKey& key, std::string_view bytes, std::shared_ptr<const char[]> memory) {
  std::unique_lock lock(mutex_);
  if (lose(key, bytes.size())) return;
  const bool first = waiting_.empty();
  PendingOutput& waiting = pending_of(key);
  waiting.pieces.push_back({std::move(memory), bytes, {}});
  added(lock, waiting, bytes.size(), first);
}

/// Wakes the thread if needed, without the mutex; otherwise the thread would only wait for it.
void JobWriter::added(std::unique_lock<std::mutex>& lock, PendingOutput& waiting, std::size_t bytes,
                      bool first) {
  waiting.size += bytes;
  const std::size_t backlog = backlog_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (backlog > kHigh) was_full_ = true;
  const bool enough = waiting.size >= kPiece || backlog >= kEnough;
  // The thread is woken twice for a batch at most: when it begins, and when it is large enough. A call for
  // each line would cost more than the write.
  const bool wake = first || (enough && !write_now_);
  write_now_ = write_now_ || enough;
  lock.unlock();
  if (wake) wake_.notify_one();
}

std::string JobWriter::file(std::uint32_t attempt, std::uint32_t rank, std::uint8_t stream) const {
  return dir_.file(attempt, rank, stream);
}

/// Waits for `done`. Gives up when nothing was written for `limit`.
template <class Done>
bool JobWriter::wait_for(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds limit, Done done) {
  for (;;) {
    const std::uint64_t before = written_;
    // A slow disk may take longer than `limit` for the whole backlog, a hanging one accepts no piece within
    // it.
    if (progress_.wait_for(lock, limit, [&] { return done() || written_ != before; })) {
      if (done()) return true;
    } else {
      return false;
    }
  }
}

std::optional<std::vector<std::string>> JobWriter::finish(const LastTask& last,
                                                          std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  // A second call only continues the wait; the report must not be written twice.
  if (!std::exchange(has_last_task_, true)) last_task_ = last;
  write_now_ = true;
  wake_.notify_one();
  wait_for(lock, limit, [this] { return settled_.has_value(); });
  return settled_;
}

void JobWriter::close(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  closing_ = true;
  wake_.notify_one();
  if (!writer_.joinable()) return;
  // A thread in a write that never returns cannot be joined. It shares ownership of this object, and posts
  // nothing any more once abandoned_ is set, because the loop ends before it.
  abandoned_ = !wait_for(lock, limit, [this] { return ended_; });
  lock.unlock();
  abandoned_ ? writer_.detach() : writer_.join();
}

void JobWriter::write_loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return closing_ || last_task_ || !waiting_.empty(); });
    if (waiting_.empty() && !last_task_) break;
    if (waiting_.empty()) {
      call_last_task(lock);
      continue;
    }
    // The pause gathers the lines of all ranks, so that a file costs ten writes a second at most.
    wake_.wait_for(lock, kLinger, [this] { return closing_ || write_now_; });
    WriteBatch batch = std::exchange(waiting_, {});
    place_.clear();
    // The report is due: what arrives while this batch is written must not linger before it.
    write_now_ = last_task_ != nullptr;
    lock.unlock();
    write(batch);
    lock.lock();
    recycle(batch);
  }
  ended_ = true;
  progress_.notify_all();
}

void JobWriter::call_last_task(std::unique_lock<std::mutex>& lock) {
  const LastTask last = std::exchange(last_task_, nullptr);
  lock.unlock();
  std::string lost = dir_.finish();
  std::vector<std::string> warnings = last(lost);
  if (!lost.empty()) warnings.insert(warnings.begin(), std::move(lost));
  lock.lock();
  settled_ = std::move(warnings);
  progress_.notify_all();
}

void JobWriter::write(WriteBatch& batch) {
  for (PendingOutput& waiting : batch) {
    for (OutputPiece& piece : waiting.pieces) {
      if (piece.lost > 0) dir_.lose(waiting.key, piece.lost);
      for (std::string& words : dir_.write(waiting.key, piece.view(), std::chrono::steady_clock::now()))
        post([this, text = std::move(words)] { say_(text); });
      piece.memory.reset();
    }
    // After the write: full() must count bytes that the disk has not accepted.
    const std::size_t left = backlog_.fetch_sub(waiting.size, std::memory_order_relaxed) - waiting.size;
    std::unique_lock lock(mutex_);
    ++written_;
    progress_.notify_all();
    if (left >= kLow || !std::exchange(was_full_, false)) continue;
    lock.unlock();
    post(drained_);
  }
}

void JobWriter::post(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  if (!abandoned_) asio::post(loop_, std::move(task));
}

void JobWriter::recycle(WriteBatch& batch) {
  for (PendingOutput& waiting : batch) {
    for (OutputPiece& piece : waiting.pieces) {
      if (spare_.size() >= kSpares) return;
      if (piece.gathered.capacity() < 64 || piece.gathered.capacity() > kKeptCapacity) continue;
      piece.gathered.clear();
      spare_.push_back(std::move(piece.gathered));
    }
  }
}

namespace {

constexpr OutputKey kLogFile{0, 0, 0, kJobLog};

class JobFileSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  explicit JobFileSink(JobWriter& files) : files_(files) { set_pattern_("%Y-%m-%d %H:%M:%S.%e %l [%n] %v"); }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    files_.append(kLogFile, {line.data(), line.size()});
  }
  void flush_() override {}

  JobWriter& files_;
};

std::string worker_text(const WorkerCommand& command) {
  std::string text = command.kind == WorkerCommand::Kind::kTrain ? "train" : "";
  for (const std::string& word : command.argv) {
    const auto quoted = remote::shell_quote({word});
    text += (text.empty() ? "" : " ") + (quoted ? *quoted : "(an argument of several lines)");
  }
  return text;
}

std::string end_text(const rendezvous::WorkerExited& exited) {
  if (exited.pid == 0) return "did not start: " + exited.text;
  const ExitStatus status =
      exited.signal != 0 ? ExitStatus::signaled(exited.signal, exited.core) : ExitStatus::exited(exited.code);
  return status.text();
}

}  // namespace

JobLog::JobLog(JobWriter& files, const JobSpec& spec)
    : log_(std::make_unique<spdlog::logger>("job", std::make_shared<JobFileSink>(files))) {
  log_->set_level(spdlog::level::debug);
  log_->info("ddplaunch {}, pid {}, job {}, hosts {}, worker: {}", version(), ::getpid(), spec.job_id,
             spec.hosts.size(), worker_text(spec.command));
}

JobLog::~JobLog() = default;

void JobLog::said(std::string_view text) const {
  log_->info(text);
}

void JobLog::step(std::string_view text) const {
  log_->debug(text);
}

void JobLog::from_node(const std::string& host, const rendezvous::Message& message) const {
  if (const auto* started = std::get_if<rendezvous::WorkerStarted>(&message)) {
    log_->debug("{}: attempt {}: rank {} started, pid {}", host, started->attempt, started->rank,
                started->pid);
  } else if (const auto* exited = std::get_if<rendezvous::WorkerExited>(&message)) {
    log_->info("{}: attempt {}: rank {}, pid {} {}", host, exited->attempt, exited->rank, exited->pid,
               end_text(*exited));
  }
}

void JobLog::ended(std::string_view report) const {
  for (const std::string_view line : split_lines(report))
    log_->info(line);
}

}  // namespace ddp::launcher
