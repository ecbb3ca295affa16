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

std::string& JobWriter::waiting_of(const OutputKey& key) {
  if (last_.second < waiting_.size() && last_.first == key) return waiting_[last_.second].second;
  const auto [place, fresh] = place_.try_emplace(key, waiting_.size());
  if (fresh) {
    std::string buffer;
    if (!spare_.empty()) {
      buffer = std::move(spare_.back());
      spare_.pop_back();
    }
    waiting_.emplace_back(key, std::move(buffer));
  }
  last_ = {key, place->second};
  return waiting_[place->second].second;
}

void JobWriter::append(const OutputKey& key, std::string_view bytes) {
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    const bool first = waiting_.empty();
    std::string& waiting = waiting_of(key);
    waiting += bytes;
    const std::size_t backlog = backlog_.fetch_add(bytes.size(), std::memory_order_relaxed) + bytes.size();
    if (backlog > kHigh) was_full_ = true;
    const bool enough = waiting.size() >= kPiece || backlog >= kEnough;
    wake = first || (enough && !hurry_);
    hurry_ = hurry_ || enough;
  }
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
  for (auto& [key, bytes] : batch) {
    for (std::string& words : dir_.write(key, bytes, std::chrono::steady_clock::now()))
      asio::post(loop_, [this, text = std::move(words)] { say_(text); });
    const std::size_t left = backlog_.fetch_sub(bytes.size(), std::memory_order_relaxed) - bytes.size();
    if (left >= kLow) continue;
    const std::lock_guard lock(mutex_);
    if (std::exchange(was_full_, false)) asio::post(loop_, drained_);
  }
}

void JobWriter::recycle(Batch& batch) {
  for (auto& [key, buffer] : batch) {
    if (spare_.size() >= kSpares) return;
    if (buffer.capacity() > kKeptCapacity) continue;
    buffer.clear();
    spare_.push_back(std::move(buffer));
  }
}

}  // namespace ddp::launcher
