#include "launcher/job_writer.h"

#include <utility>

namespace ddp::launcher {
namespace {

/// All files together; below kHigh, so that many ranks with little each never look like a full disk.
constexpr std::size_t kEnough = JobWriter::kHigh / 4;
/// Buffers kept for the next bytes, and the largest that is kept.
constexpr std::size_t kSpares = 16;
constexpr std::size_t kKeptCapacity = 2 * JobWriter::kPiece;

}  // namespace

JobWriter::JobWriter(asio::any_io_executor loop, JobDir dir, std::function<void(const std::string&)> say,
                     std::function<void()> drained)
    : loop_(std::move(loop)),
      dir_(std::move(dir)),
      say_(std::move(say)),
      drained_(std::move(drained)),
      writer_([this] { write_loop(); }) {}

JobWriter::~JobWriter() {
  close();
}

JobWriter::Waiting& JobWriter::waiting_of(const OutputKey& key) {
  if (last_.second < waiting_.size() && last_.first == key) return waiting_[last_.second];
  const auto [place, fresh] = place_.try_emplace(key, waiting_.size());
  if (fresh) waiting_.push_back({key, {}});
  last_ = {key, place->second};
  return waiting_[place->second];
}

std::string& JobWriter::gathered_of(Waiting& waiting) {
  if (waiting.pieces.empty() || waiting.pieces.back().memory) {
    Piece& piece = waiting.pieces.emplace_back();
    if (!spare_.empty()) {
      piece.gathered = std::move(spare_.back());
      spare_.pop_back();
    }
  }
  return waiting.pieces.back().gathered;
}

void JobWriter::append(const OutputKey& key, std::string_view bytes) {
  std::unique_lock lock(mutex_);
  const bool first = waiting_.empty();
  Waiting& waiting = waiting_of(key);
  gathered_of(waiting) += bytes;
  added(lock, waiting, bytes.size(), first);
}

void JobWriter::append(const OutputKey& key, std::string_view bytes, std::shared_ptr<const char[]> memory) {
  std::unique_lock lock(mutex_);
  const bool first = waiting_.empty();
  Waiting& waiting = waiting_of(key);
  waiting.pieces.push_back({std::move(memory), bytes, {}});
  added(lock, waiting, bytes.size(), first);
}

/// Wakes the thread where there is reason to, without the mutex: it would only wait for it.
void JobWriter::added(std::unique_lock<std::mutex>& lock, Waiting& waiting, std::size_t bytes, bool first) {
  waiting.size += bytes;
  const std::size_t backlog = backlog_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (backlog > kHigh) was_full_ = true;
  const bool enough = waiting.size >= kPiece || backlog >= kEnough;
  const bool wake = first || (enough && !hurry_);
  hurry_ = hurry_ || enough;
  lock.unlock();
  if (wake) wake_.notify_one();
}

std::string JobWriter::file(std::uint32_t attempt, std::uint32_t rank, std::uint8_t stream) const {
  return dir_.file(attempt, rank, stream);
}

std::string JobWriter::settle(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  hurry_ = true;
  wake_.notify_one();
  const bool idle = idle_.wait_for(lock, limit, [this] { return waiting_.empty() && !writing_; });
  return idle ? dir_.finish() : std::string();
}

void JobWriter::close() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    wake_.notify_one();
  }
  if (writer_.joinable()) writer_.join();
}

void JobWriter::write_loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return closing_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    wake_.wait_for(lock, kLinger, [this] { return closing_ || hurry_; });
    Batch batch = std::exchange(waiting_, {});
    place_.clear();
    hurry_ = false;
    writing_ = true;
    lock.unlock();
    write(batch);
    lock.lock();
    writing_ = false;
    recycle(batch);
    if (waiting_.empty()) idle_.notify_all();
  }
}

void JobWriter::write(Batch& batch) {
  for (Waiting& waiting : batch) {
    for (Piece& piece : waiting.pieces) {
      for (std::string& words : dir_.write(waiting.key, piece.view(), std::chrono::steady_clock::now()))
        asio::post(loop_, [this, text = std::move(words)] { say_(text); });
      piece.memory.reset();
    }
    const std::size_t left = backlog_.fetch_sub(waiting.size, std::memory_order_relaxed) - waiting.size;
    if (left >= kLow) continue;
    const std::lock_guard lock(mutex_);
    if (std::exchange(was_full_, false)) asio::post(loop_, drained_);
  }
}

void JobWriter::recycle(Batch& batch) {
  for (Waiting& waiting : batch) {
    for (Piece& piece : waiting.pieces) {
      if (spare_.size() >= kSpares) return;
      if (piece.gathered.capacity() < 64 || piece.gathered.capacity() > kKeptCapacity) continue;
      piece.gathered.clear();
      spare_.push_back(std::move(piece.gathered));
    }
  }
}

}  // namespace ddp::launcher
