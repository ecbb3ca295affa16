#include "launcher/job_writer.h"

#include <utility>

namespace ddp::launcher {

JobWriter::JobWriter(asio::any_io_executor loop, JobDir dir, std::function<void(const Error&)> trouble,
                     std::function<void()> drained)
    : loop_(std::move(loop)),
      dir_(std::move(dir)),
      trouble_(std::move(trouble)),
      drained_(std::move(drained)),
      writer_([this] { write_loop(); }) {}

JobWriter::~JobWriter() {
  close();
}

void JobWriter::append(std::uint32_t attempt, std::uint32_t rank, std::uint8_t stream,
                       std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  queue_.push_back({attempt, rank, stream, std::string(bytes)});
  backlog_ += bytes.size();
  if (backlog_ > kHigh) was_full_ = true;
  wake_.notify_one();
}

bool JobWriter::full() const {
  const std::lock_guard lock(mutex_);
  return backlog_ > kHigh;
}

std::string JobWriter::file(std::uint32_t attempt, std::uint32_t rank, std::uint8_t stream) const {
  return dir_.file(attempt, rank, stream);
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
    wake_.wait(lock, [this] { return closing_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const Piece piece = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    const auto kept = dir_.append(piece.attempt, piece.rank, piece.stream, piece.bytes);
    if (!kept) {
      asio::post(loop_, [this, error = kept.error()] { trouble_(error); });
    }
    lock.lock();
    backlog_ -= piece.bytes.size();
    if (was_full_ && backlog_ < kLow) {
      was_full_ = false;
      asio::post(loop_, drained_);
    }
  }
}

}  // namespace ddp::launcher
